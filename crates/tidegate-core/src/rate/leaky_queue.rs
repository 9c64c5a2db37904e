//! The leaky bucket as a queue: units leave one per interval, and work that comes early waits for its turn.
//!
//! Work of cost `n` takes the next `n` departures and acts with the last of them, so the outflow never exceeds the
//! rate. *Slack* is how many units of idle time may be made up: a worker that was late by three intervals may send
//! three units at once and so keep its average. *Places* is how many units may wait: a queue without a bound only
//! moves overload from the server to its memory, and everyone in it is late.
//!
//! The schedule is one number, with the [arithmetic](super::schedule) of [`Gcra`](super::Gcra): the tick at which the
//! queue would have all of its slack again. A queue starts with all its slack, so a forgotten queue and a rested one
//! are the same.

use super::schedule::{Pace, Schedule, kept_as_schedule};
use crate::algorithm::Algorithm;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::error::QuotaError;
use crate::time::{Rate, Tick, nanos, span};

/// A constant outflow with a bounded number of waiting units.
///
/// * With [`Ask::max_wait`] zero, only work that needs no delay passes: at most `slack + 1` units from a rested
///   queue, which are the limit of its [`Standing`].
/// * Never allowed: a cost above `slack + 1 + places`, and one that even a rested queue delays by more than
///   [`Ask::max_wait`].
/// * A job of more than `slack + 1` units keeps the last of its departures. If it used only a part, at most the
///   difference from the used units to `slack + 1` comes back.
/// * After a change of the parameters, units that wait beyond the new number of places keep their places.
///
/// # Source
/// The leaky bucket as a queue, J. Turner, "New directions in communications", 1986. Making up for idle time is known from
/// Uber's Go pacer, [`UberPacer`](super::profile::UberPacer), where it is rounded to whole nanoseconds per unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyQueue {
    rate: Rate,
    /// A rested queue lets the slack and one more unit leave at once.
    pace: Pace,
    places: u64,
}

/// The state of [`LeakyQueue`] for one key; sizes as of [`GcraState`](super::GcraState).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakyQueueState(Schedule);

impl LeakyQueue {
    /// Makes a queue that units leave evenly at `rate`. `slack` units of idle time may be made up, 0 to
    /// [`Rate::MAX_COUNT`] − 1; `places` units may wait, 1 to [`Rate::MAX_COUNT`].
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] names the number that is out of range.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::LeakyQueue, Algorithm, Ask, Cost, Rate, Retry, Tick, Transition};
    ///
    /// let limit = LeakyQueue::new(Rate::new(10, Duration::from_secs(1))?, 0, 2)?;
    /// let ask = Ask::within(Tick::from_secs(1), Cost::ONE, Duration::from_secs(60));
    /// let mut state = limit.fresh(ask.now);
    /// for turn in 0..3 {
    ///     let Transition::Allowed { wait, next, .. } = limit.decide(&state, ask) else { panic!() };
    ///     assert_eq!(wait, Duration::from_millis(100 * turn));
    ///     state = next;
    /// }
    /// // Two wait, and there is no third place before the first of them leaves.
    /// assert_eq!(limit.decide(&state, ask), Transition::Denied { retry: Retry::After(Duration::from_millis(100)) });
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(rate: Rate, slack: u64, places: u64) -> Result<Self, QuotaError> {
        if slack >= Rate::MAX_COUNT {
            let want = "is more than can be made up; use 0 to 2^60 - 1";
            return Err(QuotaError::Parameter { name: "slack", value: slack.to_string(), want });
        }
        if places == 0 || places > Rate::MAX_COUNT {
            let want = "is not a queue; use 1 to 2^60";
            return Err(QuotaError::Parameter { name: "places", value: places.to_string(), want });
        }
        Ok(Self { rate, pace: Pace::new(rate, slack + 1), places })
    }

    /// Returns the rate of the outflow.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns how many units of idle time may be made up.
    #[must_use]
    pub const fn slack(&self) -> u64 {
        self.pace.at_once - 1
    }

    /// Returns how many units may wait.
    #[must_use]
    pub const fn places(&self) -> u64 {
        self.places
    }

    /// Returns the scaled time at which the last unit leaves; `rested` is when the queue has all its slack again.
    fn last_departure(&self, rested: u128) -> u128 {
        rested.saturating_sub(self.pace.full())
    }

    fn decide_in_line(&self, line: &Schedule, ask: Ask) -> Transition<Schedule> {
        let (units, at) = (ask.cost.units(), ask.now.max(line.last));
        let (now, scale) = (self.pace.scaled(at), u128::from(self.pace.scale));
        let max_wait = u128::from(nanos(ask.max_wait));
        let delayed = units.saturating_sub(self.pace.at_once);
        if delayed > self.places || self.pace.time_of(delayed) > max_wait * scale {
            return Transition::NEVER;
        }
        let rested = line.tat().max(now).saturating_add(self.pace.time_of(units));
        let wait = self.last_departure(rested).saturating_sub(now).div_ceil(scale);
        // The last unit finds a place if no more than `places` intervals separate it from now.
        let room = self.last_departure(rested).saturating_sub(self.pace.time_of(self.places));
        let until_room = room.saturating_sub(now).div_ceil(scale);
        let retry_after = wait.saturating_sub(max_wait).max(until_room);
        if retry_after > 0 {
            return Transition::Denied { retry: Retry::After(span(retry_after)) };
        }
        // Work of more than `slack + 1` units acts with its last departure; if it is undone, all of it comes back.
        self.pace.charge(line, at, rested, span(wait), ask.cost)
    }
}

