//! The goodput of whoever knows the capacity at every moment: an upper bound, computed and not simulated.

use std::time::Duration;

use super::backend::Backend;
use super::load::Load;

/// How finely time is cut.
const CUT: Duration = Duration::from_millis(2);

/// Returns the good answers per second between two times of a limiter that always keeps the backend at its best and never refuses what
/// it could have served: the lesser of load and capacity at each moment, from the start of the run on.
///
/// Nothing can do better than this by more than chance: work that is drawn lighter than its mean, arrivals above theirs. What is finished
/// after `to` does not count.
#[must_use]
pub fn ideal(backend: &Backend, load: &Load, from: Duration, to: Duration) -> f64 {
    let work_per_second = backend.capacity() * backend.work.mean().as_secs_f64();
    let (mut served, mut counted) = (0.0, 0.0);
    let mut at = Duration::ZERO;
    while at < to {
        let now = at.as_nanos() as u64;
        let work = backend.work.mean_after(served as u64).as_secs_f64();
        let capacity = work_per_second * backend.speed.at(now, 0) / work;
        let finished = load.rate(at).min(capacity) * CUT.as_secs_f64();
        served += finished;
        if at >= from {
            counted += finished;
        }
        at += CUT;
    }
    counted / (to - from).as_secs_f64()
}
