//! Warm-up: a cold service is brought up to its rate along a slope.
//!
//! A service that has idled has empty caches and closed connections; a saved-up burst would come at its worst moment.
//! The limit grows *cold* while nobody asks, paces its callers more slowly when cold, by up to the cold factor, and
//! runs at its rate after the warm-up period under full load. It never grants a burst to make up for idle time.
//!
//! # The slope
//! With a stable interval `I` (one over the rate), a warm-up period `W` and a cold factor `k`, the price of a unit
//! falls in a straight line from `k·I` when completely cold to `I`, and stays there. Guava draws the line over
//! *stored permits*; a cold limit has `M = W/I · (5+k)/(2(1+k))` of them. Here it is drawn over *coldness*, the idle
//! time that would bring the same permits, from 0 to `W`. A tick of rest is then a tick of coldness, without
//! rounding. A unit warms by `I · 2(1+k)/(5+k)`, and the integral under the line becomes
//! ```text
//! price of n units = n·I + (k−1)(5+k)²/(16(1+k)) · (h² − h'²)/W
//! ```
//! where `h` and `h'` are the coldness before and after the charge, measured from the foot of the slope,
//! `W·(1+k)/(5+k)`.
//!
//! As in Guava, a caller waits for the next free tick and moves it on by its own price, so the *next* caller waits for
//! that price: the price depends on how cold the limit is when a unit is asked for, and a caller that had to pay at
//! once would find a service at rest closed. A single request may so take a whole burst from a limit that just became
//! free. The burst is bounded here, where Guava leaves it open.
//!
//! # Settling
//! A charge is undone or reduced as if it had never been larger, as long as nobody who was charged after it stays.
//! While somebody does, nothing comes back: the later caller relies on the time at which this charge is paid off, and
//! was charged at a price that the warming of this charge had lowered: even the stable price of its units can be more
//! than it cost the limit. What does not come back is noted ([`settled_early`]) until it is paid off, and comes back
//! when those behind are gone.
//!
//! # Exactness
//! Squares have no exact ratio of fixed size, so prices are kept in units of 2⁻³² ns. In each grant, `n·I` and the
//! slope's share are each rounded up, and the warming is rounded down: a grant costs less than 2⁻³¹ ns too much and
//! never too little.

mod settled_early;
mod slope;

use core::time::Duration;

use super::exact::{excess, mul_div_ceil, mul_div_floor};
use super::ledger::Carried;
use crate::algorithm::{Algorithm, Storable};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::error::{QuotaError, burst_in_range};
use crate::time::{Rate, Tick, nanos, span};
use settled_early::{Past, SettledCharge};
use slope::{Moment, PART, Slope};

pub use slope::ColdFactor;

/// A rate that a rested limit reaches along a slope, within a warm-up period of full load.
///
/// # Source
/// The trapezoid of Guava's `SmoothWarmingUp`, in integers; [`GuavaWarming`](super::profile::GuavaWarming) has its own
/// arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarmUp {
    rate: Rate,
    burst: u64,
    period_ns: u64,
    cold: ColdFactor,
    slope: Slope,
}

/// The state of [`WarmUp`] for one key: 40 bytes. While a change of parameters matters, or a charge was settled
/// before those behind it, 32 more on the heap, and 40 for each such charge: at most 4,096.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmUpState {
    last: Tick,
    next: Moment,
    cold: Moment,
    past: Option<Box<Past>>,
}

impl WarmUpState {
    fn past(&self) -> Past {
        self.past.as_deref().cloned().unwrap_or_default()
    }
}

impl WarmUp {
    /// The longest warm-up period: 2⁵⁰ ns, thirteen days. Coldness squared then fits the arithmetic. For a service
    /// that warms more slowly, a schedule is better.
    pub const MAX_PERIOD: Duration = Duration::from_nanos(1 << 50);

