//! A request to a limit, its cost, and the answer.

use core::fmt;
use core::num::{NonZero, NonZeroU64};
use core::time::Duration;

use crate::time::Tick;

/// How much one check asks for: 1 or more units.
///
/// Zero is not a cost: asking for nothing is a peek, which has its own call. Calls that take `impl TryInto<Cost>`
/// accept plain numbers and `NonZero`s. For a number that is not a cost they return [`NotACost`]; nothing is decided
/// or spent then. In a constant, `Cost::new(0).unwrap()` does not compile.
///
/// # Examples
/// ```
/// use tidegate_core::Cost;
/// const UPLOAD: Cost = Cost::new(5).unwrap();
/// assert_eq!(Cost::try_from(5), Ok(UPLOAD));
/// assert_eq!(Cost::try_from(0_u64).unwrap_err().to_string(), "0 is not a cost; use 1 or more");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// One unit.
    pub const ONE: Self = Self(NonZeroU64::MIN);
    /// The largest cost. It is above any burst, so it is always refused.
    pub const MAX: Self = Self(NonZeroU64::MAX);

    /// Makes a cost; `None` for zero. In a constant, `Cost::new(5).unwrap()` is checked at compile time.
    #[must_use]
    pub const fn new(units: u64) -> Option<Self> {
        match NonZeroU64::new(units) {
            Some(units) => Some(Self(units)),
            None => None,
        }
    }

    /// Returns the units.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.0.get()
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

/// Why a number is not a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotACost {
    /// It is zero or less.
    #[error("{found} is not a cost; use 1 or more")]
    TooSmall {
        /// The number.
        found: i128,
    },
    /// It is above [`u64::MAX`]: more than any limit grants.
    #[error("{found} is not a cost; use {most} or less", most = u64::MAX)]
    TooLarge {
        /// The number.
        found: u128,
    },
}

/// For calls that take a cost in any form: converting a [`Cost`] into itself cannot fail.
impl From<core::convert::Infallible> for NotACost {
    fn from(never: core::convert::Infallible) -> Self {
        match never {}
    }
}

/// Implements [`TryFrom`] for plain numbers.
macro_rules! from_numbers {
    ($($number:ty),*) => {$(
        impl TryFrom<$number> for Cost {
            type Error = NotACost;

            #[inline]
            fn try_from(units: $number) -> Result<Self, NotACost> {
                match u64::try_from(units).ok().and_then(Self::new) {
                    Some(cost) => Ok(cost),
                    None => Err(match i128::try_from(units) {
                        Ok(found) if found <= 0 => NotACost::TooSmall { found },
                        // Positive, so the conversion does not fail.
                        _ => NotACost::TooLarge { found: u128::try_from(units).unwrap_or(u128::MAX) },
                    }),
                }
            }
        }
    )*};
}

from_numbers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

/// Implements [`From`] for numbers that are not zero.
macro_rules! from_non_zero {
    ($($number:ty),*) => {$(
        impl From<NonZero<$number>> for Cost {
            #[inline]
            fn from(units: NonZero<$number>) -> Self {
                Self(units.into())
            }
        }
    )*};
}

from_non_zero!(u8, u16, u32, u64);

impl From<NonZero<usize>> for Cost {
    #[inline]
    fn from(units: NonZero<usize>) -> Self {
        // No platform has a `usize` of more than 64 bits.
        Self(NonZeroU64::MIN.saturating_add(units.get() as u64 - 1))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One request to a limit.
///
/// *Allow* is a `max_wait` of zero, *reserve* is any `max_wait`, *wait* is the time left until a deadline. One function
/// of an algorithm serves all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The tick of the request. A tick before the last change of the state counts as the tick of that change.
    pub now: Tick,
    /// How much is asked for.
    pub cost: Cost,
    /// The longest delay the caller accepts.
    pub max_wait: Duration,
}

impl Ask {
    /// Asks for `cost` at once.
    #[must_use]
    pub const fn allow(now: Tick, cost: Cost) -> Self {
        Self { now, cost, max_wait: Duration::ZERO }
    }

    /// Asks for `cost` with a delay of at most `max_wait`.
    #[must_use]
    pub const fn within(now: Tick, cost: Cost, max_wait: Duration) -> Self {
        Self { now, cost, max_wait }
    }
}

/// When a refused request is worth repeating.
///
/// Ordered by how long it keeps a caller away: a known time, then an unknown one, then never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Retry {
    /// The shortest wait after which the same request is allowed, if nobody else asks and the state is kept; from the
    /// tick of the request, or of the last change of the state if that is later.
    After(Duration),
    /// At an unknown later time: it depends on when others leave, recover or answer.
    Unknown,
    /// Never: the limit does not grant this cost at any time.
    Never,
}

impl Retry {
    /// Returns the wait; `None` if it is unknown, or if a retry can never succeed.
    #[must_use]
    pub const fn after(self) -> Option<Duration> {
        match self {
            Self::After(wait) => Some(wait),
            Self::Unknown | Self::Never => None,
        }
    }

    /// Returns its name as every interface shows it: `after`, `unknown` or `never`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::After(_) => "after",
            Self::Unknown => "unknown",
            Self::Never => "never",
        }
    }
}

