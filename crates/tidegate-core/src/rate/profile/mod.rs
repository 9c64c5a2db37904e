//! Limits that decide as a peer does, to the bit: for those who migrate and must not see a difference.
//!
//! A profile keeps its peer's arithmetic, floats and rounding included, and its habits: where a peer breaks one of the laws
//! of [`Algorithm`](super::Algorithm), as letting time run back, the profile breaks it too and says so. For new
//! limits take the exact algorithms beside this folder.
//!
//! What a peer lacks is answered in the way that grants least: a refund or a cancellation that it does not know changes
//! nothing.

mod guava;
mod uber;
mod x_time;

pub use guava::{GuavaBursty, GuavaState, GuavaWarming};
pub use uber::{UberPacer, UberPacerState};
pub use x_time::{XTime, XTimeState};

/// Returns the least number for which `holds`, which must stay true once it is; `None` when it never is.
///
/// A float formula has no exact inverse, so the answer of its approximate one is the guess from which to search: a few
/// probes when it is near, 128 at most.
fn least(guess: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high, mut step) = (guess, guess, 1u64);
    if holds(guess) {
        loop {
            if high == 0 {
                return Some(0);
            }
            low = high.saturating_sub(step);
            if !holds(low) {
                break;
            }
            (high, step) = (low, step.saturating_mul(2));
        }
    } else {
        loop {
            if low == u64::MAX {
                return None;
            }
            high = low.saturating_add(step);
            if holds(high) {
                break;
            }
            (low, step) = (high, step.saturating_mul(2));
        }
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::least;

    #[test]
    fn the_least_is_found_from_any_guess() {
        for edge in [0, 1, 2, 1000, u64::MAX - 1, u64::MAX] {
            for guess in [0, 1, 999, 1000, 1001, u64::MAX / 2, u64::MAX] {
                assert_eq!(least(guess, |n| n >= edge), Some(edge), "from {guess}");
            }
        }
        assert_eq!(least(7, |_| false), None);
    }
}