    /// Makes a limit that reaches `rate` from a rest within `period` of full load, `cold_factor` times slower at first.
    ///
    /// The largest cost of one request is the count of the rate; see [`WarmUp::burst`]. `period` is 1 ns to
    /// [`WarmUp::MAX_PERIOD`], `cold_factor` 1 to 1000 times; at 1 there is no slope.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] names the number that is out of range.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::{ColdFactor, WarmUp}, Algorithm, Ask, Cost, Rate, Tick, Transition};
    ///
    /// let rate = Rate::new(5, Duration::from_secs(1))?;
    /// let limit = WarmUp::new(rate, Duration::from_secs(3), ColdFactor::THREE)?;
    /// let (mut now, mut waits) = (Tick::from_secs(1), Vec::new());
    /// let mut state = limit.fresh(now);
    /// for _ in 0..10 {
    ///     let Transition::Allowed { wait, next, .. } = limit.decide(&state, Ask::within(now, Cost::ONE, Duration::MAX))
    ///     else { panic!() };
    ///     waits.push(wait.as_millis() / 10);
    ///     (state, now) = (next, now.after(wait));
    /// }
    /// assert_eq!(waits, [0, 57, 52, 46, 41, 36, 30, 25, 20, 20]);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(rate: Rate, period: Duration, cold_factor: ColdFactor) -> Result<Self, QuotaError> {
        if period.is_zero() || period > Self::MAX_PERIOD {
            let (value, want) = (format!("{period:?}"), "is not a warm-up; use 1 ns to 13 days");
            return Err(QuotaError::Parameter { name: "warm-up period", value, want });
        }
        if !(1000..=1_000_000).contains(&cold_factor.0) {
            let value = format!("{}.{:03}", cold_factor.0 / 1000, cold_factor.0 % 1000);
            return Err(QuotaError::Parameter {
                name: "cold factor",
                value,
                want: "is not a slope; use 1 to 1000",
            });
        }
        let period_ns = nanos(period);
        let slope = Slope::new(rate, period_ns, cold_factor);
        Ok(Self { rate, burst: rate.count(), period_ns, cold: cold_factor, slope })
    }

    /// Sets the largest cost of one request, from 1 to [`Rate::MAX_COUNT`]. It is granted at once if no debt is open,
    /// and the next caller waits for it.
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when it is out of range.
    pub fn burst(self, burst: u64) -> Result<Self, QuotaError> {
        Ok(Self { burst: burst_in_range(burst)?, ..self })
    }

    /// Returns the rate when warm.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the warm-up period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    fn rested(&self, state: &WarmUpState, at: Tick) -> (u128, u128) {
        let (now, next) = (Moment::at(at).parts(), state.next.parts());
        let cold = state.cold.parts().saturating_add(now.saturating_sub(next));
        (next.max(now), cold.min(self.slope.coldest))
    }

    /// Returns the next free moment and the coldness at it, after units are charged at a free moment.
    fn charged(&self, (free, cold): (u128, u128), units: u64) -> (Moment, Moment) {
        let (price, left) = self.price(cold, units);
        (Moment::of(free.saturating_add(price)), Moment::of(left))
    }

    /// Makes a state. A change is forgotten once the limit is busy for longer than any charge before the change had
    /// made it: from then on no receipt from before matches the state.
    fn state(&self, last: Tick, (next, cold): (Moment, Moment), mut past: Past) -> WarmUpState {
        past.carried = past.carried.filter(|carried| next.parts() <= Moment::at(carried.until()).parts());
        WarmUpState { last, next, cold, past: past.some() }
    }

    /// Returns the past after a change at `last`: charges made before give nothing back.
    fn change(&self, state: &WarmUpState, last: Tick) -> Past {
        let busy = u64::try_from(state.next.parts().div_ceil(1 << PART)).unwrap_or(u64::MAX);
        let carried = Carried::new(last, Tick::from_nanos(busy), state.past().carried);
        Past { carried: Some(carried), gone: None }
    }

    /// Says whether nothing that stays was charged since a charge: the limit is where that charge left it, rested since.
    fn is_last(&self, charge: &SettledCharge, (next, cold): (Moment, Moment)) -> bool {
        let (after, left) = self.charged(charge.before(), charge.units);
        let rest = next.parts().checked_sub(after.parts());
        let rested = rest.map(|rest| left.parts().saturating_add(rest).min(self.slope.coldest));
        rested == Some(cold.parts())
    }

    /// Returns the next free moment and the coldness at it if a charge had been for the units that it used.
    fn without(&self, charge: &SettledCharge) -> (Moment, Moment) {
        match charge.used {
            0 => (charge.free, charge.cold),
            used => self.charged(charge.before(), used),
        }
    }

    /// Returns the price of `cost` units at a coldness, and the coldness after them.
    fn price(&self, cold: u128, cost: u64) -> (u128, u128) {
        let left = cold.saturating_sub(self.slope.warming(cost, self.cold, mul_div_floor));
        (self.slope.stable(cost, mul_div_ceil).saturating_add(self.slope.extra(cold, left)), left)
    }
}

