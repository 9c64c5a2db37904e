//! The slope of a warm-up, and the times over which it is drawn; see the module of the limit.

use crate::rate::exact::{common_divisor, mul_div_ceil};
use crate::time::{Rate, Tick};

/// How many times slower a cold limit is, in thousandths: 1000 to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ColdFactor(pub(super) u32);

impl ColdFactor {
    /// Three times slower: the default of Guava and of Sentinel.
    pub const THREE: Self = Self::times(3);

    /// Makes a factor of whole times. It is checked when a limit is made with it.
    #[must_use]
    pub const fn times(times: u32) -> Self {
        Self(times.saturating_mul(1000))
    }

    /// Makes a factor of thousandths: 1500 is one and a half times. It is checked when a limit is made with it.
    #[must_use]
    pub const fn thousandths(thousandths: u32) -> Self {
        Self(thousandths)
    }
}

/// A time in units of 2⁻³² ns. It takes 12 bytes, which keeps the state at 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(4))]
pub(super) struct Moment {
    pub(super) ns: u64,
    pub(super) part: u32,
}

/// The number of fractional bits of a moment: rounding at a billion units per second adds up to a nanosecond only
/// after four seconds of unbroken load, and coldness squared fits the long division.
pub(super) const PART: u32 = 32;

impl Moment {
    /// The end of time. A debt that reaches it is no longer counted exactly, so nothing is given back from it.
    pub(super) const MAX: Self = Self { ns: u64::MAX, part: u32::MAX };

    pub(super) const fn at(tick: Tick) -> Self {
        Self { ns: tick.as_nanos(), part: 0 }
    }

    /// Makes a moment from parts; saturates at [`Moment::MAX`].
    pub(super) fn of(parts: u128) -> Self {
        match u64::try_from(parts >> PART) {
            // The low half fits 32 bits.
            Ok(ns) => Self { ns, part: parts as u32 },
            Err(_) => Self::MAX,
        }
    }

    pub(super) fn parts(self) -> u128 {
        (u128::from(self.ns) << PART) | u128::from(self.part)
    }
}

/// The numbers of the slope that depend only on the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slope {
    pub(super) units: u64,
    pub(super) ns: u64,
    /// The coldness of a rested limit, in parts: the whole warm-up period.
    pub(super) coldest: u128,
    /// Coldness above which a unit costs more than the stable interval, in parts.
    foot: u128,
    /// `(k−1)(5+k)²/(16(1+k))` as `a·b/d` in lowest terms; `d` is also multiplied by the period.
    a: u128,
    b: u128,
    d: u128,
}

impl Slope {
    pub(super) fn new(rate: Rate, period_ns: u64, cold: ColdFactor) -> Self {
        let (units, ns) = rate.reduced();
        let (k, coldest) = (u128::from(cold.0), u128::from(period_ns) << PART);
        // Rounded down: a lower foot makes the slope longer, never shorter.
        let foot = coldest * (1000 + k) / (5000 + k);
        let (mut a, mut b, mut d) = (5000 + k, (k - 1000) * (5000 + k), 16_000_000 * (1000 + k));
        for factor in [&mut a, &mut b] {
            let common = common_divisor(*factor, d);
            (*factor, d) = (*factor / common, d / common);
        }
        Self { units, ns, coldest, foot, a, b, d: d * coldest }
    }

    pub(super) fn stable(&self, cost: u64, round: fn(u128, u128, u128) -> u128) -> u128 {
        round(u128::from(cost) * u128::from(self.ns), 1 << PART, u128::from(self.units))
    }

    pub(super) fn warming(&self, cost: u64, cold: ColdFactor, round: fn(u128, u128, u128) -> u128) -> u128 {
        let (k, per) = (u128::from(cold.0), u128::from(self.units));
        round(u128::from(cost) * u128::from(self.ns), (1000 + k) << (PART + 1), per * (5000 + k))
    }

    /// Returns the price beyond the stable one for going from one coldness to a lower one, in parts.
    pub(super) fn extra(&self, from: u128, to: u128) -> u128 {
        let (from, to) = (from.saturating_sub(self.foot), to.saturating_sub(self.foot));
        // Factors below 2^21·2^82 and 2^83·2^41: each fits, and only their product needs more than 128 bits.
        mul_div_ceil(self.a * (from - to), self.b * (from + to), self.d)
    }
}
