//! A complete limit of any algorithm, and its state: what policies name and stores keep.
//!
//! The two enums hold one variant per algorithm and hand every call on to it. An algorithm is added in three places: its own
//! file, one line in the table below, one in the tests' list of quotas. Guards are rows of their own: asking is entering, and
//! whoever entered leaves by [`Quota::finish`], with an outcome.

use core::time::Duration;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::changed;
use crate::concurrency::{Concurrency, ConcurrencyState};
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::guard::{Finish, Guard, Outcome};
use crate::rate::{Algorithm, Gcra, GcraState};
use crate::rate::{Bandwidth, Refill, TokenBucket, TokenBucketState};
use crate::rate::{CalendarUnit, FixedWindow, FixedWindowState, SlidingCounter, SlidingCounterState};
use crate::rate::{ColdFactor, WarmUp, WarmUpState};
use crate::rate::{GuavaBursty, GuavaState, GuavaWarming, UberPacer, UberPacerState, XTime, XTimeState};
use crate::rate::{LeakyBucket, LeakyBucketState, LeakyQueue, LeakyQueueState};
use crate::rate::{SlidingLog, SlidingLogState, SlidingWindow, SlidingWindowState};
use crate::time::{Rate, Tick};

/// Why parameters are not a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// A count of zero, or above [`Rate::MAX_COUNT`].
    #[error("count {count} is not a limit; use 1 to {}", Rate::MAX_COUNT)]
    Count {
        /// The count given.
        count: u64,
    },
    /// A period of zero, or above [`Rate::MAX_PERIOD`].
    #[error("period {period:?} is not a limit; use 1 ns to 146 years")]
    Period {
        /// The period given.
        period: Duration,
    },
    /// A burst of zero, or above [`Rate::MAX_COUNT`].
    #[error("burst {burst} is not a limit; use 1 to {}", Rate::MAX_COUNT)]
    Burst {
        /// The burst given.
        burst: u64,
    },
    /// Any other parameter that cannot be.
    #[error("{name} {value} {want}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// The value given.
        value: String,
        /// What would work, as the end of the sentence.
        want: &'static str,
    },
}

/// A finished quota converts into itself, so that one bound (`TryInto<Quota>` with errors that become this one) takes quotas
/// and builders alike.
impl From<core::convert::Infallible> for QuotaError {
    fn from(never: core::convert::Infallible) -> Self {
        match never {}
    }
}

/// Checks a burst once, for every algorithm that has one.
pub(crate) fn burst_in_range(burst: u64) -> Result<u64, QuotaError> {
    if burst == 0 || burst > Rate::MAX_COUNT { Err(QuotaError::Burst { burst }) } else { Ok(burst) }
}

