//! The token bucket of Go's `golang.org/x/time/rate`, in its `float64` arithmetic.
//!
//! Tokens are a float that grows by `seconds · limit`, is capped at the burst and may go below zero for reservations; a wait
//! is `−tokens / limit` seconds, cut to whole nanoseconds. The cut makes a wait up to a nanosecond short of exact
//! arithmetic, and the sum drifts as floats do; [`TokenBucket`](crate::rate::TokenBucket) does neither.
//!
//! # Where the peer breaks a law
//! * **Time runs back.** A call with an earlier time moves the limiter's time back with it, and the span until the later
//!   time then counts twice.
//! * **A changed limit** keeps its tokens whatever the new limit, so that `Proportional` is the same as `AsIs`; acts that
//!   were promised are not timed anew.
//! * **Infinity** ([`XTime::unlimited`]) ignores the burst. A limit of zero spends its tokens once and gets none back; a
//!   reservation with a wait of 2⁶³ ns or more is then granted, to act in 292 years.
//!
//! The form is that of the later releases, in which a limiter starts full and a long wait saturates. Release 0.3.0 decides
//! alike for positive limits whose waits fit 292 years.

use core::hash::{Hash, Hasher};
use core::time::Duration;

use super::least;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Cost, Receipt, Replace, Standing, Verdict};
use crate::quota::QuotaError;
use crate::rate::Algorithm;
use crate::time::{Tick, nanos};

/// A limit of events per second and a burst, as `rate.NewLimiter(limit, burst)` makes it.
///
/// # Source
/// `golang.org/x/time/rate`: `reserveN`, `advance`, `CancelAt`, `SetLimitAt`, `SetBurstAt`.
#[derive(Clone, Copy, Debug)]
pub struct XTime {
    limit: f64,
    burst: u64,
}

/// What [`XTime`] remembers of a key: 24 bytes.
#[derive(Clone, Copy, Debug)]
pub struct XTimeState {
    tokens: f64,
    last: Tick,
    /// When the latest reservation acts.
    last_event: Tick,
}

impl PartialEq for XTime {
    fn eq(&self, other: &Self) -> bool {
        (self.limit.to_bits(), self.burst) == (other.limit.to_bits(), other.burst)
    }
}

impl Eq for XTime {}

impl Hash for XTime {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.limit.to_bits(), self.burst).hash(state);
    }
}

impl PartialEq for XTimeState {
    fn eq(&self, other: &Self) -> bool {
        (self.tokens.to_bits(), self.last, self.last_event)
            == (other.tokens.to_bits(), other.last, other.last_event)
    }
}

impl Eq for XTimeState {}

/// Go's `Inf`: a number like any other to the arithmetic, and told apart by comparison.
const INF: f64 = f64::MAX;

/// Go's `InfDuration`.
const INF_DURATION: i64 = i64::MAX;

impl XTime {
    /// Makes a limit of `limit` events per second and at most `burst` at once.
    ///
    /// `limit` is 0 or more, infinity included; `burst` is 0 to 2⁶³ − 1, and at 0 nothing passes but through an unlimited limiter.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] for a limit that is negative or not a number, [`QuotaError::Burst`] for too large a burst.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::profile::XTime, Algorithm, Ask, Cost, Tick, Verdict};
    ///
    /// let limit = XTime::new(10.0, 1)?;
    /// let now = Tick::from_secs(1);
    /// let Verdict::Allowed { next, .. } = limit.decide(&limit.fresh(now), Ask::allow(now, Cost::ONE)) else { panic!() };
    /// let again = limit.decide(&next, Ask::allow(now, Cost::ONE));
    /// // A hundred milliseconds would be exact; at a nanosecond less the peer's wait is cut to zero.
    /// let Verdict::Denied { retry_after: Some(wait) } = again else { panic!() };
    /// assert!(wait <= Duration::from_millis(100));
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(limit: f64, burst: u64) -> Result<Self, QuotaError> {
        if limit.is_nan() || limit < 0.0 {
            let want = "is not a limit; use 0 or more events per second";
            return Err(QuotaError::Parameter { name: "limit", value: limit.to_string(), want });
        }
        if i64::try_from(burst).is_err() {
            return Err(QuotaError::Burst { burst });
        }
        // Adding zero makes a negative zero the plain one.
        Ok(Self { limit: limit.min(INF) + 0.0, burst })
    }

