//! Ticks and rates: time in integer nanoseconds, speed as an exact ratio.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::sync::atomic::{AtomicI64, Ordering};
use core::time::Duration;
use std::sync::{Arc, OnceLock};

use crate::error::{MAX_COUNT, QuotaError};

/// A point in time: nanoseconds since the epoch of the clock that made it.
///
/// The whole range is usable: 584 years from the epoch. Algorithms that follow the calendar read a tick as
/// nanoseconds since 1970-01-01T00:00:00Z; all others use only differences. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tick(u64);

impl Tick {
    /// The clock's epoch.
    pub const EPOCH: Self = Self(0);
    /// The last tick that can be named.
    pub const MAX: Self = Self(u64::MAX);

    /// Makes a tick of nanoseconds since the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Makes a tick of whole seconds since the epoch; saturates at [`Tick::MAX`].
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this tick; zero if `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the tick that lies `span` earlier; saturates at [`Tick::EPOCH`].
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }

    /// Returns the tick that lies `span` later; saturates at [`Tick::MAX`].
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl Tick {
    /// Returns the tick that lies a number of nanoseconds later, or earlier if it is less than zero; saturates.
    #[inline]
    pub(crate) const fn shifted(self, nanos: i64) -> Self {
        Self(self.0.saturating_add_signed(nanos))
    }
}

/// How far the wall clock is ahead of the ticks of a clock, in nanoseconds; less than zero if it is behind. A clock
/// whose ticks do not follow the wall clock has one. Clones share the number. Calendar windows and [aligned
/// refills](crate::rate::Refill::Aligned) read it: see [`Quota::follow_wall`](crate::Quota::follow_wall). Reading it
/// is one load.
#[derive(Clone, Debug, Default)]
pub struct WallAhead(Arc<AtomicI64>);

impl WallAhead {
    /// Returns the number.
    #[must_use]
    #[inline]
    pub fn nanos(&self) -> i64 {
        // Relaxed, as in `set`: the number publishes only itself.
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the number.
    pub fn set(&self, nanos: i64) {
        self.0.store(nanos, Ordering::Relaxed);
    }
}

/// The wall clock that a limit follows, once it is known. Not a parameter: limits that differ only in it are equal,
/// and a clone follows none.
#[derive(Debug, Default)]
pub(crate) struct Wall(OnceLock<WallAhead>);

impl Wall {
    /// Follows this wall clock, unless the limit follows one already.
    pub(crate) fn follow(&self, wall: &WallAhead) {
        self.0.get_or_init(|| wall.clone());
    }

    /// Returns how far the wall clock is ahead of ticks, in nanoseconds; 0 until one is followed.
    #[inline]
    pub(crate) fn ahead(&self) -> i64 {
        self.0.get().map_or(0, WallAhead::nanos)
    }

    /// Returns how long ago the wall clock showed a multiple of `period` ns, 1 to 2^62, counted from 1970; exact for
    /// every tick.
    pub(crate) fn phase(&self, at: Tick, period: u64) -> u64 {
        // Below the period, which is at most 2^62, and so is the other remainder.
        let ahead = self.ahead().rem_euclid(period.cast_signed());
        (at.as_nanos() % period + ahead.cast_unsigned()) % period
    }
}

impl Clone for Wall {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Wall {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Wall {}

impl Hash for Wall {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// The largest step back of a clock for which a key merely stands still, that is, counts an earlier `now` as the tick
/// of its last change: ten seconds. For larger steps, see [`Quota::set_back`](crate::Quota::set_back). It is more than
/// a synchronised clock ever corrects at once, and than those of several machines differ, and short enough for a key
/// to stand still.
pub const MAX_STEP_BACK: Duration = Duration::from_secs(10);

/// Returns the tick that an event at `at` counts as, after an event at `last`: `last` if the clock has stepped back
/// by no more than [`MAX_STEP_BACK`]; otherwise `at`, because nothing would happen until the clock catches up.
pub(crate) fn onward(last: Tick, at: Tick) -> Tick {
    if at < last && last.since(at) <= MAX_STEP_BACK { last } else { at }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}

/// Returns a span in nanoseconds; saturates at 584 years.
#[must_use]
pub fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the span of a number of nanoseconds that may exceed 64 bits; saturates at [`Duration::MAX`].
#[must_use]
pub fn span(nanos: u128) -> Duration {
    const NANOS_PER_SEC: u128 = 1_000_000_000;
    match u64::try_from(nanos / NANOS_PER_SEC) {
        // The remainder is below 10^9 and fits.
        Ok(secs) => Duration::new(secs, (nanos % NANOS_PER_SEC) as u32),
        Err(_) => Duration::MAX,
    }
}

/// How fast capacity returns: `count` units per `period`, kept as the exact ratio.
///
/// `count` is 1 to [`Rate::MAX_COUNT`], `period` 1 ns to [`Rate::MAX_PERIOD`]: from one unit in 146 years to 2⁶⁰ per
/// nanosecond. The ratio is never rounded to an interval; see [`Rate::reduced`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::Rate;
///
/// let rate = Rate::new(3, Duration::from_secs(60))?;
/// assert_eq!(rate.reduced(), Rate::new(1, Duration::from_secs(20))?.reduced());
/// assert!(Rate::new(0, Duration::from_secs(1)).is_err());
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u64,
    period_ns: u64,
}

impl Rate {
    /// The largest count of a rate, and the largest burst: 2⁶⁰. Products of a count and a tick then fit 128 bits.
    pub const MAX_COUNT: u64 = MAX_COUNT;
    /// The longest period of a rate: 2⁶² ns, about 146 years.
    pub const MAX_PERIOD: Duration = Duration::from_nanos(1 << 62);

    /// Makes a rate of `count` units, 1 to [`Rate::MAX_COUNT`], per `period`, above 0 and up to [`Rate::MAX_PERIOD`].
    ///
    /// # Errors
    /// [`QuotaError`] when one is out of range.
    pub fn new(count: u64, period: Duration) -> Result<Self, QuotaError> {
        if count == 0 || count > Self::MAX_COUNT {
            return Err(QuotaError::Count { count });
        }
        if period.is_zero() || period > Self::MAX_PERIOD {
            return Err(QuotaError::Period { period });
        }
        Ok(Self { count, period_ns: nanos(period) })
    }

    /// Returns how many units return in one period, as given.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// Returns the period, as given.
    #[must_use]
    pub const fn period(self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    /// Returns the period in nanoseconds, as given.
    #[must_use]
    pub const fn period_nanos(self) -> u64 {
        self.period_ns
    }

    /// Returns `(count, period in ns)` in lowest terms: the ratio the arithmetic works with.
    #[must_use]
    pub const fn reduced(self) -> (u64, u64) {
        let (mut a, mut b) = (self.count, self.period_ns);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        (self.count / a, self.period_ns / a)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_back_is_no_time_at_all() {
        assert_eq!(Tick::from_nanos(5).since(Tick::from_nanos(9)), Duration::ZERO);
    }

    #[test]
    fn ticks_and_spans_saturate() {
        assert_eq!(Tick::MAX.after(Duration::MAX), Tick::MAX);
        assert_eq!(span(u128::MAX), Duration::MAX);
        assert_eq!(span(1_500_000_000), Duration::from_millis(1500));
    }

    #[test]
    fn rates_out_of_range_are_refused() {
        assert!(Rate::new(0, Duration::from_secs(1)).is_err());
        assert!(Rate::new(1, Duration::ZERO).is_err());
        assert!(Rate::new(Rate::MAX_COUNT + 1, Duration::from_secs(1)).is_err());
        assert!(Rate::new(1, Duration::from_secs(200 * 365 * 86_400)).is_err());
        assert_eq!(Rate::new(700_000_000, Duration::from_secs(1)).unwrap().reduced(), (7, 10));
    }
}