/// The table of algorithms, limits and then guards: byte, variant, parameters, state. A byte, once released, is never reused.
macro_rules! algorithms {
    (
        limits { $($(#[$doc:meta])* $byte:literal => $name:ident($params:ty, $state:ty);)* }
        guards { $($(#[$gdoc:meta])* $gbyte:literal => $gname:ident($gparams:ty, $gstate:ty);)* }
    ) => {
        /// A complete limit: an algorithm with its parameters. Immutable; replaced whole.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Quota { $($(#[$doc])* $name($params),)* $($(#[$gdoc])* $gname($gparams),)* }

        /// What a [`Quota`] remembers of one key.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum State { $($(#[$doc])* $name($state),)* $($(#[$gdoc])* $gname($gstate),)* }

        $(impl From<$params> for Quota {
            fn from(params: $params) -> Self { Self::$name(params) }
        })*

        $(impl From<$gparams> for Quota {
            fn from(params: $gparams) -> Self { Self::$gname(params) }
        })*

        impl Algorithm for Quota {
            type State = State;

            fn fresh(&self, now: Tick) -> State {
                match self {
                    $(Self::$name(params) => State::$name(params.fresh(now)),)*
                    $(Self::$gname(params) => State::$gname(Guard::fresh(params, now)),)*
                }
            }

            fn decide(&self, state: &State, ask: Ask) -> Transition<State> {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => params.decide(state, ask).map(State::$name),)*
                    $((Self::$gname(params), State::$gname(state)) => params.enter(state, ask).map(State::$gname),)*
                    #[allow(unreachable_patterns, reason = "reachable as soon as the table has two rows")]
                    _ => self.decide(&self.fresh(ask.now), ask),
                }
            }

            fn standing(&self, state: &State, now: Tick) -> Standing {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => params.standing(state, now),)*
                    $((Self::$gname(params), State::$gname(state)) => Guard::standing(params, state, now),)*
                    #[allow(unreachable_patterns, reason = "reachable as soon as the table has two rows")]
                    _ => self.standing(&self.fresh(now), now),
                }
            }

            fn settle(&self, state: &State, now: Tick, receipt: &Receipt, used: u64) -> State {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => State::$name(params.settle(state, now, receipt, used)),)*
                    $((Self::$gname(params), State::$gname(state)) => match used {
                        0 => State::$gname(params.leave(state, now, receipt, Outcome::Ignored)),
                        _ => State::$gname(state.clone()),
                    },)*
                    #[allow(unreachable_patterns, reason = "reachable as soon as the table has two rows")]
                    _ => self.fresh(now),
                }
            }

            fn carry(&self, old: &Self, state: &State, now: Tick, how: Replace) -> State {
                match (self, old, state) {
                    $((Self::$name(params), Self::$name(old), State::$name(state)) => {
                        State::$name(params.carry(old, state, now, how))
                    })*
                    $((Self::$gname(params), Self::$gname(old), State::$gname(state)) => {
                        State::$gname(Guard::carry(params, old, state, now, how))
                    })*
                    #[allow(unreachable_patterns, reason = "reachable as soon as the table has two rows")]
                    // Units spent say nothing of who is inside, nor the other way round.
                    _ if self.is_guard() || old.is_guard() => self.fresh(now),
                    _ => changed::carry(self, old, state, now, how),
                }
            }

            fn full_at(&self, state: &State) -> Option<Tick> {
                match (self, state) {
                    $((Self::$name(params), State::$name(state)) => params.full_at(state),)*
                    $((Self::$gname(params), State::$gname(state)) => Guard::full_at(params, state),)*
                    #[allow(unreachable_patterns, reason = "reachable as soon as the table has two rows")]
                    _ => Some(Tick::EPOCH),
                }
            }
        }

        impl Quota {
            /// Finishes admitted work: limits settle what was spent, guards are left with the outcome.
            ///
            /// To settle a guard without finishing does nothing, unless nothing was used: units say nothing of whether the work is
            /// over. Undone work leaves as [`Outcome::Ignored`].
            #[must_use]
            pub fn finish(&self, state: &State, now: Tick, receipt: &Receipt, finish: Finish) -> State {
                match (self, state) {
                    $((Self::$gname(params), State::$gname(state)) => {
                        State::$gname(params.leave(state, now, receipt, finish.outcome))
                    })*
                    _ => self.settle(state, now, receipt, finish.used),
                }
            }

            /// Says whether it is a guard, which is entered and left.
            #[must_use]
            pub const fn is_guard(&self) -> bool {
                match self {
                    $(Self::$name(_) => false,)*
                    $(Self::$gname(_) => true,)*
                }
            }

            /// Returns the byte form, header included.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                match self {
                    $(Self::$name(params) => { let mut out = Writer::new($byte); params.write(&mut out); out.finish() })*
                    $(Self::$gname(params) => { let mut out = Writer::new($gbyte); params.write(&mut out); out.finish() })*
                }
            }

            /// Reads a byte form.
            ///
            /// # Errors
            /// [`DecodeError`] when the bytes are no quota.
            pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                let (kind, mut from) = Reader::open(bytes)?;
                let quota = match kind {
                    $($byte => Self::$name(Bytes::read(&mut from)?),)*
                    $($gbyte => Self::$gname(Bytes::read(&mut from)?),)*
                    _ => return Err(DecodeError::Kind { kind }),
                };
                from.close().map(|()| quota)
            }
        }

        impl State {
            /// Returns the byte form, header included.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                match self {
                    $(Self::$name(state) => { let mut out = Writer::new($byte); state.write(&mut out); out.finish() })*
                    $(Self::$gname(state) => { let mut out = Writer::new($gbyte); state.write(&mut out); out.finish() })*
                }
            }

            /// Reads a byte form.
            ///
            /// # Errors
            /// [`DecodeError`] when the bytes are no state.
            pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                let (kind, mut from) = Reader::open(bytes)?;
                let state = match kind {
                    $($byte => Self::$name(Bytes::read(&mut from)?),)*
                    $($gbyte => Self::$gname(Bytes::read(&mut from)?),)*
                    _ => return Err(DecodeError::Kind { kind }),
                };
                from.close().map(|()| state)
            }
        }

        impl Bytes for Quota {
            fn write(&self, out: &mut Writer) {
                match self {
                    $(Self::$name(params) => { out.u8($byte); params.write(out); })*
                    $(Self::$gname(params) => { out.u8($gbyte); params.write(out); })*
                }
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match from.u8()? {
                    $($byte => Bytes::read(from).map(Self::$name),)*
                    $($gbyte => Bytes::read(from).map(Self::$gname),)*
                    kind => Err(DecodeError::Kind { kind }),
                }
            }
        }

        impl Bytes for State {
            fn write(&self, out: &mut Writer) {
                match self {
                    $(Self::$name(state) => { out.u8($byte); state.write(out); })*
                    $(Self::$gname(state) => { out.u8($gbyte); state.write(out); })*
                }
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match from.u8()? {
                    $($byte => Bytes::read(from).map(Self::$name),)*
                    $($gbyte => Bytes::read(from).map(Self::$gname),)*
                    kind => Err(DecodeError::Kind { kind }),
                }
            }
        }
    };
}

