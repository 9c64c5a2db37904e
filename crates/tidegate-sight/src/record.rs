//! The record of refusals, which outlives the process: what an operator asks about days later.
//!
//! Not every refusal is recorded, or a flood would push out what people ask about. All are up to 50 a second; beyond,
//! of each key one a minute, of new keys so many. A key that is refused minute after minute has its record whatever
//! floods: the last part of the queue and half of the file are for such keys. [`Sample`] says which are wanted before
//! anything is copied. Those that are recorded wait in memory; a thread writes them to the [file](self::file),
//! `record.redb` beside the history, at most once a second. Nobody waits for the disk: when the queue is full, or the disk
//! is gone, refusals are left out and counted, and whoever asks for one of them is told.

mod file;
mod sample;

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidegate_server::{Recalled, RefusalRecord};

use self::file::{Batch, MOST_CONFIGURATIONS, RecordFile};
use self::sample::Sample;

/// The pause between writes.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause after writes that failed: opening the file again reads all of it.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The most refusals that wait for a write, and the most bytes of them: some seconds of the busiest server, and of a disk
/// that hangs.
const MOST_WAITING: usize = 2_048;
const MOST_WAITING_BYTES: usize = 4 << 20;

/// Of which so many are for any key; the others are for those that are refused minute after minute.
const CROWDED: usize = MOST_WAITING / 4 * 3;
const CROWDED_BYTES: usize = MOST_WAITING_BYTES / 4 * 3;

/// Dropping it writes what has not been written.
pub(crate) struct Record {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    folder: PathBuf,
    /// In milliseconds since 1970.
    started: u64,
    /// Tells the configurations of this run from those of others: the start, or one more than the last run in the file if
    /// the clock was set back since. 0 until the file is open.
    run: AtomicU64,
    sample: Sample,
    /// Held for microseconds: never while the file is read or written.
    memory: Mutex<Memory>,
    /// Held for a write.
    writes: Mutex<()>,
    /// Notified when the first refusal waits, and at the end.
    wanted: Condvar,
    /// Notified at the end.
    ends: Condvar,
}

#[derive(Default)]
struct Memory {
    waiting: Vec<RefusalRecord>,
    waiting_bytes: usize,
    /// What is being written.
    writing: Option<Arc<Batch>>,
    file: Option<Arc<RecordFile>>,
    /// The latest configurations of this run, packed: 4 MiB at most.
    configurations: BTreeMap<u64, Arc<[u8]>>,
    /// Whether the last write succeeded.
    up: bool,
    closing: bool,
}

impl Record {
    /// Opens the record of a folder. Blocks while the file is read: less than a second. Returns also why it cannot be used:
    /// then refusals wait in memory, as far as there is room, and it is tried again, each minute at least.
    pub(crate) fn open(folder: &Path, now_ms: u64) -> (Self, Option<String>) {
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            started: now_ms,
            run: AtomicU64::new(0),
            sample: Sample::new(),
            memory: Mutex::default(),
            writes: Mutex::default(),
            wanted: Condvar::new(),
            ends: Condvar::new(),
        });
        let mut why = shared.attach().err();
        shared.memory.lock().up = why.is_none();
        let writes = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("sight-record".to_owned())
            .spawn(move || writes.run())
            .map_err(|error| why = Some(format!("no thread could be started to write it: {error}")))
            .ok();
        let path = folder.join(file::NAME);
        let why = why.map(|why| format!("refusals cannot be recorded in `{}`: {why}", path.display()));
        (Self { shared, thread: Mutex::new(thread) }, why)
    }

    /// Returns whether a refusal is to be recorded. `key` stands for the key and its policy, `at_ns` is in nanoseconds, by
    /// any clock. Takes some nanoseconds, and no lock.
    pub(crate) fn wants(&self, key: u64, at_ns: u64) -> bool {
        self.shared.sample.wants(key, at_ns)
    }

    /// Takes a refusal. Takes some microseconds, and never waits for the disk.
    pub(crate) fn push(&self, record: RefusalRecord) {
        let mut locked = self.shared.memory.lock();
        let memory = &mut *locked;
        if !memory.takes(record) {
            self.shared.sample.set_full(true);
            self.shared.sample.count_full();
            return;
        }
        if memory.is_crowded() {
            self.shared.sample.set_crowded(true);
        }
        if memory.waiting.len() == 1 {
            self.shared.wanted.notify_all();
        }
    }

    /// Learns the policies of a configuration of this run. Packs them, which takes some milliseconds for thousands. A text
    /// that is too long for the file is not kept.
    pub(crate) fn configured(&self, number: u64, policies: &str) {
        let Some(packed) = file::packed_configuration(policies) else { return };
        let mut memory = self.shared.memory.lock();
        memory.configurations.insert(number, packed);
        while memory.configurations.len() > MOST_CONFIGURATIONS {
            memory.configurations.pop_first();
        }
    }

    /// Returns what is recorded of a refusal. Reads the disk.
    pub(crate) fn recall(&self, id: u128, key: Option<&str>) -> Recalled {
        let (waits, file) = {
            let memory = self.shared.memory.lock();
            let being_written = memory.writing.iter().flat_map(|batch| &batch.records);
            let found = memory.waiting.iter().chain(being_written).find(|record| record.id == id);
            let waits = found.map(|record| {
                (record.text.clone(), memory.configurations.get(&record.configuration).cloned())
            });
            (waits, memory.file.clone())
        };
        if let Some((text, packed)) = waits {
            let policies = packed.and_then(|packed| file::unpacked_configuration(&packed));
            return Recalled::Found { text, policies };
        }
        let missing = |why: String| Recalled::Missing { why, nearest: None };
        match file {
            None => missing("the file of the record cannot be used at present".to_owned()),
            Some(file) => file
                .read(id, key)
                .unwrap_or_else(|error| missing(format!("the file of the record cannot be read: {error}"))),
        }
    }

    /// Writes what waits, and lets the file go. Blocks until then. Later refusals are left out.
    pub(crate) fn close(&self) {
        self.shared.memory.lock().closing = true;
        self.shared.wanted.notify_all();
        self.shared.ends.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}