    /// Makes a limiter that lets everything pass, as `rate.Inf` does.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self { limit: INF, burst: 0 }
    }

    /// Returns the events per second; `f64::MAX` when unlimited.
    #[must_use]
    pub const fn limit(&self) -> f64 {
        self.limit
    }

    /// Returns the burst.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// Returns the tokens at a tick as `TokensAt` does: below zero while reservations wait.
    #[must_use]
    pub fn tokens_at(&self, state: &XTimeState, at: Tick) -> f64 {
        let elapsed = i64::try_from(nanos(at.since(state.last))).unwrap_or(i64::MAX);
        let tokens = state.tokens + tokens_in(self.limit, elapsed);
        // Not `min`: a comparison with a foreign NaN must fall as it does in Go.
        if tokens > self.burst as f64 { self.burst as f64 } else { tokens }
    }

    /// Tokens left and wait in ns if the units were taken; the wait alone decides besides the burst.
    fn taken(&self, state: &XTimeState, at: Tick, units: u64) -> (f64, i64) {
        let tokens = self.tokens_at(state, at) - units as f64;
        (tokens, if tokens < 0.0 { time_for(self.limit, -tokens) } else { 0 })
    }
}

/// `tokensFromDuration`: the seconds are summed from whole ones and the rest, as `Duration.Seconds` does.
fn tokens_in(limit: f64, ns: i64) -> f64 {
    if limit <= 0.0 {
        return 0.0;
    }
    let seconds = (ns / 1_000_000_000) as f64 + (ns % 1_000_000_000) as f64 / 1e9;
    seconds * limit
}

/// `durationFromTokens`: cut towards zero, saturating.
fn time_for(limit: f64, tokens: f64) -> i64 {
    if limit <= 0.0 { INF_DURATION } else { (1e9 * (tokens / limit)) as i64 }
}

