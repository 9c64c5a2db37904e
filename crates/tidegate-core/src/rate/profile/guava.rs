//! The arithmetic of Guava's `RateLimiter`: `SmoothBursty` and `SmoothWarmingUp`. A caller waits for the next free
//! ticket and leaves its own cost to the next caller.
//!
//! It breaks the [laws](crate::Algorithm#laws) of this crate's algorithms in these points: every part of a cost is
//! truncated to whole microseconds, so fast rates run too fast; any cost is granted once the ticket is free; a bursty
//! limiter starts empty; a change of rate leaves the debt so far at the old rate.
//!
//! Guava gives nothing back. Here the last charge can be reduced or undone at any time, exactly; once somebody was
//! charged after it, nothing comes back. Units used beyond the charge are taken like any cost.

use core::time::Duration;

use super::counted;
use crate::algorithm::{Algorithm, Storable};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::error::QuotaError;
use crate::rate::exact::excess;
use crate::time::{Rate, Tick, nanos};

/// `RateLimiter.create(permitsPerSecond)`: up to a second's worth of permits is stored while idle.
///
/// # Source
/// com.google.common.util.concurrent.SmoothRateLimiter, Guava 31 to 33.
#[derive(Clone, Copy, Debug)]
pub struct GuavaBursty {
    rate: f64,
    seconds: f64,
}

/// `RateLimiter.create(permitsPerSecond, warmupPeriod, unit)`: cold after idling, along a slope to the stable rate.
///
/// # Source
/// As [`GuavaBursty`]; the cold factor is 3 there, and a parameter here.
#[derive(Clone, Copy, Debug)]
pub struct GuavaWarming {
    rate: f64,
    warm_up: f64,
    cold_factor: f64,
}

/// The state of both for one key: 32 bytes.
#[derive(Clone, Copy, Debug)]
pub struct GuavaState {
    /// When the limiter was made; microseconds count from here.
    start: Tick,
    stored: f64,
    /// The next free ticket, in microseconds since `start`.
    free: u64,
    /// The number of charges and changes so far. The receipt of the last charge carries the same number.
    charges: u64,
}

impl GuavaBursty {
    /// Makes a limiter of `rate` permits a second that stores up to `seconds` worth of them; Guava uses 1.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] for a rate or a time that is not above zero and finite.
    pub fn new(rate: f64, seconds: f64) -> Result<Self, QuotaError> {
        Ok(Self { rate: positive("rate", rate)?, seconds: positive("seconds", seconds)? })
    }
}

impl GuavaWarming {
    /// Makes a limiter of `rate` permits a second that takes the time `warm_up` to reach it from `rate / cold_factor`.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] for a rate that is not above zero and finite, or a cold factor not above 1.
    pub fn new(rate: f64, warm_up: Duration, cold_factor: f64) -> Result<Self, QuotaError> {
        if positive("cold factor", cold_factor)? <= 1.0 {
            let want = "makes no slope; use more than 1";
            return Err(QuotaError::Parameter { name: "cold factor", value: cold_factor.to_string(), want });
        }
        let micros = nanos(warm_up) / 1000;
        Ok(Self { rate: positive("rate", rate)?, warm_up: micros as f64, cold_factor })
    }

    /// Returns the same limiter at another rate, as `setRate` does.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] for a rate that is not above zero and finite.
    pub fn with_rate(self, rate: f64) -> Result<Self, QuotaError> {
        Ok(Self { rate: positive("rate", rate)?, ..self })
    }

    fn threshold(&self) -> f64 {
        0.5 * self.warm_up / stable(self.rate)
    }

    fn slope(&self) -> f64 {
        let stable = stable(self.rate);
        (stable * self.cold_factor - stable) / (self.most() - self.threshold())
    }
}

fn positive(name: &'static str, value: f64) -> Result<f64, QuotaError> {
    if value > 0.0 && value.is_finite() {
        return Ok(value);
    }
    Err(QuotaError::Parameter { name, value: value.to_string(), want: "must be above 0 and finite" })
}

fn stable(rate: f64) -> f64 {
    1e6 / rate
}

/// The numbers in which the two limiters differ.
trait Smooth {
    /// The most permits stored.
    fn most(&self) -> f64;
    /// Microseconds until one more permit is stored.
    fn cool_down(&self) -> f64;
    /// The price of taking stored permits, in microseconds.
    fn price(&self, stored: f64, take: f64) -> u64;
    fn rate(&self) -> f64;
    /// Permits stored by a new limiter.
    fn initial(&self) -> f64;
    /// A number that tells the receipts of the two apart.
    fn profile(&self) -> u8;
}

impl Smooth for GuavaBursty {
    fn most(&self) -> f64 {
        self.seconds * self.rate
    }

    fn cool_down(&self) -> f64 {
        stable(self.rate)
    }

    fn price(&self, _stored: f64, _take: f64) -> u64 {
        0
    }

