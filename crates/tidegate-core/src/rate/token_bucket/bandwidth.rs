//! One rate of a token bucket: the weight of a unit, and the amounts that come back over time.

use super::state::Level;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::Replace;
use crate::error::{QuotaError, burst_in_range};
use crate::rate::exact::mul_div_ceil;
use crate::time::{Rate, Tick, Wall, nanos};

/// How the tokens of a [`Bandwidth`] return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refill {
    /// Evenly: after half of the period, half of the count has returned.
    #[default]
    Continuous,
    /// All at once: the whole count at the end of each period, counted from the first use of a full bucket.
    Interval,
    /// All at once: the whole count at the end of each period, where periods end at the multiples of their length
    /// since 1970-01-01T00:00:00Z. So "100 per hour" returns at each full hour, however short before it the bucket was
    /// used. In any span, such a bucket grants at most its capacity and one count for each end of a period inside the
    /// span. A calendar day of a place that changes its clocks is no multiple: for that use
    /// [`FixedWindow`](crate::rate::FixedWindow). Known from Bucket4j as `refillIntervallyAligned`.
    ///
    /// The ends are those of the wall clock ([`Quota::follow_wall`](crate::Quota::follow_wall)). An end counts only
    /// if a whole period has really passed for each refill before it, less a hundredth of one period. So a clock that
    /// is set never gives a count twice, and one that is set forward by more than that makes the next refill late, by
    /// less than a period. Only a bucket that was full and forgotten before the clock was set starts in the period
    /// shown.
    Aligned,
}

/// One rate of a [`TokenBucket`](super::TokenBucket), with its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bandwidth {
    rate: Rate,
    capacity: u64,
    pub(crate) initial: u64,
    pub(crate) refill: Refill,
    /// The amount that returns each nanosecond (continuous) or each period (at once).
    pub(super) gain: u64,
    /// The amount of one unit: the reduced period (continuous), or one (at once).
    pub(super) weight: u64,
}

impl Bandwidth {
    /// Makes a bandwidth of `rate` with a capacity of 1 to [`Rate::MAX_COUNT`] tokens, which refills evenly and starts full.
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when the capacity is out of range.
    pub fn new(rate: Rate, capacity: u64) -> Result<Self, QuotaError> {
        let capacity = burst_in_range(capacity)?;
        Ok(Self { initial: capacity, ..Self::weighed(rate, capacity, Refill::Continuous) })
    }

    fn weighed(rate: Rate, capacity: u64, refill: Refill) -> Self {
        let (gain, weight) = match refill {
            Refill::Continuous => rate.reduced(),
            Refill::Interval | Refill::Aligned => (rate.count(), 1),
        };
        Self { rate, capacity, initial: 0, refill, gain, weight }
    }

    /// Sets how tokens return.
    #[must_use]
    pub fn refill(self, refill: Refill) -> Self {
        Self { initial: self.initial, ..Self::weighed(self.rate, self.capacity, refill) }
    }

    /// Sets how many tokens a key has when it is first seen, from 0 to the capacity.
    ///
    /// If a bucket starts below its capacity, no state is ever equivalent to a fresh one, see
    /// [`Algorithm::full_at`](crate::Algorithm::full_at): a store keeps such a key until it needs the place.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when there are more than the bucket holds.
    pub fn initial(self, tokens: u64) -> Result<Self, QuotaError> {
        if tokens > self.capacity {
            return Err(QuotaError::Parameter {
                name: "initial tokens",
                value: tokens.to_string(),
                want: "are more than the bucket holds; use at most its capacity",
            });
        }
        Ok(Self { initial: tokens, ..self })
    }

    /// Returns the rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the capacity: the most tokens that the bandwidth holds.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the amount that returns each nanosecond, and the amount of a unit; for a bandwidth that refills evenly.
    pub(crate) const fn pace(&self) -> (u64, u64) {
        (self.gain, self.weight)
    }