impl Memory {
    /// Adds a refusal to those that wait, if there is room.
    fn takes(&mut self, record: RefusalRecord) -> bool {
        let bytes = weight(&record);
        if self.waiting.len() >= MOST_WAITING || self.waiting_bytes + bytes > MOST_WAITING_BYTES {
            return false;
        }
        self.waiting_bytes += bytes;
        self.waiting.push(record);
        true
    }

    fn is_crowded(&self) -> bool {
        self.waiting.len() >= CROWDED || self.waiting_bytes >= CROWDED_BYTES
    }
}

/// The bytes that a refusal counts for.
fn weight(record: &RefusalRecord) -> usize {
    size_of::<RefusalRecord>() + record.key.len() + record.text.len()
}

impl Shared {
    /// Writes until the record is closed.
    fn run(&self) {
        let mut pause = PAUSE;
        loop {
            let last = {
                let mut memory = self.memory.lock();
                while memory.waiting.is_empty() && !memory.closing {
                    self.wanted.wait(&mut memory);
                }
                memory.closing
            };
            pause = if self.turn() { PAUSE } else { (2 * pause).min(LONGEST_PAUSE) };
            let mut memory = self.memory.lock();
            if last {
                let file = memory.file.take();
                drop(memory);
                // Closing writes, so not while memory is locked.
                drop(file);
                return;
            }
            if !memory.closing {
                self.ends.wait_for(&mut memory, pause);
            }
        }
    }

    /// Writes what waits, and tells the log when that begins or ends to fail. Returns whether it succeeded.
    fn turn(&self) -> bool {
        let _turn = self.writes.lock();
        let written = self.write();
        let is_up = written.is_ok();
        let was_up = mem::replace(&mut self.memory.lock().up, is_up);
        match written {
            Err(reason) if was_up => tracing::warn!(reason, "refusals cannot be recorded on disk"),
            Ok(()) if !was_up => tracing::info!("refusals can be recorded on disk again"),
            _ => {}
        }
        is_up
    }

    /// Opens the file, unless it is open.
    fn attach(&self) -> Result<(), String> {
        if self.memory.lock().file.is_none() {
            let file = RecordFile::open(&self.folder).map_err(|error| error.to_string())?;
            // Relaxed: whoever writes has opened the file, in his turn.
            if self.run.load(Ordering::Relaxed) == 0 {
                let run = self.started.max(file.newest_run().saturating_add(1));
                self.run.store(run, Ordering::Relaxed);
            }
            self.memory.lock().file = Some(Arc::new(file));
        }
        Ok(())
    }

    fn write(&self) -> Result<(), String> {
        self.attach()?;
        let Some(file) = self.memory.lock().file.clone() else { return Ok(()) };
        if !file.is_in_place() {
            self.detach(file);
            return Err("somebody has removed the file".to_owned());
        }
        let batch = {
            let mut locked = self.memory.lock();
            let memory = &mut *locked;
            if memory.waiting.is_empty() {
                return Ok(());
            }
            let records = mem::take(&mut memory.waiting);
            memory.waiting_bytes = 0;
            self.sample.set_full(false);
            self.sample.set_crowded(false);
            let named = |number: &u64| records.iter().any(|record| record.configuration == *number);
            let configurations = memory.configurations.iter().filter(|(number, _)| named(number));
            let configurations = configurations.map(|(number, text)| (*number, Arc::clone(text))).collect();
            let run = self.run.load(Ordering::Relaxed);
            let batch = Arc::new(Batch { run, configurations, left_out: self.sample.take(), records });
            memory.writing = Some(Arc::clone(&batch));
            batch
        };
        let written = file.write(&batch);
        let mut locked = self.memory.lock();
        locked.writing = None;
        let Err(error) = written else { return Ok(()) };
        // They are tried once more, with what has come meanwhile, as far as there is room.
        let memory = &mut *locked;
        let newer = mem::take(&mut memory.waiting);
        memory.waiting_bytes = 0;
        for record in batch.records.iter().cloned().chain(newer) {
            if !memory.takes(record) {
                self.sample.count_full();
            }
        }
        self.sample.set_crowded(memory.is_crowded());
        self.sample.give_back(&batch.left_out);
        drop(locked);
        // The engine refuses everything after an error until it is opened again.
        self.detach(file);
        Err(error.to_string())
    }

    fn detach(&self, file: Arc<RecordFile>) {
        let held = self.memory.lock().file.take();
        drop((held, file));
    }
}

#[cfg(test)]
mod tests;