    fn rate(&self) -> f64 {
        self.rate
    }

    fn initial(&self) -> f64 {
        0.0
    }

    fn profile(&self) -> u8 {
        0
    }
}

impl Smooth for GuavaWarming {
    fn most(&self) -> f64 {
        let stable = stable(self.rate);
        self.threshold() + 2.0 * self.warm_up / (stable + stable * self.cold_factor)
    }

    fn cool_down(&self) -> f64 {
        self.warm_up / self.most()
    }

    fn price(&self, stored: f64, take: f64) -> u64 {
        let stable = stable(self.rate);
        let above = stored - self.threshold();
        let (mut micros, mut take) = (0, take);
        if above > 0.0 {
            let steep = above.min(take);
            let time = |permits: f64| stable + permits * self.slope();
            // Casts truncate and saturate, as Java's casts do.
            micros = (steep * (time(above) + time(above - steep)) / 2.0) as u64;
            take -= steep;
        }
        micros.saturating_add((stable * take) as u64)
    }

    fn rate(&self) -> f64 {
        self.rate
    }

    fn initial(&self) -> f64 {
        self.most()
    }

    fn profile(&self) -> u8 {
        3
    }
}

impl GuavaState {
    fn micros(&self, now: Tick) -> u64 {
        now.as_nanos().saturating_sub(self.start.as_nanos()) / 1000
    }

    fn resync(&self, by: &impl Smooth, micros: u64) -> Self {
        if micros <= self.free {
            return *self;
        }
        let gained = (micros - self.free) as f64 / by.cool_down();
        Self { stored: by.most().min(self.stored + gained), free: micros, ..*self }
    }

    fn decide(&self, by: &impl Smooth, ask: Ask) -> Transition<Self> {
        let micros = self.micros(ask.now);
        let timeout = nanos(ask.max_wait) / 1000;
        if self.free.saturating_sub(timeout) > micros {
            let due = self.start.after(Duration::from_micros(self.free.saturating_sub(timeout)));
            return Transition::Denied { retry: Retry::After(due.since(ask.now)) };
        }
        let state = self.resync(by, micros);
        let wait = Duration::from_micros(state.free.saturating_sub(micros));
        let next = self.charged(by, micros, ask.cost.units());
        let before = (u128::from(self.stored.to_bits()) << 64) | u128::from(self.free);
        let mark = Receipt::mark(before, counted(by.profile(), next.charges));
        let receipt = Receipt { at: ask.now, act: ask.now.after(wait), cost: ask.cost, mark };
        Transition::Allowed { wait, next, receipt }
    }

    fn charged(&self, by: &impl Smooth, micros: u64, units: u64) -> Self {
        let state = self.resync(by, micros);
        let required = units as f64;
        let take = required.min(state.stored);
        let fresh = ((required - take) * stable(by.rate())) as u64;
        let cost = by.price(state.stored, take).saturating_add(fresh);
        // Java's longs end at 2^63.
        let free = state.free.saturating_add(cost).min(i64::MAX as u64);
        Self { stored: state.stored - take, free, charges: self.charges.wrapping_add(1), ..state }
    }

    fn settle(&self, by: &impl Smooth, now: Tick, receipt: &Receipt, used: u64) -> Self {
        let units = receipt.cost.units();
        if used > units {
            return self.charged(by, self.micros(now), excess(receipt, used));
        }
        let (before, charges) = receipt.marks();
        // Each half of the mark fits 64 bits.
        let (stored, free) = (f64::from_bits((before >> 64) as u64), before as u64);
        if used == units || charges != counted(by.profile(), self.charges) || stored.is_nan() || stored < 0.0
        {
            return *self;
        }
        let charges = self.charges.wrapping_sub(1);
        let before = Self { start: self.start, stored, free: free.min(i64::MAX as u64), charges };
        if used == 0 { before } else { before.charged(by, self.micros(receipt.at), used) }
    }

    fn standing(&self, by: &impl Smooth, now: Tick) -> Standing {
        let micros = self.micros(now);
        let state = self.resync(by, micros);
        let debt = state.free.saturating_sub(micros);
        let refill = (by.most() - state.stored).max(0.0) * by.cool_down();
        Standing {
            limit: (by.most() as u64).max(1),
            // Once the ticket is free, any cost is granted; the next caller pays nothing for stored permits.
            remaining: if debt > 0 { 0 } else { (state.stored as u64).max(1) },
            debt: ((debt as f64 / stable(by.rate())).ceil() as u64).min(Rate::MAX_COUNT),
            reset_after: Duration::from_micros(debt.saturating_add(refill as u64)),
        }
    }

