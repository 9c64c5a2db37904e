//! The lease: the units that a node holds of one key. A pure state machine: time is passed in, and it has no engine and
//! no lock.
//!
//! A lease has two batches: the one that is spent from, and the next one. It never holds more spendable units than its
//! allowance, including units taken by requests that are not yet admitted. The rest is given back, as are units held
//! too long.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Receipt, Retry, Tick};

use super::draws::KeyDemand;
use super::leasable::{LEAST_HELD, Terms};
use super::request::{Batch, Draw, DrawTimes, Drawn, Portion, Refused};

/// For how long the engine decides a key alone after a draw has failed.
const AFTER_A_FAILURE: Duration = Duration::from_millis(100);

/// After this time a draw is abandoned: longer than any wait for an engine.
const LONGEST_DRAW: Duration = Duration::from_secs(60);

pub(super) type GivenBack = SmallVec<[Receipt; 2]>;

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) terms: Arc<Terms>,
    current: Option<Batch>,
    next: Option<Batch>,
    /// Until when units are taken from the current batch without another look.
    good_until: Tick,
    /// This node's part of the whole at the last look.
    part: u32,
    held: u64,
    refusals: Refusals,
    /// Until when nothing is drawn, because the engine did not answer.
    failed_until: Tick,
    /// The units left in the limit, as the engine last said.
    pub(super) remaining: u64,
    pub(super) full_at: Tick,
    demand: KeyDemand,
    /// Whether the last draw had to wait: then the limit is in full use, and so will the next.
    waits: bool,
    /// The most that a recent request left to higher priorities, and when it came: draws ahead of need leave as much.
    kept_back: (u64, Tick),
    /// The number of the draw under way, and the tick at which it began.
    drawing: Option<(u64, Tick)>,
    touched: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    Ready,
    /// Refused for this time; known without asking the engine.
    Refused(Duration),
    /// A draw is needed, or the one under way has to be awaited.
    Draw,
    Engine,
}

impl Lease {
    pub(super) fn new(terms: Arc<Terms>) -> Self {
        Self {
            remaining: terms.limit,
            terms,
            current: None,
            next: None,
            good_until: Tick::EPOCH,
            part: 0,
            held: 0,
            refusals: Refusals::default(),
            failed_until: Tick::EPOCH,
            full_at: Tick::EPOCH,
            demand: KeyDemand::default(),
            waits: false,
            kept_back: (0, Tick::EPOCH),
            drawing: None,
            touched: Tick::EPOCH,
        }
    }

    /// Takes units on the fast path, which is the usual case. `None`: this has to be decided by [`Lease::look_up`].
    #[inline]
    pub(super) fn take_at_once(
        &mut self,
        cost: Cost,
        kept_back: u64,
        now: Tick,
        part: u32,
    ) -> Option<Portion> {
        let batch = self.current.as_mut()?;
        if now >= self.good_until || now < batch.from || part < self.part || kept_back > batch.kept_back {
            return None;
        }
        let portion = batch.take(cost)?;
        self.demand.record(cost.units());
        Some(portion)
    }

    /// Refuses on the fast path: nothing is held, and the engine's refusal still holds. Returns for how long. `None`, with
    /// nothing changed: as for [`Lease::take_at_once`].
    pub(super) fn refuse_at_once(&mut self, cost: Cost, kept_back: u64, now: Tick) -> Option<Duration> {
        if self.units_held() > 0 || now < self.failed_until {
            return None;
        }
        let wait = self.refusals.of(cost, kept_back, now)?;
        self.touched = now;
        self.count_demand(cost);
        Some(wait)
    }

    pub(super) fn take(&mut self, cost: Cost) -> Option<Portion> {
        self.current.as_mut()?.take(cost)
    }

    /// Counts what a request asks for: once, however often it looks.
    pub(super) const fn count_demand(&mut self, cost: Cost) {
        self.demand.record(cost.units());
    }

