//! Moving averages of floating-point numbers, for limits that adapt.

use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// Returns `old` moved towards `new` by the fraction `weight`, 0 to 1. In spite of rounding, the result lies between
/// the two and is monotone in both, unlike `old + (new - old) * weight`.
pub(crate) fn interpolate(old: f64, new: f64, weight: f64) -> f64 {
    (old * (1.0 - weight) + new * weight).max(old.min(new)).min(old.max(new))
}

/// An average that is the plain mean of its first values and exponentially weighted after them: otherwise the first
/// value would weigh as much as all later ones of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Average {
    value: f64,
    count: u32,
}

impl Average {
    /// Adds a value: the first `plain` values as a plain mean, later ones with the fraction `weight`. Returns the average.
    pub(crate) fn add(&mut self, value: f64, plain: u32, weight: f64) -> f64 {
        if self.count < plain {
            self.count += 1;
            self.value = interpolate(self.value, value, 1.0 / f64::from(self.count));
        } else {
            self.value = interpolate(self.value, value, weight);
        }
        self.value
    }

    pub(crate) fn get(&self) -> Option<f64> {
        (self.count > 0).then_some(self.value)
    }

    pub(crate) fn scale(&mut self, factor: f64) {
        self.value *= factor;
    }
}

impl Bytes for Average {
    fn write(&self, out: &mut Writer) {
        out.f64(self.value);
        out.u32(self.count);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { value: from.within("average", 0.0..=f64::MAX)?, count: from.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_step_lies_between_and_keeps_the_order(
            old in -1e9f64..1e9,
            new in -1e9f64..1e9,
            more in 0f64..1e-3,
            weight in 0f64..=1.0,
        ) {
            let step = interpolate(old, new, weight);
            prop_assert!(old.min(new) <= step && step <= old.max(new));
            prop_assert!(step <= interpolate(old + more, new, weight) && step <= interpolate(old, new + more, weight));
        }
    }

    #[test]
    fn the_first_values_are_a_plain_mean_and_later_ones_weigh_their_share() {
        let mut average = Average::default();
        assert_eq!(average.get(), None);
        let means: Vec<f64> = (1..=10).map(|value| average.add(f64::from(value), 10, 0.5)).collect();
        assert_eq!(means, [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5]);
        assert_eq!(average.add(7.5, 10, 0.5), 6.5);
        average.scale(0.5);
        assert_eq!(average.get(), Some(3.25));
    }
}
