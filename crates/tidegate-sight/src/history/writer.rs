//! The memory of the history, and the thread that writes it to the file, once a minute.
//!
//! The thread takes what was counted since the last write, and adds it to the file without a lock that anybody else
//! needs. If that fails, the file is opened anew; its number of the last write tells whether the counts are in it after
//! all. Until a later write succeeds, they wait in memory, up to [`MOST_WAITING`].

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::codec::Packer;
use super::file::{
    self, Extent, HistoryFile, MOST_ALERTS, MOST_ALERTS_BYTES, MOST_CHANGES, MOST_CHANGES_BYTES, NewLines,
    Place, Work,
};
use super::tiers::{Deltas, MOST_WAITING, Recent};

/// The pause between writes, also after one that failed. After a crash, at most so much is lost.
const PAUSE: Duration = Duration::from_secs(60);

/// What the history holds in memory, and the orders to its thread.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Held for microseconds: never while the file is read or written.
    pub(crate) memory: Mutex<Memory>,
    orders: Mutex<Orders>,
    wanted: Condvar,
    #[cfg(test)]
    answered: Condvar,
}

#[derive(Debug, Default)]
struct Orders {
    taken: u64,
    answered: u64,
    closing: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The time of the last span, by its clock.
    pub(crate) now: u64,
    pub(crate) recent: Recent,
    /// What the write of the number `next` will add.
    pub(crate) waiting: Deltas,
    pub(crate) next: u64,
    /// What is being written, or may have been by a write that failed.
    pub(crate) writing: Option<Writing>,
    pub(crate) file: Option<Arc<HistoryFile>>,
    pub(crate) extent: Extent,
    pub(crate) changes: Lines<MOST_CHANGES, MOST_CHANGES_BYTES>,
    pub(crate) alerts: Lines<MOST_ALERTS, MOST_ALERTS_BYTES>,
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

impl Shared {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            memory: Mutex::new(Memory { now, next: 1, ..Memory::default() }),
            orders: Mutex::default(),
            wanted: Condvar::new(),
            #[cfg(test)]
            answered: Condvar::new(),
        }
    }

    /// Makes the thread write for the last time and end.
    pub(crate) fn close(&self) {
        self.orders.lock().closing = true;
        self.wanted.notify_all();
    }

    /// Waits until what was counted before the call is written, or could not be.
    #[cfg(test)]
    pub(crate) fn flush(&self) {
        let mut orders = self.orders.lock();
        orders.taken += 1;
        let number = orders.taken;
        self.wanted.notify_all();
        while orders.answered < number {
            self.answered.wait(&mut orders);
        }
    }

    /// Waits for the next write. Returns the number that it answers, and whether it is the last.
    fn next(&self) -> (u64, bool) {
        let mut orders = self.orders.lock();
        if !orders.closing && orders.taken == orders.answered {
            self.wanted.wait_for(&mut orders, PAUSE);
        }
        (orders.taken, orders.closing)
    }

    fn answer(&self, number: u64) {
        self.orders.lock().answered = number;
        #[cfg(test)]
        self.answered.notify_all();
    }

    /// Lets the file go. It is closed when nobody reads it any longer.
    fn detach(&self) {
        let file = self.memory.lock().file.take();
        // Closing writes, so not while memory is locked.
        drop(file);
    }
}

/// Blocks are removed by their age only after so many writes, about an hour, in which the clock made no step of more
/// than an hour: one that is a year ahead must not remove what is kept.
const STEADY: u32 = 60;

const STEP: u64 = 3_600;

/// 1 January 2024: a clock that is behind it has not been set.
const SET: u64 = 1_704_067_200;

pub(crate) struct Writer {
    place: Place,
    most_stored: u64,
    packer: Packer,
    /// The writes since the last step of the clock, and the time of the last.
    steady: u32,
    before: u64,
}

impl Writer {
    pub(crate) fn new(place: Place, most_stored: u64) -> Self {
        Self { place, most_stored, packer: Packer::default(), steady: 0, before: 0 }
    }

    /// Opens the file, unless it is open.
    pub(crate) fn attach(&self, shared: &Shared) -> Result<(), String> {
        if shared.memory.lock().file.is_some() {
            return Ok(());
        }
        let opened = file::open(&self.place).map_err(|error| error.to_string())?;
        let mut locked = shared.memory.lock();
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
        memory.extent = opened.extent;
        memory.file = Some(Arc::new(opened.file));
        Ok(())
    }

    fn turn(&mut self, shared: &Shared) {
        let written = self.write(shared);
        let was_up = mem::replace(&mut shared.memory.lock().up, written.is_ok());
        match written {
            Err(reason) if was_up => {
                tracing::warn!(reason, "the history cannot be written; it goes on in memory");
            }
            Ok(()) if !was_up => tracing::info!("the history can be written again"),
            _ => {}
        }
    }

    fn write(&mut self, shared: &Shared) -> Result<(), String> {
        self.attach(shared)?;
        let Some(file) = shared.memory.lock().file.clone() else { return Ok(()) };
        if !file.is_in_place() {
            drop(file);
            shared.detach();
            return Err("somebody has removed the file".to_owned());
        }
        let (writing, changes, alerts, extent, now) = {
            let mut locked = shared.memory.lock();
            let memory = &mut *locked;
            let (changes, alerts) = (memory.changes.take_unwritten(), memory.alerts.take_unwritten());
            if memory.waiting.is_empty() && changes.new.is_empty() && alerts.new.is_empty() {
                return Ok(());
            }
            let deltas = Arc::new(mem::take(&mut memory.waiting));
            let writing = Writing { number: memory.next, deltas };
            memory.next += 1;
            memory.writing = Some(writing.clone());
            (writing, changes, alerts, memory.extent, memory.now)
        };
        let work = Work {
            number: writing.number,
            deltas: &writing.deltas,
            changes: &changes,
            alerts: &alerts,
            now: self.age_counts(now).then_some(now),
            most_stored: self.most_stored,
        };
        match file.write(&work, &mut self.packer, &extent) {
            Ok(extent) => {
                let mut memory = shared.memory.lock();
                memory.writing = None;
                memory.extent = extent;
                Ok(())
            }
            Err(error) => {
                // The engine refuses everything after an error until it is opened again.
                self.packer = Packer::default();
                drop(file);
                shared.detach();
                // If that fails too, the next turn tries again.
                let _ = self.attach(shared);
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

/// Writes until the history is closed.
pub(crate) fn run(mut writer: Writer, shared: &Shared) {
    loop {
        let (number, last) = shared.next();
        writer.turn(shared);
        shared.answer(number);
        if last {
            shared.detach();
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