algorithms! {
    limits {
        /// Generic cell rate algorithm.
        1 => Gcra(Gcra, GcraState);
        /// A count per window: rolling from the first charge, or on the calendar of a time zone.
        2 => FixedWindow(FixedWindow, FixedWindowState);
        /// A count in any span of one window, in buckets.
        3 => SlidingWindow(SlidingWindow, SlidingWindowState);
        /// A count in a window that slides by weighting two fixed ones.
        4 => SlidingCounter(SlidingCounter, SlidingCounterState);
        /// A count in any span of one window, exact.
        5 => SlidingLog(SlidingLog, SlidingLogState);
        /// Token bucket: continuous or at once, one bandwidth or several.
        6 => TokenBucket(TokenBucket, TokenBucketState);
        /// Leaky bucket as a meter.
        7 => LeakyBucket(LeakyBucket, LeakyBucketState);
        /// Leaky bucket as a queue that delays.
        8 => LeakyQueue(LeakyQueue, LeakyQueueState);
        /// Warm-up of a cold service along a slope.
        9 => WarmUp(WarmUp, WarmUpState);
        /// Profile of golang.org/x/time/rate.
        20 => XTime(XTime, XTimeState);
        /// Profile of go.uber.org/ratelimit.
        21 => UberPacer(UberPacer, UberPacerState);
        /// Profile of Guava's SmoothBursty.
        22 => GuavaBursty(GuavaBursty, GuavaState);
        /// Profile of Guava's SmoothWarmingUp.
        23 => GuavaWarming(GuavaWarming, GuavaState);
    }
    guards {
        /// A fixed number of places in flight.
        40 => Concurrency(Concurrency, ConcurrencyState);
    }
}

impl Quota {
    /// Starts a limit of `count` units per second; finish it with a burst or an algorithm, see [`QuotaBuilder`].
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

    /// Makes a [`Concurrency`] guard: at most `max` in flight, 1 to [`Concurrency::MAX_PLACES`]; a place that was not returned within `ttl` of
    /// being taken lapses by itself. For gates, whose admissions are finished; a check that nobody finishes holds its place until then.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] names the number that is out of range.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::Quota;
    /// let fifty_at_once = Quota::concurrency(50, Duration::from_secs(30))?;
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn concurrency(max: u64, ttl: Duration) -> Result<Self, QuotaError> {
        Ok(Concurrency::new(max)?.ttl(ttl)?.into())
    }
}

/// A rate on its way to a [`Quota`].
///
/// The burst defaults to the count of the rate: "50 per second" may come all at once. Numbers are checked when the quota is
/// made, so that a chain reads without question marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a builder is no limit yet: hand it to a limiter, or finish it with an algorithm"]
pub struct QuotaBuilder {
    count: u64,
    period: Duration,
    burst: Option<u64>,
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
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range.
    pub fn gcra(self) -> Result<Quota, QuotaError> {
        Ok(Gcra::new(self.rate()?, self.burst.unwrap_or(self.count))?.into())
    }

    /// The rate of a window, whose count is all it grants at once.
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
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range, or the burst, which no window has.
    pub fn fixed_window(self) -> Result<Quota, QuotaError> {
        Ok(FixedWindow::rolling(self.window()?).into())
    }