/// The answer of an algorithm to one [`Ask`]: allowed, with the next state, or denied.
///
/// A denial carries no state, so by its type it changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an allowed transition takes effect only when its next state is stored"]
pub enum Transition<S> {
    /// The cost may be spent after `wait`.
    Allowed {
        /// How long to hold the work back; zero means now. Rounded up to the nanosecond.
        wait: Duration,
        /// The state to store.
        next: S,
        /// The receipt that settles this charge.
        receipt: Receipt,
    },
    /// The cost may not be spent.
    Denied {
        /// When the same request is worth repeating.
        retry: Retry,
    },
}

impl<S> Transition<S> {
    /// A refusal with [`Retry::Never`]: waiting does not help.
    pub const NEVER: Self = Self::Denied { retry: Retry::Never };

    /// Returns the same transition over another state type.
    pub fn map<T>(self, into: impl FnOnce(S) -> T) -> Transition<T> {
        match self {
            Self::Allowed { wait, next, receipt } => Transition::Allowed { wait, next: into(next), receipt },
            Self::Denied { retry } => Transition::Denied { retry },
        }
    }
}

/// Proof of one allowed charge; settling needs it.
///
/// It is valid only for the limit and the key that it was issued for; its holder has to remember both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// When the charge was made: the tick of the request, or of the last change of the state if that was later.
    pub at: Tick,
    /// When the work may act: `at` plus the wait.
    pub act: Tick,
    /// The units or places charged.
    pub cost: Cost,
    /// Four numbers for the algorithm that issued the receipt; zero where it needs fewer.
    pub mark: [u64; 4],
}

impl Receipt {
    pub(crate) const fn mark(first: u128, second: u128) -> [u64; 4] {
        // Each part is one half of a number and fits 64 bits.
        [(first >> 64) as u64, first as u64, (second >> 64) as u64, second as u64]
    }

    pub(crate) const fn marks(&self) -> (u128, u128) {
        let [a, b, c, d] = self.mark;
        (((a as u128) << 64) | b as u128, ((c as u128) << 64) | d as u128)
    }
}

/// The standing of a limit at one tick: units left, debt, and the time until it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The most that a full limit grants: burst, or count per window.
    pub limit: u64,
    /// Units that could be spent right now.
    pub remaining: u64,
    /// Units that have to return before the first can be spent, rounded up: units promised to reservations, and units
    /// used beyond the charge.
    pub debt: u64,
    /// Wait until the limit is full again if nothing more is asked.
    pub reset_after: Duration,
}

/// How a changed quota takes over the units that a state has spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Replace {
    /// Units spent stay spent: their number is carried over, up to the new limit, including debts of reservations.
    #[default]
    AsIs,
    /// The spent share of the old limit becomes the same share of the new one, rounded up.
    Proportional,
    /// Everything spent is forgotten: the new limit starts full.
    Reset,
}

/// The whole answer of one limit to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Allowed, now or after a delay; or denied.
    pub ruling: Ruling,
    /// The limit after this decision.
    pub standing: Standing,
}

/// Whether a [`Decision`] allows or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Allowed after `wait`; zero means now.
    Allowed {
        /// How long to hold the work back.
        wait: Duration,
    },
    /// Denied.
    Denied {
        /// When the same request is worth repeating.
        retry: Retry,
    },
}

impl Decision {
    /// Says whether the cost was granted, at once or after a delay.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.ruling, Ruling::Allowed { .. })
    }

    /// Returns the delay before the work may act; zero for a denial.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        match self.ruling {
            Ruling::Allowed { wait } => wait,
            Ruling::Denied { .. } => Duration::ZERO,
        }
    }

    /// Returns when the same request is worth repeating: after zero time if it was allowed.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self.ruling {
            Ruling::Allowed { .. } => Retry::After(Duration::ZERO),
            Ruling::Denied { retry } => retry,
        }
    }

    /// Says whether this charge took the last unit. A batch job can pause then, before it is refused.
    #[must_use]
    pub const fn used_up(&self) -> bool {
        self.is_allowed() && self.standing.remaining == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_less_are_no_costs() {
        assert_eq!(Cost::new(0), None);
        assert_eq!(Cost::new(3).map(Cost::units), Some(3));
        for found in [0, -1, i64::MIN] {
            assert_eq!(Cost::try_from(found), Err(NotACost::TooSmall { found: i128::from(found) }));
        }
        let above = u128::from(u64::MAX) + 1;
        for found in [above, u128::MAX] {
            assert_eq!(Cost::try_from(found), Err(NotACost::TooLarge { found }));
        }
        assert_eq!(Cost::try_from(i128::MAX), Err(NotACost::TooLarge { found: i128::MAX as u128 }));
        let told = Cost::try_from(above).unwrap_err().to_string();
        assert_eq!(told, "18446744073709551616 is not a cost; use 18446744073709551615 or less");
        assert_eq!(Cost::try_from(u64::MAX), Ok(Cost::MAX));
        assert_eq!(Cost::from(NonZero::<usize>::MAX).units(), usize::MAX as u64);
        assert_eq!(Cost::from(NonZero::<u8>::MIN), Cost::ONE);
    }
}
