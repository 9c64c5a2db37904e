//! The arithmetic of `go.uber.org/ratelimit`: a pacer that hands out times, with slack. Each take is due one interval
//! after the one before; a caller that fell behind may catch up on at most `slack` intervals.
//!
//! It breaks the [laws](crate::Algorithm#laws) of this crate's algorithms in two points: the interval is `period /
//! rate` truncated to whole nanoseconds, so a rate above a billion a second does not limit; and a clock that steps
//! back makes callers wait for the old time to return.
//!
//! The library gives nothing back. Here the last charge can be reduced or undone at any time, exactly; once somebody
//! was charged after it, nothing comes back, because later takes are due an interval after it. Units used beyond the
//! charge count as as many further takes.

use core::time::Duration;

use super::counted;
use crate::algorithm::{Algorithm, Storable};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::error::QuotaError;
use crate::rate::exact::excess;
use crate::time::{Rate, Tick, nanos};

/// A pacer: an interval and the slack.
///
/// The library only ever waits. Here `max_wait` bounds the wait, and a longer one is a denial that changes nothing.
///
/// # Source
/// go.uber.org/ratelimit 0.3, the limiter on one 64-bit integer: `Take`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UberPacer {
    interval: u64,
    slack: u32,
}

/// The state of [`UberPacer`] for one key, 24 bytes: when the last take is due, `None` before the first; and a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UberPacerState {
    due: Option<u64>,
    /// The number of charges and changes so far. The receipt of the last charge carries the same number.
    charges: u64,
}

impl UberPacer {
    /// The library's default slack.
    pub const SLACK: u32 = 10;

    /// Makes a pacer of `rate` that may catch up on `slack` intervals; 10 is the library's default, 0 is its `WithoutSlack`.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] for a slack above a million.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::UberPacer, Algorithm, Ask, Cost, Rate, Tick, Transition};
    /// let pacer = UberPacer::new(Rate::new(100, Duration::from_secs(1))?, UberPacer::SLACK)?;
    /// let ask = Ask::within(Tick::from_secs(1), Cost::ONE, Duration::MAX);
    /// let Transition::Allowed { next, .. } = pacer.decide(&pacer.fresh(ask.now), ask) else { panic!() };
    /// let Transition::Allowed { wait, .. } = pacer.decide(&next, ask) else { panic!() };
    /// assert_eq!(wait, Duration::from_millis(10));
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(rate: Rate, slack: u32) -> Result<Self, QuotaError> {
        const MOST: u32 = 1_000_000;
        if slack > MOST {
            let want = "is more than a pacer catches up on; use 0 to 1000000";
            return Err(QuotaError::Parameter { name: "slack", value: slack.to_string(), want });
        }
        Ok(Self { interval: rate.period_nanos() / rate.count(), slack })
    }

    /// Returns the time between two takes: the period divided by the rate, truncated to whole nanoseconds. Zero does not
    /// limit.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval)
    }

    /// Returns the number of intervals that can be caught up on.
    #[must_use]
    pub const fn slack(&self) -> u32 {
        self.slack
    }

    fn longest(&self) -> u64 {
        self.interval.saturating_mul(u64::from(self.slack))
    }

    /// Returns when a request that would wait too long is worth repeating. Time helps by at most the time that can be
    /// caught up on.
    fn retry(&self, state: &UberPacerState, units: u64, wait: u64, max_wait: u64) -> Retry {
        let more = self.interval.saturating_mul(units.saturating_sub(1));
        if more.saturating_sub(self.longest()) > max_wait {
            Retry::Never
        } else if state.due.is_none() {
            Retry::Unknown
        } else {
            Retry::After(Duration::from_nanos(wait - max_wait))
        }
    }

    fn next(&self, state: &UberPacerState, now: u64) -> u64 {
        let Some(due) = state.due else { return now };
        let behind = now.saturating_sub(due);
        if self.slack == 0 && behind > self.interval {
            return now;
        }
        if self.slack > 0 && behind > self.longest().saturating_add(self.interval) {
            return now - self.longest().min(now);
        }
        due.saturating_add(self.interval)
    }

    fn charged(&self, state: &UberPacerState, now: u64, units: u64) -> UberPacerState {
        let more = self.interval.saturating_mul(units.saturating_sub(1));
        let due = self.next(state, now).saturating_add(more);
        UberPacerState { due: Some(due), charges: state.charges.wrapping_add(1) }
    }
}

