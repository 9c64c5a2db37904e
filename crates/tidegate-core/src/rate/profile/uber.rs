//! The pacer of Uber's `go.uber.org/ratelimit`: one unit per interval, in whole nanoseconds, with slack.
//!
//! The interval is the period divided by the count and cut to nanoseconds, so that a rate of 3 per second runs a little fast,
//! and one above a billion per second does not limit at all. The exact form of the idea is
//! [`LeakyQueue`](crate::rate::LeakyQueue).
//!
//! # Where the peer breaks a law
//! * **A step back of the clock** is waited out: the next unit leaves when it was to leave by the later time.
//! * **A first unit earns no slack**: the pacer starts with its first take, so a forgotten key loses what idle time it had.
//! * **Nothing is ever refused** by the peer, which sleeps as long as it takes. Here a wait above
//!   [`Ask::max_wait`] is refused and changes nothing.
//!
//! The peer takes one unit per call. A cost of `n` is `n` takes at the same time, and waits for the last.

use core::time::Duration;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Cost, Receipt, Replace, Standing, Verdict};
use crate::quota::QuotaError;
use crate::rate::Algorithm;
use crate::time::{Rate, Tick, nanos, span};

/// A rate and a slack, as `ratelimit.New(rate, Per(period), WithSlack(slack))` makes it.
///
/// # Source
/// `go.uber.org/ratelimit`, the 64-bit atomic limiter. Ticks stand for Unix nanoseconds; those above 2⁶³ − 1, which
/// the peer cannot name, count as that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UberPacer {
    rate: Rate,
    slack: u64,
    interval: i64,
    max_slack: i64,
}

/// What [`UberPacer`] remembers of a key: 8 bytes, when the latest unit was issued; zero before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UberPacerState {
    issued: i64,
}

impl UberPacer {
    /// The slack of the peer when none is chosen.
    pub const DEFAULT_SLACK: u64 = 10;

    /// Makes a pacer of `rate` in which up to `slack` units of idle time are made up; zero is the peer's `WithoutSlack`.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when the slack takes longer than 292 years.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::profile::UberPacer, Algorithm, Ask, Cost, Rate, Tick, Verdict};
    ///
    /// let limit = UberPacer::new(Rate::new(100, Duration::from_secs(1))?, UberPacer::DEFAULT_SLACK)?;
    /// let ask = Ask::within(Tick::from_secs(1), Cost::ONE, Duration::MAX);
    /// let Verdict::Allowed { next, .. } = limit.decide(&limit.fresh(ask.now), ask) else { panic!() };
    /// let Verdict::Allowed { wait, .. } = limit.decide(&next, ask) else { panic!() };
    /// assert_eq!(wait, Duration::from_millis(10));
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(rate: Rate, slack: u64) -> Result<Self, QuotaError> {
        // A period is at most 2^62.
        let interval = (rate.period_nanos() / rate.count()) as i64;
        let max_slack = i64::try_from(i128::from(interval) * i128::from(slack)).map_err(|_| {
            let want = "takes longer than 292 years to make up; use less";
            QuotaError::Parameter { name: "slack", value: slack.to_string(), want }
        })?;
        Ok(Self { rate, slack, interval, max_slack })
    }

    /// Returns the rate as given; the pacer's own is one unit per [`UberPacer::interval`].
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the time between two units, in whole nanoseconds; zero above a billion per second.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval.unsigned_abs())
    }

    /// Returns how many units of idle time are made up.
    #[must_use]
    pub const fn slack(&self) -> u64 {
        self.slack
    }

    /// When a unit taken now is issued, in ns. Wider than the peer's 64 bits, so that it saturates where those wrap.
    fn issue(&self, state: UberPacerState, now: i128) -> i128 {
        let (interval, max_slack) = (i128::from(self.interval), i128::from(self.max_slack));
        let (issued, idle) = (i128::from(state.issued), now - i128::from(state.issued));
        if issued == 0 || (max_slack == 0 && idle > interval) {
            now
        } else if max_slack > 0 && idle > max_slack + interval {
            now - max_slack
        } else {
            issued + interval
        }
    }

    /// When the last of some units taken now is issued.
    fn issue_last(&self, state: UberPacerState, now: i128, units: u64) -> i128 {
        self.issue(state, now).saturating_add(i128::from(units - 1) * i128::from(self.interval))
    }
}

/// A tick as Unix nanoseconds.
fn unix(tick: Tick) -> i128 {
    i128::from(tick.as_nanos()).min(i128::from(i64::MAX))
}

/// A span that is not negative.
fn ahead(ns: i128) -> u128 {
    ns.max(0).unsigned_abs()
}

impl Algorithm for UberPacer {
    type State = UberPacerState;

    fn fresh(&self, _: Tick) -> UberPacerState {
        UberPacerState { issued: 0 }
    }