    /// Puts the batches in order, and then finds whether a request's units can be spent.
    pub(super) fn look_up(
        &mut self,
        cost: Cost,
        kept_back: u64,
        now: Tick,
        part: u32,
        back: &mut GivenBack,
    ) -> Lookup {
        self.touched = now;
        self.tidy(now, part, back);
        if self.terms.window && self.full_at <= now {
            self.remaining = self.terms.limit;
        }
        if self.current.as_ref().is_none_or(|current| current.left() < cost.units())
            && let Some(next) = self.next.take_if(|next| next.from <= now)
        {
            self.end(self.current.clone(), back);
            self.current = Some(next);
        }
        self.update_good_until(now);
        let enough = |batch: &&Batch| batch.left() >= cost.units();
        let (current, next) = (self.current.as_ref().filter(enough), self.next.as_ref().filter(enough));
        let may_take = |batch: &&Batch| kept_back <= batch.kept_back;
        if let Some(batch) = current.filter(may_take) {
            return if batch.from > now { Lookup::Refused(batch.from.since(now)) } else { Lookup::Ready };
        }
        if let Some(next) = next.filter(may_take).filter(|next| next.from > now) {
            return Lookup::Refused(next.from.since(now));
        }
        let left_to_others = current.is_some() || next.is_some();
        if now < self.failed_until {
            return Lookup::Engine;
        }
        if let Some(wait) = self.refusals.of(cost, kept_back, now) {
            return Lookup::Refused(wait);
        }
        if self.refusals.lapse(now) && self.terms.window {
            // The units left in the window are not known now: a draw will tell.
            self.remaining = self.terms.limit;
        }
        let (most, since) = self.kept_back;
        if kept_back >= most || now.since(since) >= self.terms.lasts {
            self.kept_back = (kept_back, now);
        }
        let allowance = self.allowance();
        if left_to_others || allowance < LEAST_HELD || cost.units() > allowance / 2 {
            return Lookup::Engine;
        }
        Lookup::Draw
    }

    /// Begins a draw, sized by the demand alone without a `request`: its cost and what it has to leave to higher
    /// priorities. `None` if a draw is under way or there is no room. No earlier draw had this `number`.
    pub(super) fn draw(&mut self, request: Option<(Cost, u64)>, now: Tick, number: u64) -> Option<Draw> {
        if self.drawing.is_some() || self.next.is_some() {
            return None;
        }
        let ahead = self.demand.sized(now, self.terms.target, self.terms.lasts);
        let (cost, kept_back) =
            request.map_or((0, self.kept_back.0), |(cost, kept_back)| (cost.units(), kept_back));
        self.draw_ahead(ahead, cost, kept_back, now, number)
    }

    pub(super) fn draw_ahead(
        &mut self,
        ahead: u64,
        cost: u64,
        kept_back: u64,
        now: Tick,
        number: u64,
    ) -> Option<Draw> {
        if self.drawing.is_some() || self.next.is_some() {
            return None;
        }
        // If the limit is in full use, drawn units are spent later, after the present ones.
        let here = if self.waits { 0 } else { self.current.as_ref().map_or(0, Batch::left) };
        let room = self.allowance().saturating_sub(self.held).saturating_sub(here);
        let units = ahead.saturating_add(cost).max(1).min(room);
        let want = Cost::new(units).filter(|want| want.units() >= cost)?;
        self.drawing = Some((number, now));
        Some(Draw { number, want, kept_back })
    }

    /// Returns whether the next draw should be made ahead of need.
    #[inline]
    pub(super) fn runs_low(&self, now: Tick) -> bool {
        self.drawing.is_none()
            && self.next.is_none()
            && self.current.as_ref().is_some_and(|batch| batch.left() < batch.low)
            && self.failed_until <= now
            && !self.refusals.forbid_draw(self.kept_back.0, now)
    }

    pub(super) const fn is_drawing(&self) -> bool {
        self.drawing.is_some()
    }

    pub(super) fn drawing_since(&self) -> Option<Tick> {
        self.drawing.map(|(_, since)| since)
    }

    pub(super) fn is_under_way(&self, draw: &Draw) -> bool {
        self.drawing.is_some_and(|(number, _)| number == draw.number)
    }