impl Storable for WarmUp {
    type State = WarmUpState;

    fn last_change(&self, state: &WarmUpState) -> Option<Tick> {
        Some(state.last)
    }

    fn set_back(&self, state: &WarmUpState, to: Tick) -> WarmUpState {
        let from = state.last;
        let (free, cold) = self.rested(state, from);
        let past = self.change(state, from);
        let free = free.saturating_sub(Moment::at(from).parts() - Moment::at(to).parts());
        self.state(to, (Moment::of(free), Moment::of(cold)), past)
    }

    fn shortened(&self, state: &WarmUpState) -> Option<WarmUpState> {
        let past = state.past.as_ref()?.shortened()?;
        Some(WarmUpState { past: Some(Box::new(past)), ..state.clone() })
    }

    fn largest(&self) -> usize {
        8 + 16 + 16 + Past::LARGEST
    }
}

impl Algorithm for WarmUp {
    type State = WarmUpState;

    /// A key never seen before is free, and completely cold.
    fn fresh(&self, now: Tick) -> WarmUpState {
        self.state(now, (Moment::at(now), Moment::of(self.slope.coldest)), Past::default())
    }

    fn decide(&self, state: &WarmUpState, ask: Ask) -> Transition<WarmUpState> {
        let units = ask.cost.units();
        if units > self.burst {
            return Transition::NEVER;
        }
        let at = ask.now.max(state.last);
        let (free, cold) = self.rested(state, at);
        let wait = (free - Moment::at(at).parts()).div_ceil(1 << PART);
        let max_wait = u128::from(nanos(ask.max_wait));
        if wait > max_wait {
            return Transition::Denied { retry: Retry::After(span(wait - max_wait)) };
        }
        let mut past = state.past();
        if wait == 0 {
            past.forget_charges();
        }
        let next = self.state(at, self.charged((free, cold), units), past);
        let (wait, left) = (span(wait), next.next.parts());
        // What settling needs and the receipt has no field for: the coldness, the fraction of the free moment, and
        // the next free moment.
        let mark = (cold << PART) | u128::from(Moment::of(free).part);
        Transition::Allowed {
            wait,
            next,
            receipt: Receipt { at, act: at.after(wait), cost: ask.cost, mark: Receipt::mark(mark, left) },
        }
    }

    /// Returns the units that can be asked for now: the whole burst, or none while a debt is open. `reset_after` is
    /// the wait until the debt is paid off; the coldness does not show. `debt` is that wait in units at the stable
    /// price, rounded up.
    fn standing(&self, state: &WarmUpState, now: Tick) -> Standing {
        let at = now.max(state.last);
        let debt = state.next.parts().saturating_sub(Moment::at(at).parts());
        let remaining = if debt == 0 { self.burst } else { 0 };
        let stable = u128::from(self.slope.ns) << PART;
        let units = mul_div_ceil(debt, u128::from(self.slope.units), stable).min(u128::from(Rate::MAX_COUNT));
        let reset_after = span(debt.div_ceil(1 << PART));
        // `units` is at most `Rate::MAX_COUNT`, so it fits 64 bits.
        Standing { limit: self.burst, remaining, debt: units as u64, reset_after }
    }