/// A difference of two ticks as Go's `Time.Sub` has it: signed, saturating.
fn sub(a: Tick, b: Tick) -> i64 {
    let difference = i128::from(a.as_nanos()) - i128::from(b.as_nanos());
    difference.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

impl Algorithm for XTime {
    type State = XTimeState;

    fn fresh(&self, now: Tick) -> XTimeState {
        XTimeState { tokens: self.burst as f64, last: now, last_event: Tick::EPOCH }
    }

    fn decide(&self, state: &XTimeState, ask: Ask) -> Verdict<XTimeState> {
        let (at, units) = (ask.now, ask.cost.units());
        if self.limit == INF {
            let receipt = Receipt { at, act: at, cost: ask.cost, mark: 0 };
            return Verdict::Allowed { wait: Duration::ZERO, next: *state, receipt };
        }
        if units > self.burst {
            return Verdict::NEVER;
        }
        let max_wait = i64::try_from(nanos(ask.max_wait)).unwrap_or(INF_DURATION);
        let (tokens, wait) = self.taken(state, at, units);
        if wait <= max_wait {
            let wait = Duration::from_nanos(wait.unsigned_abs());
            let act = at.after(wait);
            // Later calls to cancel compute with the limit of now.
            let receipt = Receipt { at, act, cost: ask.cost, mark: u128::from(self.limit.to_bits()) };
            return Verdict::Allowed {
                wait,
                next: XTimeState { tokens, last: at, last_event: act },
                receipt,
            };
        }
        let later = |ns: u64| at.after(Duration::from_nanos(ns));
        let guess = (wait - max_wait).unsigned_abs().saturating_add(nanos(state.last.since(at)));
        let retry = least(guess, |ns| self.taken(state, later(ns), units).1 <= max_wait);
        Verdict::Denied { retry_after: retry.map(Duration::from_nanos) }
    }

    fn standing(&self, state: &XTimeState, now: Tick) -> Standing {
        if self.limit == INF {
            return Standing { limit: u64::MAX, remaining: u64::MAX, reset_after: Duration::ZERO };
        }
        let tokens = self.tokens_at(state, now);
        let missing = self.burst as f64 - tokens;
        let reset = if missing > 0.0 { time_for(self.limit, missing).unsigned_abs() } else { 0 };
        // The cast cuts, and is zero below zero.
        Standing { limit: self.burst, remaining: tokens as u64, reset_after: Duration::from_nanos(reset) }
    }

    /// Adds the tokens up to the burst. The peer has no refund; its cancellation adds tokens in this way.
    fn refund(&self, state: &XTimeState, now: Tick, cost: Cost) -> XTimeState {
        if self.limit == INF {
            return *state;
        }
        let tokens = self.tokens_at(state, now) + cost.units() as f64;
        XTimeState { tokens: tokens.min(self.burst as f64), last: now, ..*state }
    }

    fn cancel(&self, state: &XTimeState, now: Tick, receipt: &Receipt) -> XTimeState {
        if self.limit == INF || receipt.act < now {
            return *state;
        }
        // The low half holds the bits; a receipt of an unlimited limiter holds zero, as the peer's does.
        let reserved_at = f64::from_bits(receipt.mark as u64);
        let units = receipt.cost.units() as f64;
        let restored = units - tokens_in(reserved_at, sub(state.last_event, receipt.act));
        if restored.is_nan() || restored <= 0.0 {
            return *state;
        }
        let tokens = self.tokens_at(state, now) + restored;
        let tokens = if tokens > self.burst as f64 { self.burst as f64 } else { tokens };
        let mut next = XTimeState { tokens, last: now, ..*state };
        if receipt.act == state.last_event {
            let back = i128::from(time_for(reserved_at, -units));
            let previous = i128::from(receipt.act.as_nanos()) + back;
            if previous >= i128::from(now.as_nanos()) {
                next.last_event = Tick::from_nanos(u64::try_from(previous).unwrap_or(u64::MAX));
            }
        }
        next
    }

    /// Does what `SetLimitAt` and `SetBurstAt` do for [`Replace::AsIs`] and [`Replace::Proportional`].
    fn carry(&self, old: &Self, state: &XTimeState, now: Tick, how: Replace) -> XTimeState {
        match how {
            Replace::AsIs | Replace::Proportional => {
                // The second call caps by the old burst too, and a span of zero adds nothing.
                XTimeState { tokens: old.tokens_at(state, now), last: now, ..*state }
            }
            Replace::Reset => self.fresh(now),
        }
    }

    fn full_at(&self, state: &XTimeState) -> Option<Tick> {
        if self.limit == INF {
            return Some(Tick::EPOCH);
        }
        let missing = self.burst as f64 - state.tokens;
        let wait = if missing > 0.0 { time_for(self.limit, missing).unsigned_abs() } else { 0 };
        let full = |ns| self.tokens_at(state, Tick::from_nanos(ns)) >= self.burst as f64;
        least(state.last.as_nanos().saturating_add(wait), full).map(Tick::from_nanos)
    }
}

impl Bytes for XTime {
    fn write(&self, out: &mut Writer) {
        out.f64(self.limit);
        out.u64(self.burst);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (limit, burst) = (from.f64()?, from.u64()?);
        Self::new(limit, burst).map_err(|_| DecodeError::Value { field: "limit" })
    }
}

impl Bytes for XTimeState {
    fn write(&self, out: &mut Writer) {
        out.f64(self.tokens);
        out.tick(self.last);
        out.tick(self.last_event);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (tokens, last, last_event) = (from.f64()?, from.tick()?, from.tick()?);
        // Not a number would pass every comparison, and so every request.
        if !tokens.is_finite() {
            return Err(DecodeError::Value { field: "tokens" });
        }
        Ok(Self { tokens, last, last_event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_timeline() {
        let limit = XTime::new(10.0, 2).unwrap();
        let mut state = limit.fresh(ms(1000));
        for (at, cost, allowed) in [
            (1000, 1, true),
            (1000, 1, true),
            (1000, 1, false),
            (1100, 1, true),
            (1100, 1, false),
            (900, 1, false), // a denial does not move the time back
            (1200, 1, true),
            (1000, 3, false), // above the burst
            (1400, 1, true),
            (1000, 1, true), // but a grant does:
            (1200, 2, true), // these 200 ms were counted before
            (1200, 1, false),
        ] {
            let verdict = limit.decide(&state, Ask::allow(ms(at), Cost::new(cost).unwrap()));
            assert_eq!(matches!(verdict, Verdict::Allowed { .. }), allowed, "{cost} at {at}");
            if let Verdict::Allowed { next, .. } = verdict {
                state = next;
            }
        }
    }

    #[test]
    fn zero_spends_its_burst_once_and_infinity_asks_for_nothing() {
        let zero = XTime::new(0.0, 2).unwrap();
        let both = Ask::allow(ms(0), Cost::new(2).unwrap());
        let Verdict::Allowed { next, .. } = zero.decide(&zero.fresh(ms(0)), both) else {
            panic!("the burst")
        };
        let Verdict::Denied { retry_after } = zero.decide(&next, Ask::allow(ms(900_000), Cost::ONE)) else {
            panic!()
        };
        assert_eq!(retry_after, None);
        let open = XTime::unlimited();
        let verdict = open.decide(&open.fresh(ms(0)), Ask::allow(ms(0), Cost::MAX));
        assert!(matches!(verdict, Verdict::Allowed { .. }));
    }

    #[test]
    fn cancelling_restores_what_was_not_reserved_after() {
        let limit = XTime::new(1.0, 2).unwrap();
        let reserve = |state: &XTimeState, cost| {
            let ask = Ask::within(ms(0), Cost::new(cost).unwrap(), Duration::from_secs(60));
            let Verdict::Allowed { next, receipt, .. } = limit.decide(state, ask) else {
                panic!("within a minute")
            };
            (next, receipt)
        };
        let (a, _) = reserve(&limit.fresh(ms(0)), 2);
        let (b, two) = reserve(&a, 2);
        let (c, _) = reserve(&b, 1);
        assert_eq!(limit.tokens_at(&limit.cancel(&b, ms(0), &two), ms(0)), 0.0);
        assert_eq!(
            limit.tokens_at(&limit.cancel(&c, ms(0), &two), ms(0)),
            -2.0,
            "one of the two is relied on"
        );
    }
}