impl Storable for UberPacer {
    type State = UberPacerState;

    fn largest(&self) -> usize {
        1 + 2 * 8
    }
}

impl Algorithm for UberPacer {
    type State = UberPacerState;

    fn fresh(&self, _now: Tick) -> UberPacerState {
        UberPacerState { due: None, charges: 0 }
    }

    /// As `Take`; a cost of n is n takes at once, and waits for the last of them.
    fn decide(&self, state: &UberPacerState, ask: Ask) -> Transition<UberPacerState> {
        let now = ask.now.as_nanos();
        let next = self.charged(state, now, ask.cost.units());
        let due = next.due.unwrap_or(u64::MAX);
        if due == u64::MAX {
            return Transition::NEVER;
        }
        let (wait, max_wait) = (due.saturating_sub(now), nanos(ask.max_wait));
        if wait > max_wait {
            return Transition::Denied { retry: self.retry(state, ask.cost.units(), wait, max_wait) };
        }
        let wait = Duration::from_nanos(wait);
        let before = (u128::from(state.due.is_some()) << 64) | u128::from(state.due.unwrap_or(0));
        let mark = Receipt::mark(before, counted(1, next.charges));
        let receipt = Receipt { at: ask.now, act: ask.now.after(wait), cost: ask.cost, mark };
        Transition::Allowed { wait, next, receipt }
    }

    fn standing(&self, state: &UberPacerState, now: Tick) -> Standing {
        let limit = u64::from(self.slack) + 1;
        let due = self.next(state, now.as_nanos());
        let remaining = match now.as_nanos().checked_sub(due) {
            None => 0,
            Some(early) => early.checked_div(self.interval).map_or(limit, |takes| (takes + 1).min(limit)),
        };
        let full =
            state.due.map_or(0, |due| due.saturating_add(self.longest()).saturating_add(self.interval));
        let ahead = state.due.map_or(0, |due| due.saturating_sub(now.as_nanos()));
        let debt = if self.interval == 0 { 0 } else { ahead.div_ceil(self.interval).min(Rate::MAX_COUNT) };
        Standing { limit, remaining, debt, reset_after: Tick::from_nanos(full).since(now) }
    }

    /// The library has no settling; see the module.
    fn settle(&self, state: &UberPacerState, now: Tick, receipt: &Receipt, used: u64) -> UberPacerState {
        let units = receipt.cost.units();
        if used > units {
            return self.charged(state, now.as_nanos(), excess(receipt, used));
        }
        let (before, charges) = receipt.marks();
        if used == units || charges != counted(1, state.charges) {
            return *state;
        }
        // The lower half of the mark's first number.
        let due = (before >> 64 > 0).then_some(before as u64);
        let before = UberPacerState { due, charges: state.charges.wrapping_sub(1) };
        if used == 0 { before } else { self.charged(&before, receipt.at.as_nanos(), used) }
    }

    fn carry(&self, _old: &Self, state: &UberPacerState, now: Tick, how: Replace) -> UberPacerState {
        let charges = state.charges.wrapping_add(1);
        let state = if how == Replace::Reset { self.fresh(now) } else { *state };
        UberPacerState { charges, ..state }
    }

    /// Returns `None`: a pacer that was idle may catch up and a fresh one may not, so no state is equivalent to a
    /// fresh one.
    fn full_at(&self, _state: &UberPacerState) -> Option<Tick> {
        None
    }
}

