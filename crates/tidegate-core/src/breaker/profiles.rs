//! Breakers that compare as other libraries do: window, thresholds, when they are compared, open time and probes.
//!
//! In every profile a lost probe gives its place up after the time to live of a call, the outcome of a cancelled
//! probe does not count, probes are bounded, and a call that ends in another state than it began in does not count in
//! the new one. As in those libraries, open times have no jitter and do not grow, and trips are not forgotten.

use core::time::Duration;

use super::builder::BreakerBuilder;
use super::judgement::Judgement;
use super::outcomes::Window;
use super::parameters::{CircuitBreaker, Evaluate};

const SECOND: Duration = Duration::from_secs(1);

/// The rule that trips a Sentinel breaker; each breaker has one of the three.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SentinelRule {
    /// This share of calls took longer than the duration. A probe closes the breaker if it is not slow, whether it
    /// failed or not.
    SlowRatio(Duration, f64),
    /// This share of calls failed.
    ErrorRatio(f64),
    /// This many calls failed.
    ErrorCount(u32),
}

impl CircuitBreaker {
    /// A breaker with one fixed open time, whose first probe decides.
    const fn peer(window: Window, min_calls: u32, open_for: Duration) -> BreakerBuilder {
        Self::builder()
            .window(window)
            .min_calls(min_calls)
            .open_for(open_for)
            .growth(1.0)
            .jitter(0.0)
            .probes(1)
            .judgement(Judgement::Successes(1))
            .steps(0)
            .forget_after(Duration::MAX)
    }

    /// Describes Hystrix' breaker with its defaults: 50 % or more of at least 20 calls in 10 s, compared every 500
    /// ms. It opens for 5 s, and the first call strictly later is the single probe. The window is longer by the
    /// bucket in progress, which is empty whenever the figures are compared.
    ///
    /// Map the errors that Hystrix counts to [`Failure`](crate::Outcome::Failure) and
    /// [`Overloaded`](crate::Outcome::Overloaded), and bad requests to [`Ignored`](crate::Outcome::Ignored); as
    /// [`CallersFault`](crate::Outcome::CallersFault) those would count as calls. An unsubscribed probe gives its
    /// place back, where Hystrix opens again.
    pub const fn hystrix() -> BreakerBuilder {
        Self::peer(
            Window::Time { span: Duration::from_millis(10_500), buckets: 21 },
            20,
            Duration::from_secs(5),
        )
        .evaluate(Evaluate::Every(Duration::from_millis(500)))
        .strictly_after()
    }

    /// Describes Resilience4j's breaker with its defaults: it trips if, of the last 100 calls and no fewer, 50 % or
    /// more failed, or all took longer than 60 s. It opens for 60 s, then admits ten calls, which are judged by the
    /// same shares when all ten have ended.
    ///
    /// Its time window is [`Window::Time`] with a bucket for each second. Resilience4j caps the minimum number of
    /// calls at the window of calls; here a larger minimum is an error. If that minimum is below ten, it judges so
    /// many trial calls; here that is [`Judgement::Batch`] of that number.
    pub const fn resilience4j() -> BreakerBuilder {
        Self::peer(Window::Calls(100), 100, Duration::from_secs(60))
            .slow_calls(Duration::from_secs(60), 1.0)
            .strictly_after()
            .probes(10)
            .judgement(Judgement::Batch(10))
    }

    /// Describes a breaker of Sentinel for Java: a figure strictly above its threshold (for a ratio of 1, also equal
    /// to it; in Sentinel only one of slow calls), of at least 5 calls in 1 s, which is one bucket. It opens for
    /// `open_for`, then admits one probe.
    pub const fn sentinel(rule: SentinelRule, open_for: Duration) -> BreakerBuilder {
        Self::sentinel_rule(Self::peer(Window::Time { span: SECOND, buckets: 1 }, 5, open_for).above(), rule)
    }

    /// Describes a breaker of Sentinel for Go, where a ratio or count trips when it reaches its threshold. There each
    /// rule names its minimum of calls and its window; here they are those of Java unless set. With `probes` of 0,
    /// one probe decides; with more, this many good ones close the breaker and the first bad one opens it again. In
    /// Sentinel all calls pass until then; here at most this many at once.
    pub const fn sentinel_go(rule: SentinelRule, open_for: Duration, probes: u32) -> BreakerBuilder {
        let probes = if probes == 0 { 1 } else { probes };
        Self::sentinel_rule(Self::peer(Window::Time { span: SECOND, buckets: 1 }, 5, open_for), rule)
            .probes(probes as u64)
            .judgement(Judgement::Successes(probes))
    }

    const fn sentinel_rule(builder: BreakerBuilder, rule: SentinelRule) -> BreakerBuilder {
        match rule {
            SentinelRule::SlowRatio(after, share) => builder.without_failure_ratio().slow_calls(after, share),
            SentinelRule::ErrorRatio(share) => builder.failure_ratio(share),
            SentinelRule::ErrorCount(failures) => builder.without_failure_ratio().failures(failures),
        }
    }

    /// Describes Polly's breaker (version 8) with its defaults: 10 % or more of at least 100 calls in 30 s (10 buckets), compared after each
    /// call that failed; open for 5 s, then one probe.
    pub const fn polly() -> BreakerBuilder {
        Self::peer(Window::Time { span: Duration::from_secs(30), buckets: 10 }, 100, Duration::from_secs(5))
            .failure_ratio(0.1)
            .evaluate(Evaluate::EachFailure)
    }

    /// Describes the throttling of Google's SRE book as a breaker that sheds: twice as many calls as ended well in the
    /// last two minutes (120 buckets), and at most 99 % refused. There refused requests count as well, which refuses
    /// more during an outage; [`Sre`](crate::throttle::Sre) counts them.
    pub const fn sre() -> BreakerBuilder {
        Self::builder()
            .window(Window::Time { span: Duration::from_secs(120), buckets: 120 })
            .min_calls(1)
            .shed_at_most(0.99)
    }

    /// Describes Envoy's admission control filter with its defaults: less than 95 % of the calls in the last 30 s
    /// ended well (30 buckets), at most 80 % refused, and an aggression of 1. Envoy counts a stream that ends without an
    /// answer as a failure; here a cancelled call does not count.
    pub const fn envoy() -> BreakerBuilder {
        Self::builder()
            .window(Window::Time { span: Duration::from_secs(30), buckets: 30 })
            .failure_ratio(0.05)
            .min_calls(1)
            .shed_at_most(0.8)
    }

    /// Describes the breaker of tower-resilience with its defaults: 50 % or more of 100 calls; open for 30 s, then
    /// one probe. There the counters never forget a call while closed; this window holds the last 100.
    pub const fn tower_resilience() -> BreakerBuilder {
        Self::peer(Window::Calls(100), 100, Duration::from_secs(30))
    }
}

#[cfg(test)]
mod tests;
