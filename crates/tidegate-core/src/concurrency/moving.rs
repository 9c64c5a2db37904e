//! The adaptive bulkhead as a guard for stores and policies: the places of [`Concurrency`], as many as a control law
//! allows.
//!
//! Each exit is one sample for the law, except [`Outcome::Ignored`] and an exit after the place has lapsed.
//!
//! A law learns from exits, so a limit below the cost of an ask would refuse that ask for ever. An ask therefore
//! enters if no place is in use, provided that its cost does not exceed the largest limit.
//!
//! [`Bbr`](super::Bbr) needs readings of the processor, but a state in a store receives none. So the reading is a
//! parameter of the guard ([`AdaptiveConcurrency::cpu`]): its owner smooths it, and a key takes it in when it is next
//! used: once for each reading and not at intervals, so whatever the law's smoothing, it is taken as it is.

use core::time::Duration;
use std::sync::Arc;

use super::adaptive::{Adaptive, AdaptiveState};
use super::fixed::{Concurrency, ConcurrencyState};
use super::{Law, Sample};
use crate::algorithm::Storable;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::error::{QuotaError, in_range};
use crate::guard::{Guard, Outcome};
use crate::time::{Rate, Tick, nanos};

/// A bulkhead with as many places as a control law allows.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveConcurrency {
    /// Boxed, because most limits have parameters of a few words.
    parameters: Box<Parameters>,
}

// `Eq` holds because the laws' numbers are checked to lie in ranges, so none is NaN.
impl Eq for AdaptiveConcurrency {}

#[derive(Clone, Debug, PartialEq)]
struct Parameters {
    law: Adaptive,
    /// As many places as the limit may ever have, and their time to live.
    places: Concurrency,
    /// In nanoseconds; `u64::MAX` means never.
    forget: u64,
    /// How busy the processor is, in thousandths; `None` if unknown.
    cpu: Option<u16>,
    at_start: u64,
}

/// The state of [`AdaptiveConcurrency`] for one key: 56 bytes, and the heap memory of the places in use, as in
/// [`ConcurrencyState`]. From the first sample also the law's state: 312 bytes, plus 2 KiB for the minimum latency,
/// or up to 32 bytes for each bucket of BBR.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveConcurrencyState {
    /// Boxed, because most limits have states of a few words, and all states lie in one table.
    inner: Box<PlacesAndLaw>,
}

#[derive(Clone, Debug, PartialEq)]
struct PlacesAndLaw {
    places: ConcurrencyState,
    law: Option<Learnt>,
}

#[derive(Clone, Debug, PartialEq)]
struct Learnt {
    at: Tick,
    /// Shared between the states before and after an entry, which does not change it.
    state: Arc<AdaptiveState>,
}

// `Eq` holds because no law computes NaN, and the byte form admits none.
impl Eq for AdaptiveConcurrencyState {}

impl AdaptiveConcurrencyState {
    fn of(places: ConcurrencyState, law: Option<Learnt>) -> Self {
        Self { inner: Box::new(PlacesAndLaw { places, law }) }
    }
}

const FORGET_AFTER: Duration = Duration::from_secs(3600);

impl AdaptiveConcurrency {
    /// Makes a guard whose limit is moved by a law, within the law's bounds and up to [`Concurrency::MAX_PLACES`].
    /// Places do not lapse.
    #[must_use]
    pub fn new(law: Adaptive) -> Self {
        let one = Concurrency::new(1).expect("one place is a number of places");
        let places = one.resized(law.bounds().most());
        let mut parameters = Parameters { law, places, forget: nanos(FORGET_AFTER), cpu: None, at_start: 0 };
        parameters.at_start = parameters.limit_at_start();
        Self { parameters: Box::new(parameters) }
    }

