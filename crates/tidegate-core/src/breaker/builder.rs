//! [`BreakerBuilder`], which describes a breaker.

use core::time::Duration;
use std::sync::Arc;

use super::judgement::Judgement;
use super::outcomes::Window;
use super::parameters::{CircuitBreaker, Evaluate, OpenTime, Parameters};
use super::rules::{BreakerThresholds, WHOLE};
use crate::concurrency::Concurrency;
use crate::error::{QuotaError, in_range};
use crate::time::nanos;

/// Describes a breaker; [`build`](BreakerBuilder::build) checks it as a whole and makes it. The defaults:
///
/// | what | default | why |
/// |---|---|---|
/// | window | 10 s in 10 buckets | an outage is seen within seconds, and a burst of a second does not fill it |
/// | trips at | half of 20 calls or more failed | where a tenth of calls fails, half of 20 do once in 140,000 windows, and half of 5 once in 117 |
/// | open for | 5 s, doubling up to 60 s, minus up to a fifth at random | a restart takes seconds; longer outages get fewer probes; callers spread |
/// | probes | 3 in flight, each for 60 s at most | enough to continue when one hangs |
/// | judged by | evidence, at a risk of 5 % | see [`Judgement`] |
/// | steps | 3 more, each with twice as many in flight | a cold service does not get the full load at once |
/// | forgotten | after 5 minutes | longer than the longest open time, so that the next trip of the same outage counts as such |
#[derive(Clone, Debug)]
#[must_use = "a builder is not a breaker until it is built"]
pub struct BreakerBuilder {
    window: Window,
    failure_ratio: Option<f64>,
    slow: Option<(Duration, f64)>,
    consecutive: Option<u32>,
    failures: Option<u32>,
    shed_at_most: Option<f64>,
    min_calls: u32,
    above: bool,
    overload_fails: bool,
    evaluate: Evaluate,
    open: (Duration, Duration),
    growth: f64,
    jitter: f64,
    seed: u64,
    strict: bool,
    probes: u64,
    ttl: Duration,
    judgement: Judgement,
    steps: u8,
    forget_after: Duration,
}

impl CircuitBreaker {
    /// Begins to describe a breaker, with the defaults of [`BreakerBuilder`].
    pub const fn builder() -> BreakerBuilder {
        BreakerBuilder {
            window: Window::Time { span: Duration::from_secs(10), buckets: 10 },
            failure_ratio: Some(0.5),
            slow: None,
            consecutive: None,
            failures: None,
            shed_at_most: None,
            min_calls: 20,
            above: false,
            overload_fails: true,
            evaluate: Evaluate::EachCall,
            open: (Duration::from_secs(5), Duration::from_secs(60)),
            growth: 2.0,
            jitter: 0.2,
            seed: 0,
            strict: false,
            probes: 3,
            ttl: Duration::from_secs(60),
            judgement: Judgement::Evidence(WHOLE / 20),
            steps: 3,
            forget_after: Duration::from_secs(300),
        }
    }
}

impl BreakerBuilder {
    /// Sets which calls the breaker judges by.
    pub const fn window(mut self, window: Window) -> Self {
        self.window = window;
        self
    }

    /// Trips when this share of the calls in the window has failed, above 0 to 1; counted in millionths.
    pub const fn failure_ratio(mut self, share: f64) -> Self {
        self.failure_ratio = Some(share);
        self
    }

    /// Disables tripping by the share of failures.
    pub const fn without_failure_ratio(mut self) -> Self {
        self.failure_ratio = None;
        self
    }

    /// Trips when this share of the calls in the window, above 0 to 1, took longer than `slow_after`. Failed calls
    /// may be slow, too.
    pub const fn slow_calls(mut self, slow_after: Duration, share: f64) -> Self {
        self.slow = Some((slow_after, share));
        self
    }

    /// Trips when this many calls in a row have failed, 1 or more, in the order in which they ended. The minimum
    /// number of calls does not apply.
    pub const fn consecutive(mut self, failures: u32) -> Self {
        self.consecutive = Some(failures);
        self
    }

