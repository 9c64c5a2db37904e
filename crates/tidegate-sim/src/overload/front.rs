//! What stands in front of a simulated service: a limit, a throttle, a line, and who is shed.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use tidegate::{Outcome, Priority, Tick};
use tidegate_core::concurrency::{Law, Sample, Signal};
use tidegate_core::throttle::{Arrival, Room, Throttle};

/// What is decided of one who arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Enters,
    Waits,
    Refused,
}

/// A law with its state.
pub(super) trait Limit: Debug {
    fn limit(&self) -> u64;
    fn learn(&mut self, sample: &Sample);
    fn sense(&mut self, at: Tick, signal: Signal);
}

/// A throttle with its state.
pub(super) trait Gatekeeper: Debug {
    fn admit(&mut self, arrival: &Arrival) -> bool;
    fn learn(&mut self, at: Tick, latency: Duration, outcome: Outcome);
    fn sense(&mut self, at: Tick, room: Room);
}

#[derive(Debug)]
struct With<P, S> {
    parameters: P,
    state: S,
}

impl<L: Law> Limit for With<L, L::State> {
    fn limit(&self) -> u64 {
        self.parameters.limit(&self.state)
    }

    fn learn(&mut self, sample: &Sample) {
        self.parameters.learn(&mut self.state, sample);
    }

    fn sense(&mut self, at: Tick, signal: Signal) {
        self.parameters.sense(&mut self.state, at, signal);
    }
}

impl<T: Throttle> Gatekeeper for With<T, T::State> {
    fn admit(&mut self, arrival: &Arrival) -> bool {
        self.parameters.admit(&mut self.state, arrival)
    }

    fn learn(&mut self, at: Tick, latency: Duration, outcome: Outcome) {
        self.parameters.learn(&mut self.state, at, latency, outcome);
    }

    fn sense(&mut self, at: Tick, room: Room) {
        self.parameters.sense(&mut self.state, at, room);
    }
}

/// What a protection is made of; each part may be missing.
#[derive(Debug, Default)]
pub struct Front {
    limit: Option<Box<dyn Limit>>,
    fixed: Option<u64>,
    throttle: Option<Box<dyn Gatekeeper>>,
    lines_up: bool,
    in_flight: u64,
    line: BTreeMap<(Reverse<Priority>, Reverse<u32>), ()>,
    /// A slow mean of how long those inside take, in nanoseconds.
    latency: f64,
}

impl Front {
    /// Everyone enters.
    #[must_use]
    pub fn open() -> Self {
        Self::default()
    }

    /// At most so many are inside; all others are refused at once.
    #[must_use]
    pub fn fixed(limit: u64) -> Self {
        Self { fixed: Some(limit), ..Self::default() }
    }

    /// A law moves the limit.
    #[must_use]
    pub fn law<L: Law + 'static>(parameters: L) -> Self
    where
        L::State: 'static,
    {
        let state = parameters.start(Tick::EPOCH);
        Self { limit: Some(Box::new(With { parameters, state })), ..Self::default() }
    }

    /// A throttle refuses a share of the arrivals.
    #[must_use]
    pub fn throttled<T: Throttle + 'static>(self, parameters: T) -> Self
    where
        T::State: 'static,
    {
        let state = parameters.start(Tick::EPOCH);
        Self { throttle: Some(Box::new(With { parameters, state })), ..self }
    }

    /// Whoever finds no place waits in a short line: the most important first, then the newest; as many as may be inside, and no
    /// longer than those inside take.
    #[must_use]
    pub fn with_line(self) -> Self {
        Self { lines_up: true, ..self }
    }

    /// Returns how many may be inside; `u64::MAX` for any number.
    #[must_use]
    pub fn limit_now(&self) -> u64 {
        self.limit.as_ref().map(|limit| limit.limit()).or(self.fixed).unwrap_or(u64::MAX)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Decides about one who arrives. A second value is somebody who was waiting and has to go.
    pub(super) fn arrive(
        &mut self,
        now: u64,
        call: u32,
        priority: Priority,
        draw: u32,
    ) -> (Verdict, Option<u32>) {
        let at = Tick::from_nanos(now);
        if let Some(throttle) = &mut self.throttle
            && !throttle.admit(&Arrival { at, priority, draw })
        {
            return (Verdict::Refused, None);
        }
        if self.in_flight < self.limit_now() {
            self.in_flight += 1;
            return (Verdict::Enters, None);
        }
        if !self.lines_up {
            return (Verdict::Refused, None);
        }
        self.line.insert((Reverse(priority), Reverse(call)), ());
        if self.line.len() as u64 <= self.limit_now() {
            return (Verdict::Waits, None);
        }
        // The least important goes, the longest waiting first.
        let last = self.line.pop_last().map(|((_, Reverse(last)), ())| last);
        self.turned_away(now);
        if last == Some(call) { (Verdict::Refused, None) } else { (Verdict::Waits, last) }
    }

    /// Returns how long one who begins to wait now may wait, in nanoseconds.
    pub(super) fn patience(&self) -> u64 {
        (self.latency as u64 / 2).clamp(5_000_000, 1_000_000_000)
    }

    /// Ends the wait of one whose patience is over; `false` if they no longer wait.
    pub(super) fn give_up(&mut self, now: u64, call: u32, priority: Priority) -> bool {
        let waited = self.line.remove(&(Reverse(priority), Reverse(call))).is_some();
        if waited {
            self.turned_away(now);
        }
        waited
    }

    /// Lets the next of the line in, if there is a place.
    pub(super) fn next(&mut self, now: u64) -> Option<u32> {
        if self.line.is_empty() {
            self.look(now);
            return None;
        }
        if self.in_flight >= self.limit_now() {
            return None;
        }
        let ((_, Reverse(call)), ()) = self.line.pop_first()?;
        self.in_flight += 1;
        Some(call)
    }

    /// Takes in that one who was inside has left.
    pub(super) fn leave(&mut self, sample: &Sample) {
        self.in_flight -= 1;
        let latency = sample.latency.as_nanos() as f64;
        self.latency =
            if self.latency == 0.0 { latency } else { self.latency + (latency - self.latency) / 32.0 };
        if let Some(limit) = &mut self.limit {
            limit.learn(sample);
        }
    }

    /// Takes in how admitted work ended for its caller, who may have stopped waiting.
    pub(super) fn settled(&mut self, now: u64, latency: u64, outcome: Outcome) {
        if let Some(throttle) = &mut self.throttle {
            throttle.learn(Tick::from_nanos(now), Duration::from_nanos(latency), outcome);
        }
    }

    /// Takes in how busy the processors were, and tells the throttle how the places stand.
    pub(super) fn sense(&mut self, now: u64, signal: Signal) {
        if let Some(limit) = &mut self.limit {
            limit.sense(Tick::from_nanos(now), signal);
        }
        self.look(now);
    }

    fn look(&mut self, now: u64) {
        let free = self.limit_now().saturating_sub(self.in_flight);
        let room = Room { free, waiting: self.line.len() as u64 };
        if let Some(throttle) = &mut self.throttle {
            throttle.sense(Tick::from_nanos(now), room);
        }
    }

    /// Somebody whom the throttle let in found no room.
    fn turned_away(&mut self, now: u64) {
        self.settled(now, 0, Outcome::Overloaded);
    }
}
