//! The interface of the control laws that move a concurrency limit: a law takes one finished piece of work and
//! computes the next limit.
//!
//! The law's caller hands out and counts the places, and passes the samples in the order in which the work ended. A
//! law has no clock, no lock and no count of the work in flight.

use core::fmt::Debug;
use core::time::Duration;

use crate::guard::Outcome;
use crate::time::Tick;

/// One finished piece of work, as passed to [`Law::learn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it ended. A step back of at most [`MAX_STEP_BACK`](crate::time::MAX_STEP_BACK) counts as none; a larger one is
    /// taken as a clock that was set back.
    pub at: Tick,
    /// How long its caller waited for the answer: from entry to exit, or, for an answer that is streamed, to the
    /// answer's beginning. The time in a queue in front of the limit is not part of it. How long a stream lasts says
    /// nothing of a queue.
    ///
    /// Laws that take a long latency for a queue (AIMD, Vegas, Gradient, MinLatency) go by this time.
    pub latency: Duration,
    /// How long its place was held: from entry to exit. The same as `latency` unless the answer is streamed.
    ///
    /// Laws that count finished work in a time (HillClimb, BBR) go by this time: places are rate times the time for
    /// which each is held (Little's law).
    pub held: Duration,
    /// How many places were in use when it entered, its own included: 1 or more.
    pub in_flight: u64,
    /// How many of those were its own: 1 or more.
    pub places: u64,
    /// How long its caller would still wait when it entered; `None` if the caller gave no deadline.
    ///
    /// An answer that begins at the deadline or later is *late*: nobody waits for it any more. HillClimb counts late
    /// work as lost, however it ended; the published laws ignore this.
    pub time_left: Option<Duration>,
    /// How it ended. [`Outcome::Ignored`] teaches nothing, and may be left out unless the law
    /// [counts it](Law::counts_ignored).
    pub outcome: Outcome,
}

impl Sample {
    /// Says whether the answer began at its caller's deadline or later.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.time_left.is_some_and(|time_left| self.latency >= time_left)
    }
}

/// How much of a machine resource is in use, for laws that use more than latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Processor time used, in thousandths of the time that this process may use (its control group's quota, else all
    /// processors): 0 to 1000. One reading, which a law averages.
    Cpu(u16),
    /// The same, averaged already, as a watch of the crate `tidegate` does. A law takes it as it is.
    CpuAveraged(u16),
    /// Memory used, in thousandths of the memory that this process may use: 0 to 1000.
    Memory(u16),
}

/// The parameters of a control law: they compute the next state from a state and one sample.
///
/// # Laws
/// * *Bounds hold*: [`limit`](Law::limit) is between the law's least and largest limit, and at least 1, after any
///   samples.
/// * *No input overflows or panics*: latencies of zero or of centuries, clocks that step back, any outcome.
/// * *Deterministic*: the same samples give the same limits. A law that needs random numbers takes a seed as a
///   parameter.
pub trait Law: Clone + Debug {
    /// The state that the law keeps between samples.
    type State: Clone + Debug;

    /// Returns the state before the first sample.
    fn start(&self, now: Tick) -> Self::State;

    /// Returns how many places there are now.
    fn limit(&self, state: &Self::State) -> u64;

    /// Updates the state by one finished piece of work. Called for each piece of work (hot path): does not allocate
    /// once the state has its full size.
    fn learn(&self, state: &mut Self::State, sample: &Sample);

    /// Says whether the law counts work that ends with [`Outcome::Ignored`] now, because it waits for those inside to
    /// leave. The default is never.
    fn counts_ignored(&self, state: &Self::State) -> bool {
        let _ = state;
        false
    }

    /// Updates the state by a reading of the machine. The default does nothing, for laws that use latencies alone.
    fn sense(&self, state: &mut Self::State, at: Tick, signal: Signal) {
        let _ = (state, at, signal);
    }
}

/// The evidence in a sample. Only the latency of work that was done counts: an error that comes back at once does not show
/// that the service is fast, and a caller who sends nonsense could teach a law that ten microseconds are normal.
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
