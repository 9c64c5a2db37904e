//! What one sample says of the service: how fast it is, that it has too much to do, or nothing.
//!
//! Peers take the latency of everything that was not ignored. But an error that comes back at once is no fast service, and a caller who
//! sends nonsense could teach a law that ten microseconds are normal. Only work that was done tells how long work takes.

use core::time::Duration;

use super::law::Sample;
use crate::guard::Outcome;

/// What a sample says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Evidence {
    /// The service did the work, in so many nanoseconds.
    Latency(f64),
    /// The service refused the caller's request as faulty: it works, but the latency is of the refusal.
    Alive,
    /// The service failed, after so many nanoseconds: how fast it would have been is not known.
    Failure(f64),
    /// The service has too much to do.
    Overload,
    /// Nothing.
    Nothing,
}

impl Evidence {
    /// Reads a sample; whatever took longer than `timeout` is overload.
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

/// Returns the latency in nanoseconds; at least one, so that it can be divided by.
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
            let sample = Sample { at: Tick::EPOCH, latency, in_flight: 1, outcome };
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