    /// Returns the amount of a number of units. Below 2^126, since a weight is at most 2^62.
    pub(super) fn amount(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.weight)
    }

    pub(super) fn fresh(&self) -> Level {
        Level::of(self.amount(self.capacity - self.initial), 0)
    }

    #[inline]
    pub(super) fn advance(&self, level: Level, last: Tick, elapsed: u64, wall: &Wall) -> Level {
        let (spent, gain) = (level.spent(), u128::from(self.gain));
        match self.refill {
            Refill::Continuous => Level::of(spent.saturating_sub(u128::from(elapsed) * gain), 0),
            Refill::Interval => {
                let period = u128::from(self.rate.period_nanos());
                let into = u128::from(level.into) + u128::from(elapsed);
                let left = spent.saturating_sub((into / period).saturating_mul(gain));
                // Below the period, which fits 64 bits. The next use of a full bucket starts a period.
                self.level(left, (into % period) as u64)
            }
            Refill::Aligned => self.advance_aligned(level, last, elapsed, wall),
        }
    }

    #[inline]
    pub(super) fn time_for(&self, amount: u128, level: Level, at: Tick, wall: &Wall) -> u128 {
        let steps = amount.div_ceil(u128::from(self.gain));
        match self.refill {
            Refill::Continuous => steps,
            Refill::Interval => steps
                .saturating_mul(u128::from(self.rate.period_nanos()))
                .saturating_sub(u128::from(level.into)),
            Refill::Aligned => match steps.checked_sub(1) {
                None => 0,
                Some(more) => {
                    let first = u128::from(self.next_end(level, at, wall));
                    more.saturating_mul(u128::from(self.rate.period_nanos())).saturating_add(first)
                }
            },
        }
    }

    /// Returns a level after a charge at the tick `at`, and the ns until its debt has returned.
    #[inline]
    pub(super) fn charge(&self, level: Level, units: u64, at: Tick, wall: &Wall) -> (Level, u128) {
        let level = level.charge(self.amount(units));
        let debt = self.debt(level);
        (level, if debt == 0 { 0 } else { self.time_for(debt, level, at, wall) })
    }

    /// Returns the amount spent beyond the capacity: promised to reservations and not there yet.
    pub(super) fn debt(&self, level: Level) -> u128 {
        level.spent().saturating_sub(self.amount(self.capacity))
    }

    /// Returns the amount that returns from `at`, the tick of the level, until the later tick `tick`.
    pub(super) fn back_by(&self, level: Level, at: Tick, tick: Tick, wall: &Wall) -> u128 {
        let elapsed = nanos(tick.since(at));
        let steps = match self.refill {
            Refill::Continuous => u128::from(elapsed),
            Refill::Interval => {
                (u128::from(elapsed) + u128::from(level.into)) / u128::from(self.rate.period_nanos())
            }
            Refill::Aligned => match elapsed.checked_sub(self.next_end(level, at, wall)) {
                None => 0,
                Some(since) => 1 + u128::from(since / self.rate.period_nanos()),
            },
        };
        steps * u128::from(self.gain)
    }

    /// Returns the amount that would have returned from tick 0 until the last refill. The sum of this and the amount
    /// spent does not change as time passes, and never falls. Below 2^124. When the wall clock is set, the base of an
    /// aligned refill may rise by more than returns.
    #[inline]
    pub(super) fn base(&self, level: Level, at: Tick, wall: &Wall) -> u128 {
        let period = self.rate.period_nanos();
        let steps = match self.refill {
            Refill::Continuous => at.as_nanos(),
            Refill::Interval => at.as_nanos().saturating_sub(level.into) / period,
            Refill::Aligned => {
                let last = u128::from(at.as_nanos()) + u128::from(period);
                // A refill may be due a slack after the last tick.
                let counted =
                    last.saturating_sub(u128::from(self.passed(level, at, wall))) / u128::from(period);
                u64::try_from(counted).unwrap_or(u64::MAX)
            }
        };
        u128::from(steps) * u128::from(self.gain)
    }

    /// Makes a level from the amount spent. A full bucket has no running period, unless that is the clock's.
    pub(super) fn level(&self, spent: u128, into: u64) -> Level {
        Level::of(spent, if spent == 0 && self.refill != Refill::Aligned { 0 } else { into })
    }

    pub(super) fn carry(&self, old: &Self, level: Level, how: Replace) -> Level {
        let full = old.amount(old.capacity);
        let (within, debt) = (level.spent().min(full), old.debt(level));
        let convert = |amount| mul_div_ceil(amount, u128::from(self.weight), u128::from(old.weight));
        let within = match how {
            Replace::AsIs => convert(within).min(self.amount(self.capacity)),
            Replace::Proportional => mul_div_ceil(within, self.amount(self.capacity), full),
            Replace::Reset => return self.fresh(),
        };
        let same_period = self.refill == old.refill && self.rate.period() == old.rate.period();
        Level::of(within.saturating_add(convert(debt)), if same_period { level.into } else { 0 })
    }
}

