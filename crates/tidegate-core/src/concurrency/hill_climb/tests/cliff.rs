//! Tests of what is remembered of failures.

use super::super::cliff::Cliff;
use super::*;

/// Takes a measurement in which a share of the work failed while at most `peak` were inside, and says whether that is due
/// to overload.
fn failing(cliff: &mut Cliff, peak: f64, failed: f64) -> bool {
    cliff.failing(&Reading { peak, failed, ..Reading::NONE }, 1_000, false)
}

/// Regression: a measurement that ended just as work began to fail made the number inside count as harmless, so the
/// failures that followed with as many inside were not due to the load.
#[test]
fn the_most_inside_is_not_unharmed_if_more_than_usual_failed() {
    for (failed, beyond) in [(0.0, false), (0.01, false), (0.026, true), (0.3, true)] {
        let mut cliff = Cliff::UNKNOWN;
        assert!(!failing(&mut cliff, 24.0, 0.0));
        assert!(!failing(&mut cliff, 36.0, failed));
        assert_eq!(cliff.is_beyond(36.0), beyond, "{failed}");
    }
}

/// A service of which three in a hundred calls always fail.
#[test]
fn usual_failures_do_not_stop_the_most_inside_from_being_unharmed() {
    let mut cliff = Cliff::UNKNOWN;
    for _ in 0..100 {
        assert!(!failing(&mut cliff, 30.0, 0.03));
    }
    assert!(!cliff.is_beyond(32.0) && cliff.is_beyond(34.0));
}
