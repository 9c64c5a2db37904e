//! Judges admissions against a limit: by how much they exceeded it (*excess*), and how much of it they used
//! (*utilisation*). A judge is told each request and whether it was admitted, not how that was decided: tests,
//! simulations and a metric in production use the same judge. All numbers are exact integers; memory and time per call
//! are constant.
//!
//! * [`Envelope`]: a rate and a burst
//! * [`WindowEnvelope`]: a number of units in each window

use crate::error::{QuotaError, burst_in_range};
use crate::quota::Quota;
use crate::time::{Rate, Tick, nanos};

/// The units admitted, compared with the units that could have been admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Utilisation {
    /// Units admitted.
    pub admitted: u64,
    /// Units that one central limit would have admitted of the same requests.
    pub ideal: u64,
}

impl Utilisation {
    /// Returns the units admitted in thousandths of the ideal, rounded down; 1000 if nothing could have been
    /// admitted. It is above 1000 if more than the ideal was admitted.
    #[must_use]
    pub fn per_mille(self) -> u64 {
        match self.ideal {
            0 => 1000,
            ideal => u64::try_from(u128::from(self.admitted) * 1000 / u128::from(ideal)).unwrap_or(u64::MAX),
        }
    }
}

/// Judges admissions by a rate and a burst. The excess is the largest amount by which the units of any span exceeded
/// `burst + rate · span`; the utilisation compares with one central bucket that gets the same requests.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::envelope::Envelope;
/// use tidegate_core::{Rate, Tick};
///
/// let mut judge = Envelope::new(Rate::new(10, Duration::from_secs(1))?, 5)?;
/// judge.ask(Tick::from_secs(1), 5, true);
/// assert_eq!(judge.excess(), 0);
/// judge.ask(Tick::from_secs(1), 2, true);
/// assert_eq!(judge.excess(), 2, "seven at once where five are allowed");
/// assert_eq!(judge.utilisation().per_mille(), 1400);
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Scaled units that return each nanosecond. A unit is the period of the reduced rate in nanoseconds.
    count: u64,
    /// Scaled units in one unit.
    period: u64,
    burst: u64,
    last: Tick,
    /// The largest value, over all spans that end now, of the units admitted minus the units that the rate returned.
    level: u128,
    highest: u128,
    spent: u128,
    utilisation: Utilisation,
}

impl Envelope {
    /// Makes a judge of a limit of `rate` that grants at most `burst` units at once, from 1 to [`Rate::MAX_COUNT`].
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when the burst is out of range.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, QuotaError> {
        let burst = burst_in_range(burst)?;
        let (count, period) = rate.reduced();
        Ok(Self {
            count,
            period,
            burst,
            last: Tick::EPOCH,
            level: 0,
            highest: 0,
            spent: 0,
            utilisation: Utilisation::default(),
        })
    }

    /// Makes a judge of a quota that is a rate and a burst: GCRA, a leaky bucket, or a token bucket with one
    /// bandwidth that refills evenly. `None` for all others.
    #[must_use]
    pub fn of(quota: &Quota) -> Option<Self> {
        let (rate, burst) = quota.flow()?;
        Self::new(rate, burst).ok()
    }

    /// Records one request, whose cost is admitted whole or not at all. A cost of 0 changes only the time.
    ///
    /// `at` is the tick at which the units act. A tick before the latest recorded one counts as that one, so requests
    /// of several threads are in order.
    pub fn ask(&mut self, at: Tick, cost: u64, admitted: bool) {
        self.move_to(at);
        let fits = self.room() >= u128::from(cost);
        self.add(if fits { cost } else { 0 }, if admitted { cost } else { 0 });
    }

    /// Records many requests at one tick: the units asked for and those admitted. The ideal bucket admits as many as
    /// it has left.
    pub fn batch(&mut self, at: Tick, asked: u64, admitted: u64) {
        self.move_to(at);
        let ideal = u64::try_from(self.room()).unwrap_or(u64::MAX).min(asked);
        self.add(ideal, admitted);
    }

