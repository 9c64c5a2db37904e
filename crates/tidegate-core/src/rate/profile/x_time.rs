//! The arithmetic of Go's `golang.org/x/time/rate`.
//!
//! A token bucket in 64-bit floats: tokens grow with `seconds · limit`, a reservation may take them below zero, and the wait is
//! the debt divided by the limit, truncated to the nanosecond. Where it breaks our laws:
//! * a time before the last one is taken as it is and becomes the last one, so the time until the old one counts twice;
//! * the truncated wait may be a nanosecond short, and rates are floats, so nothing is exact.

use core::time::Duration;

use crate::Algorithm;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Cost, Receipt, Replace, Retry, Standing, Transition};
use crate::quota::QuotaError;
use crate::time::{Tick, nanos};

/// Go's longest `time.Duration`, 292 years: what a subtraction from the zero time saturates at.
const LONGEST: i64 = i64::MAX;

/// A limit of `golang.org/x/time/rate`: events per second as a float, and a burst.
///
/// Infinity allows everything and ignores the burst; a limit of zero lets the burst through once.
///
/// # Source
/// golang.org/x/time/rate, as of 2025: `reserveN`, `advance`, `CancelAt`, `SetLimitAt`, `SetBurstAt`.
#[derive(Clone, Copy, Debug)]
pub struct XTime {
    limit: f64,
    burst: u64,
}

/// What [`XTime`] remembers of a key: 40 bytes.
#[derive(Clone, Copy, Debug)]
pub struct XTimeState {
    tokens: f64,
    /// `None` is Go's zero time: never asked.
    last: Option<Tick>,
    last_event: Tick,
    /// What a limit of zero has let through of its burst.
    let_through: u64,
}

impl XTime {
    /// Makes a limit of `limit` events a second, from 0 to infinity, and `burst` at once.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] for a negative limit or none.
    ///
    /// # Examples
    /// ```
    /// use tidegate_core::{rate::XTime, Algorithm, Ask, Cost, Tick, Transition};
    /// let limit = XTime::new(10.0, 1)?;
    /// let now = Tick::from_secs(1);
    /// assert!(matches!(limit.decide(&limit.fresh(now), Ask::allow(now, Cost::ONE)), Transition::Allowed { .. }));
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(limit: f64, burst: u64) -> Result<Self, QuotaError> {
        if limit >= 0.0 {
            return Ok(Self { limit, burst });
        }
        Err(QuotaError::Parameter {
            name: "limit",
            value: limit.to_string(),
            want: "is no rate; use 0 or more",
        })
    }

    fn tokens_in(limit: f64, span: i64) -> f64 {
        const SECOND: i64 = 1_000_000_000;
        if limit <= 0.0 {
            return 0.0;
        }
        ((span / SECOND) as f64 + (span % SECOND) as f64 / 1e9) * limit
    }

    /// Time that so many tokens take; negative for negative tokens, and the longest for a limit of zero.
    fn time_of(limit: f64, tokens: f64) -> i64 {
        if limit <= 0.0 {
            return LONGEST;
        }
        // Truncates towards zero like Go, and saturates where Go's result is left open.
        (1e9 * (tokens / limit)) as i64
    }

    fn advance(&self, state: &XTimeState, now: Tick) -> f64 {
        let elapsed = match state.last {
            None => LONGEST,
            Some(last) => i64::try_from(now.as_nanos().saturating_sub(last.as_nanos())).unwrap_or(LONGEST),
        };
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
            mark: Receipt::mark(u128::from(limit.to_bits()), 0),
        };
        Transition::Allowed { wait, next, receipt }
    }
}

impl Algorithm for XTime {
    type State = XTimeState;

    fn fresh(&self, _now: Tick) -> XTimeState {
        XTimeState { tokens: 0.0, last: None, last_event: Tick::EPOCH, let_through: 0 }
    }

    /// As `ReserveN` limited to `max_wait`; zero is `AllowN`.
    fn decide(&self, state: &XTimeState, ask: Ask) -> Transition<XTimeState> {
        let units = ask.cost.units();
        if self.limit == f64::INFINITY {
            return Self::allowed(ask, 0, *state, self.limit);
        }
        if self.limit == 0.0 {
            let left = self.burst.saturating_sub(state.let_through);
            if units > left {
                return Transition::NEVER;
            }
            return Self::allowed(
                ask,
                0,
                XTimeState { let_through: state.let_through + units, ..*state },
                0.0,
            );
        }
        let tokens = self.advance(state, ask.now) - units as f64;
        let wait = if tokens < 0.0 { Self::time_of(self.limit, -tokens) } else { 0 };
        if units > self.burst {
            return Transition::NEVER;
        }
        let max_wait = i64::try_from(nanos(ask.max_wait)).unwrap_or(LONGEST);
        if wait > max_wait {
            return Transition::Denied {
                retry: Retry::After(Duration::from_nanos((wait - max_wait).unsigned_abs())),
            };
        }
        let last_event = ask.now.after(Duration::from_nanos(wait.unsigned_abs()));
        Self::allowed(ask, wait, XTimeState { tokens, last: Some(ask.now), last_event, ..*state }, self.limit)
    }

