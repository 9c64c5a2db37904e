//! The bounds of a law's limit and its start: the parameters that every law has.

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::error::{QuotaError, in_range};

/// The least and the largest limit of a law, and the limit before the first sample.
///
/// # Examples
/// ```
/// use tidegate_core::concurrency::{Aimd, Bounds, Law};
/// use tidegate_core::Tick;
///
/// let law = Aimd::default().bounds(Bounds::new(2, 500)?.start_at(50)?);
/// assert_eq!(law.limit(&law.start(Tick::EPOCH)), 50);
/// assert!(Bounds::new(8, 4).is_err());
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    least: u64,
    most: u64,
    start: u64,
}

impl Bounds {
    /// The largest limit that can be set: 2²⁰, more than one process can serve at once.
    pub const MOST: u64 = 1 << 20;

    /// The default limit before the first sample: 20, as in Netflix' library, or the bound nearest to it.
    const START: u64 = 20;

    /// Makes bounds: `least` from 1, `most` up to [`Bounds::MOST`]. The limit starts at 20, or at the bound nearest
    /// to 20.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when one is out of range, or `least` exceeds `most`.
    pub fn new(least: u64, most: u64) -> Result<Self, QuotaError> {
        let most = in_range("most", most, &(1..=Self::MOST), "is not a limit; use 1 to 1048576")?;
        let least = in_range("least", least, &(1..=most), "is not a least limit; use 1 to the most")?;
        Ok(Self { least, most, start: Self::START.clamp(least, most) })
    }

    /// Sets the limit before the first sample.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it lies outside the bounds.
    pub fn start_at(self, start: u64) -> Result<Self, QuotaError> {
        let want = "is outside the bounds; use the least to the most";
        Ok(Self { start: in_range("start", start, &(self.least..=self.most), want)?, ..self })
    }

    pub(super) const fn known(least: u64, most: u64) -> Self {
        Self { least, most, start: Self::START }
    }

    /// Returns the least number of places that a law may set.
    #[must_use]
    pub const fn least(&self) -> u64 {
        self.least
    }

    /// Returns the largest number of places that a law may set.
    #[must_use]
    pub const fn most(&self) -> u64 {
        self.most
    }

    /// Returns the number of places before the first sample.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Returns the value within the bounds that is nearest to `limit`; the least for NaN.
    pub(super) fn clamp(&self, limit: f64) -> f64 {
        // If one operand is NaN, `max` returns the other. Both bounds are below 2⁵³, so they are exact.
        limit.max(self.least as f64).min(self.most as f64)
    }
}

impl Bytes for Bounds {
    fn write(&self, out: &mut Writer) {
        out.u64(self.least);
        out.u64(self.most);
        out.u64(self.start);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (least, most, start) = (from.u64()?, from.u64()?, from.u64()?);
        let bounds = Self::new(least, most).and_then(|bounds| bounds.start_at(start));
        bounds.map_err(|_| DecodeError::Value { field: "bounds" })
    }
}

/// The range of a limit in a byte form: that of the widest bounds.
pub(super) const LIMITS: core::ops::RangeInclusive<f64> = 1.0..=Bounds::MOST as f64;

/// Returns `max(1, ⌊log₁₀ limit⌋)`: the step for laws that move the limit by the length of the queue. Small beside a
/// large limit. In integers, so the same on every machine.
pub(super) fn log10_step(limit: f64) -> f64 {
    f64::from((limit as u64).max(1).ilog10().max(1))
}

/// A sequence of pseudorandom numbers, at its current one.
///
/// # Source
/// SplitMix64: G. Steele, D. Lea and C. Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed).next()
    }

    pub(super) const fn next(self) -> Self {
        let mut mixed = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self(mixed ^ (mixed >> 31))
    }

    /// Returns the number as a fraction from 0 to below 1.
    pub(super) fn unit(self) -> f64 {
        // The upper 53 bits: the precision of an `f64`.
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Bytes for Jitter {
    fn write(&self, out: &mut Writer) {
        out.u64(self.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        from.u64().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_cross_or_leave_the_range_are_refused_by_name() {
        let refused = |result: Result<Bounds, QuotaError>| result.unwrap_err().to_string();
        assert_eq!(refused(Bounds::new(0, 5)), "least 0 is not a least limit; use 1 to the most");
        assert_eq!(refused(Bounds::new(6, 5)), "least 6 is not a least limit; use 1 to the most");
        assert_eq!(refused(Bounds::new(1, 0)), "most 0 is not a limit; use 1 to 1048576");
        assert_eq!(
            refused(Bounds::new(2, 5).and_then(|bounds| bounds.start_at(9))),
            "start 9 is outside the bounds; use the least to the most"
        );
        assert_eq!(Bounds::new(1, 5).map(|bounds| bounds.start()), Ok(5));
        assert_eq!(Bounds::new(30, 50).map(|bounds| bounds.start()), Ok(30));
    }

    #[test]
    fn a_limit_is_held_between_the_bounds_whatever_it_is() {
        let bounds = Bounds::known(2, 100);
        let held = [-1.0, 1.9, 2.5, 1e300, f64::INFINITY, f64::NAN].map(|limit| bounds.clamp(limit));
        assert_eq!(held, [2.0, 2.0, 2.5, 100.0, 100.0, 2.0]);
    }

    #[test]
    fn the_step_is_the_logarithm_and_never_nothing() {
        let steps = [0.0, 1.0, 9.9, 10.0, 99.9, 100.0, 1000.0, 1e6].map(log10_step);
        assert_eq!(steps, [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 6.0]);
    }
}
