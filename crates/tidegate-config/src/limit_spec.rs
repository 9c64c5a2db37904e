//! Which quota the words of a limit with a rate mean. Only this module knows both the file's words and the core's
//! constructors.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate_core::rate::{
    Bandwidth, CalendarUnit, ColdFactor, GuavaBursty, GuavaWarming, Refill, TokenBucket, UberPacer, XTime,
};
use tidegate_core::{Quota, QuotaBuilder, QuotaError, Rate};

use tidegate_gate::policy::{Unit, WrittenRate};

/// How many times slower than the rate a cold start is: the constant of Guava, and the default of Sentinel.
const COLD_FACTOR: u32 = 3;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct LimitSpec {
    pub(super) algorithm: String,
    pub(super) rate: WrittenRate,
    pub(super) burst: Option<u64>,
    pub(super) calendar: Option<String>,
    pub(super) buckets: u64,
    pub(super) refill: Refill,
    pub(super) initial: Option<u64>,
    pub(super) queue: Option<u64>,
    pub(super) slack: Option<u64>,
    pub(super) warm_up: Option<Duration>,
}

impl LimitSpec {
    /// Builds the quota; `None` if the rate is unlimited.
    pub(super) fn quota(&self) -> Result<Option<Quota>, QuotaError> {
        let WrittenRate::Per { count, unit, times } = self.rate else { return Ok(None) };
        let period = self.rate.period().unwrap_or(Duration::MAX);
        let mut builder = Quota::per(count, period);
        if let Some(burst) = self.burst {
            builder = builder.burst(burst);
        }
        let quota = match (self.algorithm.as_str(), &self.calendar) {
            ("gcra", _) => builder.gcra(),
            ("fixed-window", None) => builder.fixed_window(),
            ("fixed-window", Some(zone)) => builder.calendar_window(calendar_unit(times, unit)?, zone),
            ("sliding-window", _) => builder.sliding_window(self.buckets),
            ("sliding-counter", _) => builder.sliding_counter(),
            ("sliding-log", _) => builder.sliding_log(),
            ("token-bucket", _) => self.token_bucket(Rate::new(count, period)?, self.burst.unwrap_or(count)),
            ("leaky-bucket", _) => self.leaky_bucket(builder),
            ("warm-up", _) => {
                builder.warm_up(self.warm_up.unwrap_or_default(), ColdFactor::times(COLD_FACTOR))
            }
            _ => self.profile(count, period),
        };
        quota.map(Some)
    }

    /// Builds a limit that calculates exactly as the library of its name.
    fn profile(&self, count: u64, period: Duration) -> Result<Quota, QuotaError> {
        // The other libraries take events per second as a float.
        let per_second = count as f64 / period.as_secs_f64();
        let warm_up = self.warm_up.unwrap_or_default();
        match self.algorithm.as_str() {
            "x-time" => Ok(XTime::new(per_second, self.burst.unwrap_or(count))?.into()),
            "uber-pacer" => {
                let slack =
                    self.slack.map_or(UberPacer::SLACK, |slack| u32::try_from(slack).unwrap_or(u32::MAX));
                Ok(UberPacer::new(Rate::new(count, period)?, slack)?.into())
            }
            "guava-bursty" => Ok(GuavaBursty::new(per_second, 1.0)?.into()),
            "guava-warming" => Ok(GuavaWarming::new(per_second, warm_up, f64::from(COLD_FACTOR))?.into()),
            other => Err(QuotaError::Parameter {
                name: "algorithm",
                value: other.to_owned(),
                want: "is not available in this version",
            }),
        }
    }

    fn token_bucket(&self, rate: Rate, burst: u64) -> Result<Quota, QuotaError> {
        let bandwidth =
            Bandwidth::new(rate, burst)?.refill(self.refill).initial(self.initial.unwrap_or(burst))?;
        Ok(TokenBucket::new(bandwidth).into())
    }

    /// Builds a leaky bucket that refuses, or with `queue` delays. `slack` is how many unused places a pause saves up.
    fn leaky_bucket(&self, builder: QuotaBuilder) -> Result<Quota, QuotaError> {
        match self.queue {
            None => builder.leaky_bucket(),
            Some(places) => builder.burst(self.slack.unwrap_or(0).saturating_add(1)).leaky_queue(places),
        }
    }

    pub(super) fn grants(&self) -> Option<u64> {
        match (self.rate, self.queue) {
            (WrittenRate::Unlimited, _) => None,
            // One unit passes at once, the saved-up ones pass with it, and the others wait in the queue.
            (_, Some(places)) => Some(places.saturating_add(self.slack.unwrap_or(0)).saturating_add(1)),
            (WrittenRate::Per { count, .. }, None) => Some(self.burst.unwrap_or(count)),
        }
    }

    pub(super) fn label(&self) -> String {
        if self.rate == WrittenRate::Unlimited {
            return "unlimited".to_owned();
        }
        let mut label = format!("{} {}", self.algorithm, self.rate);
        if let Some(burst) = self.burst {
            let _ = write!(label, " burst {burst}");
        }
        match self.refill {
            Refill::Continuous => {}
            Refill::Interval => label.push_str(" refill interval"),
            Refill::Aligned => label.push_str(" refill aligned"),
        }
        if let Some(tokens) = self.initial {
            let _ = write!(label, " start {tokens}");
        }
        if let Some(zone) = &self.calendar {
            let _ = write!(label, " calendar {zone}");
        }
        if let Some(places) = self.queue {
            let _ = write!(label, " queue {places}");
        }
        label
    }
}

/// Returns the calendar unit of a rate, whose period must be exactly one, of a second or longer.
fn calendar_unit(times: u64, unit: Unit) -> Result<CalendarUnit, QuotaError> {
    let calendar = match unit {
        Unit::Second => Some(CalendarUnit::Second),
        Unit::Minute => Some(CalendarUnit::Minute),
        Unit::Hour => Some(CalendarUnit::Hour),
        Unit::Day => Some(CalendarUnit::Day),
        Unit::Week => Some(CalendarUnit::Week),
        Unit::Month => Some(CalendarUnit::Month),
        Unit::Year => Some(CalendarUnit::Year),
        Unit::Millisecond | Unit::Microsecond | Unit::Nanosecond => None,
    };
    calendar.filter(|_| times == 1).ok_or_else(|| QuotaError::Parameter {
        name: "a calendar window of",
        value: if times == 1 { unit.name().to_owned() } else { format!("{times} {}", unit.name()) },
        want: "does not exist; use one s, min, h, day, week, month or year",
    })
}

#[derive(Clone, Copy)]
pub(super) struct PolicyFacts<'a> {
    pub(super) by: &'a [String],
    /// The largest cost that one request is known to have.
    pub(super) cost: Option<u64>,
}