kept_as_schedule!(LeakyQueue, LeakyQueueState, |limit, line, ask| limit.decide_in_line(line, ask));

impl Bytes for LeakyQueue {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
        out.u64(self.slack());
        out.u64(self.places);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, slack, places) = (from.rate()?, from.u64()?, from.u64()?);
        Self::new(rate, slack, places).map_err(|_| DecodeError::Value { field: "slack or places" })
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::decision::Cost;

    fn per_second(count: u64, slack: u64, places: u64) -> LeakyQueue {
        LeakyQueue::new(Rate::new(count, Duration::from_secs(1)).unwrap(), slack, places).unwrap()
    }

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_timeline() {
        let limit = per_second(10, 2, 3);
        let mut state = limit.fresh(ms(0));
        let (yes, no, never) = (Ok, |ms| Err(Some(ms)), Err(None));
        // (ms, cost, longest wait in ms, wait in ms or refused for this long)
        for (at, cost, max_wait, expected) in [
            (0, 2, 0, yes(0)),
            (0, 2, 0, no(100)),
            (0, 2, 60_000, yes(100)),
            (0, 2, 60_000, yes(300)),
            (0, 1, 60_000, no(100)), // three wait
            (100, 1, 250, no(50)),
            (50, 1, 299, no(51)),
            (100, 1, 60_000, yes(300)),
            (50, 1, 60_000, no(100)), // a step back stands still at 100
            (800, 4, 0, never),
            (800, 4, 99, never),
            (800, 4, 100, yes(100)),
            (5000, 6, 60_000, yes(300)),
            (9000, 7, 60_000, never),
        ] {
            let ask = Ask::within(ms(at), Cost::new(cost).unwrap(), Duration::from_millis(max_wait));
            let found = match limit.decide(&state, ask) {
                Transition::Allowed { wait, next, .. } => {
                    state = next;
                    Ok(wait)
                }
                Transition::Denied { retry } => Err(retry.after()),
            };
            let expected =
                expected.map(Duration::from_millis).map_err(|r: Option<u64>| r.map(Duration::from_millis));
            assert_eq!(found, expected, "cost {cost} at {at} within {max_wait}");
        }
    }

    #[test]
    fn an_idle_queue_makes_up_for_its_slack_and_no_more() {
        let limit = per_second(10, 2, 9);
        let at = |at| Ask::within(ms(at), Cost::ONE, Duration::MAX);
        let mut state = limit.fresh(ms(0));
        let mut waits = Vec::new();
        for now in [0, 0, 0, 0, 1000, 1000, 1000, 1000] {
            let Transition::Allowed { wait, next, .. } = limit.decide(&state, at(now)) else {
                panic!("nine places")
            };
            state = next;
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [0, 0, 0, 100, 0, 0, 0, 100]);
    }

    fn join(limit: &LeakyQueue, state: &mut LeakyQueueState, units: u64) -> Receipt {
        let ask = Ask::within(ms(0), Cost::new(units).unwrap(), Duration::from_secs(60));
        let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else { panic!("a minute") };
        *state = next;
        receipt
    }

    /// A job of two units was cancelled in front of another job, which kept its departure. The next job used to be
    /// promised the same departure, so that two units left a strict queue at once.
    #[test]
    fn a_promised_departure_is_not_given_out_twice() {
        let limit = per_second(1, 0, 10);
        let mut state = limit.fresh(ms(0));
        let a = join(&limit, &mut state, 2);
        let b = join(&limit, &mut state, 1);
        state = limit.settle(&state, ms(0), &a, 0);
        let c = join(&limit, &mut state, 1);
        assert_eq!([b.act, c.act], [ms(2000), ms(3000)]);
    }

    /// Units given back in front of a promise used to hide that promise from the next settlement.
    #[test]
    fn a_part_given_back_hides_no_later_promise() {
        let limit = per_second(1, 1, 10);
        let mut state = limit.fresh(ms(0));
        let [first, second, third, fourth] = [2, 2, 2, 1].map(|units| join(&limit, &mut state, units));
        for (gone, used) in [(third, 1), (second, 1), (first, 0)] {
            state = limit.settle(&state, ms(0), &gone, used);
        }
        let last = join(&limit, &mut state, 1);
        assert_eq!(fourth.act, ms(5000));
        assert!(last.act >= fourth.act, "one unit of slack is taken by the third: {last:?}");
    }

    #[test]
    fn undoing_the_last_in_the_queue_frees_its_departure() {
        let limit = per_second(1, 0, 9);
        let mut c = limit.fresh(ms(0));
        join(&limit, &mut c, 1);
        let a = c.clone();
        let second = join(&limit, &mut c, 1);
        let b = c.clone();
        let third = join(&limit, &mut c, 1);
        assert_eq!(limit.settle(&c, ms(0), &third, 0), b);
        let mut without = limit.settle(&c, ms(0), &second, 0);
        assert_eq!(join(&limit, &mut without.clone(), 1).act, ms(3000), "the third keeps its own");
        without = limit.settle(&without, ms(0), &third, 0);
        assert_eq!(without, a, "both are free");
    }
}
