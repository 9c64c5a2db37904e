//! The arithmetic of Go's `golang.org/x/time/rate`: a token bucket in 64-bit floats. A reservation may take tokens
//! below zero; the wait is the debt divided by the limit, truncated to the nanosecond.
//!
//! A new limiter has its whole burst, even if its limit is so low, or zero, that the burst would never return (since
//! v0.7.0). It breaks the [laws](crate::Algorithm#laws) of this crate's algorithms in these points:
//! * a time before the last one is taken as it is and becomes the last one, so the time until the old one counts
//!   twice;
//! * the truncated wait may be a nanosecond short, and rates are floats, so nothing is exact;
//! * a reservation that has acted gives nothing back, and one that has not gives back only units that were not
//!   reserved since.
//!
//! It differs from the library in three cases where the library's answer does harm. A wait of `InfDuration` (292
//! years, the wait at a limit of zero) is never granted, where `ReserveN` grants it. Tokens at an infinite limit are
//! the burst, where a change of the limit at the tick of the last one computes 0·∞ and leaves the limiter open for
//! ever. And a reservation made before a change of the limit gives nothing back, where `CancelAt` returns tokens that
//! may never have been taken.

use core::time::Duration;

use super::counted;
use crate::algorithm::{Algorithm, Storable};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::error::QuotaError;
use crate::rate::exact::excess;
use crate::time::{Rate, Tick, nanos};

/// Go's longest `time.Duration`, 292 years, which stands for an endless wait.
const LONGEST: i64 = i64::MAX;

/// A limit of `golang.org/x/time/rate`: events per second as a float, and a burst.
///
/// Infinity allows everything and ignores the burst; a limit of zero lets the burst through once.
///
/// # Source
/// golang.org/x/time/rate at 2b4e439 of September 2025: `reserveN`, `advance`, `CancelAt`, `SetLimitAt`, `SetBurstAt`.
#[derive(Clone, Copy, Debug)]
pub struct XTime {
    limit: f64,
    burst: u64,
}

/// The state of [`XTime`] for one key: 40 bytes.
#[derive(Clone, Copy, Debug)]
pub struct XTimeState {
    tokens: f64,
    last: Tick,
    last_event: Tick,
    /// The latest tick that was ever promised to a charge.
    until: Tick,
    /// How often the limit has changed. Receipts from before the last change give nothing back.
    changes: u32,
}

impl XTime {
    /// Makes a limit of `limit` events a second, from 0 to infinity, with a burst of `burst`.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] for a negative limit or NaN.
    pub fn new(limit: f64, burst: u64) -> Result<Self, QuotaError> {
        if limit >= 0.0 {
            return Ok(Self { limit, burst });
        }
        Err(QuotaError::Parameter {
            name: "limit",
            value: limit.to_string(),
            want: "is not a rate; use 0 or more",
        })
    }

    fn tokens_in(limit: f64, span: i64) -> f64 {
        const SECOND: i64 = 1_000_000_000;
        if limit <= 0.0 {
            return 0.0;
        }
        ((span / SECOND) as f64 + (span % SECOND) as f64 / 1e9) * limit
    }

    /// Returns the ns that a number of tokens takes; negative for negative tokens, and the longest for a limit of zero.
    fn time_of(limit: f64, tokens: f64) -> i64 {
        if limit <= 0.0 {
            return LONGEST;
        }
        // Truncates towards zero as in Go, and saturates where Go leaves the result undefined.
        (1e9 * (tokens / limit)) as i64
    }

    fn advance(&self, state: &XTimeState, now: Tick) -> f64 {
        if self.limit == f64::INFINITY {
            return self.burst as f64;
        }
        let elapsed = now.as_nanos().saturating_sub(state.last.as_nanos());
        let elapsed = i64::try_from(elapsed).unwrap_or(LONGEST);
        let tokens = state.tokens + Self::tokens_in(self.limit, elapsed);
        let burst = self.burst as f64;
        if tokens > burst { burst } else { tokens }
    }

    fn allowed(ask: Ask, wait: i64, next: XTimeState, limit: f64) -> Transition<XTimeState> {
        // Never negative: it is zero, or the time of a positive debt.
        let wait = Duration::from_nanos(wait.unsigned_abs());
        let receipt = Receipt {
            at: ask.now,
            act: ask.now.after(wait),
            cost: ask.cost,
            mark: Receipt::mark(u128::from(limit.to_bits()), counted(2, u64::from(next.changes))),
        };
        Transition::Allowed { wait, next, receipt }
    }
}

impl Storable for XTime {
    type State = XTimeState;

    fn largest(&self) -> usize {
        5 * 8
    }
}

impl Algorithm for XTime {
    type State = XTimeState;

    fn fresh(&self, now: Tick) -> XTimeState {
        let (last_event, until) = (Tick::EPOCH, Tick::EPOCH);
        XTimeState { tokens: self.burst as f64, last: now, last_event, until, changes: 0 }
    }

    /// As `ReserveN` with a wait of at most `max_wait`; zero is `AllowN`.
    fn decide(&self, state: &XTimeState, ask: Ask) -> Transition<XTimeState> {
        let units = ask.cost.units();
        if self.limit == f64::INFINITY {
            return Self::allowed(ask, 0, *state, self.limit);
        }
        let tokens = self.advance(state, ask.now) - units as f64;
        let wait = if tokens < 0.0 { Self::time_of(self.limit, -tokens) } else { 0 };
        if units > self.burst || wait == LONGEST {
            return Transition::NEVER;
        }
        let max_wait = i64::try_from(nanos(ask.max_wait)).unwrap_or(LONGEST);
        if wait > max_wait {
            return Transition::Denied {
                retry: Retry::After(Duration::from_nanos((wait - max_wait).unsigned_abs())),
            };
        }
        let last_event = ask.now.after(Duration::from_nanos(wait.unsigned_abs()));
        let until = last_event.max(state.until);
        let next = XTimeState { tokens, last: ask.now, last_event, until, ..*state };
        Self::allowed(ask, wait, next, self.limit)
    }