    /// Sets the time to live of a place whose holder never comes back, as [`Concurrency::ttl`] does.
    ///
    /// # Errors
    /// As [`Concurrency::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Result<Self, QuotaError> {
        self.parameters.places = self.parameters.places.ttl(ttl)?;
        Ok(self)
    }

    /// Sets the time without a sample after which what the law learnt is forgotten, 1 s to [`Rate::MAX_PERIOD`]; an
    /// hour by default, after which it is no better than the law's start. With [`Duration::MAX`] it is kept for ever,
    /// and such a key takes memory for ever, wherever it is kept.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn forget_after(mut self, span: Duration) -> Result<Self, QuotaError> {
        let range = Duration::from_secs(1)..=Rate::MAX_PERIOD;
        let want = "is not a time to forget after; use 1 s to 146 years";
        if span != Duration::MAX {
            in_range("forget_after", span, &range, want)?;
        }
        self.parameters.forget = nanos(span);
        Ok(self)
    }

    /// Sets how busy the processor is, in thousandths from 0 to 1000; more counts as 1000. BBR takes the reading as
    /// it is; other laws ignore it.
    #[must_use]
    pub fn cpu(mut self, thousandths: u16) -> Self {
        self.parameters.cpu = Some(thousandths.min(1000));
        self.parameters.at_start = self.parameters.limit_at_start();
        self
    }

    /// Returns the law.
    #[must_use]
    pub const fn law(&self) -> &Adaptive {
        &self.parameters.law
    }

    /// Returns the largest number of places that the limit may ever have.
    #[must_use]
    pub const fn most(&self) -> u64 {
        self.parameters.places.max()
    }

    /// Returns the time to live of a place; `None` where places do not lapse.
    #[must_use]
    pub const fn time_to_live(&self) -> Option<Duration> {
        self.parameters.places.time_to_live()
    }

    const fn forgets_after(&self) -> Option<Duration> {
        match self.parameters.forget {
            u64::MAX => None,
            span => Some(Duration::from_nanos(span)),
        }
    }

    fn known<'s>(&self, state: &'s AdaptiveConcurrencyState, at: Tick) -> Option<&'s Learnt> {
        let known = state.inner.law.as_ref()?;
        (at < self.forgotten_at(known)).then_some(known)
    }

    fn forgotten_at(&self, known: &Learnt) -> Tick {
        self.forgets_after().map_or(Tick::MAX, |span| known.at.after(span))
    }

    fn limit(&self, known: Option<&Learnt>) -> u64 {
        known
            .map_or(self.parameters.at_start, |known| self.parameters.law.limit(&known.state))
            .clamp(1, self.most())
    }
}

impl Parameters {
    fn start(&self, at: Tick) -> AdaptiveState {
        let mut state = self.law.start(at);
        self.sense(&mut state, at);
        state
    }

    fn sense(&self, state: &mut AdaptiveState, at: Tick) {
        if let Some(thousandths) = self.cpu {
            self.law.sense_once(state, at, thousandths);
        }
    }

    fn limit_at_start(&self) -> u64 {
        self.law.limit(&self.start(Tick::EPOCH))
    }
}

/// Reads walk the list of places. An entry copies the list; an exit with an outcome also copies the law's state.
impl Guard for AdaptiveConcurrency {
    type State = AdaptiveConcurrencyState;

    fn fresh(&self, now: Tick) -> AdaptiveConcurrencyState {
        AdaptiveConcurrencyState::of(self.parameters.places.fresh(now), None)
    }

    /// Enters if `ask.cost` places are free under the current limit, or if no place is in use. Never if the cost
    /// exceeds the largest limit.
    fn enter(&self, state: &AdaptiveConcurrencyState, ask: Ask) -> Transition<AdaptiveConcurrencyState> {
        let cost = ask.cost.units();
        if cost > self.most() {
            return Transition::NEVER;
        }
        let at = ask.now.max(state.inner.places.last());
        let (known, inside) = (self.known(state, at), state.inner.places.in_use(at));
        let limit = self.limit(known);
        let room = if inside == 0 { limit.max(cost) } else { limit };
        match self.parameters.places.resized(room).enter(&state.inner.places, ask) {
            Transition::Allowed { wait, next, receipt } => {
                let (until, inside) = (receipt.marks().0, inside.saturating_add(cost));
                let receipt = Receipt { mark: Receipt::mark(until, u128::from(inside)), ..receipt };
                let next = AdaptiveConcurrencyState::of(next, known.cloned());
                Transition::Allowed { wait, next, receipt }
            }
            Transition::Denied { .. } => Transition::Denied { retry: Retry::Unknown },
        }
    }

    /// Returns the places of the receipt. Unless they had lapsed, the law learns from the outcome. The latency counts
    /// from [`Receipt::act`]; work that ended before teaches nothing.
    fn leave(
        &self,
        state: &AdaptiveConcurrencyState,
        now: Tick,
        receipt: &Receipt,
        outcome: Outcome,
    ) -> AdaptiveConcurrencyState {
        let at = now.max(state.inner.places.last());
        let Some(places) = state.inner.places.without(at, receipt) else { return state.clone() };
        let known = self.known(state, at);
        let counts = |known: &Learnt| self.parameters.law.counts_ignored(&known.state);
        let teaches = outcome != Outcome::Ignored || known.is_some_and(counts);
        if !teaches || at < receipt.act {
            return AdaptiveConcurrencyState::of(places, known.cloned());
        }
        let mut next = known
            .map_or_else(|| self.parameters.start(receipt.at), |known| AdaptiveState::clone(&known.state));
        // At most the number of places there can be, counted when the receipt was made.
        let in_flight = receipt.marks().1.clamp(1, u128::from(Concurrency::MAX_PLACES)) as u64;
        let (held, taken) = (at.since(receipt.act), receipt.cost.units());
        let sample = Sample { at, latency: held, held, in_flight, places: taken, time_left: None, outcome };
        self.parameters.law.learn(&mut next, &sample);
        AdaptiveConcurrencyState::of(places, Some(Learnt { at, state: Arc::new(next) }))
    }