    fn standing(&self, state: &XTimeState, now: Tick) -> Standing {
        if self.limit == 0.0 {
            let remaining = self.burst.saturating_sub(state.let_through);
            return Standing { limit: self.burst, remaining, debt: 0, reset_after: Duration::ZERO };
        }
        if self.limit == f64::INFINITY {
            return Standing { limit: u64::MAX, remaining: u64::MAX, debt: 0, reset_after: Duration::ZERO };
        }
        let tokens = self.advance(state, now);
        let missing = Self::time_of(self.limit, (self.burst as f64 - tokens).max(0.0));
        // Saturates at zero for a debt.
        Standing {
            limit: self.burst,
            remaining: tokens as u64,
            debt: 0,
            reset_after: Duration::from_nanos(missing.unsigned_abs()),
        }
    }

    /// The peer has no refund; users reserve a negative number, which adds tokens up to the burst.
    fn refund(&self, state: &XTimeState, now: Tick, cost: Cost) -> XTimeState {
        if self.limit == 0.0 {
            return XTimeState { let_through: state.let_through.saturating_sub(cost.units()), ..*state };
        }
        let tokens = (self.advance(state, now) + cost.units() as f64).min(self.burst as f64);
        XTimeState { tokens, last: Some(now), ..*state }
    }

    /// As `CancelAt`.
    fn cancel(&self, state: &XTimeState, now: Tick, receipt: &Receipt) -> XTimeState {
        if self.limit == f64::INFINITY || receipt.act < now {
            return *state;
        }
        let limit = f64::from_bits(receipt.marks().0 as u64);
        let later = i128::from(state.last_event.as_nanos()) - i128::from(receipt.act.as_nanos());
        let later = i64::try_from(later).unwrap_or(if later < 0 { i64::MIN } else { LONGEST });
        let restored = receipt.cost.units() as f64 - Self::tokens_in(limit, later);
        if restored <= 0.0 {
            return *state;
        }
        let tokens = (self.advance(state, now) + restored).min(self.burst as f64);
        let mut next = XTimeState { tokens, last: Some(now), ..*state };
        if receipt.act == state.last_event {
            let back = Self::time_of(limit, -(receipt.cost.units() as f64)).unsigned_abs();
            let previous = Tick::from_nanos(receipt.act.as_nanos().saturating_sub(back));
            if previous >= now {
                next.last_event = previous;
            }
        }
        next
    }

    /// As `SetLimitAt` and `SetBurstAt`: the tokens stay, not what was spent.
    fn carry(&self, old: &Self, state: &XTimeState, now: Tick, how: Replace) -> XTimeState {
        let tokens = match how {
            Replace::Reset => return self.fresh(now),
            Replace::AsIs => old.advance(state, now),
            Replace::Proportional => old.advance(state, now) * (self.burst as f64 / old.burst.max(1) as f64),
        };
        XTimeState { tokens, last: Some(now), ..*state }
    }

    fn full_at(&self, state: &XTimeState) -> Option<Tick> {
        if self.limit == f64::INFINITY {
            return Some(Tick::EPOCH);
        }
        let missing = Self::time_of(self.limit, (self.burst as f64 - state.tokens).max(0.0));
        let tick = state.last?.after(Duration::from_nanos(missing.unsigned_abs().saturating_add(1)));
        // Floats may fall a hair short of full for ever; then the state is kept.
        (self.limit > 0.0 && self.advance(state, tick) >= self.burst as f64).then_some(tick)
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
        let fields = |state: &Self| (state.tokens.to_bits(), state.last, state.last_event, state.let_through);
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
        out.u8(u8::from(self.last.is_some()));
        out.tick(self.last.unwrap_or_default());
        out.tick(self.last_event);
        out.u64(self.let_through);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (tokens, asked, last) = (from.f64()?, from.u8()?, from.tick()?);
        let last = match asked {
            0 if last == Tick::EPOCH => None,
            1 => Some(last),
            _ => return Err(DecodeError::Value { field: "last" }),
        };
        if tokens.is_nan() {
            return Err(DecodeError::Value { field: "tokens" });
        }
        let (last_event, let_through) = (from.tick()?, from.u64()?);
        Ok(Self { tokens, last, last_event, let_through: let_through.min(crate::time::Rate::MAX_COUNT) })
    }
}