    /// Trips when this many calls in the window have failed, 1 or more, whatever their share. With a window of calls at
    /// most its calls, and one less with [`above`](Self::above): more would never be reached.
    pub const fn failures(mut self, failures: u32) -> Self {
        self.failures = Some(failures);
        self
    }

    /// Sheds instead of opening: refuses by chance the share of calls that goes beyond what the thresholds of shares
    /// allow, and at most `share`, above 0 to 0.99; counted in millionths.
    ///
    /// With a failure ratio of `f`, the calls that ended well justify `1/(1 - f)` times as many calls: twice as many
    /// at 0.5, like the SRE book's throttling with a K of 2. Refused calls do not count. The breaker then has no open
    /// time and no probes, except after a person has forced it open, and cannot trip by
    /// [`consecutive`](Self::consecutive) or [`failures`](Self::failures).
    ///
    /// # Source
    /// *Site Reliability Engineering*, 2016, chapter 21; Envoy's admission control filter, which counts in the same way.
    pub const fn shed_at_most(mut self, share: f64) -> Self {
        self.shed_at_most = Some(share);
        self
    }

    /// Compares shares and counts only once the window has this many calls. A window of calls must be at least this
    /// large.
    pub const fn min_calls(mut self, calls: u32) -> Self {
        self.min_calls = calls;
        self
    }

    /// Trips when a figure exceeds its threshold, instead of when it reaches it. A threshold of all calls, and a
    /// threshold of failures in a row, still trip when they are reached.
    pub const fn above(mut self) -> Self {
        self.above = true;
        self
    }

    /// Sets whether [`Outcome::Overloaded`](crate::Outcome::Overloaded) counts as a failure; by default it does.
    /// Otherwise it is ignored, as [`Outcome::Ignored`](crate::Outcome::Ignored) is.
    pub const fn overload_fails(mut self, fails: bool) -> Self {
        self.overload_fails = fails;
        self
    }

    /// Sets when the figures are compared with their thresholds.
    pub const fn evaluate(mut self, evaluate: Evaluate) -> Self {
        self.evaluate = evaluate;
        self
    }

    /// Sets how long the breaker stays open the first time, 1 ns to [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD),
    /// and raises the longest open time to it if that is shorter. Each trip within
    /// [`forget_after`](Self::forget_after) of the one before opens it for longer, by the factor
    /// [`growth`](Self::growth).
    pub const fn open_for(mut self, first: Duration) -> Self {
        self.open = (first, if first.as_nanos() > self.open.1.as_nanos() { first } else { self.open.1 });
        self
    }

    /// Sets the longest time for which the breaker opens, from the first open time to
    /// [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD).
    pub const fn open_at_most(mut self, longest: Duration) -> Self {
        self.open.1 = longest;
        self
    }

    /// Sets how many times longer each open time is than the one before, 1 to 1000; counted in thousandths.
    pub const fn growth(mut self, times: f64) -> Self {
        self.growth = times;
        self
    }