/// The arithmetic of [`Refill::Aligned`]. A level keeps when the last refill was *due*: at the end of a period, or a whole
/// period after the refill before it was due, if that is later. Refills due are thus never less than a period apart,
/// whatever the wall clock shows, and no refill comes before it is due by more than the slack.
impl Bandwidth {
    /// By how much a refill may come before it is due: the wall clock is corrected by seconds every now and then.
    /// Nobody should miss a day's refill for that.
    const fn slack(&self) -> u64 {
        self.rate.period_nanos() / 100
    }

    /// Returns the ns since the last refill was due, plus a period, so that the number is never 0, which stands for
    /// an unused bucket.
    #[inline]
    fn passed(&self, level: Level, at: Tick, wall: &Wall) -> u64 {
        let period = self.rate.period_nanos();
        if level.into == 0 { period + wall.phase(at, period) } else { level.into }
    }

    fn next_end(&self, level: Level, at: Tick, wall: &Wall) -> u64 {
        let period = self.rate.period_nanos();
        let end = period - wall.phase(at, period);
        // Two periods of at most 2^62 each.
        let due = (2 * period - self.slack()).saturating_sub(self.passed(level, at, wall));
        end + due.saturating_sub(end).div_ceil(period) * period
    }

    #[inline(never)]
    fn advance_aligned(&self, level: Level, last: Tick, elapsed: u64, wall: &Wall) -> Level {
        let (period, into) = (self.rate.period_nanos(), self.passed(level, last, wall));
        let first = self.next_end(level, last, wall);
        let Some(since) = elapsed.checked_sub(first) else {
            return Level::of(level.spent(), into.saturating_add(elapsed));
        };
        let refills = 1 + u128::from(since / period);
        let left = level.spent().saturating_sub(refills.saturating_mul(u128::from(self.gain)));
        // By how much the first of these refills came before it was due: at most the slack.
        let early = (2 * period).saturating_sub(into).saturating_sub(first);
        Level::of(left, period + since % period - early)
    }
}

impl Bytes for Bandwidth {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
        out.u64(self.capacity);
        out.u64(self.initial);
        out.u8(match self.refill {
            Refill::Continuous => 0,
            Refill::Interval => 1,
            Refill::Aligned => 2,
        });
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, capacity, initial) = (from.rate()?, from.u64()?, from.u64()?);
        let refill = match from.u8()? {
            0 => Refill::Continuous,
            1 => Refill::Interval,
            2 => Refill::Aligned,
            _ => return Err(DecodeError::Value { field: "refill" }),
        };
        let bandwidth = Self::new(rate, capacity).map_err(|_| DecodeError::Value { field: "capacity" })?;
        let bandwidth = bandwidth.refill(refill).initial(initial);
        bandwidth.map_err(|_| DecodeError::Value { field: "initial tokens" })
    }
}
