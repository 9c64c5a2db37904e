//! What was: counts of each second, minute and hour, the changes, the alerts, what became of canaries, and notes: what the
//! alerts and the lists of keys need after a restart.
//!
//! | spans | for | where |
//! |---|---|---|
//! | 1 s, of the 64 busiest policies; 10 s of the others | 15 min | memory |
//! | 1 min | 24 h | file |
//! | 5 min, of policies only what tells what is usual | 29 days | file |
//! | 1 h | 90 days | file |
//!
//! The [file](self::file) is `history.redb` in a folder; policies are found in it by their names, so they hold over
//! restarts. A thread [writes](self::writer) it once a minute, so a crash loses 60 seconds. Spans are added to what is
//! there, so a restart within a minute continues it, and a clock that goes back counts into the past. When the disk is
//! full or gone, counts wait in memory. The counters of limits are elsewhere and do not depend on this.
//!
//! The file has at most 64 MiB ([`file::MOST_IN_FILE`]); memory at most 4 MiB of seconds of the busiest policies, 8 KiB
//! for each other, some hundred bytes a policy for the minute that is not written yet, and 16 MiB when the disk is away.

mod codec;
mod file;
mod tiers;
mod writer;

use std::array;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use self::codec::Row;
use self::file::{Location, MOST_IN_MEMORY, MOST_STORED};
pub(crate) use self::file::{MOST_ALERTS, MOST_CANARIES, MOST_CHANGES, NoteOf};
pub(crate) use self::tiers::{DAY, MOST_POLICIES};
use self::tiers::{Deltas, SERVER, Tier, absorb};
use self::writer::{Memory, Order, Writer};
use crate::numbers::{Counts, Refused, ServerCounts, ServerSeries, Span};

/// The length of the spans that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Second,
    Minute,
    Hour,
}

impl Step {
    pub(crate) const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }

    /// Returns the finest step that reaches back for so many seconds.
    pub(crate) const fn for_last(seconds: u64) -> Self {
        match seconds {
            ..=900 => Self::Second,
            901..=86_400 => Self::Minute,
            _ => Self::Hour,
        }
    }
}

/// Whether the history is kept, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryState {
    /// Whether it is kept in a file; otherwise it ends with the process.
    pub(crate) on_disk: bool,
    /// Whether the last write succeeded.
    pub(crate) up: bool,
    /// When the oldest span began that is kept.
    pub(crate) oldest: Option<u64>,
}

/// The most points of one reading: the hours of 90 days. A day of minutes is less.
const MOST_POINTS: u64 = 90 * 24;

/// The most orders to write that wait: of operators who change what must be on disk at once, and of tests.
const MOST_ORDERS: usize = 8;

/// How long an operator waits for the disk.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

