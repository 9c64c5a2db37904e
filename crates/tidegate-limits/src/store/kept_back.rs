//! Converts the share of an adaptive limit that is kept back for requests of higher priority into places.
//!
//! The planner of a charge does not know the present size of such a limit, because its state is in the store. So the
//! charge carries a share.

use tidegate_core::concurrency::Concurrency;
use tidegate_core::{Cost, Quota};

/// The number of parts of an adaptive limit: enough that a share in whole percent is recovered exactly.
const PARTS: u64 = Concurrency::MAX_PLACES;

/// Returns the whole of which shares are taken: the capacity of a limit, or `PARTS` for an adaptive one.
#[inline]
pub fn whole(quota: &Quota) -> u64 {
    if moves(quota) { PARTS } else { quota.capacity() }
}

/// Returns whether the limit is adaptive: an adaptive law moves it.
#[inline]
pub const fn moves(quota: &Quota) -> bool {
    matches!(quota, Quota::Adaptive(_))
}

/// Returns how many units or places are kept back from a charge of `cost`, where the charge carries `kept_back` and the
/// present size of the limit is `limit`.
///
/// For an adaptive limit, the result is a share, rounded up, that still leaves room for the cost when the limit is at
/// its largest: so a share below 100 % never refuses a request for ever.
#[inline]
pub fn in_places(quota: &Quota, kept_back: u64, limit: u64, cost: Cost) -> u64 {
    if kept_back == 0 || !moves(quota) { kept_back } else { share(quota, kept_back, limit, cost) }
}

#[cold]
fn share(quota: &Quota, kept_back: u64, limit: u64, cost: Cost) -> u64 {
    let percent = u128::from(kept_back) * 100 / u128::from(PARTS);
    if percent >= 100 {
        return PARTS;
    }
    // The cast is exact: the result is less than the limit.
    let places = (u128::from(limit) * percent).div_ceil(100) as u64;
    places.min(quota.capacity().saturating_sub(cost.units()))
}

#[cfg(test)]
mod tests {
    use tidegate_core::concurrency::{Adaptive, AdaptiveConcurrency, Bounds};

    use super::*;

    #[test]
    fn every_percent_comes_back_and_is_one_of_the_limit_as_it_stands() {
        let quota = |most| {
            let law: Adaptive = "aimd".parse().unwrap();
            Quota::from(AdaptiveConcurrency::new(law.with_bounds(Bounds::new(1, most).unwrap())))
        };
        let wide = quota(1000);
        for percent in 0..=99_u64 {
            let kept_back = (PARTS * percent).div_ceil(100);
            for limit in [1, 7, 20, 100, 900] {
                let expected = (limit * percent).div_ceil(100);
                assert_eq!(in_places(&wide, kept_back, limit, Cost::ONE), expected, "{percent}% of {limit}");
            }
        }
        assert_eq!(in_places(&wide, PARTS, 20, Cost::ONE), PARTS, "all is more than there can be");
        assert_eq!(in_places(&quota(1), PARTS / 2, 1, Cost::ONE), 0, "the only place is nobody's alone");
        let fixed = Quota::concurrency(10, std::time::Duration::from_secs(1)).unwrap();
        assert_eq!((in_places(&fixed, 3, 10, Cost::ONE), whole(&fixed), whole(&wide)), (3, 10, PARTS));
    }
}
