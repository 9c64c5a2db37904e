//! Builds a complete limit from a count per time, such as "50 per second".

use core::time::Duration;

use super::Quota;
use crate::error::{QuotaError, burst_in_range};
use crate::rate::{
    Bandwidth, CalendarUnit, ColdFactor, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Refill, SlidingCounter,
    SlidingLog, SlidingWindow, TokenBucket, WarmUp,
};
use crate::time::Rate;

/// A rate that becomes a [`Quota`] once an algorithm is chosen. The burst defaults to the count of the rate: "50 per
/// second" may come all at once. Numbers are checked then: a [`QuotaError`] names the one that is out of range, or the
/// burst of a window, which has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a builder is not a limit yet: hand it to a limiter, or finish it with an algorithm"]
pub struct QuotaBuilder {
    count: u64,
    period: Duration,
    burst: Option<u64>,
}

impl Quota {
    /// Starts a limit of `count` units per second; see [`QuotaBuilder`].
    pub fn per_second(count: u64) -> QuotaBuilder {
        Self::per(count, Duration::from_secs(1))
    }

    /// Starts a limit of `count` units per minute.
    pub fn per_minute(count: u64) -> QuotaBuilder {
        Self::per(count, Duration::from_secs(60))
    }

    /// Starts a limit of `count` units per hour.
    pub fn per_hour(count: u64) -> QuotaBuilder {
        Self::per(count, Duration::from_secs(3600))
    }

    /// Starts a limit of `count` units per 24 hours.
    pub fn per_day(count: u64) -> QuotaBuilder {
        Self::per(count, Duration::from_secs(86_400))
    }

    /// Starts a limit of `count` units per `period`.
    pub fn per(count: u64, period: Duration) -> QuotaBuilder {
        QuotaBuilder { count, period, burst: None }
    }
}

impl QuotaBuilder {
    /// Sets the largest cost granted at once from a full limit, the first unit included.
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    fn rate(self) -> Result<Rate, QuotaError> {
        Rate::new(self.count, self.period)
    }

    /// Finishes as [`Gcra`].
    pub fn gcra(self) -> Result<Quota, QuotaError> {
        Ok(Gcra::new(self.rate()?, self.burst.unwrap_or(self.count))?.into())
    }

    /// Returns the rate of a window, which may grant its whole count at once and so has no burst.
    fn window(self) -> Result<Rate, QuotaError> {
        match self.burst {
            None => self.rate(),
            Some(burst) => Err(QuotaError::Parameter {
                name: "burst",
                value: burst.to_string(),
                want: "has no meaning in a window, whose count may come all at once; leave it out",
            }),
        }
    }

    /// Finishes as a rolling [`FixedWindow`]: it opens at the first charge and lasts the period.
    pub fn fixed_window(self) -> Result<Quota, QuotaError> {
        Ok(FixedWindow::rolling(self.window()?).into())
    }

    /// Finishes as a calendar [`FixedWindow`] on the clock of `zone`, an IANA name. The `unit` replaces the period,
    /// which is ignored.
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range, the unknown zone, or the burst, which no window has.
    pub fn calendar_window(self, unit: CalendarUnit, zone: &str) -> Result<Quota, QuotaError> {
        Ok(FixedWindow::calendar(self.window()?.count(), unit, zone)?.into())
    }

    /// Finishes as a [`SlidingWindow`] of `buckets`, from 1 to 1024.
    pub fn sliding_window(self, buckets: u64) -> Result<Quota, QuotaError> {
        Ok(SlidingWindow::new(self.window()?, buckets)?.into())
    }

    /// Finishes as a [`SlidingCounter`].
    pub fn sliding_counter(self) -> Result<Quota, QuotaError> {
        Ok(SlidingCounter::new(self.window()?).into())
    }

    /// Finishes as a [`SlidingLog`], whose count is at most 2¹⁴.
    pub fn sliding_log(self) -> Result<Quota, QuotaError> {
        Ok(SlidingLog::new(self.window()?)?.into())
    }

    fn bandwidth(self) -> Result<Bandwidth, QuotaError> {
        Bandwidth::new(self.rate()?, self.burst.unwrap_or(self.count))
    }

    /// Finishes as a [`TokenBucket`] of one bandwidth that refills evenly; the burst is its capacity.
    pub fn token_bucket(self) -> Result<Quota, QuotaError> {
        Ok(TokenBucket::new(self.bandwidth()?).into())
    }

    /// Finishes as a [`TokenBucket`] of one bandwidth whose whole count returns at the end of each period.
    pub fn interval_bucket(self) -> Result<Quota, QuotaError> {
        Ok(TokenBucket::new(self.bandwidth()?.refill(Refill::Interval)).into())
    }

    /// Finishes as a [`TokenBucket`] of one bandwidth with an [aligned refill](Refill::Aligned).
    pub fn aligned_bucket(self) -> Result<Quota, QuotaError> {
        Ok(TokenBucket::new(self.bandwidth()?.refill(Refill::Aligned)).into())
    }

    /// Finishes as a [`LeakyBucket`], a meter; the burst is its capacity.
    pub fn leaky_bucket(self) -> Result<Quota, QuotaError> {
        Ok(LeakyBucket::new(self.rate()?, self.burst.unwrap_or(self.count))?.into())
    }

    /// Finishes as a [`LeakyQueue`] in which at most `places` units wait. The burst is the slack and one unit; it
    /// defaults to 1 here, for an even stream.
    pub fn leaky_queue(self, places: u64) -> Result<Quota, QuotaError> {
        let burst = burst_in_range(self.burst.unwrap_or(1))?;
        Ok(LeakyQueue::new(self.rate()?, burst - 1, places)?.into())
    }

    /// Finishes as a [`WarmUp`] that reaches the rate within `period` of full load, `cold_factor` times slower at first.
    pub fn warm_up(self, period: Duration, cold_factor: ColdFactor) -> Result<Quota, QuotaError> {
        let limit = WarmUp::new(self.rate()?, period, cold_factor)?;
        Ok(limit.burst(self.burst.unwrap_or(self.count))?.into())
    }
}

impl TryFrom<QuotaBuilder> for Quota {
    type Error = QuotaError;

    /// Finishes with the default algorithm, GCRA: smallest state, exact retry times.
    fn try_from(builder: QuotaBuilder) -> Result<Self, QuotaError> {
        builder.gcra()
    }
}
