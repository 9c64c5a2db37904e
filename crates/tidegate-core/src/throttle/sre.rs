//! Adaptive throttling: a caller refuses its own requests once the service accepts too few of them.
//!
//! Over a window, `requests` counts the requests that ended or were refused here, and `accepts` those that the service
//! took on: successes and callers' faults. Once there are more than `K` requests for each accept, the share `(requests
//! − K·accepts)/(requests + 1)` is refused on the spot. Refused requests count as requests, so the more the callers
//! push, the larger the share; and `K` times as many requests as were accepted still pass, so recovery is noticed.
//! Work in progress does not count yet, since a burst of slow requests would look like a service that accepts none;
//! nor does work with an unknown outcome, such as cancelled work.
//!
//! It suits callers with many requests to a service that answers overload with a clear refusal, and spares it the cost
//! of refusing. It cannot be the only protection of a service, which cannot rely on its callers; with few requests,
//! one failure of two is already half.
//!
//! # Source
//! "Handling Overload" in Google's *Site Reliability Engineering*, 2016, chapter 21. There each criticality keeps its
//! own counts; here one share is taken from the least important first. The book does not say when a request counts;
//! aegis counts it when it ends, as here.

use core::time::Duration;

use super::{Arrival, MOST_SHARE, Ranking, Throttle};
use crate::error::{QuotaError, in_range};
use crate::guard::Outcome;
use crate::time::Tick;
use crate::window::{Buckets, Sums};

/// Refuses what exceeds `K` requests for each request that the service accepted.
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-law-sre.svg)
/// of a simulated service whose capacity falls, rises and falls again, at twice its load, beside the default
/// ([seventeen services](https://github.com/tidegate/tidegate/blob/main/docs/protection/overload.md)).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::throttle::{Arrival, Sre, Throttle};
/// use tidegate_core::{Outcome, Priority, Tick};
///
/// let throttle = Sre::default();
/// let mut state = throttle.start(Tick::EPOCH);
/// let arrival = Arrival { at: Tick::EPOCH, priority: Priority::default(), draw: u32::MAX };
/// for _ in 0..99 {
///     assert!(throttle.admit(&mut state, &arrival));
///     throttle.learn(&mut state, Tick::EPOCH, Duration::from_millis(1), Outcome::Overloaded);
/// }
/// // 99 requests, none accepted: (99 − 2·0)/(99 + 1).
/// assert_eq!(throttle.refused_share(&state, Tick::EPOCH), 990_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sre {
    k: f64,
    window: Buckets,
    least_requests: u64,
    most: f64,
    /// Whether requests that are refused here count as requests.
    counts_refused: bool,
}

/// The state of [`Sre`]: 88 bytes, and on the heap 4 KiB for the sample of priorities and 16 bytes for each bucket,
/// allocated at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SreState {
    sums: Sums<2>,
    ranking: Ranking,
}

const REQUESTS: usize = 0;
const ACCEPTS: usize = 1;

impl Default for Sre {
    fn default() -> Self {
        let window = Buckets::known(120_000, 120);
        Self { k: 2.0, window, least_requests: 0, most: MOST_SHARE, counts_refused: true }
    }
}

impl Sre {
    /// The breaker of kratos aegis: K of 1/0.6, a window of 3 s in 10 buckets, and no refusals below 100 requests.
    #[must_use]
    pub fn aegis() -> Self {
        Self { k: 1.0 / 0.6, window: Buckets::known(3000, 10), least_requests: 100, ..Self::default() }
    }

    /// Envoy's admission control with an aggression of 1: a success rate of 95 %, a window of 30 s, at most 80 %
    /// refused. Refused requests do not count as requests. Envoy counts a stream that ends without an answer as a
    /// failure; here it does not count.
    #[must_use]
    pub fn envoy() -> Self {
        let window = Buckets::known(30_000, 30);
        Self { k: 1.0 / 0.95, window, most: 0.8, counts_refused: false, ..Self::default() }
    }

    /// Sets how many requests per accept are allowed, 1 to 100; 2 by default. More reacts later.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn k(self, requests: f64) -> Result<Self, QuotaError> {
        let want = "is not a number of requests per accept; use 1 to 100";
        Ok(Self { k: in_range("k", requests, &(1.0..=100.0), want)?, ..self })
    }

    /// Sets the length of the window, 1 ms to a day, and its number of buckets, 1 to 1000; 2 min in 120 by
    /// default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when one is out of range.
    pub fn window(self, window: Duration, buckets: u32) -> Result<Self, QuotaError> {
        Ok(Self { window: Buckets::new(window, buckets)?, ..self })
    }

    /// Sets the number of requests in the window below which nothing is refused; 0 by default.
    #[must_use]
    pub const fn least_requests(self, requests: u64) -> Self {
        Self { least_requests: requests, ..self }
    }

    /// Sets the largest share that is refused, 0 to 0.999, which is the default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn most(self, share: f64) -> Result<Self, QuotaError> {
        let want = "is not a share to refuse; use 0 to 0.999";
        Ok(Self { most: in_range("most", share, &(0.0..=MOST_SHARE), want)?, ..self })
    }

    fn share(&self, sums: [u64; 2]) -> f64 {
        let (requests, accepts) = (sums[REQUESTS] as f64, sums[ACCEPTS] as f64);
        if sums[REQUESTS] < self.least_requests {
            return 0.0;
        }
        excess(requests, accepts, self.k).min(self.most)
    }
}