    /// Sets the share by up to which each open time is shortened at random, 0 to 1, so that callers that tripped
    /// together do not retry together.
    pub const fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Sets the seed of the random part, which is drawn from the seed and the tick of the trip.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Admits the first probe strictly after the end of the open time, instead of at its end.
    pub const fn strictly_after(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Sets how many probes may be in flight, 1 to [`Concurrency::MAX_PLACES`]; each step of recovery allows twice as many.
    pub const fn probes(mut self, probes: u64) -> Self {
        self.probes = probes;
        self
    }

    /// Sets the time to live of a call, 1 ns to [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD): longer than any call
    /// takes. A probe that has not ended by then loses its place, and its outcome does not count. With
    /// [`Duration::MAX`] a lost probe holds its place for ever, so use that only for holders that cannot be lost.
    ///
    /// While the breaker is closed, a call that takes longer does not count either. If [slow calls](Self::slow_calls) trip
    /// it, such a call counts for as much longer as the time after which a call is slow.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets how the probes, and the calls of each later step, are judged.
    pub const fn judgement(mut self, judgement: Judgement) -> Self {
        self.judgement = judgement;
        self
    }

    /// Sets how many steps follow the first before the breaker closes, 0 to 16.
    pub const fn steps(mut self, steps: u8) -> Self {
        self.steps = steps;
        self
    }

    /// Sets when trips are forgotten; [`Duration::MAX`] means never. A breaker that has been closed for this time opens for
    /// the first open time again. A breaker that has been idle for this time, plus the time to live of a call, becomes new,
    /// even if it was open.
    ///
    /// Where trips are never forgotten, a store keeps a key for ever once it has tripped. A breaker that only a person has
    /// opened becomes new five minutes after that ended, if it was not used since.
    pub const fn forget_after(mut self, forget_after: Duration) -> Self {
        self.forget_after = forget_after;
        self
    }

    /// Makes the breaker.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] names the setting that is out of range, or says that no threshold is set.
    pub fn build(self) -> Result<CircuitBreaker, QuotaError> {
        let failure_ratio = self.failure_ratio.map(|share| millionths("failure_ratio", share, false));
        let slow_ratio = self.slow.map(|(_, share)| millionths("slow_ratio", share, false));
        let shed_at_most = self.shed_at_most.map(|share| {
            let most = f64::from(CircuitBreaker::MOST_SHED) / f64::from(WHOLE);
            let want = "is not a share to refuse; use more than 0, to 0.99";
            in_range("shed_at_most", share, &(f64::MIN_POSITIVE..=most), want)?;
            millionths("shed_at_most", share, false)
        });
        for (name, number) in [("consecutive", self.consecutive), ("failures", self.failures)] {
            if number == Some(0) {
                let want = "is not a number of failures; use 1 or more";
                return Err(QuotaError::Parameter { name, value: "0".to_owned(), want });
            }
        }
        if !(1.0..=1000.0).contains(&self.growth) {
            let want = "is not a growth of open times; use 1 to 1000";
            return Err(QuotaError::Parameter { name: "growth", value: self.growth.to_string(), want });
        }
        let probes = Concurrency::new(self.probes)
            .map_err(|_| QuotaError::Parameter {
                name: "probes",
                value: self.probes.to_string(),
                want: "is not a number of probes; use 1 to 65536",
            })
            .and_then(|probes| if self.ttl == Duration::MAX { Ok(probes) } else { probes.ttl(self.ttl) })?;
        let parameters = Parameters {
            window: self.window,
            rules: BreakerThresholds {
                failure_ratio: failure_ratio.transpose()?,
                slow_ratio: slow_ratio.transpose()?,
                consecutive: self.consecutive,
                failures: self.failures,
                min_calls: self.min_calls,
                above: self.above,
            },
            shed_at_most: shed_at_most.transpose()?,
            slow_after: self.slow.map_or(u64::MAX, |(after, _)| nanos(after)),
            overload_fails: self.overload_fails,
            evaluate: self.evaluate,
            open: OpenTime {
                first: nanos(self.open.0),
                longest: nanos(self.open.1),
                // In range: checked above.
                growth: (self.growth * 1000.0).round() as u32,
                jitter: millionths("jitter", self.jitter, true)?,
                seed: self.seed,
                strict: self.strict,
            },
            probes,
            judgement: self.judgement,
            steps: self.steps,
            forget_after: nanos(self.forget_after),
        };
        Ok(CircuitBreaker { parameters: Arc::new(parameters.checked()?) })
    }
}

impl TryFrom<BreakerBuilder> for CircuitBreaker {
    type Error = QuotaError;

    fn try_from(builder: BreakerBuilder) -> Result<Self, QuotaError> {
        builder.build()
    }
}

/// Returns a share in millionths, at least 1 if zero is not allowed.
fn millionths(name: &'static str, share: f64, may_be_zero: bool) -> Result<u32, QuotaError> {
    let is_share = (0.0..=1.0).contains(&share) && (may_be_zero || share > 0.0);
    if !is_share {
        let want =
            if may_be_zero { "is not a share; use 0 to 1" } else { "is not a share; use more than 0, to 1" };
        return Err(QuotaError::Parameter { name, value: share.to_string(), want });
    }
    // At most a million, so it fits.
    let rounded = (share * f64::from(WHOLE)).round() as u32;
    Ok(if may_be_zero { rounded } else { rounded.max(1) })
}

#[cfg(test)]
mod tests;
