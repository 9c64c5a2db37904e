//! From the words of a limit to a quota of core: the one place that knows both.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate_core::rate::CalendarUnit;
use tidegate_core::{Quota, QuotaBuilder, QuotaError};

use crate::policy::rate_grammar::{Unit, WrittenRate};

/// A limit as written, every word of it read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LimitSpec {
    pub(super) algorithm: String,
    pub(super) rate: WrittenRate,
    pub(super) burst: Option<u64>,
    pub(super) calendar: Option<String>,
    pub(super) buckets: u64,
    pub(super) by_interval: bool,
    pub(super) queue: Option<u64>,
    pub(super) slack: Option<u64>,
    pub(super) warm_up: Option<Duration>,
    pub(super) cold_factor: u64,
}

impl LimitSpec {
    /// Makes the quota; `None` when the rate is unlimited.
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range.
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
            _ => self.not_yet(builder),
        };
        quota.map(Some)
    }

    /// What core cannot do yet: `token_bucket()`, `interval_bucket()`, `leaky_bucket()`, `leaky_queue(places)`,
    /// `warm_up(period, cold_factor)`.
    fn not_yet(&self, _builder: QuotaBuilder) -> Result<Quota, QuotaError> {
        Err(QuotaError::Parameter {
            name: "algorithm",
            value: self.algorithm.clone(),
            want: "is not available in this version",
        })
    }

    /// Returns the most that a full limit grants at once; `None` when unlimited.
    pub(super) fn grants(&self) -> Option<u64> {
        match self.rate {
            WrittenRate::Unlimited => None,
            WrittenRate::Per { count, .. } => Some(self.burst.unwrap_or(count)),
        }
    }

    /// Returns the limit as people read it: `gcra 100/s burst 200`.
    pub(super) fn label(&self) -> String {
        if self.rate == WrittenRate::Unlimited {
            return "unlimited".to_owned();
        }
        let mut label = format!("{} {}", self.algorithm, self.rate);
        // Writing to a string does not fail.
        if let Some(burst) = self.burst {
            let _ = write!(label, " burst {burst}");
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

/// Returns the calendar's unit of a rate: one whole unit of a minute or longer.
fn calendar_unit(times: u64, unit: Unit) -> Result<CalendarUnit, QuotaError> {
    let calendar = match unit {
        Unit::Minute => Some(CalendarUnit::Minute),
        Unit::Hour => Some(CalendarUnit::Hour),
        Unit::Day => Some(CalendarUnit::Day),
        Unit::Week => Some(CalendarUnit::Week),
        Unit::Month => Some(CalendarUnit::Month),
        Unit::Year => Some(CalendarUnit::Year),
        Unit::Second | Unit::Millisecond => None,
    };
    calendar.filter(|_| times == 1).ok_or_else(|| QuotaError::Parameter {
        name: "a calendar window of",
        value: if times == 1 { unit.name().to_owned() } else { format!("{times} {}", unit.name()) },
        want: "does not exist; use one min, h, day, week, month or year",
    })
}
