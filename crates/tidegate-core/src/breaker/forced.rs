//! States that a person forces a breaker into.

use std::sync::Arc;

use super::rules::Figure;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::Tick;

/// The states that a person can force a breaker into, whatever the outcomes of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Force {
    /// Refuse every call. When this ends, the service is tried by probes first.
    Open,
    /// Admit every call. Outcomes are counted, so the window is up to date when this ends.
    Closed,
    /// Admit every call, and report when the breaker would have tripped: for thresholds that are new. After each such
    /// report the window starts empty.
    MetricsOnly,
    /// Admit every call, and count nothing. The window starts empty, so that old outcomes are not judged together with
    /// those after it.
    Disabled,
}

impl Force {
    /// Returns its word: `open`, `closed`, `metrics-only` or `disabled`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::MetricsOnly => "metrics-only",
            Self::Disabled => "disabled",
        }
    }
}

/// A state that a person forced a breaker into: which one, until when, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forced {
    pub(super) to: Force,
    /// [`Tick::MAX`] means until it is ended.
    pub(super) until: Tick,
    pub(super) reason: Arc<str>,
}

impl Forced {
    /// The longest reason in bytes: 255.
    pub const MAX_REASON: usize = 255;
    pub(super) const LARGEST: usize = 1 + 8 + 1 + Self::MAX_REASON;

    /// Makes a forced state that ends at `until`, or only by hand if that is `None`. The reason is for people; it is
    /// cut off after [`Forced::MAX_REASON`] bytes, at a character boundary.
    #[must_use]
    pub fn new(to: Force, until: Option<Tick>, reason: &str) -> Self {
        let end = reason.floor_char_boundary(Self::MAX_REASON);
        Self { to, until: until.unwrap_or(Tick::MAX), reason: reason[..end].into() }
    }

    /// Returns the forced state.
    #[must_use]
    pub const fn to(&self) -> Force {
        self.to
    }

    /// Returns when it ends by itself; `None` if it ends only by hand.
    #[must_use]
    pub fn until(&self) -> Option<Tick> {
        (self.until != Tick::MAX).then_some(self.until)
    }

    /// Returns the reason.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// How often, and why, a breaker that was forced to measure only ([`Force::MetricsOnly`]) would have opened since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WouldTrip {
    /// How often it would have opened; saturates at `u32::MAX`.
    pub times: u32,
    /// When it would last have opened.
    pub at: Tick,
    /// The figure that would have opened it then.
    pub by: Figure,
}

impl WouldTrip {
    pub(super) const LARGEST: usize = 4 + 8 + Figure::LARGEST;

    pub(super) fn once_more(before: Option<Self>, at: Tick, by: Figure) -> Self {
        Self { times: before.map_or(0, |before| before.times).saturating_add(1), at, by }
    }
}

/// `None` is written as zero times.
impl Bytes for Option<WouldTrip> {
    fn write(&self, out: &mut Writer) {
        out.u32(self.map_or(0, |would| would.times));
        if let Some(would) = self {
            out.tick(would.at);
            would.by.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.u32()? {
            0 => Ok(None),
            times => Ok(Some(WouldTrip { times, at: from.tick()?, by: Figure::read(from)? })),
        }
    }
}

/// `None` is written as zero.
impl Bytes for Option<Forced> {
    fn write(&self, out: &mut Writer) {
        let Some(forced) = self else { return out.u8(0) };
        out.u8(match forced.to {
            Force::Open => 1,
            Force::Closed => 2,
            Force::MetricsOnly => 3,
            Force::Disabled => 4,
        });
        out.tick(forced.until);
        out.short_str(&forced.reason);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let to = match from.u8()? {
            0 => return Ok(None),
            1 => Force::Open,
            2 => Force::Closed,
            3 => Force::MetricsOnly,
            4 => Force::Disabled,
            _ => return Err(DecodeError::Value { field: "forced" }),
        };
        Ok(Some(Forced { to, until: from.tick()?, reason: from.short_str()?.into() }))
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::breaker::{CircuitBreaker, CircuitBreakerState, Condition, Window};
    use crate::decision::{Ask, Cost};
    use crate::guard::{Guard, Outcome};

    fn fail(breaker: &CircuitBreaker, state: &mut CircuitBreakerState, at: Tick, calls: u32) {
        for _ in 0..calls {
            let receipt = breaker.enter_in_place(state, Ask::allow(at, Cost::ONE), &mut |_| ()).unwrap();
            breaker.leave_in_place(state, at, &receipt, None, Outcome::Failure, &mut |_| ());
        }
    }

    /// Regression: a window of calls kept the outcomes from before it was disabled, so the first failure afterwards, days
    /// later, opened the breaker. So did the count of failures in a row.
    #[test]
    fn outcomes_from_before_it_was_disabled_do_not_count_afterwards() {
        let builder = CircuitBreaker::builder().window(Window::Calls(100));
        for builder in [builder.clone(), builder.consecutive(20)] {
            let breaker = builder.build().unwrap();
            let mut state = breaker.fresh(Tick::EPOCH);
            fail(&breaker, &mut state, Tick::EPOCH, 19);
            let day = Tick::EPOCH.after(Duration::from_secs(86_400));
            let disabled = Forced::new(Force::Disabled, Some(day), "maintenance");
            breaker.force_in_place(&mut state, Tick::EPOCH, Some(disabled), &mut |_| ());
            fail(&breaker, &mut state, Tick::from_secs(1), 30);
            fail(&breaker, &mut state, day, 19);
            assert_eq!(breaker.condition(&state, day), Condition::Closed);
            fail(&breaker, &mut state, day, 1);
            assert_eq!(breaker.condition(&state, day).as_str(), "open");
        }
    }
}
