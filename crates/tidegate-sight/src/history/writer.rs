//! The memory of the history, and the thread that writes it to the file, once a minute.
//!
//! The thread takes what was counted since the last write, and adds it to the file without a lock that anybody else
//! needs. If that fails, the file is opened anew; its number of the last write tells whether the counts are in it after
//! all. Until a later write succeeds, they wait in memory, up to [`MOST_WAITING`].

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use parking_lot::Mutex;

use super::codec::Packer;
use super::file::{
    self, Extent, HistoryFile, Location, MOST_ALERTS, MOST_ALERTS_BYTES, MOST_CANARIES, MOST_CANARIES_BYTES,
    MOST_CHANGES, MOST_CHANGES_BYTES, NewLines, NoteOf, Notes, Work,
};
use super::tiers::{Deltas, LastQuarter, MOST_WAITING};

/// The pause between writes, also after one that failed. After a crash, at most so much is lost.
const PAUSE: Duration = Duration::from_secs(60);

/// An order to write at once. It is dropped when that is done.
pub(crate) type Order = mpsc::SyncSender<()>;

/// What the history holds in memory. Locked for microseconds: never while the file is read or written.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The time of the last span, by its clock.
    pub(crate) now: u64,
    pub(crate) recent: LastQuarter,
    /// What the write of the number `next` will add.
    pub(crate) waiting: Deltas,
    pub(crate) next: u64,
    /// What is being written, or may have been by a write that failed.
    pub(crate) writing: Option<Writing>,
    pub(crate) file: Option<Arc<HistoryFile>>,
    pub(crate) extent: Extent,
    pub(crate) changes: Lines<MOST_CHANGES, MOST_CHANGES_BYTES>,
    pub(crate) alerts: Lines<MOST_ALERTS, MOST_ALERTS_BYTES>,
    pub(crate) canaries: Lines<MOST_CANARIES, MOST_CANARIES_BYTES>,
    /// By [`NoteOf`].
    pub(crate) notes: [Note; NoteOf::ALL.len()],
    /// Whether the last write succeeded.
    pub(crate) up: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Writing {
    pub(crate) number: u64,
    pub(crate) deltas: Arc<Deltas>,
}

/// The newest lines of a kind, by their numbers, all in memory: at most `MOST`, and at most so many `BYTES`.
#[derive(Debug, Default)]
pub(crate) struct Lines<const MOST: usize, const BYTES: usize> {
    pub(crate) texts: BTreeMap<u64, Arc<str>>,
    bytes: usize,
    unwritten: BTreeSet<u64>,
}

impl<const MOST: usize, const BYTES: usize> Lines<MOST, BYTES> {
    pub(crate) fn put(&mut self, number: u64, text: Arc<str>) {
        self.unwritten.insert(number);
        self.keep(number, text);
    }

    fn keep(&mut self, number: u64, text: Arc<str>) {
        self.bytes += text.len();
        if let Some(before) = self.texts.insert(number, text) {
            self.bytes -= before.len();
        }
        while self.texts.len() > MOST || self.bytes > BYTES {
            let Some((oldest, text)) = self.texts.pop_first() else { return };
            self.bytes -= text.len();
            self.unwritten.remove(&oldest);
        }
    }

    /// Adds what a file has. What it lacks is to be written.
    fn found(&mut self, in_file: BTreeMap<u64, Arc<str>>) {
        let is_new = |(number, text): &(&u64, &Arc<str>)| in_file.get(*number) != Some(*text);
        self.unwritten = self.texts.iter().filter(is_new).map(|(number, _)| *number).collect();
        for (number, text) in in_file {
            if !self.texts.contains_key(&number) {
                self.keep(number, text);
            }
        }
    }

    fn take_unwritten(&mut self) -> NewLines {
        let numbers = mem::take(&mut self.unwritten);
        let new = numbers.iter().filter_map(|number| Some((*number, Arc::clone(self.texts.get(number)?))));
        let first = self.texts.first_key_value().map_or(0, |(number, _)| *number);
        NewLines { new: new.collect(), first }
    }
}

/// One text, which is replaced as a whole.
#[derive(Debug, Default)]
pub(crate) struct Note {
    text: Option<Arc<str>>,
    is_unwritten: bool,
    /// What the file had when it was first opened, until somebody takes it.
    pub(crate) found: Option<Arc<str>>,
    was_read: bool,
}

impl Note {
    pub(crate) fn put(&mut self, text: &str) {
        if self.text.as_deref() != Some(text) {
            self.text = Some(Arc::from(text));
            self.is_unwritten = true;
        }
    }

    /// Learns what a file has that was opened. What is newer here is to be written.
    fn found(&mut self, in_file: Option<Arc<str>>) {
        self.is_unwritten = self.text.is_some() && self.text != in_file;
        // Later it has what was put here, or what could not be replaced.
        if !self.was_read {
            (self.was_read, self.found) = (true, in_file);
        }
    }

    fn take_unwritten(&mut self) -> Option<Arc<str>> {
        let is_unwritten = mem::take(&mut self.is_unwritten);
        self.text.clone().filter(|_| is_unwritten)
    }
}

