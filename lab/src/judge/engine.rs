//! The machine of a simulated service: slots, a queue for them, cores that those at work share, and what disturbs them.
//!
//! All at work progress at the same pace, which depends on how many they are. So one sum, the work that each of them
//! has got since the start, tells when each is done: when the sum has grown by its own work.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;

use super::service::{CpuQuota, Job, Service, Step, nanos};
use crate::event_queue::Agenda;

/// Work that is less than a ten-billionth of a second away from its end is done: a sum of times is not exact.
const NEAR: f64 = 1e-10;

/// A request that is inside, or was: slots of the table are used again, each time with another turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) slot: u32,
    pub(super) turn: u32,
}

/// What the machine does at a time that it knew before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moment {
    /// The wait before the work is over.
    Ready(Key),
    /// A request that hung is over.
    Over(Key),
    /// A request has waited for a slot for as long as the service lets it.
    Waited(Key),
}

/// How a request left the machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Left {
    Done(Key),
    /// It got no slot in time.
    TurnedAway(Key),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    Waits,
    InLine,
    /// It waits or hangs, and holds a slot.
    Blocked,
    AtWork,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    turn: u32,
    place: Place,
    work: f64,
    /// The nanoseconds for which it holds a slot before it works.
    blocked: u64,
}

pub(super) struct Engine<'s> {
    service: &'s Service,
    steps: &'s [Step],
    step: usize,
    now: u64,
    /// The work that each one at work has got, if it was there from the start.
    got: f64,
    pieces: Vec<Piece>,
    /// When each is done, as the bits of `got` by then: for positive numbers they have the order of the numbers. Those
    /// that were given up are still in it.
    ends: BinaryHeap<Reverse<(u64, Key)>>,
    /// Those that were given up are still in it.
    line: VecDeque<Key>,
    /// When each of the blocked goes on. Those that were given up are still in it.
    blocked: BinaryHeap<Reverse<(u64, Key)>>,
    /// How many hold a slot, and how many of them are not blocked.
    held: usize,
    busy: usize,
    inside: usize,
    most_held: usize,
    stopped_until: u64,
    since_pause: u32,
    since_flush: f64,
    cpu_used: f64,
    period_ends: u64,
}

impl<'s> Engine<'s> {
    pub(super) fn new(service: &'s Service, steps: &'s [Step]) -> Self {
        Self {
            service,
            steps,
            step: 0,
            now: 0,
            got: 0.0,
            pieces: Vec::new(),
            ends: BinaryHeap::new(),
            line: VecDeque::new(),
            blocked: BinaryHeap::new(),
            held: 0,
            busy: 0,
            inside: 0,
            most_held: 0,
            stopped_until: 0,
            since_pause: 0,
            since_flush: 0.0,
            cpu_used: 0.0,
            period_ends: service.quota.map_or(u64::MAX, |quota| nanos(quota.period)),
        }
    }

    pub(super) const fn inside(&self) -> usize {
        self.inside
    }

    /// Returns how many held a slot at once, at most.
    pub(super) const fn most_held(&self) -> usize {
        self.most_held
    }

    /// Takes a request in, at the time of the last call of [`Engine::advance`].
    pub(super) fn enter<E: From<Moment>>(&mut self, key: Key, job: Job, agenda: &mut Agenda<E>) {
        let slot = key.slot as usize;
        if self.pieces.len() <= slot {
            self.pieces.resize(slot + 1, Piece { turn: 0, place: Place::Nowhere, work: 0.0, blocked: 0 });
        }
        self.pieces[slot] = Piece { turn: key.turn, place: Place::Waits, work: job.work, blocked: 0 };
        self.inside += 1;
        if self.service.blocks {
            let piece = &mut self.pieces[slot];
            piece.blocked = job.hangs.unwrap_or(job.wait);
            if job.hangs.is_some() {
                piece.work = NEAR;
            }
            return self.line_up(key, agenda);
        }
        match job.hangs {
            Some(lasts) => agenda.put(self.now.saturating_add(lasts), Moment::Over(key).into()),
            None if job.wait > 0 => agenda.put(self.now + job.wait, Moment::Ready(key).into()),
            None => self.line_up(key, agenda),
        }
    }

    /// Does what was due at the time of the last call of [`Engine::advance`].
    pub(super) fn happen<E: From<Moment>>(&mut self, moment: Moment, agenda: &mut Agenda<E>) -> Option<Left> {
        match moment {
            Moment::Ready(key) => {
                if self.is(key, Place::Waits) {
                    self.line_up(key, agenda);
                }
                None
            }
            Moment::Over(key) => self.is(key, Place::Waits).then(|| {
                self.give_up(key);
                Left::Done(key)
            }),
            Moment::Waited(key) => self.is(key, Place::InLine).then(|| {
                self.give_up(key);
                Left::TurnedAway(key)
            }),
        }
    }

    /// Takes a request out, wherever it is.
    pub(super) fn give_up(&mut self, key: Key) {
        let piece = &mut self.pieces[key.slot as usize];
        if piece.turn != key.turn || piece.place == Place::Nowhere {
            return;
        }
        let left = mem::replace(&mut piece.place, Place::Nowhere);
        self.inside -= 1;
        if left == Place::AtWork {
            self.busy -= 1;
        }
        if matches!(left, Place::AtWork | Place::Blocked) {
            self.held -= 1;
            self.fill();
        }
    }