    /// Puts drawn units into a batch. Units that do not fit are given back, and all units of an abandoned draw.
    pub(super) fn fill(
        &mut self,
        draw: &Draw,
        drawn: &Drawn,
        times: DrawTimes,
        part: u32,
        back: &mut GivenBack,
    ) {
        if !self.is_under_way(draw) {
            back.push(drawn.receipt);
            return;
        }
        let DrawTimes { sent, received } = times;
        self.drawing = None;
        self.touched = received;
        self.failed_until = Tick::EPOCH;
        self.refusals.end_draw(draw.kept_back);
        self.remaining = drawn.remaining;
        self.full_at = received.after(drawn.reset_after);
        self.waits = !drawn.wait.is_zero();
        self.tidy(received, part, back);
        let lasts = match self.terms.window {
            // The engine told the window's end after this draw was sent. A thousandth is for clocks of different
            // speeds.
            true => self.terms.lasts.min(drawn.reset_after.saturating_sub(drawn.reset_after / 1000)),
            false => self.terms.lasts.saturating_add(drawn.wait),
        };
        let units = drawn.receipt.cost.units();
        let mut batch = Batch {
            quota: Arc::clone(&self.terms.engine),
            rest: Some(drawn.receipt),
            from: received.after(drawn.wait),
            until: sent.after(lasts),
            kept_back: draw.kept_back,
            low: if units < 4 { 0 } else { units.div_ceil(2) },
        };
        let here = if self.waits { 0 } else { self.current.as_ref().map_or(0, Batch::left) };
        let room = self.most_held().saturating_sub(here);
        if units > room {
            back.extend(batch.trim(room));
        }
        if batch.until <= received || batch.left() == 0 {
            self.end(Some(batch), back);
        } else if self.current.as_ref().is_some_and(|current| current.left() > 0) {
            self.next = Some(batch);
        } else {
            self.current = Some(batch);
        }
        self.update_good_until(received);
    }

    pub(super) fn refused(&mut self, draw: &Draw, refused: &Refused, sent: Tick) {
        if self.is_under_way(draw) {
            self.drawing = None;
            (self.remaining, self.waits) = (refused.remaining, true);
            let (ahead, lasts) = (self.terms.ahead, self.terms.lasts);
            self.refusals.add_draw(draw.kept_back, refused.retry, sent, ahead, lasts);
            // Higher priorities may still be granted draws.
            self.kept_back = (0, sent);
        }
    }

    pub(super) fn refused_alone(&mut self, cost: Cost, kept_back: u64, after: Duration, sent: Tick) {
        self.refusals.add_request(cost, kept_back, after, sent, self.terms.lasts);
    }

    pub(super) fn would_be_granted(&mut self, cost: Cost, kept_back: u64, remaining: u64) {
        self.refusals.end_for(cost, kept_back);
        self.remaining = remaining;
    }

    /// Notes that units came back: the engine may now grant what it refused before.
    pub(super) fn units_came_back(&mut self, remaining: u64, now: Tick) {
        self.refusals.clear(now);
        self.remaining = remaining;
    }

    /// Notes that a draw has no answer: units that it may have drawn are lost.
    pub(super) fn failed(&mut self, draw: &Draw, now: Tick) {
        if self.is_under_way(draw) {
            self.drawing = None;
            self.failed_until = now.after(AFTER_A_FAILURE);
        }
    }

    pub(super) const fn hold(&mut self, portion: &Portion) {
        self.held = self.held.saturating_add(portion.cost.units());
    }

    pub(super) const fn release(&mut self, portion: &Portion) {
        self.held = self.held.saturating_sub(portion.cost.units());
    }

    /// Puts units back into the batch, or gives them back if others were taken since or the batch has ended.
    pub(super) fn put_back(&mut self, portion: &Portion, back: &mut GivenBack) {
        if !self.current.as_mut().is_some_and(|batch| batch.put_back(portion)) {
            back.push(portion.receipt(&self.terms.engine));
        }
    }