    fn standing(&self, state: &XTimeState, now: Tick) -> Standing {
        if self.limit == f64::INFINITY {
            return Standing { limit: u64::MAX, remaining: u64::MAX, debt: 0, reset_after: Duration::ZERO };
        }
        let tokens = self.advance(state, now);
        let missing = Self::time_of(self.limit, (self.burst as f64 - tokens).max(0.0));
        // Casts saturate: `remaining` is zero for a debt, and `debt` is zero without one.
        Standing {
            limit: self.burst,
            remaining: tokens as u64,
            debt: ((-tokens).ceil() as u64).min(Rate::MAX_COUNT),
            reset_after: Duration::from_nanos(missing.unsigned_abs()),
        }
    }

    /// As `CancelAt` of the unused units: until the act, tokens come back except those reserved since; after it,
    /// none. The library tells those by the act of the last reservation. If that is sooner than this act, it gives
    /// back more than was charged, and so does this. Units used beyond the charge take tokens now, below zero if need
    /// be.
    fn settle(&self, state: &XTimeState, now: Tick, receipt: &Receipt, used: u64) -> XTimeState {
        let units = receipt.cost.units();
        if self.limit == f64::INFINITY || used == units {
            return *state;
        }
        if used > units {
            let lowest = -(Rate::MAX_COUNT as f64);
            let tokens = (self.advance(state, now) - excess(receipt, used) as f64).max(lowest);
            return XTimeState { tokens, last: now, ..*state };
        }
        let (limit, changes) = receipt.marks();
        // The lower half of the mark's first number.
        let limit = f64::from_bits(limit as u64);
        if receipt.act < now || changes != counted(2, u64::from(state.changes)) || !limit.is_finite() {
            return *state;
        }
        let back = (units - used) as f64;
        let later = i128::from(state.last_event.as_nanos()) - i128::from(receipt.act.as_nanos());
        let later = i64::try_from(later).unwrap_or(if later < 0 { i64::MIN } else { LONGEST });
        let restored = back - Self::tokens_in(limit, later);
        if restored <= 0.0 {
            return *state;
        }
        let tokens = (self.advance(state, now) + restored).min(self.burst as f64);
        let mut next = XTimeState { tokens, last: now, ..*state };
        if used == 0 && receipt.act == state.last_event {
            let back = Self::time_of(limit, -back).unsigned_abs();
            let previous = Tick::from_nanos(receipt.act.as_nanos().saturating_sub(back));
            if previous >= now {
                next.last_event = previous;
            }
        }
        next
    }

    /// As `SetLimitAt` and `SetBurstAt`: tokens left are kept, not units spent.
    fn carry(&self, old: &Self, state: &XTimeState, now: Tick, how: Replace) -> XTimeState {
        let (tokens, last_event) = match how {
            Replace::Reset => (self.burst as f64, Tick::EPOCH),
            Replace::AsIs => (old.advance(state, now), state.last_event),
            Replace::Proportional => {
                let share = self.burst as f64 / old.burst.max(1) as f64;
                (old.advance(state, now) * share, state.last_event)
            }
        };
        let changes = state.changes.wrapping_add(1);
        XTimeState { tokens, last: now, last_event, changes, ..*state }
    }

    fn full_at(&self, state: &XTimeState) -> Option<Tick> {
        // Until the latest act a charge may still be cancelled, and a fresh state would not know the reservations made since.
        let settled =
            if state.until == Tick::EPOCH { Tick::EPOCH } else { state.until.after(Duration::from_nanos(1)) };
        if self.limit == f64::INFINITY {
            return Some(settled);
        }
        let missing = Self::time_of(self.limit, (self.burst as f64 - state.tokens).max(0.0));
        let tick = state.last.after(Duration::from_nanos(missing.unsigned_abs().saturating_add(1)));
        // Floats may stay slightly below full for ever; then the state is kept.
        (self.advance(state, tick) >= self.burst as f64).then_some(tick.max(settled))
    }
}

impl PartialEq for XTime {
    fn eq(&self, other: &Self) -> bool {
        self.limit.to_bits() == other.limit.to_bits() && self.burst == other.burst
    }
}

impl Eq for XTime {}

impl PartialEq for XTimeState {
    fn eq(&self, other: &Self) -> bool {
        let fields = |of: &Self| (of.tokens.to_bits(), of.last, of.last_event, of.until, of.changes);
        fields(self) == fields(other)
    }
}

impl Eq for XTimeState {}

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
        out.tick(self.until);
        out.u64(u64::from(self.changes));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (tokens, last, last_event) = (from.f64()?, from.tick()?, from.tick()?);
        if tokens.is_nan() {
            return Err(DecodeError::Value { field: "tokens" });
        }
        let (until, changes) = (from.tick()?, from.u64()?);
        let changes = u32::try_from(changes).map_err(|_| DecodeError::Value { field: "changes" })?;
        Ok(Self { tokens, last, last_event, until, changes })
    }
}