/// Returns the share of all requests that goes beyond `k` for each accepted one: `(requests − k·accepts)/(requests + 1)`,
/// 0 or more and less than 1. `k` is at least 1.
pub(crate) fn excess(requests: f64, accepts: f64, k: f64) -> f64 {
    ((requests - k * accepts) / (requests + 1.0)).max(0.0)
}

impl Throttle for Sre {
    type State = SreState;

    fn start(&self, now: Tick) -> SreState {
        SreState { sums: Sums::new(self.window, now), ranking: Ranking::new(now) }
    }

    fn admit(&self, state: &mut SreState, arrival: &Arrival) -> bool {
        state.sums.advance(self.window, arrival.at);
        let share = self.share(state.sums.totals());
        let refused = state.ranking.refuses(arrival, share);
        if refused && self.counts_refused {
            state.sums.count(REQUESTS);
        }
        !refused
    }

    fn learn(&self, state: &mut SreState, at: Tick, _latency: Duration, outcome: Outcome) {
        state.sums.advance(self.window, at);
        match outcome {
            Outcome::Ignored => return,
            Outcome::Failure | Outcome::Overloaded => {}
            Outcome::Success | Outcome::CallersFault => state.sums.count(ACCEPTS),
        }
        state.sums.count(REQUESTS);
    }