    fn decide(&self, state: &UberPacerState, ask: Ask) -> Verdict<UberPacerState> {
        let (now, units) = (unix(ask.now), ask.cost.units());
        let last = self.issue_last(*state, now, units);
        let wait = ahead(last - now);
        let max_wait = u128::from(nanos(ask.max_wait));
        if wait > max_wait {
            // Once rested the wait shrinks no more: the units beyond the slack have to be paced.
            let least = i128::from(units - 1) * i128::from(self.interval) - i128::from(self.max_slack);
            if state.issued == 0 || ahead(least) > max_wait {
                return Verdict::NEVER;
            }
            return Verdict::Denied { retry_after: Some(span(wait - max_wait)) };
        }
        let wait = span(wait);
        let next = UberPacerState { issued: i64::try_from(last).unwrap_or(i64::MAX) };
        let receipt = Receipt { at: ask.now, act: ask.now.after(wait), cost: ask.cost, mark: 0 };
        Verdict::Allowed { wait, next, receipt }
    }

    /// Returns what may leave at once, see [`Algorithm::standing`]: never more than the slack and one.
    fn standing(&self, state: &UberPacerState, now: Tick) -> Standing {
        let limit = if self.interval == 0 { u64::MAX } else { self.slack.saturating_add(1) };
        let now = unix(now);
        let behind = now - self.issue(*state, now);
        let (remaining, reset) = match (behind, self.interval) {
            (..0, _) => (0, ahead(i128::from(self.max_slack) - behind)),
            (_, 0) => (u64::MAX, 0),
            // Below 2^63, as a slack is.
            (_, interval) => {
                ((behind / i128::from(interval)) as u64 + 1, ahead(i128::from(self.max_slack) - behind))
            }
        };
        Standing { limit, remaining: remaining.min(limit), reset_after: span(reset) }
    }

    /// Changes nothing: the peer cannot give back.
    fn refund(&self, state: &UberPacerState, _: Tick, _: Cost) -> UberPacerState {
        *state
    }

    /// Changes nothing: the peer cannot cancel.
    fn cancel(&self, state: &UberPacerState, _: Tick, _: &Receipt) -> UberPacerState {
        *state
    }

    /// Keeps when the latest unit was issued. The peer cannot change; this is what a new interval from then on means.
    fn carry(&self, _: &Self, state: &UberPacerState, now: Tick, how: Replace) -> UberPacerState {
        match how {
            Replace::AsIs | Replace::Proportional => *state,
            Replace::Reset => self.fresh(now),
        }
    }

    /// Returns when the next unit may leave; `None` with slack, as a pacer that is forgotten loses it.
    fn full_at(&self, state: &UberPacerState) -> Option<Tick> {
        if state.issued == 0 {
            return Some(Tick::EPOCH);
        }
        if self.max_slack > 0 {
            return None;
        }
        let next = i128::from(state.issued) + i128::from(self.interval);
        u64::try_from(next.max(0)).ok().map(Tick::from_nanos)
    }
}

impl Bytes for UberPacer {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
        out.u64(self.slack);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, slack) = (from.rate()?, from.u64()?);
        Self::new(rate, slack).map_err(|_| DecodeError::Value { field: "slack" })
    }
}

impl Bytes for UberPacerState {
    fn write(&self, out: &mut Writer) {
        out.u64(self.issued.cast_unsigned());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { issued: from.u64()?.cast_signed() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one unit at each time in ms and returns the waits in ms; worked out by hand from the peer's rules.
    fn waits(slack: u64, takes: &[u64]) -> Vec<u128> {
        let limit = UberPacer::new(Rate::new(100, Duration::from_secs(1)).unwrap(), slack).unwrap();
        let mut state = limit.fresh(Tick::EPOCH);
        let take = |&at: &u64| {
            let ask = Ask::within(Tick::from_nanos(at * 1_000_000), Cost::ONE, Duration::MAX);
            let Verdict::Allowed { wait, next, .. } = limit.decide(&state, ask) else { panic!("any wait") };
            state = next;
            wait.as_millis()
        };
        takes.iter().map(take).collect()
    }

    #[test]
    fn a_timeline_without_slack() {
        assert_eq!(waits(0, &[1000, 1000, 1000, 1100, 1100, 1105]), [0, 10, 20, 0, 10, 15]);
        // Exactly one interval later the unit is issued at its own time, not at now.
        assert_eq!(waits(0, &[1000, 1010, 1010, 1005]), [0, 0, 10, 25]);
    }

    #[test]
    fn a_timeline_with_slack() {
        let takes = [1000, 1000, 1100, 1100, 1100, 1100, 1125, 1125, 1125];
        // At 1100 the latest was issued at 1010, 90 ms ago and more than 20 + 10: two units of slack.
        assert_eq!(waits(2, &takes), [0, 10, 0, 0, 0, 10, 0, 5, 15]);
        // Exactly slack and interval later it still counts from the latest unit.
        assert_eq!(waits(2, &[1000, 1030, 1030, 1030, 1030]), [0, 0, 0, 0, 10]);
    }

    #[test]
    fn an_interval_below_a_nanosecond_does_not_limit() {
        let limit = UberPacer::new(Rate::new(2_000_000_000, Duration::from_secs(1)).unwrap(), 10).unwrap();
        let ask = Ask::allow(Tick::from_secs(1), Cost::MAX);
        let Verdict::Allowed { next, .. } = limit.decide(&limit.fresh(ask.now), ask) else {
            panic!("no limit")
        };
        assert!(matches!(limit.decide(&next, ask), Verdict::Allowed { .. }));
    }
}