/// Blocks are removed by their age only after so many writes, about an hour, in which the clock made no step of more
/// than an hour: one that is a year ahead must not remove what is kept.
const STEADY: u32 = 60;

const STEP: u64 = 3_600;

/// 1 January 2024: a clock that is behind it has not been set.
const SET: u64 = 1_704_067_200;

pub(crate) struct Writer {
    memory: Arc<Mutex<Memory>>,
    location: Location,
    most_stored: u64,
    packer: Packer,
    /// The writes since the last step of the clock, and the time of the last.
    steady: u32,
    before: u64,
}

impl Writer {
    pub(crate) fn new(memory: Arc<Mutex<Memory>>, location: Location, most_stored: u64) -> Self {
        Self { memory, location, most_stored, packer: Packer::default(), steady: 0, before: 0 }
    }

    /// Opens the file, unless it is open.
    pub(crate) fn attach(&self) -> Result<(), String> {
        if self.memory.lock().file.is_some() {
            return Ok(());
        }
        let opened = file::open(&self.location).map_err(|error| error.to_string())?;
        let mut locked = self.memory.lock();
        let memory = &mut *locked;
        if let Some(writing) = memory.writing.take()
            && writing.number > opened.written
        {
            memory.waiting.add_all(&writing.deltas);
        }
        memory.bound();
        memory.next = opened.written.saturating_add(1);
        memory.changes.found(opened.changes);
        memory.alerts.found(opened.alerts);
        memory.canaries.found(opened.canaries);
        for (note, in_file) in memory.notes.iter_mut().zip(opened.notes) {
            note.found(in_file);
        }
        memory.extent = opened.extent;
        memory.file = Some(Arc::new(opened.file));
        Ok(())
    }

    /// Lets the file go. It is closed when nobody reads it any longer.
    fn detach(&self) {
        let file = self.memory.lock().file.take();
        // Closing writes, so not while memory is locked.
        drop(file);
    }

    fn turn(&mut self) {
        let written = self.write();
        let was_up = mem::replace(&mut self.memory.lock().up, written.is_ok());
        match written {
            Err(reason) if was_up => {
                tracing::warn!(reason, "the history cannot be written; it goes on in memory");
            }
            Ok(()) if !was_up => tracing::info!("the history can be written again"),
            _ => {}
        }
    }

    fn write(&mut self) -> Result<(), String> {
        self.attach()?;
        let Some(file) = self.memory.lock().file.clone() else { return Ok(()) };
        if !file.is_in_place() {
            drop(file);
            self.detach();
            return Err("somebody has removed the file".to_owned());
        }
        let (writing, [changes, alerts, canaries], notes, extent, now) = {
            let mut locked = self.memory.lock();
            let memory = &mut *locked;
            let lines = [
                memory.changes.take_unwritten(),
                memory.alerts.take_unwritten(),
                memory.canaries.take_unwritten(),
            ];
            let notes: Notes = memory.notes.each_mut().map(Note::take_unwritten);
            let has_lines = lines.iter().any(|lines| !lines.new.is_empty());
            if memory.waiting.is_empty() && !has_lines && notes.iter().all(Option::is_none) {
                return Ok(());
            }
            let deltas = Arc::new(mem::take(&mut memory.waiting));
            let writing = Writing { number: memory.next, deltas };
            memory.next += 1;
            memory.writing = Some(writing.clone());
            (writing, lines, notes, memory.extent, memory.now)
        };
        let work = Work {
            number: writing.number,
            deltas: &writing.deltas,
            changes: &changes,
            alerts: &alerts,
            canaries: &canaries,
            notes: &notes,
            now: self.age_counts(now).then_some(now),
            most_stored: self.most_stored,
        };
        match file.write(&work, &mut self.packer, &extent) {
            Ok(extent) => {
                let mut memory = self.memory.lock();
                memory.writing = None;
                memory.extent = extent;
                Ok(())
            }
            Err(error) => {
                // The engine refuses everything after an error until it is opened again.
                self.packer = Packer::default();
                drop(file);
                self.detach();
                // If that fails too, the next turn tries again.
                let _ = self.attach();
                Err(error.to_string())
            }
        }
    }

    fn age_counts(&mut self, now: u64) -> bool {
        self.steady = if self.before.abs_diff(now) > STEP { 0 } else { self.steady.saturating_add(1) };
        self.before = now;
        self.steady >= STEADY && now >= SET
    }
}

/// Writes until the history is closed: until nobody can give orders.
pub(crate) fn run(mut writer: Writer, orders: &mpsc::Receiver<Order>) {
    loop {
        let order = orders.recv_timeout(PAUSE);
        writer.turn();
        if matches!(order, Err(RecvTimeoutError::Disconnected)) {
            writer.detach();
            return;
        }
    }
}

impl Memory {
    /// Drops the oldest of what waits, if that has become too much.
    pub(crate) fn bound(&mut self) {
        self.waiting.trim(MOST_WAITING);
    }
}
