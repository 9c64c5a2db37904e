//! AIMD, additive increase and multiplicative decrease: the limit grows by one for each success while it is needed,
//! and shrinks by a tenth for each overload.
//!
//! The law uses only what the service says of overload (429, 503, a time-out that means something), so latencies may
//! vary freely. Overload that shows only as slowness below the time-out goes unseen. The limit climbs until the
//! service reports overload, and so keeps it at its edge.
//!
//! # Source
//! `AIMDLimit` of Netflix' concurrency-limits. There, failures that are reported as successes make the limit grow.
//! Here failures and callers' mistakes leave it unchanged, except in the profile [`Aimd::netflix`]: a caller could
//! otherwise raise the limit with requests that are refused at once.

use core::time::Duration;

use super::bounds::Bounds;
use super::{Evidence, Law, Sample};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::error::{QuotaError, in_range};
use crate::time::Tick;

/// Grows by one for each success while the limit is needed, shrinks by a tenth for each overload.
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-law-aimd.svg)
/// of a simulated service whose capacity falls, rises and falls again, at twice its load, beside the default
/// ([seventeen services](https://github.com/tidegate/tidegate/blob/main/docs/protection/overload.md)).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::concurrency::{Aimd, Law, Sample};
/// use tidegate_core::{Outcome, Tick};
///
/// let law = Aimd::default();
/// let mut state = law.start(Tick::EPOCH);
/// let mut sample = Sample { at: Tick::EPOCH, latency: Duration::from_millis(3), held: Duration::from_millis(3), in_flight: 20, places: 1, time_left: None, outcome: Outcome::Success };
/// for _ in 0..10 {
///     law.learn(&mut state, &sample);
/// }
/// assert_eq!(law.limit(&state), 30);
///
/// sample.outcome = Outcome::Overloaded;
/// law.learn(&mut state, &sample);
/// assert_eq!(law.limit(&state), 27);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aimd {
    pub(super) bounds: Bounds,
    backoff: f64,
    timeout: Duration,
    /// Whether failures and callers' mistakes count as successes: Netflix' samples have no third outcome.
    failures_grow: bool,
}

/// The state of [`Aimd`]: 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AimdState {
    limit: u64,
}

impl Default for Aimd {
    fn default() -> Self {
        Self {
            bounds: Bounds::known(20, 200),
            backoff: 0.9,
            timeout: Duration::from_secs(5),
            failures_grow: false,
        }
    }
}

impl Aimd {
    /// Netflix' arithmetic: every outcome except overload counts as a success, failures included.
    #[must_use]
    pub fn netflix() -> Self {
        Self { failures_grow: true, ..Self::default() }
    }

    /// Sets the bounds of the limit.
    #[must_use]
    pub const fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sets the share of the limit that remains after an overload, 0.1 to 0.999; 0.9 by default. The new limit is
    /// rounded down.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn backoff(self, share: f64) -> Result<Self, QuotaError> {
        let want = "is not a share to shrink to; use 0.1 to 0.999";
        Ok(Self { backoff: in_range("backoff", share, &(0.1..=0.999), want)?, ..self })
    }

    /// Sets the latency above which work counts as overload, from 1 ns; 5 s by default, [`Duration::MAX`] means
    /// never.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is zero.
    pub fn timeout(self, timeout: Duration) -> Result<Self, QuotaError> {
        let range = Duration::from_nanos(1)..=Duration::MAX;
        Ok(Self {
            timeout: in_range("timeout", timeout, &range, "is not a time-out; use 1 ns or more")?,
            ..self
        })
    }
}

impl Law for Aimd {
    type State = AimdState;

    fn start(&self, _now: Tick) -> AimdState {
        AimdState { limit: self.bounds.start() }
    }

    fn limit(&self, state: &AimdState) -> u64 {
        // Clamped here too, because the state may have been made under other bounds.
        state.limit.clamp(self.bounds.least(), self.bounds.most())
    }