impl Bytes for UberPacer {
    fn write(&self, out: &mut Writer) {
        out.u64(self.interval);
        out.u64(u64::from(self.slack));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (interval, slack) = (from.u64()?, from.u64()?);
        let slack = u32::try_from(slack).map_err(|_| DecodeError::Value { field: "slack" })?;
        Ok(Self { interval, slack })
    }
}

impl Bytes for UberPacerState {
    fn write(&self, out: &mut Writer) {
        out.u8(u8::from(self.due.is_some()));
        out.u64(self.due.unwrap_or(0));
        out.u64(self.charges);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (taken, due, charges) = (from.u8()?, from.u64()?, from.u64()?);
        match (taken, due) {
            (0, 0) => Ok(Self { due: None, charges }),
            (1, due) => Ok(Self { due: Some(due), charges }),
            _ => Err(DecodeError::Value { field: "due" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Cost;

    /// Takes at these milliseconds, in order; returns the millisecond at which each is due.
    fn takes(slack: u32, at: &[u64]) -> Vec<u64> {
        let pacer = UberPacer::new(Rate::new(100, Duration::from_secs(1)).unwrap(), slack).unwrap();
        let mut state = pacer.fresh(Tick::EPOCH);
        let take = |&ms: &u64| {
            let now = Tick::from_nanos((1000 + ms) * 1_000_000);
            let Transition::Allowed { wait, next, .. } =
                pacer.decide(&state, Ask::within(now, Cost::ONE, Duration::MAX))
            else {
                panic!("any wait is accepted")
            };
            state = next;
            ms + wait.as_millis() as u64
        };
        at.iter().map(take).collect()
    }

    #[test]
    fn without_slack_takes_are_an_interval_apart() {
        assert_eq!(takes(0, &[0, 0, 0, 100, 100]), [0, 10, 20, 100, 110]);
    }

    #[test]
    fn with_slack_ten_intervals_are_made_up() {
        // After a second of idling, eleven takes pass at once and the twelfth waits.
        let at: Vec<u64> = [vec![0], vec![1000; 12]].concat();
        assert_eq!(takes(10, &at), [vec![0], vec![1000; 11], vec![1010]].concat());
    }

    /// A refusal used to name a wait after which it refused again: a pacer that has not been asked yet makes up for
    /// nothing, and none makes up for more than its slack.
    #[test]
    fn a_wait_is_promised_only_where_it_helps() {
        let pacer = UberPacer::new(Rate::new(100, Duration::from_secs(1)).unwrap(), 10).unwrap();
        let at = |ms: u64| Tick::from_nanos((1000 + ms) * 1_000_000);
        let ask = |ms: u64, cost: u64| Ask::allow(at(ms), core::num::NonZeroU64::new(cost).unwrap().into());
        let fresh = pacer.fresh(at(0));
        let retry = |state: &UberPacerState, ask: Ask| match pacer.decide(state, ask) {
            Transition::Denied { retry } => Some(retry),
            Transition::Allowed { .. } => None,
        };
        assert_eq!(retry(&fresh, ask(0, 4)), Some(Retry::Unknown));
        assert_eq!(retry(&fresh, ask(0, 12)), Some(Retry::Never));
        let Transition::Allowed { next, .. } = pacer.decide(&fresh, ask(0, 1)) else {
            panic!("a first take")
        };
        assert_eq!(retry(&next, ask(0, 4)), Some(Retry::After(Duration::from_millis(40))));
        assert_eq!(retry(&next, ask(39, 4)), Some(Retry::After(Duration::from_millis(1))));
        assert_eq!(retry(&next, ask(40, 4)), None);
        assert_eq!(retry(&next, ask(9000, 11)), None);
        assert_eq!(retry(&next, ask(9000, 12)), Some(Retry::Never));
    }
}
