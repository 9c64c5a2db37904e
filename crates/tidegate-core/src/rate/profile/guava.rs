//! Guava's `RateLimiter`, bursty and warming up, in its doubles and microseconds.
//!
//! Both forms store permits while nobody asks and keep the next free microsecond; a caller waits for that one and pushes
//! it on by its own price, so that it pays the debt of the caller before. They differ in what a stored permit costs: nothing
//! when bursty; along a slope, more the more are stored, when warming up. Every part of a price is cut to whole microseconds,
//! so a limiter runs a little fast: 3 per second by a third of a microsecond each. The exact form of the slope is
//! [`WarmUp`](crate::rate::WarmUp).
//!
//! # Where the peer differs
//! * **A first ask of any cost passes**, and later callers wait for it: there is no burst that bounds a cost.
//! * **The bursty form starts empty** and can hold one second's permits, so a forgotten key loses what it had stored.
//! * **A warm-up of zero** makes the arithmetic run into not-a-number, and everything passes from then on (guava#2730).
//! * **A clock that steps back** is waited out.
//! * There is no refund and no cancellation: both change nothing. A changed rate scales the stored permits, and an open
//!   debt keeps its old price.
//!
//! Time is read in whole microseconds since the limiter was made, as from Guava's own stopwatch: [`Algorithm::fresh`] makes it.
//! `tryAcquire(n, timeout)` is an ask within `timeout`, cut to microseconds.

use core::time::Duration;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Cost, Receipt, Replace, Standing, Verdict};
use crate::quota::QuotaError;
use crate::rate::Algorithm;
use crate::time::{Tick, nanos, span};

/// `RateLimiter.create(permitsPerSecond)`: stores the permits of an idle second and hands them out at no cost.
///
/// # Source
/// Guava 31.1, `SmoothRateLimiter.SmoothBursty`.
#[derive(Clone, Copy, Debug)]
pub struct GuavaBursty {
    per_second: f64,
    stable: f64,
}

/// `RateLimiter.create(permitsPerSecond, warmupPeriod, unit)`: stored permits cost more the more are stored.
///
/// # Source
/// Guava 31.1, `SmoothRateLimiter.SmoothWarmingUp`; the cold factor, fixed to 3 in public, is the one its tests set.
#[derive(Clone, Copy, Debug)]
pub struct GuavaWarming {
    per_second: f64,
    warm_up: i64,
    cold_factor: f64,
    stable: f64,
    threshold: f64,
    max: f64,
    slope: f64,
}

/// What a Guava limiter remembers of a key: 24 bytes.
#[derive(Clone, Copy, Debug)]
pub struct GuavaState {
    /// When the limiter was made: its stopwatch starts here.
    origin: Tick,
    stored: f64,
    /// Next free microsecond since the origin.
    next: i64,
}

impl PartialEq for GuavaState {
    fn eq(&self, other: &Self) -> bool {
        // Bits, so that a state in which the peer ran into not-a-number still equals itself.
        (self.origin, self.stored.to_bits(), self.next) == (other.origin, other.stored.to_bits(), other.next)
    }
}

impl Eq for GuavaState {}

impl PartialEq for GuavaBursty {
    fn eq(&self, other: &Self) -> bool {
        self.per_second.to_bits() == other.per_second.to_bits()
    }
}

impl Eq for GuavaBursty {}

impl PartialEq for GuavaWarming {
    fn eq(&self, other: &Self) -> bool {
        (self.per_second.to_bits(), self.warm_up, self.cold_factor.to_bits())
            == (other.per_second.to_bits(), other.warm_up, other.cold_factor.to_bits())
    }
}

impl Eq for GuavaWarming {}

/// The most permits that one call may ask for: a Java `int`.
const MAX_PERMITS: u64 = i32::MAX.unsigned_abs() as u64;

/// Checks a rate as the peer does: above zero and a number.
fn positive(per_second: f64) -> Result<f64, QuotaError> {
    if per_second > 0.0 {
        return Ok(per_second);
    }
    let want = "is not a rate; use more than 0 permits per second";
    Err(QuotaError::Parameter { name: "permits per second", value: per_second.to_string(), want })
}

/// `Math.min`, which unlike Rust's takes not-a-number from either side.
fn java_min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

impl GuavaBursty {
    /// Makes a limiter of `per_second` permits, any number above zero.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is not.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::profile::GuavaBursty, Algorithm, Ask, Cost, Tick, Verdict};
    ///
    /// let limit = GuavaBursty::new(2.0)?;
    /// let now = Tick::from_secs(1);
    /// let many = Ask::allow(now, Cost::new(10).unwrap());
    /// let Verdict::Allowed { next, .. } = limit.decide(&limit.fresh(now), many) else { panic!() };
    /// let after = limit.decide(&next, Ask::allow(now, Cost::ONE));
    /// assert_eq!(after, Verdict::Denied { retry_after: Some(Duration::from_secs(5)) });
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(per_second: f64) -> Result<Self, QuotaError> {
        let per_second = positive(per_second)?;
        Ok(Self { per_second, stable: 1e6 / per_second })
    }