    /// Reduces the last charge to the units used, exactly and at any time; zero undoes it. While somebody who was
    /// charged since stays, nothing comes back, see the module. Units used beyond the charge are charged now, behind
    /// everybody.
    fn settle(&self, state: &WarmUpState, now: Tick, receipt: &Receipt, used: u64) -> WarmUpState {
        let (at, mut past) = (now.max(state.last), state.past());
        let units = receipt.cost.units();
        if used > units {
            return self.state(at, self.charged(self.rested(state, at), excess(receipt, used)), past);
        }
        let part = receipt.marks().0 as u32;
        let whole = receipt.act.as_nanos().saturating_sub(u64::from(part > 0));
        let cold = Moment::of((receipt.marks().0 >> PART).min(self.slope.coldest));
        let charge = SettledCharge { free: Moment { ns: whole, part }, cold, units, used };
        let after = self.charged(charge.before(), units).0.parts();
        let outdated = past.carried.is_some_and(|carried| carried.outdates(receipt));
        let known = receipt.marks().1 == after && after <= state.next.parts();
        if used == units || outdated || !known || state.next == Moment::MAX {
            return state.clone();
        }
        if !self.is_last(&charge, (state.next, state.cold)) {
            let noted = after > Moment::at(at).parts() && past.note(charge, Moment::at(at));
            return if noted { self.state(at, (state.next, state.cold), past) } else { state.clone() };
        }
        let mut left = self.without(&charge);
        while let Some(before) = past.last().filter(|before| self.is_last(before, left)) {
            left = self.without(&before);
            past.forget_last();
        }
        self.state(at, left, past)
    }

    /// Carries a state over: the open debt keeps its units at the new rate, the coldness its share of the new period.
    fn carry(&self, old: &Self, state: &WarmUpState, now: Tick, how: Replace) -> WarmUpState {
        let last = now.max(state.last);
        let past = self.change(state, last);
        if how == Replace::Reset {
            let coldest = Moment::of(self.slope.coldest);
            return self.state(last, (Moment::at(last), coldest), past);
        }
        let (free, cold) = old.rested(state, last);
        let now = Moment::at(last).parts();
        // Ratio of the intervals: (ns/units) : (old ns/old units).
        let per = |a: &Slope, b: &Slope| u128::from(a.ns) * u128::from(b.units);
        let debt = mul_div_ceil(free - now, per(&self.slope, &old.slope), per(&old.slope, &self.slope));
        let cold = mul_div_ceil(cold, self.slope.coldest, old.slope.coldest);
        self.state(last, (Moment::of(now.saturating_add(debt)), Moment::of(cold)), past)
    }

    /// Returns when the limit is free and as cold as a fresh one.
    fn full_at(&self, state: &WarmUpState) -> Option<Tick> {
        let missing = self.slope.coldest.saturating_sub(state.cold.parts());
        let full = state.next.parts().saturating_add(missing).div_ceil(1 << PART);
        let outdated = state.past().carried.map_or(0, |carried| u128::from(carried.until().as_nanos()) + 1);
        u64::try_from(full.max(outdated)).ok().map(Tick::from_nanos)
    }
}

impl Bytes for WarmUp {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
        out.u64(self.burst);
        out.u64(self.period_ns);
        out.u64(u64::from(self.cold.0));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, burst, period, cold) = (from.rate()?, from.u64()?, from.u64()?, from.u64()?);
        let cold = u32::try_from(cold).map_err(|_| DecodeError::Value { field: "cold factor" })?;
        Self::new(rate, Duration::from_nanos(period), ColdFactor(cold))
            .and_then(|limit| limit.burst(burst))
            .map_err(|_| DecodeError::Value { field: "warm-up" })
    }
}

impl Bytes for WarmUpState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.last);
        out.u128(self.next.parts());
        out.u128(self.cold.parts());
        self.past().write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (last, next, cold) = (from.tick()?, from.u128()?, from.u128()?);
        let past = Past::read(from)?.some();
        Ok(Self { last, next: Moment::of(next), cold: Moment::of(cold), past })
    }
}

#[cfg(test)]
mod tests;