    fn learn(&self, state: &mut AimdState, sample: &Sample) {
        let limit = self.limit(state);
        let next = match Evidence::of(sample, self.timeout) {
            Evidence::Overload => (limit as f64 * self.backoff) as u64,
            Evidence::Failure(_) | Evidence::Alive if !self.failures_grow => limit,
            Evidence::Nothing => limit,
            // Less than half of the limit was in use, so the limit has not been put to the test.
            _ if sample.in_flight.saturating_mul(2) < limit => limit,
            _ => limit + 1,
        };
        state.limit = next.clamp(self.bounds.least(), self.bounds.most());
    }
}

impl Bytes for Aimd {
    fn write(&self, out: &mut Writer) {
        self.bounds.write(out);
        out.f64(self.backoff);
        out.duration(self.timeout);
        out.flag(self.failures_grow);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let law = Self::default().bounds(Bytes::read(from)?);
        let (backoff, timeout) = (from.f64()?, from.duration("timeout")?);
        let law = law.backoff(backoff).and_then(|law| law.timeout(timeout));
        let law = law.map_err(|_| DecodeError::Value { field: "backoff" })?;
        Ok(Self { failures_grow: from.flag("failures grow")?, ..law })
    }
}

impl Bytes for AimdState {
    fn write(&self, out: &mut Writer) {
        out.u64(self.limit);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        from.count("limit").map(|limit| Self { limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Outcome;

    fn after(law: Aimd, samples: &[(u64, u64, Outcome)]) -> Vec<u64> {
        let mut state = law.start(Tick::EPOCH);
        let learn = |&(millis, in_flight, outcome): &(u64, u64, Outcome)| {
            let latency = Duration::from_millis(millis);
            law.learn(
                &mut state,
                &Sample {
                    at: Tick::EPOCH,
                    latency,
                    held: latency,
                    in_flight,
                    places: 1,
                    time_left: None,
                    outcome,
                },
            );
            law.limit(&state)
        };
        samples.iter().map(learn).collect()
    }

    #[test]
    fn the_published_numbers() {
        use Outcome::{Ignored, Overloaded, Success};
        let wide = Aimd::default().bounds(Bounds::known(1, 200));
        let samples = [
            (1, 20, Success),
            (1, 10, Success),
            (1, 11, Success),
            (5000, 20, Success),
            (5001, 20, Success),
            (1, 20, Overloaded),
            (9000, 20, Ignored),
        ];
        // The limit grows if twice the number in flight reaches it: 10 is too few for 21, 11 is enough. Five seconds
        // are in time, a millisecond more is not.
        assert_eq!(after(wide, &samples), [21, 21, 22, 23, 20, 18, 18]);
        assert_eq!(after(Aimd::default(), &[(1, 20, Overloaded)]), [20], "the least is 20");
        let narrow = Aimd::default().bounds(Bounds::known(20, 21));
        assert_eq!(after(narrow, &[(1, 20, Success), (1, 21, Success)]), [21, 21]);
    }

    #[test]
    fn a_service_that_fails_at_once_earns_no_higher_limit() {
        let failures = [(1, 200, Outcome::Failure); 50];
        assert_eq!(after(Aimd::default(), &failures).last(), Some(&20));
        assert_eq!(after(Aimd::netflix(), &failures).last(), Some(&70));
    }

    /// Regression: 180 faulty requests, each refused at once, raised the limit from 20 to 200.
    #[test]
    fn faulty_requests_earn_no_higher_limit() {
        let faulty = [(0, 200, Outcome::CallersFault); 50];
        assert_eq!(after(Aimd::default(), &faulty).last(), Some(&20));
        assert_eq!(after(Aimd::netflix(), &faulty).last(), Some(&70));
    }

    #[test]
    fn knobs_out_of_range_are_refused() {
        let text = Aimd::default().backoff(1.0).unwrap_err().to_string();
        assert_eq!(text, "backoff 1.0 is not a share to shrink to; use 0.1 to 0.999");
        assert!(Aimd::default().backoff(f64::NAN).is_err());
        assert!(Aimd::default().timeout(Duration::ZERO).is_err());
    }
}