    /// Finishes as a calendar [`FixedWindow`] on the clock of `zone`, an IANA name. The period is not looked at: `unit` takes its place.
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range, the unknown zone, or the burst, which no window has.
    ///
    /// # Examples
    /// ```
    /// use tidegate_core::{rate::CalendarUnit, Quota};
    /// let quota = Quota::per_day(5).calendar_window(CalendarUnit::Day, "Asia/Shanghai")?;
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn calendar_window(self, unit: CalendarUnit, zone: &str) -> Result<Quota, QuotaError> {
        Ok(FixedWindow::calendar(self.window()?.count(), unit, zone)?.into())
    }

    /// Finishes as a [`SlidingWindow`] of `buckets`, from 1 to [`SlidingWindow::MAX_BUCKETS`].
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range, or the burst, which no window has.
    pub fn sliding_window(self, buckets: u64) -> Result<Quota, QuotaError> {
        Ok(SlidingWindow::new(self.window()?, buckets)?.into())
    }

    /// Finishes as a [`SlidingCounter`].
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range, or the burst, which no window has.
    pub fn sliding_counter(self) -> Result<Quota, QuotaError> {
        Ok(SlidingCounter::new(self.window()?).into())
    }

    /// Finishes as a [`SlidingLog`], whose count is at most [`SlidingLog::MAX_LIMIT`].
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range, or the burst, which no window has.
    pub fn sliding_log(self) -> Result<Quota, QuotaError> {
        Ok(SlidingLog::new(self.window()?)?.into())
    }

    fn bandwidth(self) -> Result<Bandwidth, QuotaError> {
        Bandwidth::new(self.rate()?, self.burst.unwrap_or(self.count))
    }

    /// Finishes as a [`TokenBucket`] of one bandwidth that refills evenly; the burst is its capacity.
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range.
    pub fn token_bucket(self) -> Result<Quota, QuotaError> {
        Ok(TokenBucket::new(self.bandwidth()?).into())
    }

    /// Finishes as a [`TokenBucket`] of one bandwidth that gets its whole count back at the end of each period.
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range.
    pub fn interval_bucket(self) -> Result<Quota, QuotaError> {
        Ok(TokenBucket::new(self.bandwidth()?.refill(Refill::Interval)).into())
    }

    /// Finishes as a [`LeakyBucket`], a meter; the burst is its capacity.
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range.
    pub fn leaky_bucket(self) -> Result<Quota, QuotaError> {
        Ok(LeakyBucket::new(self.rate()?, self.burst.unwrap_or(self.count))?.into())
    }

    /// Finishes as a [`LeakyQueue`] in which at most `places` units wait.
    ///
    /// The burst is one unit and the slack. It defaults to 1 here, not to the count: who asks for a queue asks for an even
    /// stream.
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range.
    ///
    /// # Examples
    /// ```
    /// use tidegate_core::Quota;
    /// let strict = Quota::per_second(10).leaky_queue(50)?;
    /// let makes_up_for_two_units = Quota::per_second(10).burst(3).leaky_queue(50)?;
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn leaky_queue(self, places: u64) -> Result<Quota, QuotaError> {
        let burst = burst_in_range(self.burst.unwrap_or(1))?;
        Ok(LeakyQueue::new(self.rate()?, burst - 1, places)?.into())
    }

    /// Finishes as a [`WarmUp`] that reaches the rate within `period` of full load, `cold_factor` times slower at first.
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::ColdFactor, Quota};
    /// let limit = Quota::per_second(100).warm_up(Duration::from_secs(10), ColdFactor::THREE)?;
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn warm_up(self, period: Duration, cold_factor: ColdFactor) -> Result<Quota, QuotaError> {
        let limit = WarmUp::new(self.rate()?, period, cold_factor)?;
        Ok(limit.burst(self.burst.unwrap_or(self.count))?.into())
    }
}

impl TryFrom<QuotaBuilder> for Quota {
    type Error = QuotaError;

    /// Finishes with the default algorithm, GCRA: smallest state, exact `retry_after`.
    fn try_from(builder: QuotaBuilder) -> Result<Self, QuotaError> {
        builder.gcra()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_forms_come_back() {
        let quota = Quota::per_second(7).burst(3).gcra().unwrap();
        assert_eq!(Quota::decode(&quota.encode()), Ok(quota.clone()));
        let state = quota.fresh(Tick::from_secs(9));
        assert_eq!(State::decode(&state.encode()), Ok(state));
        assert_eq!(State::decode(&[9, 1]), Err(DecodeError::Version { version: 9 }));
    }
}
