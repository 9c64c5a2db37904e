//! A throttle in front of the queue: it refuses some callers on arrival, before they take a place or wait for one.

use std::fmt;
use std::time::Duration;

use tidegate_core::throttle::{Arrival, Room, Throttle};
use tidegate_core::{Outcome, Priority, Tick};

use crate::rng::Rng;
use crate::sync::Mutex;

/// The seed of the random draws. It is fixed, so that the same arrivals get the same answers in every process and every
/// replay.
const SEED: u64 = 0;

/// A throttle and its state.
pub(super) struct Throttling {
    /// Held while the throttle is asked or given an outcome. No other lock is taken while it is held.
    throttle: Mutex<Box<dyn ErasedThrottle>>,
    draws: Rng,
}

impl Throttling {
    pub(super) fn new<T>(throttle: T, now: Tick) -> Self
    where
        T: Throttle + Send + 'static,
        T::State: Send,
    {
        let state = throttle.start(now);
        Self::with(Box::new(ThrottleWithState { throttle, state }))
    }

    fn with(throttle: Box<dyn ErasedThrottle>) -> Self {
        Self { throttle: Mutex::new(throttle), draws: Rng::seeded(SEED) }
    }

    /// Returns the same throttle in its initial state.
    pub(super) fn restarted(&self, now: Tick) -> Self {
        Self::with(self.throttle.lock().restarted(now))
    }

    /// Says whether the throttle admits an arrival.
    pub(super) fn admits(&self, at: Tick, priority: Priority) -> bool {
        let draw = self.draws.next();
        self.throttle.lock().admit(&Arrival { at, priority, draw })
    }

    /// Records that a caller the throttle admitted got no place.
    pub(super) fn turned_away(&self, at: Tick) {
        self.throttle.lock().learn(at, Duration::ZERO, Outcome::Overloaded);
    }

    /// Records that an admitted caller has ended its work. `latency` includes its wait for a place.
    pub(super) fn learn(&self, at: Tick, latency: Duration, outcome: Outcome) {
        self.throttle.lock().learn(at, latency, outcome);
    }

    /// Tells the throttle how many places are free and how many callers wait.
    pub(super) fn sense(&self, at: Tick, room: Room) {
        self.throttle.lock().sense(at, room);
    }

    /// Returns the share of arrivals that is refused now, in millionths.
    pub(super) fn refused_share(&self, now: Tick) -> u32 {
        self.throttle.lock().refused_share(now)
    }
}

impl fmt::Debug for Throttling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.throttle.lock().fmt(f)
    }
}

/// A throttle with its state; erases the throttle's type.
trait ErasedThrottle: fmt::Debug + Send {
    fn admit(&mut self, arrival: &Arrival) -> bool;
    fn learn(&mut self, at: Tick, latency: Duration, outcome: Outcome);
    fn sense(&mut self, at: Tick, room: Room);
    fn refused_share(&self, now: Tick) -> u32;
    fn restarted(&self, now: Tick) -> Box<dyn ErasedThrottle>;
}

#[derive(Debug)]
struct ThrottleWithState<T: Throttle> {
    throttle: T,
    state: T::State,
}

impl<T> ErasedThrottle for ThrottleWithState<T>
where
    T: Throttle + Send + 'static,
    T::State: Send,
{
    fn admit(&mut self, arrival: &Arrival) -> bool {
        self.throttle.admit(&mut self.state, arrival)
    }

    fn learn(&mut self, at: Tick, latency: Duration, outcome: Outcome) {
        self.throttle.learn(&mut self.state, at, latency, outcome);
    }

    fn sense(&mut self, at: Tick, room: Room) {
        self.throttle.sense(&mut self.state, at, room);
    }

    fn refused_share(&self, now: Tick) -> u32 {
        self.throttle.refused_share(&self.state, now)
    }

    fn restarted(&self, now: Tick) -> Box<dyn ErasedThrottle> {
        let state = self.throttle.start(now);
        Box::new(Self { throttle: self.throttle.clone(), state })
    }
}