    /// The same as for [`Concurrency`]. The law learns nothing from it.
    fn extend(
        &self,
        state: &AdaptiveConcurrencyState,
        now: Tick,
        receipt: &Receipt,
    ) -> Option<(AdaptiveConcurrencyState, Receipt)> {
        let at = now.max(state.inner.places.last());
        let (places, receipt) = self.parameters.places.extend(&state.inner.places, at, receipt)?;
        Some((AdaptiveConcurrencyState::of(places, self.known(state, at).cloned()), receipt))
    }

    /// The same as for [`Concurrency`] under the current limit. `reset_after` is the time until the last place
    /// lapses.
    fn standing(&self, state: &AdaptiveConcurrencyState, now: Tick) -> Standing {
        let at = now.max(state.inner.places.last());
        self.parameters.places.resized(self.limit(self.known(state, at))).standing(&state.inner.places, at)
    }

    /// Work inside keeps its places, as in [`Concurrency`]. The same law with other knobs keeps what it learnt, with
    /// the limit moved to the nearest bound. Another law begins at its start, and so does BBR with another window.
    /// `Reset` forgets both places and law.
    fn carry(
        &self,
        old: &Self,
        state: &AdaptiveConcurrencyState,
        now: Tick,
        how: Replace,
    ) -> AdaptiveConcurrencyState {
        let at = now.max(state.inner.places.last());
        let places = self.parameters.places.carry(&old.parameters.places, &state.inner.places, now, how);
        if how == Replace::Reset {
            return AdaptiveConcurrencyState::of(places, None);
        }
        let law = old.known(state, at).and_then(|known| {
            let mut state = self.parameters.law.carried(&old.parameters.law, &known.state)?;
            if self.parameters.cpu != old.parameters.cpu {
                self.parameters.sense(&mut state, at);
            }
            Some(Learnt { at: known.at, state: Arc::new(state) })
        });
        AdaptiveConcurrencyState::of(places, law)
    }

    fn full_at(&self, state: &AdaptiveConcurrencyState) -> Option<Tick> {
        let empty = self.parameters.places.full_at(&state.inner.places)?;
        let full = state.inner.law.as_ref().map_or(empty, |known| empty.max(self.forgotten_at(known)));
        (full != Tick::MAX).then_some(full)
    }
}

const UNKNOWN: u32 = u32::MAX;

impl Storable for AdaptiveConcurrency {
    type State = AdaptiveConcurrencyState;

    fn last_change(&self, state: &AdaptiveConcurrencyState) -> Option<Tick> {
        Some(state.inner.places.last())
    }

    /// The law's own state stays: its ticks are not after the last change, and each law handles a clock that steps
    /// back.
    fn set_back(&self, state: &AdaptiveConcurrencyState, to: Tick) -> AdaptiveConcurrencyState {
        let places = self.parameters.places.set_back(&state.inner.places, to);
        let law = state.inner.law.clone().map(|known| Learnt { at: known.at.min(to), ..known });
        AdaptiveConcurrencyState::of(places, law)
    }

    fn largest(&self) -> usize {
        self.parameters.places.largest() + 1 + 8 + self.parameters.law.largest()
    }
}

impl Bytes for AdaptiveConcurrency {
    fn write(&self, out: &mut Writer) {
        out.u64(self.time_to_live().map_or(u64::MAX, nanos));
        out.u64(self.parameters.forget);
        out.u32(self.parameters.cpu.map_or(UNKNOWN, u32::from));
        self.parameters.law.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (ttl, forget, cpu) = (from.u64()?, from.u64()?, from.u32()?);
        let guard = Self::new(Bytes::read(from)?);
        let guard = match ttl {
            u64::MAX => Ok(guard),
            ttl => guard.ttl(Duration::from_nanos(ttl)),
        };
        let forget = if forget == u64::MAX { Duration::MAX } else { Duration::from_nanos(forget) };
        let guard = guard.and_then(|guard| guard.forget_after(forget));
        let guard = guard.map_err(|_| DecodeError::Value { field: "ttl" })?;
        match cpu {
            UNKNOWN => Ok(guard),
            // At most 1000, so it fits.
            thousandths @ ..=1000 => Ok(guard.cpu(thousandths as u16)),
            _ => Err(DecodeError::Value { field: "cpu" }),
        }
    }
}

impl Bytes for AdaptiveConcurrencyState {
    fn write(&self, out: &mut Writer) {
        self.inner.places.write(out);
        out.flag(self.inner.law.is_some());
        if let Some(law) = &self.inner.law {
            out.tick(law.at);
            law.state.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (places, known) = (Bytes::read(from)?, from.flag("known")?);
        let law =
            if known { Some(Learnt { at: from.tick()?, state: Arc::new(Bytes::read(from)?) }) } else { None };
        Ok(Self::of(places, law))
    }
}

#[cfg(test)]
mod tests;