    /// Returns the permits per second.
    #[must_use]
    pub const fn per_second(&self) -> f64 {
        self.per_second
    }
}

impl GuavaWarming {
    /// The only cold factor that Guava's public interface has.
    pub const COLD_FACTOR: f64 = 3.0;

    /// Makes a limiter of `per_second` permits, any number above zero, that warms up over `warm_up`, cut to microseconds.
    ///
    /// `cold_factor` is how many times longer a cold permit takes, 1 or more.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] names the number that is out of range.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::profile::GuavaWarming, Algorithm, Ask, Cost, Tick, Verdict};
    ///
    /// let limit = GuavaWarming::new(5.0, Duration::from_secs(3), GuavaWarming::COLD_FACTOR)?;
    /// let ask = Ask::within(Tick::from_secs(1), Cost::ONE, Duration::MAX);
    /// let Verdict::Allowed { next, .. } = limit.decide(&limit.fresh(ask.now), ask) else { panic!() };
    /// let Verdict::Allowed { wait, .. } = limit.decide(&next, ask) else { panic!() };
    /// assert_eq!(wait, Duration::from_micros(573_333));
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(per_second: f64, warm_up: Duration, cold_factor: f64) -> Result<Self, QuotaError> {
        if cold_factor.is_nan() || cold_factor < 1.0 {
            let want = "is no slope; use 1 or more";
            return Err(QuotaError::Parameter { name: "cold factor", value: cold_factor.to_string(), want });
        }
        let warm_up = i64::try_from(warm_up.as_micros()).unwrap_or(i64::MAX);
        Self::with_micros(per_second, warm_up, cold_factor)
    }

    /// Makes the limiter that `setRate` turns this one into: another rate, the same warm-up.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when the rate is not above zero.
    pub fn with_rate(self, per_second: f64) -> Result<Self, QuotaError> {
        Self::with_micros(per_second, self.warm_up, self.cold_factor)
    }

    fn with_micros(per_second: f64, warm_up: i64, cold_factor: f64) -> Result<Self, QuotaError> {
        let per_second = positive(per_second)?;
        let (stable, period) = (1e6 / per_second, warm_up as f64);
        let cold = stable * cold_factor;
        let threshold = 0.5 * period / stable;
        let max = threshold + 2.0 * period / (stable + cold);
        let slope = (cold - stable) / (max - threshold);
        Ok(Self { per_second, warm_up, cold_factor, stable, threshold, max, slope })
    }

    /// Returns the permits per second.
    #[must_use]
    pub const fn per_second(&self) -> f64 {
        self.per_second
    }
}

/// What the two forms do differently; the rest is one arithmetic.
trait Smooth {
    fn stable(&self) -> f64;
    fn max(&self) -> f64;
    /// Microseconds of rest that bring one stored permit.
    fn cool_down(&self) -> f64;
    /// Microseconds that taking some of the stored permits costs.
    fn stored_cost(&self, stored: f64, take: f64) -> i64;
    fn initial(&self) -> f64;

    fn resync(&self, mut state: GuavaState, now: i64) -> GuavaState {
        if now > state.next {
            // The peer's subtraction wraps where this saturates, 292 000 years from its start.
            let gained = now.saturating_sub(state.next) as f64 / self.cool_down();
            state.stored = java_min(self.max(), state.stored + gained);
            state.next = now;
        }
        state
    }

    fn acquire(&self, state: GuavaState, now: i64, permits: f64) -> GuavaState {
        let mut state = self.resync(state, now);
        let stored = java_min(permits, state.stored);
        let fresh = permits - stored;
        let cost = self.stored_cost(state.stored, stored).wrapping_add((fresh * self.stable()) as i64);
        state.next = state.next.saturating_add(cost);
        state.stored -= stored;
        state
    }
}

impl Smooth for GuavaBursty {
    fn stable(&self) -> f64 {
        self.stable
    }

    fn max(&self) -> f64 {
        // One second's worth: the burst that the public interface fixes.
        self.per_second
    }

    fn cool_down(&self) -> f64 {
        self.stable
    }

    fn stored_cost(&self, _: f64, _: f64) -> i64 {
        0
    }

    fn initial(&self) -> f64 {
        0.0
    }
}

impl Smooth for GuavaWarming {
    fn stable(&self) -> f64 {
        self.stable
    }