    pub(super) fn tidy(&mut self, now: Tick, part: u32, back: &mut GivenBack) {
        if let Some(over) = self.current.take_if(|batch| batch.until <= now) {
            self.end(Some(over), back);
        }
        if let Some(over) = self.next.take_if(|batch| batch.until <= now) {
            self.end(Some(over), back);
        }
        self.drawing = self.drawing.filter(|(_, since)| now.since(*since) < LONGEST_DRAW);
        self.part = part;
        let most = self.most_held();
        // If both batches can be spent from, their sum counts.
        let mut room = most;
        if let Some(next) = self.next.as_mut().filter(|next| next.from <= now) {
            back.extend((next.left() > room).then(|| next.trim(room)).flatten());
            room -= next.left().min(room);
        }
        if let Some(current) = self.current.as_mut().filter(|current| current.left() > room) {
            back.extend(current.trim(room));
        }
        if let Some(next) = self.next.as_mut().filter(|next| next.left() > most) {
            back.extend(next.trim(most));
        }
        self.update_good_until(now);
    }

    pub(super) fn close(&mut self, back: &mut GivenBack) {
        let both = [self.current.take(), self.next.take()];
        for batch in both {
            self.end(batch, back);
        }
    }

    /// Drops everything, because the key was reset; units of a draw under way are given back when they arrive. Returns
    /// how many were held.
    pub(super) fn forget(&mut self, now: Tick) -> u64 {
        let left = self.units_held();
        (self.current, self.next, self.drawing) = (None, None, None);
        (self.remaining, self.waits, self.full_at) = (self.terms.limit, false, now);
        self.refusals.clear(now);
        left
    }

    fn allowance(&self) -> u64 {
        self.terms.allowance(self.part, self.remaining)
    }

    /// Returns how many units the batches may hold; for a window, the draws are bounded instead.
    fn most_held(&self) -> u64 {
        if self.terms.window { u64::MAX } else { self.allowance().saturating_sub(self.held) }
    }

    fn update_good_until(&mut self, now: Tick) {
        let Some(current) = &self.current else { return };
        let next = self.next.as_ref().map_or(Tick::MAX, |next| next.from);
        // Once both batches can be spent from, their sum may exceed the allowance.
        self.good_until = if next > now { current.until.min(next) } else { current.until };
    }

    fn end(&mut self, batch: Option<Batch>, back: &mut GivenBack) {
        back.extend(batch.and_then(|batch| batch.rest));
    }
}

impl Lease {
    /// Returns what [`Lease::look_up`] would find, without changing anything.
    pub(super) fn would_grant(&self, cost: Cost, kept_back: u64, now: Tick, part: u32) -> bool {
        let mut lease = self.clone();
        lease.look_up(cost, kept_back, now, part, &mut GivenBack::new()) == Lookup::Ready
    }

    /// Returns how many units are held, whether or not they can be spent now.
    pub(super) fn units_held(&self) -> u64 {
        [&self.current, &self.next].into_iter().flatten().map(Batch::left).sum()
    }

    /// Returns how many units can be spent now.
    pub(super) fn ready(&self, now: Tick) -> u64 {
        let both = [&self.current, &self.next].into_iter().flatten();
        both.filter(|batch| batch.from <= now && now < batch.until).map(Batch::left).sum()
    }

    pub(super) fn outstanding(&self, now: Tick) -> u64 {
        self.ready(now).min(self.most_held()).saturating_add(self.held)
    }

    /// Returns how many units are held that may not be spent yet.
    pub(super) fn reserved(&self, now: Tick) -> u64 {
        let both = [&self.current, &self.next].into_iter().flatten();
        both.filter(|batch| batch.from > now).map(Batch::left).sum()
    }

    /// Returns whether nothing is lost if the lease is forgotten.
    pub(super) fn is_idle(&self, now: Tick) -> bool {
        let quiet = now.since(self.touched) >= self.terms.lasts;
        self.units_held() == 0 && self.held == 0 && self.drawing.is_none() && quiet
    }
}

#[cfg(test)]
impl Lease {
    /// Returns all that determines the lease's behaviour, except for the demand, which only sizes draws.
    pub(super) fn model_state(&self) -> impl std::hash::Hash + '_ {
        let batches = [&self.current, &self.next]
            .map(|batch| batch.as_ref().map(|batch| (batch.rest, batch.from, batch.until)));
        let refused = (self.refusals.model_state(), self.failed_until);
        (
            batches,
            self.good_until,
            self.part,
            self.held,
            refused,
            self.waits,
            self.is_drawing(),
            self.remaining,
        )
    }
}

