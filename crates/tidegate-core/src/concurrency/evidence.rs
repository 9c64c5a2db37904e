//! Classifies one sample: as a latency of the service, as overload, or as no evidence.
//!
//! Other libraries use the latency of every sample that was not ignored. But an error that comes back at once does
//! not show that the service is fast, and a caller who sends nonsense could teach a law that ten microseconds are
//! normal. So only the latency of work that was done counts.

use core::time::Duration;

use super::law::Sample;
use crate::guard::Outcome;

/// The evidence in a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Evidence {
    /// The service did the work, in this many nanoseconds.
    Latency(f64),
    /// The service refused the caller's request as faulty: it is alive, but the latency is that of the refusal.
    Alive,
    /// The service failed after this many nanoseconds. How long the work would have taken is unknown.
    Failure(f64),
    /// The service is overloaded.
    Overload,
    /// Nothing.
    Nothing,
}

impl Evidence {
    /// Classifies a sample. A latency above `timeout` is overload, however the work ended, unless it was ignored.
    pub(super) fn of(sample: &Sample, timeout: Duration) -> Self {
        match sample.outcome {
            Outcome::Ignored => Self::Nothing,
            Outcome::Overloaded => Self::Overload,
            _ if sample.latency > timeout => Self::Overload,
            Outcome::Failure => Self::Failure(nanos(sample)),
            Outcome::CallersFault => Self::Alive,
            Outcome::Success => Self::Latency(nanos(sample)),
        }
    }
}

/// Returns the latency in nanoseconds, at least 1, so that it can be a divisor.
pub(super) fn nanos(sample: &Sample) -> f64 {
    (sample.latency.as_nanos() as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Tick;

    #[test]
    fn only_work_that_was_done_tells_how_fast_the_service_is() {
        let read = |millis, outcome| {
            let latency = Duration::from_millis(millis);
            let sample = Sample {
                at: Tick::EPOCH,
                latency,
                held: latency,
                in_flight: 1,
                places: 1,
                time_left: None,
                outcome,
            };
            Evidence::of(&sample, Duration::from_millis(100))
        };
        assert_eq!(read(2, Outcome::Success), Evidence::Latency(2e6));
        assert_eq!(read(0, Outcome::Success), Evidence::Latency(1.0));
        assert_eq!(read(100, Outcome::Success), Evidence::Latency(1e8));
        assert_eq!(read(101, Outcome::Success), Evidence::Overload);
        assert_eq!(read(2, Outcome::CallersFault), Evidence::Alive);
        assert_eq!(read(2, Outcome::Failure), Evidence::Failure(2e6));
        assert_eq!(read(101, Outcome::Failure), Evidence::Overload);
        assert_eq!(read(2, Outcome::Overloaded), Evidence::Overload);
        assert_eq!(read(101, Outcome::Ignored), Evidence::Nothing);
    }
}