    /// Changes the limit from a tick on, as one central limit is changed in use
    /// ([`Replace::AsIs`](crate::Replace::AsIs)). A tick before the latest recorded one counts as that one. The
    /// excess so far stays. The change itself is not an excess, but everything admitted beyond the rest of the
    /// changed limit is.
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when the burst is out of range; the limit is unchanged then.
    pub fn change(&mut self, at: Tick, rate: Rate, burst: u64) -> Result<(), QuotaError> {
        let burst = burst_in_range(burst)?;
        self.move_to(at);
        let (excess, (count, period)) = (self.excess_scaled().0, rate.reduced());
        let (new, old) = (u128::from(period), u128::from(self.period));
        // Parts of a unit count as spent. Values above 2^128 parts saturate, as elsewhere here.
        let convert = |parts: u128| {
            let whole = (parts / old).saturating_mul(new);
            whole.saturating_add((parts % old * new).div_ceil(old))
        };
        (self.count, self.period, self.burst) = (count, period, burst);
        let full = self.full();
        self.spent = convert(self.spent).min(full);
        self.level = convert(self.level).min(full);
        self.highest = if excess == 0 { self.level } else { full.saturating_add(convert(excess)) };
        Ok(())
    }

    /// Returns the excess in units, rounded up: the largest amount by which the units admitted in any span exceeded
    /// `burst + rate · span`; 0 if none did.
    #[must_use]
    pub fn excess(&self) -> u64 {
        let units = self.excess_scaled().0.div_ceil(u128::from(self.period));
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// Returns the excess without rounding: a number of parts, and how many parts make a unit.
    #[must_use]
    pub fn excess_scaled(&self) -> (u128, u64) {
        (self.highest.saturating_sub(self.full()), self.period)
    }

    /// Returns the units admitted, and the units that one bucket would have admitted if it had got all requests.
    #[must_use]
    pub const fn utilisation(&self) -> Utilisation {
        self.utilisation
    }

    /// Forgets the excess and the utilisation so far, for a figure per interval. Earlier admissions still count in
    /// spans that continue.
    pub fn restart(&mut self) {
        self.highest = self.level;
        self.utilisation = Utilisation::default();
    }

    fn full(&self) -> u128 {
        // At most 2^60 times 2^62.
        u128::from(self.burst) * u128::from(self.period)
    }

    fn room(&self) -> u128 {
        self.full().saturating_sub(self.spent) / u128::from(self.period)
    }

    fn move_to(&mut self, at: Tick) {
        let at = at.max(self.last);
        let back = u128::from(nanos(at.since(self.last))) * u128::from(self.count);
        self.last = at;
        // Saturates at zero: a span whose level falls below zero is surpassed by one that begins later.
        self.level = self.level.saturating_sub(back);
        self.spent = self.spent.saturating_sub(back);
    }

    fn add(&mut self, ideal: u64, admitted: u64) {
        let weight = |units: u64| u128::from(units) * u128::from(self.period);
        self.level = self.level.saturating_add(weight(admitted));
        self.highest = self.highest.max(self.level);
        self.spent = self.spent.saturating_add(weight(ideal));
        let told = &mut self.utilisation;
        told.admitted = told.admitted.saturating_add(admitted);
        told.ideal = told.ideal.saturating_add(ideal);
    }
}

/// Judges admissions by a number of units in each window.
///
/// The caller says which window a request falls in, by any number that grows from window to window: usually the tick
/// at which the window begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindowEnvelope {
    limit: u64,
    window: u64,
    admitted: u64,
    ideal: u64,
    excess: u64,
    utilisation: Utilisation,
}

impl WindowEnvelope {
    /// Makes a judge of a limit of `limit` units in each window.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        let utilisation = Utilisation { admitted: 0, ideal: 0 };
        Self { limit, window: 0, admitted: 0, ideal: 0, excess: 0, utilisation }
    }

    /// Records requests in a window: the units asked for and those admitted. A window before the latest recorded one
    /// counts as that one.
    pub fn batch(&mut self, window: u64, asked: u64, admitted: u64) {
        if window > self.window {
            (self.window, self.admitted, self.ideal) = (window, 0, 0);
        }
        let ideal = asked.min(self.limit - self.ideal);
        self.ideal += ideal;
        self.admitted = self.admitted.saturating_add(admitted);
        self.excess = self.excess.max(self.admitted.saturating_sub(self.limit));
        let told = &mut self.utilisation;
        told.admitted = told.admitted.saturating_add(admitted);
        told.ideal = told.ideal.saturating_add(ideal);
    }

    /// Returns the most by which the units of any window exceeded the limit.
    #[must_use]
    pub const fn excess(&self) -> u64 {
        self.excess
    }

    /// Returns the units admitted, and the units that one window limit would have admitted if it had got all requests.
    #[must_use]
    pub const fn utilisation(&self) -> Utilisation {
        self.utilisation
    }
}