    fn refused_share(&self, state: &SreState, now: Tick) -> u32 {
        // The share is at most 0.999.
        (self.share(state.sums.totals_at(self.window, now)) * 1e6).round() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::priority::Priority;

    const NO_TIME: Duration = Duration::ZERO;

    fn arrival(millis: u64, draw: u32) -> Arrival {
        Arrival { at: Tick::EPOCH.after(Duration::from_millis(millis)), priority: Priority::default(), draw }
    }

    /// A throttle with this many requests, and this many of them accepted; all were admitted, by the highest draw.
    fn counted(throttle: Sre, requests: u64, accepts: u64) -> SreState {
        let mut state = throttle.start(Tick::EPOCH);
        for number in 0..requests {
            assert!(throttle.admit(&mut state, &arrival(0, u32::MAX)));
            let outcome = if number < accepts { Outcome::Success } else { Outcome::Overloaded };
            throttle.learn(&mut state, Tick::EPOCH, NO_TIME, outcome);
        }
        state
    }

    #[test]
    fn the_published_numbers() {
        // The throttler of failsafe-go with its defaults: 90 % are enough over a minute, and never more than 90 % are refused.
        let minute = Sre::default().window(Duration::from_secs(60), 60).unwrap();
        let failsafe = minute.k(1.0 / 0.9).unwrap().most(0.9).unwrap();
        // Finagle's nack admission: 1 − 2·(accepted share), at most 75 %, from 5 requests a second on; 600 in the two minutes.
        let nack = Sre::default().most(0.75).unwrap().least_requests(600);
        let table = [
            (Sre::default(), 100, 50, 0.0),
            (Sre::default(), 100, 49, 2.0 / 101.0),
            (Sre::default(), 100, 0, 100.0 / 101.0),
            (Sre::default(), 1, 0, 0.5),
            // aegis: no refusals below a hundred requests, then K = 1/0.6.
            (Sre::aegis(), 99, 0, 0.0),
            (Sre::aegis(), 100, 0, 100.0 / 101.0),
            (Sre::aegis(), 100, 60, 0.0),
            (Sre::aegis(), 100, 30, 50.0 / 101.0),
            // Envoy: 95 % are enough, and never more than 80 % are refused.
            (Sre::envoy(), 100, 95, 0.0),
            (Sre::envoy(), 99, 38, 0.59),
            (Sre::envoy(), 100, 0, 0.8),
            (nack, 599, 0, 0.0),
            (nack, 600, 0, 0.75),
            (nack, 600, 300, 0.0),
            (nack, 600, 180, 240.0 / 601.0),
            (failsafe, 100, 90, 0.0),
            (failsafe, 100, 45, 50.0 / 101.0),
            (failsafe, 100, 0, 0.9),
        ];
        for (throttle, requests, accepts, share) in table {
            let state = counted(throttle, requests, accepts);
            let expected = (share * 1e6_f64).round() as u32;
            assert_eq!(
                throttle.refused_share(&state, Tick::EPOCH),
                expected,
                "{accepts} of {requests}: {throttle:?}"
            );
        }
    }

    #[test]
    fn an_arrival_is_refused_where_its_draw_lies_below_the_share() {
        let throttle = Sre::default();
        let half = (u32::MAX / 2) + 1;
        // 3 requests, none accepted: three quarters.
        let state = counted(throttle, 3, 0);
        for (draw, admitted) in
            [(0, false), (half, false), (half + half / 2 - 1, false), (half + half / 2, true)]
        {
            assert_eq!(throttle.admit(&mut state.clone(), &arrival(0, draw)), admitted, "draw {draw}");
        }
    }

    #[test]
    fn what_is_refused_here_counts_as_a_request_except_for_envoy() {
        for (throttle, share) in [(Sre::default(), 1000.0 / 1001.0), (Sre::envoy().most(0.999).unwrap(), 0.9)]
        {
            let mut state = counted(throttle, 9, 0);
            for _ in 0..991 {
                assert!(!throttle.admit(&mut state, &arrival(0, 0)));
            }
            let expected = (f64::min(share, MOST_SHARE) * 1e6).round() as u32;
            assert_eq!(throttle.refused_share(&state, Tick::EPOCH), expected);
        }
    }

    #[test]
    fn an_outage_is_forgotten_with_its_window() {
        let throttle = Sre::default();
        let state = counted(throttle, 100, 0);
        for (secs, share) in [(119, 990_099), (120, 0), (u64::MAX, 0)] {
            assert_eq!(throttle.refused_share(&state, Tick::from_secs(secs)), share, "after {secs} s");
        }
    }

    #[test]
    fn callers_who_hang_up_or_ask_nonsense_speak_not_against_the_service() {
        let throttle = Sre::default();
        for (outcome, share) in [
            (Outcome::Ignored, 0),
            (Outcome::CallersFault, 0),
            (Outcome::Success, 0),
            (Outcome::Failure, 500_000),
            (Outcome::Overloaded, 500_000),
        ] {
            let mut state = throttle.start(Tick::EPOCH);
            assert!(throttle.admit(&mut state, &arrival(0, 0)));
            throttle.learn(&mut state, Tick::EPOCH, NO_TIME, outcome);
            assert_eq!(throttle.refused_share(&state, Tick::EPOCH), share, "{outcome:?}");
        }
    }

    /// Regression: work in progress counted as refused by the service. Of a hundred that came at once, five were admitted.
    #[test]
    fn work_in_progress_is_no_evidence() {
        for throttle in [Sre::default(), Sre::aegis(), Sre::envoy()] {
            let mut state = throttle.start(Tick::EPOCH);
            for number in 0..1000 {
                assert!(throttle.admit(&mut state, &arrival(0, 0)), "{number} of {throttle:?}");
            }
            for _ in 0..1000 {
                throttle.learn(&mut state, arrival(900, 0).at, NO_TIME, Outcome::Success);
                assert_eq!(throttle.refused_share(&state, arrival(900, 0).at), 0, "{throttle:?}");
            }
        }
    }

    /// Regression: cancelled work counted as accepted, so half of it hid that all the rest was refused.
    #[test]
    fn cancelled_work_hides_no_refusals() {
        let throttle = Sre::default();
        let mut state = throttle.start(Tick::EPOCH);
        for number in 0..100 {
            assert!(throttle.admit(&mut state, &arrival(0, u32::MAX)));
            let outcome = if number % 2 == 0 { Outcome::Ignored } else { Outcome::Overloaded };
            throttle.learn(&mut state, Tick::EPOCH, NO_TIME, outcome);
        }
        assert_eq!(throttle.refused_share(&state, Tick::EPOCH), 980_392, "50 of 51");
    }

    /// A service that can do 100 in a second gets 300. Callers with K = 2 send it twice what it accepts, and refuse the
    /// rest.
    #[test]
    fn the_service_is_asked_for_about_twice_what_it_accepts() {
        let throttle = Sre::default().window(Duration::from_secs(10), 100).unwrap();
        let mut state = throttle.start(Tick::EPOCH);
        let (mut sent, mut draw) = (0u64, 0u32);
        for second in 0..60 {
            let mut accepted = 0;
            for request in 0..300 {
                draw = draw.wrapping_add(0x9E37_79B9);
                let arrival = arrival(second * 1000 + request * 3, draw);
                if throttle.admit(&mut state, &arrival) {
                    accepted += 1;
                    sent += u64::from(second >= 30);
                    let outcome = if accepted <= 100 { Outcome::Success } else { Outcome::Overloaded };
                    throttle.learn(&mut state, arrival.at, NO_TIME, outcome);
                }
            }
        }
        assert!((190..=215).contains(&(sent / 30)), "{} in a second", sent / 30);
    }

    #[test]
    fn knobs_out_of_range_are_refused() {
        let throttle = Sre::default();
        assert!(throttle.k(0.9).is_err() && throttle.k(f64::NAN).is_err());
        assert!(throttle.most(1.0).is_err() && throttle.window(NO_TIME, 10).is_err());
    }
}