    fn max(&self) -> f64 {
        self.max
    }

    fn cool_down(&self) -> f64 {
        self.warm_up as f64 / self.max
    }

    fn stored_cost(&self, stored: f64, mut take: f64) -> i64 {
        let above = stored - self.threshold;
        let mut micros = 0;
        if above > 0.0 {
            let from_above = java_min(above, take);
            let interval = |permits: f64| self.stable + permits * self.slope;
            let length = interval(above) + interval(above - from_above);
            micros = (from_above * length / 2.0) as i64;
            take -= from_above;
        }
        micros.wrapping_add((self.stable * take) as i64)
    }

    fn initial(&self) -> f64 {
        self.max
    }
}

/// `Stopwatch.elapsed(MICROSECONDS)`: cut towards zero, also for a clock that went back beyond the start.
fn micros(state: &GuavaState, now: Tick) -> i64 {
    let elapsed = i128::from(now.as_nanos()) - i128::from(state.origin.as_nanos());
    // Below 2^64 / 1000, which fits.
    (elapsed / 1000) as i64
}

/// How long after `now` the stopwatch first shows `target`.
fn until(state: &GuavaState, target: i64, now: Tick) -> Duration {
    let target = i128::from(target);
    let elapsed = if target > 0 { target * 1000 } else { target * 1000 - 999 };
    let wait = elapsed + i128::from(state.origin.as_nanos()) - i128::from(now.as_nanos());
    span(wait.max(0).unsigned_abs())
}

fn decide(limit: &impl Smooth, state: &GuavaState, ask: Ask) -> Verdict<GuavaState> {
    let permits = ask.cost.units();
    if permits > MAX_PERMITS {
        return Verdict::NEVER;
    }
    let now = micros(state, ask.now);
    // At most 2^64 / 1000, which fits.
    let timeout = (nanos(ask.max_wait) / 1000) as i64;
    let earliest = state.next.saturating_sub(timeout);
    if earliest > now {
        return Verdict::Denied { retry_after: Some(until(state, earliest, ask.now)) };
    }
    let moment = limit.resync(*state, now).next;
    let wait = Duration::from_micros(moment.saturating_sub(now).max(0).unsigned_abs());
    let receipt = Receipt { at: ask.now, act: ask.now.after(wait), cost: ask.cost, mark: 0 };
    Verdict::Allowed { wait, next: limit.acquire(*state, now, permits as f64), receipt }
}

/// The peer names no limit: the most a call can ask for is one, and all of it may be asked when no debt is open.
fn standing(state: &GuavaState, now: Tick) -> Standing {
    let free = state.next <= micros(state, now);
    let reset_after = if free { Duration::ZERO } else { until(state, state.next, now) };
    Standing { limit: MAX_PERMITS, remaining: if free { MAX_PERMITS } else { 0 }, reset_after }
}

/// `setRate`.
fn set_rate(limit: &impl Smooth, old: &impl Smooth, state: &GuavaState, now: Tick) -> GuavaState {
    let mut state = old.resync(*state, micros(state, now));
    state.stored = match old.max() {
        f64::INFINITY => limit.max() - limit.initial(),
        0.0 => limit.initial(),
        max => state.stored * limit.max() / max,
    };
    state
}

/// The two forms of the trait differ in their parameters only.
macro_rules! guava {
    ($name:ident, $full_at:expr) => {
        impl Algorithm for $name {
            type State = GuavaState;

            /// Returns the state of a limiter made at `now`: its microseconds are counted from there.
            fn fresh(&self, now: Tick) -> GuavaState {
                GuavaState { origin: now, stored: self.initial(), next: 0 }
            }

            fn decide(&self, state: &GuavaState, ask: Ask) -> Verdict<GuavaState> {
                decide(self, state, ask)
            }

            /// Returns whether a call would have to wait, see [`Algorithm::standing`]; a peer without a burst names no limit but
            /// the largest number it can be asked for.
            fn standing(&self, state: &GuavaState, now: Tick) -> Standing {
                standing(state, now)
            }

            /// Changes nothing: the peer cannot give back.
            fn refund(&self, state: &GuavaState, _: Tick, _: Cost) -> GuavaState {
                *state
            }

            /// Changes nothing: the peer cannot cancel.
            fn cancel(&self, state: &GuavaState, _: Tick, _: &Receipt) -> GuavaState {
                *state
            }

            /// Does what `setRate` does for [`Replace::AsIs`] and [`Replace::Proportional`].
            fn carry(&self, old: &Self, state: &GuavaState, now: Tick, how: Replace) -> GuavaState {
                match how {
                    Replace::AsIs | Replace::Proportional => set_rate(self, old, state, now),
                    Replace::Reset => self.fresh(now),
                }
            }

            fn full_at(&self, state: &GuavaState) -> Option<Tick> {
                let full: fn(&Self, &GuavaState) -> Option<Tick> = $full_at;
                full(self, state)
            }
        }
    };
}

