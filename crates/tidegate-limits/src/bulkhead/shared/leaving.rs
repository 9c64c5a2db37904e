//! How places come back: they go to waiters, and the law, the throttle and the short queue learn how the work ended.

use std::time::Duration;

use tidegate_core::concurrency::Sample;
use tidegate_core::throttle::Room;
use tidegate_core::{Outcome, Tick};

use super::super::latency::Times;
use super::super::waiters::Granted;
use super::{BulkheadState, DeferredPanic};
use crate::observer::PlaceDid;

impl BulkheadState {
    /// Returns places, gives them to waiters, and reports the outcome to the law, the throttle and the observer.
    ///
    /// Places and times are references, because the atomic step would wait for copies of them.
    #[inline]
    pub(in crate::bulkhead) fn leave(&self, granted: &Granted, times: &Times, outcome: Outcome) {
        let locked = self.places.leave(granted.places());
        if locked || outcome != Outcome::Ignored || self.reports_everybody() {
            if self.is_observed() {
                return self.after_observed_leave(granted, times, outcome, locked);
            }
            self.after_leave(granted, times, outcome, locked);
        }
    }

    #[inline(never)]
    fn after_leave(&self, granted: &Granted, times: &Times, outcome: Outcome, locked: bool) {
        // A throttle has counted the arrival, so it is also told of work whose outcome is unknown, and so is a law that
        // waits for those inside to leave. A short queue is not: such work shows nothing about the service.
        let told = self.timed && outcome != Outcome::Ignored || self.reports_everybody();
        if !locked && !told {
            return;
        }
        let (now, clock_panic) = self.now_or_panic();
        let (waiting, waker_panic) =
            if locked { self.pass_on(granted, now) } else { (0, DeferredPanic::default()) };
        if let (true, Some(at)) = (told, now) {
            self.learn(granted, times, outcome, at, waiting);
        }
        clock_panic.or(waker_panic).resume_unless_panicking();
    }

    /// Tells the observer that the work has ended, after all else: also if a waker, the law or the throttle panicked.
    #[cold]
    fn after_observed_leave(&self, granted: &Granted, times: &Times, outcome: Outcome, locked: bool) {
        let panicked = DeferredPanic::of(|| self.after_leave(granted, times, outcome, locked)).1;
        let (now, clock_panic) = self.now_or_panic();
        let held = now.map_or(Duration::ZERO, |now| now.since(times.began));
        let end_panic = self.tell_held(PlaceDid::Left { outcome, held });
        panicked.or(clock_panic).or(end_panic).resume_unless_panicking();
    }

    /// Takes back places whose caller never learns of them, and gives them to the next waiters. Reports no outcome.
    #[cold]
    pub(super) fn take_back(&self, granted: &Granted) {
        if self.places.leave(granted.places()) {
            // Of several panics the first one goes on, in the caller of this method.
            let (now, _later) = self.now_or_panic();
            let (_, _later) = self.pass_on(granted, now);
        }
    }

    /// Gives returned places to the next waiters. Returns how many callers still wait.
    fn pass_on(&self, granted: &Granted, now: Option<Tick>) -> (usize, DeferredPanic) {
        let mut waiters = self.waiters.lock();
        let wakers = waiters.give_returned(&self.rules, &self.places, *granted, now);
        let waiting = waiters.waiting();
        drop(waiters);
        (waiting, wakers.wake_all())
    }

    fn learn(&self, granted: &Granted, times: &Times, outcome: Outcome, at: Tick, waiting: usize) {
        let Times { began, answered, deadline } = *times;
        let held = at.since(began);
        let latency = answered.map_or(held, |answered| answered.since(began));
        // The throttle comes before the law and its observer, which are foreign code and may panic.
        if let Some(throttling) = &self.throttling {
            throttling.learn(at, latency.saturating_add(granted.waited()), outcome);
        }
        let mut change = None;
        if outcome != Outcome::Ignored {
            self.latency.learn(latency);
        }
        if let Some(moving) = &self.moving {
            let time_left = deadline.map(|deadline| deadline.since(began));
            let (in_flight, places) = (granted.in_flight(), granted.places());
            let sample = Sample { at, latency, held, in_flight, places, time_left, outcome };
            let apply = |limit| self.set_limit(limit, at);
            change = match outcome {
                Outcome::Ignored => moving.count_ignored(&sample, apply),
                _ => moving.learn(sample, apply),
            };
        }
        if let Some(throttling) = &self.throttling {
            throttling.sense(at, Room { free: self.standing().remaining, waiting: waiting as u64 });
        }
        self.announce(change);
    }
}
