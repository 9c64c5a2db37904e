//! The goodput of a limiter that knows the capacity at every moment: an upper bound, computed instead of simulated.

use std::time::Duration;

use super::backend::Backend;
use super::load::Load;

const CUT: Duration = Duration::from_millis(2);

/// Returns the good answers per second between two times: at each moment the lesser of load and capacity, counted from
/// the start of the run.
///
/// It counts the work done between the two times. A run exceeds this only by chance: if the drawn work is below its
/// mean, or the arrivals are above theirs.
pub(crate) fn ideal(backend: &Backend, load: &Load, from: Duration, to: Duration) -> f64 {
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