// The bursty form starts empty: forgetting it takes what it had stored.
guava!(GuavaBursty, |_, _| None);
guava!(GuavaWarming, |limit, state| {
    let missing = (limit.max - state.stored) * limit.cool_down();
    if !missing.is_finite() {
        return None;
    }
    // One more for what rounding may have left out; a cast saturates.
    let full = state.next.saturating_add(missing.max(0.0).ceil() as i64).saturating_add(1);
    let tick = i128::from(state.origin.as_nanos()) + i128::from(full) * 1000;
    u64::try_from(tick.max(0)).ok().map(Tick::from_nanos)
});

impl Bytes for GuavaBursty {
    fn write(&self, out: &mut Writer) {
        out.f64(self.per_second);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::new(from.f64()?).map_err(|_| DecodeError::Value { field: "permits per second" })
    }
}

impl Bytes for GuavaWarming {
    fn write(&self, out: &mut Writer) {
        out.f64(self.per_second);
        // Not negative by construction.
        out.u64(self.warm_up.unsigned_abs());
        out.f64(self.cold_factor);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (per_second, warm_up, cold_factor) = (from.f64()?, from.u64()?, from.f64()?);
        Self::new(per_second, Duration::from_micros(warm_up), cold_factor)
            .map_err(|_| DecodeError::Value { field: "permits per second or cold factor" })
    }
}

impl Bytes for GuavaState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.origin);
        out.f64(self.stored);
        out.u64(self.next.cast_unsigned());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { origin: from.tick()?, stored: from.f64()?, next: from.u64()?.cast_signed() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits in µs of asks of (ms, cost).
    fn waits(limit: &impl Algorithm<State = GuavaState>, asks: &[(u64, u64)]) -> Vec<u128> {
        let mut state = limit.fresh(Tick::from_secs(7));
        let ask = |&(at, cost): &(u64, u64)| {
            let now = Tick::from_secs(7).after(Duration::from_millis(at));
            let ask = Ask::within(now, Cost::new(cost).unwrap(), Duration::MAX);
            let Verdict::Allowed { wait, next, .. } = limit.decide(&state, ask) else { panic!("any wait") };
            state = next;
            wait.as_micros()
        };
        asks.iter().map(ask).collect()
    }

    #[test]
    fn a_bursty_timeline() {
        let limit = GuavaBursty::new(5.0).unwrap();
        let asks = [(0, 1), (0, 1), (0, 6), (400, 1), (5000, 5), (5000, 1), (5000, 1)];
        assert_eq!(waits(&limit, &asks), [0, 200_000, 400_000, 1_200_000, 0, 0, 200_000]);
    }

    #[test]
    fn a_warming_timeline() {
        let limit = GuavaWarming::new(5.0, Duration::from_secs(3), 3.0).unwrap();
        let (mut state, mut now) = (limit.fresh(Tick::EPOCH), Tick::EPOCH);
        let wait = |_| {
            let ask = Ask::within(now, Cost::ONE, Duration::MAX);
            let Verdict::Allowed { wait, next, .. } = limit.decide(&state, ask) else { panic!("any wait") };
            (state, now) = (next, now.after(wait));
            (wait.as_micros() + 5000) / 10_000
        };
        let waits: Vec<_> = (0..10).map(wait).collect();
        assert_eq!(waits, [0, 57, 52, 47, 41, 36, 31, 25, 21, 20]);
    }

    #[test]
    fn a_warm_up_of_zero_lets_everything_pass_once_time_has() {
        let limit = GuavaWarming::new(5.0, Duration::ZERO, 3.0).unwrap();
        assert_eq!(waits(&limit, &[(0, 5), (0, 1), (2000, 1000), (2000, 1000)]), [0, 1_000_000, 0, 0]);
    }

    #[test]
    fn a_denial_names_the_first_microsecond_that_works() {
        let limit = GuavaBursty::new(3.0).unwrap();
        let start = limit.fresh(Tick::EPOCH);
        let Verdict::Allowed { next, .. } = limit.decide(&start, Ask::allow(Tick::EPOCH, Cost::ONE)) else {
            panic!()
        };
        let denied =
            limit.decide(&next, Ask::within(Tick::from_nanos(7), Cost::ONE, Duration::from_nanos(1999)));
        assert_eq!(denied, Verdict::Denied { retry_after: Some(Duration::from_nanos(333_332_000 - 7)) });
    }
}