/// The history of a server. Dropping it writes what has not been written.
pub(crate) struct History {
    memory: Arc<Mutex<Memory>>,
    has_folder: bool,
    /// Its end ends the thread.
    orders: Mutex<Option<mpsc::SyncSender<Order>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl History {
    /// Opens the history of a folder; without one, begins one in memory. Blocks while the file is read: less than a
    /// second. Returns also why the file cannot be used: then counts wait in memory, and it is tried again each minute.
    pub(crate) fn open(folder: Option<&Path>, now: u64) -> (Self, Option<String>) {
        match folder {
            Some(folder) => Self::begin(Location::Folder(folder.to_owned()), MOST_STORED, now),
            None => Self::begin(Location::Memory, MOST_IN_MEMORY, now),
        }
    }

    fn begin(location: Location, most_stored: u64, now: u64) -> (Self, Option<String>) {
        let path = match &location {
            Location::Folder(folder) => Some(folder.join(file::NAME)),
            Location::Memory => None,
        };
        let memory = Arc::new(Mutex::new(Memory { now, next: 1, ..Memory::default() }));
        let writer = Writer::new(Arc::clone(&memory), location, most_stored);
        let mut why = writer.attach().err();
        let (orders, taken) = mpsc::sync_channel(MOST_ORDERS);
        let thread = thread::Builder::new()
            .name("sight-history".to_owned())
            .spawn(move || writer::run(writer, &taken))
            .map_err(|error| why = Some(format!("no thread could be started to write it: {error}")))
            .ok();
        memory.lock().up = why.is_none();
        let why = why.map(|why| match &path {
            Some(path) => format!("the history cannot be kept in `{}`: {why}", path.display()),
            None => format!("the history cannot be kept: {why}"),
        });
        let (orders, thread) = (Mutex::new(Some(orders)), Mutex::new(thread));
        (Self { memory, has_folder: path.is_some(), orders, thread }, why)
    }

    /// Adds a second, or another span within a minute. Takes some microseconds, and never waits for the disk. Times may
    /// go back and ahead: a span is added to the minute in which it began.
    pub(crate) fn push(&self, span: &Span, name_of: &dyn Fn(u16) -> Option<Arc<str>>) {
        // Before the lock, whatever the names need.
        let named = |(number, counts): &(u16, Counts)| {
            let name = name_of(*number).filter(|name| **name != *SERVER)?;
            (!counts.is_zero()).then_some((name, counts.0))
        };
        let policies: Vec<(Arc<str>, Row)> = span.policies.iter().filter_map(named).collect();
        let mut server: Row = Row::default();
        server[..ServerSeries::ALL.len()].copy_from_slice(&span.server.0);
        let mut locked = self.memory.lock();
        let memory = &mut *locked;
        memory.now = span.at;
        memory.recent.add(span.at, &server, &policies);
        memory.waiting.add(&Arc::from(SERVER), span.at, &server);
        for (name, row) in &policies {
            memory.waiting.add(name, span.at, row);
        }
        memory.bound();
    }

    /// Returns what was counted of a policy in the spans that begin from `from` on and before `to`, in their order;
    /// where nothing was counted there is no span. The last may not have ended yet. With more than 2,160 steps between
    /// the two, only the last 2,160 are read: ask with a longer step, or in parts.
    ///
    /// Seconds of policies that are not among the 64 busiest are a tenth of ten seconds.
    pub(crate) fn policy(&self, name: &str, step: Step, from: u64, to: u64) -> Vec<(u64, Counts)> {
        if name == SERVER {
            return Vec::new();
        }
        self.read(name, step, from, to).into_iter().map(|(at, row)| (at, Counts(row))).collect()
    }

    /// The same of the server. Spans in which it did not run are absent; of others, [`ServerSeries::Up`] tells for how
    /// many seconds it ran.
    pub(crate) fn server(&self, step: Step, from: u64, to: u64) -> Vec<(u64, ServerCounts)> {
        self.read(SERVER, step, from, to).into_iter().map(|(at, row)| (at, of_server(row))).collect()
    }

    fn read(&self, name: &str, step: Step, from: u64, to: u64) -> Vec<(u64, Row)> {
        let tier = match step {
            Step::Minute => Tier::Minute,
            Step::Hour => Tier::Hour,
            Step::Second => {
                let memory = self.memory.lock();
                let (from, to) = bounded(step, from, to, memory.now);
                return match name {
                    SERVER => memory.recent.read_server(from, to),
                    _ => memory.recent.read(name, from, to),
                };
            }
        };
        let now = self.memory.lock().now;
        let mut rows = self.rows(tier, name, &[bounded(step, from, to, now)]);
        // More only after a clock that was ahead.
        rows.split_off(rows.len().saturating_sub(MOST_POINTS as usize))
    }

    /// Returns what was refused in spans of five minutes that begin in some ranges of times that do not overlap, in their
    /// order: of a policy, or of the server.
    pub(crate) fn five_minutes(&self, policy: Option<&str>, ranges: &[(u64, u64)]) -> Vec<(u64, Refused)> {
        let refused = |row| if policy.is_some() { Counts(row).refused() } else { of_server(row).refused() };
        let rows = self.rows(Tier::FiveMinutes, policy.unwrap_or(SERVER), ranges);
        rows.into_iter().map(|(at, row)| (at, refused(row))).collect()
    }

    /// Reads the file, and adds what is not in it yet.
    fn rows(&self, tier: Tier, name: &str, ranges: &[(u64, u64)]) -> Vec<(u64, Row)> {
        let of = |deltas: &Deltas| -> Vec<(u64, Row)> {
            ranges.iter().flat_map(|(from, to)| deltas.read(tier, name, *from, *to)).collect()
        };
        // The parts by the number of the write that adds them to the file.
        let (file, parts) = {
            let memory = self.memory.lock();
            let mut parts = vec![(memory.next, of(&memory.waiting))];
            parts.extend(memory.writing.iter().map(|writing| (writing.number, of(&writing.deltas))));
            (memory.file.clone(), parts)
        };
        let (mut rows, mut written) = (BTreeMap::new(), 0);
        if let Some(file) = file {
            match file.read(tier, name, ranges, &mut rows) {
                Ok(number) => written = number,
                // The next write will find out why.
                Err(_) => rows.clear(),
            }
        }
        for (number, part) in parts {
            // What was written meanwhile is among the rows already.
            if number > written {
                for (at, row) in part {
                    absorb(name, rows.entry(at).or_default(), &row);
                }
            }
        }
        rows.into_iter().collect()
    }

    /// Keeps a change, a text that is not read here, under a number; a later one of the same number replaces it.
    /// The 200 of the highest numbers are kept, and at most 8 MiB. It is in the file within a minute.
    pub(crate) fn put_change(&self, number: u64, text: &str) {
        self.memory.lock().changes.put(number, Arc::from(text));
    }

    /// Returns the changes of the highest numbers, those first.
    pub(crate) fn changes(&self, most: usize) -> Vec<(u64, String)> {
        let memory = self.memory.lock();
        let newest = memory.changes.texts.iter().rev().take(most);
        newest.map(|(number, text)| (*number, String::from(&**text))).collect()
    }

    /// Keeps an alert as [`History::put_change`] keeps a change: the 1,000 of the highest numbers, and at most 2 MiB.
    pub(crate) fn put_alert(&self, number: u64, text: &str) {
        self.memory.lock().alerts.put(number, Arc::from(text));
    }

    /// Returns the alerts of the highest numbers, those first.
    pub(crate) fn alerts(&self, most: usize) -> Vec<(u64, String)> {
        let memory = self.memory.lock();
        let newest = memory.alerts.texts.iter().rev().take(most);
        newest.map(|(number, text)| (*number, String::from(&**text))).collect()
    }

    /// Keeps what became of a canary as [`History::put_change`] keeps a change: the 256 of the highest numbers, and at most
    /// 1 MiB.
    pub(crate) fn put_canary(&self, number: u64, text: &str) {
        self.memory.lock().canaries.put(number, Arc::from(text));
    }

    /// Returns what became of canaries, that of the highest numbers first.
    pub(crate) fn canaries(&self) -> Vec<(u64, String)> {
        let memory = self.memory.lock();
        let newest = memory.canaries.texts.iter().rev();
        newest.map(|(number, text)| (*number, String::from(&**text))).collect()
    }

    /// Keeps a text in place of the one before; one that is too long is not kept ([`NoteOf::most_bytes`]). It is in the file
    /// within a minute.
    pub(crate) fn put_note(&self, note: NoteOf, text: &str) {
        if text.len() <= note.most_bytes() {
            self.memory.lock().notes[note as usize].put(text);
        }
    }

    /// Takes the text that the file had when it was first opened; `None`: it was taken, there is none, or no file yet.
    pub(crate) fn found_note(&self, note: NoteOf) -> Option<Arc<str>> {
        self.memory.lock().notes[note as usize].found.take()
    }

    /// Orders what is not in the file yet to be written now, and does not wait for it.
    pub(crate) fn write_soon(&self) {
        let (done, _) = mpsc::sync_channel(1);
        // If there are too many orders, another is carried out soon.
        let _ = self.orders.lock().as_ref().map(|orders| orders.try_send(done));
    }

    /// Writes what is not in the file yet, and waits for the disk, five seconds at most. Returns whether it is written;
    /// without a folder there is nothing to write to.
    pub(crate) fn write_now(&self) -> bool {
        if !self.has_folder {
            return true;
        }
        let (done, waits) = mpsc::sync_channel::<()>(1);
        let is_sent = self.orders.lock().as_ref().is_some_and(|orders| orders.try_send(done).is_ok());
        // The order is dropped when it is done.
        is_sent
            && waits.recv_timeout(WRITTEN_WITHIN) == Err(RecvTimeoutError::Disconnected)
            && self.memory.lock().up
    }

    pub(crate) fn state(&self) -> HistoryState {
        let memory = self.memory.lock();
        let oldest = [memory.extent.oldest, memory.waiting.oldest()].into_iter().flatten().min();
        HistoryState { on_disk: self.has_folder && memory.file.is_some(), up: memory.up, oldest }
    }

    /// Returns whether the last write succeeded; `None`: the history is kept in memory only.
    pub(crate) fn is_written(&self) -> Option<bool> {
        self.has_folder.then(|| self.memory.lock().up)
    }

    /// Writes what has not been written, and lets the file go. Blocks until then. Later counts are kept in memory.
    pub(crate) fn close(&self) {
        self.orders.lock().take();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Waits until what was counted before the call is written, or could not be.
    #[cfg(test)]
    pub(crate) fn flush(&self) {
        let (done, waits) = mpsc::sync_channel(1);
        let _ = self.orders.lock().as_ref().map(|orders| orders.send(done));
        let _ = waits.recv();
    }
}

fn of_server(row: Row) -> ServerCounts {
    ServerCounts(array::from_fn(|series| row[series]))
}

/// Returns the part of a range that is read.
fn bounded(step: Step, from: u64, to: u64, now: u64) -> (u64, u64) {
    // The span that has not ended is the last, but for a clock that was ahead.
    let last = to.min(now.saturating_add(step.seconds()));
    (from.max(last.saturating_sub(MOST_POINTS * step.seconds())), to.min(now.saturating_add(DAY)))
}

impl Drop for History {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("state", &self.state()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