// Remembers the engine's refusals for one key, so that the node does not repeat a request that would be refused again.
//
// A refusal is remembered for at most as long as units may be held: the engine may grant earlier than it said, when
// units come back or the key is reset. Callers are still told the time that the engine named.

/// After this time, a refusal whose end the engine does not know is tried again.
const AFTER_AN_UNKNOWN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Hash)]
struct EngineRefusal {
    /// The units refused; covers all larger costs.
    units: u64,
    /// The units to be left for higher priorities; covers all requests that have to leave more.
    kept_back: u64,
    /// The tick from which the engine may be asked again.
    again: Tick,
    /// The tick at which the units may be spent, as told to callers.
    until: Tick,
}

impl EngineRefusal {
    const fn covers(&self, units: u64, kept_back: u64) -> bool {
        units >= self.units && kept_back >= self.kept_back
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Refusals {
    /// The last draw that was refused, because not even one unit was left.
    draw: Option<EngineRefusal>,
    /// The last request that the engine decided alone and refused; does not cover smaller costs.
    request: Option<EngineRefusal>,
    /// Answers to requests sent up to this tick are ignored: they may be from before units came back.
    cleared: Tick,
}

impl Refusals {
    fn of(&self, cost: Cost, kept_back: u64, now: Tick) -> Option<Duration> {
        let both = [&self.draw, &self.request].into_iter().flatten();
        let holds = |refusal: &&EngineRefusal| now < refusal.again && refusal.covers(cost.units(), kept_back);
        both.filter(holds).map(|refusal| refusal.until.since(now)).max()
    }

    fn forbid_draw(&self, kept_back: u64, now: Tick) -> bool {
        self.draw.is_some_and(|refusal| now < refusal.again && refusal.covers(1, kept_back))
    }

    /// Forgets a refused draw that may be tried again; returns whether there was one.
    fn lapse(&mut self, now: Tick) -> bool {
        self.draw.take_if(|refusal| refusal.again <= now).is_some()
    }

    /// Notes a refused draw. Units drawn at the named time may be spent `ahead` later.
    fn add_draw(&mut self, kept_back: u64, retry: Retry, sent: Tick, ahead: Duration, lasts: Duration) {
        // Counted from the sending: a request sent at that tick reaches the engine no earlier than it said.
        let after = retry.after().unwrap_or(AFTER_AN_UNKNOWN);
        let (again, until) = (sent.after(after.min(lasts)), sent.after(after.saturating_add(ahead)));
        self.draw = Some(EngineRefusal { units: 1, kept_back, again, until });
    }

    fn add_request(&mut self, cost: Cost, kept_back: u64, after: Duration, sent: Tick, lasts: Duration) {
        let (again, until) = (sent.after(after.min(lasts)), sent.after(after));
        let new = EngineRefusal { units: cost.units(), kept_back, again, until };
        let known = self.request.filter(|known| sent < known.again);
        // A refusal that says more is kept: one that covers smaller costs covers this one too.
        if sent > self.cleared && known.is_none_or(|known| !known.covers(new.units, new.kept_back)) {
            self.request = Some(new);
        }
    }

    fn end_draw(&mut self, kept_back: u64) {
        self.draw.take_if(|refusal| kept_back >= refusal.kept_back);
    }

    fn end_for(&mut self, cost: Cost, kept_back: u64) {
        for refusal in [&mut self.draw, &mut self.request] {
            refusal.take_if(|refusal| refusal.covers(cost.units(), kept_back));
        }
    }

    fn clear(&mut self, now: Tick) {
        *self = Self { cleared: now, ..Self::default() };
    }

    /// Returns all that determines what is asked next.
    #[cfg(test)]
    fn model_state(&self) -> impl std::hash::Hash + use<> {
        (self.draw, self.request)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Quota;

    use super::super::leasable::LeaseOptions;
    use super::*;
    use crate::Part;

    const LASTS: Duration = Duration::from_secs(1);
    const HOURS: Duration = Duration::from_secs(36_000);

    fn at(ms: u64) -> Tick {
        Tick::from_nanos(1_000_000_000 + ms * 1_000_000)
    }

    fn units(units: u64) -> Cost {
        Cost::new(units).unwrap()
    }

    #[test]
    fn a_refusal_holds_for_as_long_as_units_may_be_held_and_tells_what_the_engine_said() {
        let mut refusals = Refusals::default();
        let ahead = Duration::from_millis(100);
        refusals.add_draw(0, Retry::After(HOURS), at(0), ahead, LASTS);
        assert_eq!(refusals.of(Cost::ONE, 0, at(0)), Some(HOURS + ahead));
        assert!(refusals.forbid_draw(0, at(999)) && !refusals.lapse(at(999)));
        assert_eq!(refusals.of(Cost::ONE, 0, at(1000)), None);
        assert!(!refusals.forbid_draw(0, at(1000)) && refusals.lapse(at(1000)));
    }

    #[test]
    fn the_fast_path_refuses_what_a_look_refuses() {
        let quota = Arc::new(Quota::per_second(10).burst(100).gcra().unwrap());
        let (outstanding, strict, target) = (500, true, Duration::from_millis(50));
        let options = LeaseOptions { outstanding, strict, target, lasts: LASTS };
        let mut lease = Lease::new(Arc::new(Terms::of(&quota, &options).unwrap()));
        lease.refused_alone(units(4), 2, HOURS, at(0));
        for (cost, kept_back, ms, is_refused) in
            [(4, 2, 1, true), (5, 3, 999, true), (3, 2, 1, false), (4, 1, 1, false), (4, 2, 1000, false)]
        {
            let (cost, now) = (units(cost), at(ms));
            let at_once = lease.clone().refuse_at_once(cost, kept_back, now);
            let found = lease.clone().look_up(cost, kept_back, now, Part::WHOLE, &mut GivenBack::new());
            assert_eq!(at_once.is_some(), is_refused, "{cost:?}, {kept_back}, {ms} ms");
            assert_eq!(matches!(found, Lookup::Refused(_)), is_refused, "{found:?}");
            assert!(at_once.is_none_or(|wait| found == Lookup::Refused(wait)));
        }
    }

    #[test]
    fn a_large_cost_that_is_refused_says_nothing_of_smaller_ones_nor_of_draws() {
        let mut refusals = Refusals::default();
        refusals.add_request(units(40), 5, LASTS, at(0), LASTS);
        assert!(refusals.of(units(39), 5, at(1)).is_none() && refusals.of(units(40), 4, at(1)).is_none());
        assert!(refusals.of(units(41), 6, at(1)).is_some() && !refusals.forbid_draw(9, at(1)));
        refusals.add_request(units(50), 5, HOURS, at(1), LASTS);
        assert!(refusals.of(units(40), 5, at(2)).is_some(), "what says more is kept");
        refusals.end_for(units(39), 5);
        assert!(refusals.of(units(40), 5, at(2)).is_some());
        refusals.end_for(units(40), 5);
        assert!(refusals.of(units(40), 5, at(2)).is_none());
    }

    #[test]
    fn a_draw_for_high_priority_leaves_what_is_known_of_low_priority() {
        let mut refusals = Refusals::default();
        refusals.add_draw(10, Retry::After(LASTS), at(0), Duration::ZERO, LASTS);
        assert!(refusals.forbid_draw(10, at(1)) && !refusals.forbid_draw(9, at(1)));
        refusals.end_draw(0);
        assert!(refusals.of(Cost::ONE, 10, at(1)).is_some());
        refusals.end_draw(10);
        assert!(refusals.of(Cost::ONE, 10, at(1)).is_none());
    }

    #[test]
    fn an_answer_to_what_was_asked_before_units_came_back_says_nothing() {
        let mut refusals = Refusals::default();
        refusals.clear(at(5));
        refusals.add_request(Cost::ONE, 0, HOURS, at(5), LASTS);
        assert!(refusals.of(Cost::ONE, 0, at(6)).is_none());
        refusals.add_request(Cost::ONE, 0, HOURS, at(6), LASTS);
        assert!(refusals.of(Cost::ONE, 0, at(7)).is_some());
    }
}