    /// As `setRate`: stored permits keep their share, and the debt stays.
    fn carry(&self, old: &impl Smooth, new: &impl Smooth, now: Tick) -> Self {
        let state = self.resync(old, self.micros(now));
        // A warm-up of zero length stores nothing. The quotient is then 0/0, which is NaN, and `max` makes it 0.
        let stored = (state.stored * new.most() / old.most()).max(0.0);
        Self { stored, charges: self.charges.wrapping_add(1), ..state }
    }
}

macro_rules! smooth_algorithm {
    ($name:ident) => {
        impl Storable for $name {
            type State = GuavaState;

            fn largest(&self) -> usize {
                4 * 8
            }
        }

        impl Algorithm for $name {
            type State = GuavaState;

            fn fresh(&self, now: Tick) -> GuavaState {
                GuavaState { start: now, stored: self.initial(), free: 0, charges: 0 }
            }

            // As `tryAcquire` with a time-out of `max_wait`.
            fn decide(&self, state: &GuavaState, ask: Ask) -> Transition<GuavaState> {
                state.decide(self, ask)
            }

            fn standing(&self, state: &GuavaState, now: Tick) -> Standing {
                state.standing(self, now)
            }

            /// Guava has no settling; see the module.
            fn settle(&self, state: &GuavaState, now: Tick, receipt: &Receipt, used: u64) -> GuavaState {
                state.settle(self, now, receipt, used)
            }

            fn carry(&self, old: &Self, state: &GuavaState, now: Tick, how: Replace) -> GuavaState {
                match how {
                    Replace::Reset => {
                        GuavaState { charges: state.charges.wrapping_add(1), ..self.fresh(now) }
                    }
                    Replace::AsIs | Replace::Proportional => state.carry(old, self, now),
                }
            }

            /// Returns `None`: the microseconds of a state count from when it was made, so no state is equivalent to
            /// a fresh one.
            fn full_at(&self, _state: &GuavaState) -> Option<Tick> {
                None
            }
        }
    };
}

smooth_algorithm!(GuavaBursty);
smooth_algorithm!(GuavaWarming);

impl PartialEq for GuavaBursty {
    fn eq(&self, other: &Self) -> bool {
        (self.rate.to_bits(), self.seconds.to_bits()) == (other.rate.to_bits(), other.seconds.to_bits())
    }
}

impl Eq for GuavaBursty {}

impl PartialEq for GuavaWarming {
    fn eq(&self, other: &Self) -> bool {
        let bits = |of: &Self| [of.rate, of.warm_up, of.cold_factor].map(f64::to_bits);
        bits(self) == bits(other)
    }
}

impl Eq for GuavaWarming {}

impl PartialEq for GuavaState {
    fn eq(&self, other: &Self) -> bool {
        let fields = |of: &Self| (of.start, of.stored.to_bits(), of.free, of.charges);
        fields(self) == fields(other)
    }
}

impl Eq for GuavaState {}

// The byte forms of both limiters and of their state.

impl Bytes for GuavaBursty {
    fn write(&self, out: &mut Writer) {
        out.f64(self.rate);
        out.f64(self.seconds);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::new(from.f64()?, from.f64()?).map_err(|_| DecodeError::Value { field: "rate" })
    }
}

impl Bytes for GuavaWarming {
    fn write(&self, out: &mut Writer) {
        out.f64(self.rate);
        out.f64(self.warm_up);
        out.f64(self.cold_factor);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, warm_up, cold_factor) = (from.f64()?, from.f64()?, from.f64()?);
        let whole = warm_up >= 0.0 && warm_up.is_finite();
        let made = Self::new(rate, Duration::ZERO, cold_factor).ok().filter(|_| whole);
        made.map(|made| Self { warm_up, ..made }).ok_or(DecodeError::Value { field: "rate" })
    }
}

impl Bytes for GuavaState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.start);
        out.f64(self.stored);
        out.u64(self.free);
        out.u64(self.charges);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (start, stored, free, charges) = (from.tick()?, from.f64()?, from.u64()?, from.u64()?);
        if stored.is_nan() || stored < 0.0 {
            return Err(DecodeError::Value { field: "stored" });
        }
        Ok(Self { start, stored, free: free.min(i64::MAX as u64), charges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Cost;

    #[test]
    fn the_documented_warm_up() {
        let limit = GuavaWarming::new(5.0, Duration::from_secs(3), 3.0).unwrap();
        let (mut state, mut now) = (limit.fresh(Tick::from_secs(7)), Tick::from_secs(7));
        let mut waits = Vec::new();
        for _ in 0..10 {
            let Transition::Allowed { wait, next, .. } =
                limit.decide(&state, Ask::within(now, Cost::ONE, Duration::MAX))
            else {
                panic!("any wait is accepted")
            };
            waits.push(format!("{:.2}", wait.as_secs_f64()));
            (state, now) = (next, now.after(wait));
        }
        assert_eq!(waits.join(" "), "0.00 0.57 0.52 0.47 0.41 0.36 0.31 0.25 0.21 0.20");
    }
}