    /// Moves the time forward. Nothing must have been due in between, as [`Engine::next_change`] says.
    pub(super) fn advance(&mut self, to: u64) {
        let span = to.saturating_sub(self.now) as f64 / 1e9;
        let pace = self.pace();
        if pace > 0.0 {
            self.got += pace * span;
            self.cpu_used += self.cores_used() * span;
        }
        self.now = to;
        while self.steps.get(self.step + 1).is_some_and(|next| next.at <= to) {
            self.step += 1;
            self.fill();
        }
        while let Some(&Reverse((at, key))) = self.blocked.peek()
            && at <= to
        {
            self.blocked.pop();
            if self.is(key, Place::Blocked) {
                self.begin_work(key);
            }
        }
        if let Some(quota) = self.service.quota {
            while self.period_ends <= to {
                self.period_ends += nanos(quota.period);
                self.cpu_used = 0.0;
            }
        }
    }

    /// Returns when something changes if nobody comes or goes before. The time is later than that of the last
    /// [`Engine::advance`] if [`Engine::take_done`] has returned `None` since.
    pub(super) fn next_change(&mut self) -> Option<u64> {
        if self.held == 0 {
            return None;
        }
        let mut next = self.blocked.peek().map_or(u64::MAX, |&Reverse((at, _))| at);
        if let Some(step) = self.steps.get(self.step + 1) {
            next = next.min(step.at);
        }
        if self.busy == 0 {
            return Some(next);
        }
        if self.stopped_until > self.now {
            next = next.min(self.stopped_until);
        }
        let pace = self.pace();
        if let Some(quota) = self.service.quota {
            next = next.min(self.period_ends);
            if pace > 0.0 {
                next = next.min(self.after((quota.cpu - self.cpu_used) / self.cores_used()));
            }
        }
        if pace > 0.0 {
            let end = self.first_end()?;
            next = next.min(self.after((end - self.got) / pace));
        }
        Some(next)
    }

    /// Takes a request that is done out; `None` if none is done yet.
    pub(super) fn take_done(&mut self) -> Option<Left> {
        if self.first_end()? > self.got + NEAR {
            return None;
        }
        let Reverse((_, key)) = self.ends.pop()?;
        self.give_up(key);
        if self.service.flush.is_some_and(|flush| self.now >= nanos(flush.at)) {
            self.since_flush += 1.0;
        }
        if let Some(pauses) = self.service.pauses {
            self.since_pause += 1;
            if self.since_pause >= pauses.every {
                self.since_pause = 0;
                let lasts = pauses.least + pauses.each_inside * self.inside as f64;
                self.stopped_until = self.now + nanos(lasts);
            }
        }
        Some(Left::Done(key))
    }

    fn after(&self, seconds: f64) -> u64 {
        // The cast saturates.
        self.now.saturating_add((seconds.max(0.0) * 1e9).ceil() as u64)
    }

    fn is(&self, key: Key, place: Place) -> bool {
        let piece = self.pieces[key.slot as usize];
        piece.turn == key.turn && piece.place == place
    }

    /// Returns the first end of work that was not given up, as a value of `got`.
    fn first_end(&mut self) -> Option<f64> {
        loop {
            let Reverse((bits, key)) = *self.ends.peek()?;
            if self.is(key, Place::AtWork) {
                return Some(f64::from_bits(bits));
            }
            self.ends.pop();
        }
    }

    fn line_up<E: From<Moment>>(&mut self, key: Key, agenda: &mut Agenda<E>) {
        if self.held < self.slots() {
            return self.start(key);
        }
        self.pieces[key.slot as usize].place = Place::InLine;
        self.line.push_back(key);
        if self.service.longest_queue < f64::INFINITY {
            agenda.put(self.now + nanos(self.service.longest_queue), Moment::Waited(key).into());
        }
    }

    /// Gives a request a slot.
    fn start(&mut self, key: Key) {
        self.held += 1;
        self.most_held = self.most_held.max(self.held);
        let piece = &mut self.pieces[key.slot as usize];
        if piece.blocked == 0 {
            return self.begin_work(key);
        }
        piece.place = Place::Blocked;
        self.blocked.push(Reverse((self.now.saturating_add(piece.blocked), key)));
    }

    fn begin_work(&mut self, key: Key) {
        let flushed = self.service.flush.filter(|flush| self.now >= nanos(flush.at));
        let slower = flushed.map_or(1.0, |flush| flush.slower(self.since_flush));
        let piece = &mut self.pieces[key.slot as usize];
        piece.place = Place::AtWork;
        self.ends.push(Reverse(((self.got + piece.work * slower).to_bits(), key)));
        self.busy += 1;
    }

    /// Gives free slots to those in line.
    fn fill(&mut self) {
        while self.held < self.slots() {
            let Some(key) = self.line.pop_front() else { return };
            if self.is(key, Place::InLine) {
                self.start(key);
            }
        }
    }

    /// Returns the part of the slots and cores that is there now.
    fn size(&self) -> f64 {
        self.steps.get(self.step).map_or(1.0, |step| step.size)
    }

    fn slots(&self) -> usize {
        (self.service.slots as f64 * self.size()).round() as usize
    }

    /// Returns the cores in use while the machine is not stopped.
    fn cores_used(&self) -> f64 {
        (self.service.cores * self.size()).min(self.busy as f64)
    }

    /// Returns how much work each one at work gets in a second.
    fn pace(&self) -> f64 {
        let is_out = |quota: CpuQuota| self.cpu_used >= quota.cpu - NEAR;
        if self.busy == 0 || self.now < self.stopped_until || self.service.quota.is_some_and(is_out) {
            return 0.0;
        }
        let speed = self.steps.get(self.step).map_or(1.0, |step| step.speed);
        let share = self.cores_used() / self.busy as f64;
        speed * share * self.service.drag.speed(self.busy, self.inside)
    }
}
