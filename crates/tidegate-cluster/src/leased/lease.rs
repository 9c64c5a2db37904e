//! The lease: the units that a node holds of one key. A pure state machine: time is passed in, and it has no engine and
//! no lock.
//!
//! A lease has two batches: the one that is spent from, and the next one. It never holds more spendable units than its
//! allowance, including units taken by requests that are not yet admitted. The rest is given back, as are units held
//! too long.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Receipt, Tick};

use super::allowance::{Allowance, DrawSize, LATE};
use super::draws::KeyDemand;
use super::leasable::{FEW, LEAST_HELD, LONGEST_AHEAD, Terms};
use super::refusals::Refusals;
use super::request::{Batch, Draw, DrawTimes, Drawn, Portion, Refused};

/// For how long the engine decides a key alone after a draw has failed.
const AFTER_A_FAILURE: Duration = Duration::from_millis(100);

/// A pause of an engine or a network that delays no request.
const PAUSE: Duration = Duration::from_millis(3);

pub(super) type GivenBack = SmallVec<[Receipt; 2]>;

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) terms: Arc<Terms>,
    current: Option<Batch>,
    next: Option<Batch>,
    /// Until when units are taken from the current batch without another look.
    good_until: Tick,
    allowance: Allowance,
    held: u64,
    /// Units that were drawn and will neither be spent nor given back.
    /// Counted by the next look at all keys, which sets it to zero.
    pub(super) dropped: u64,
    refusals: Refusals,
    /// Until when nothing is drawn, because the engine did not answer.
    failed_until: Tick,
    /// The units left in the limit, as the engine last said.
    pub(super) remaining: u64,
    pub(super) full_at: Tick,
    demand: KeyDemand,
    /// Whether the last draw had to wait: then the limit is in full use, and so will the next.
    waits: bool,
    /// When the engine answered last.
    answered: Tick,
    /// Fewer units than this do not last until the next draw arrives; and fewer than `margin` not for a pause of the
    /// engine.
    lead: u64,
    margin: u64,
    /// What the requests that wait for the draw under way ask for.
    awaited: u64,
    /// The most that a recent request left to higher priorities, and when it came: draws ahead of need leave as much.
    kept_back: (u64, Tick),
    /// The number of the draw under way, the tick at which it began, and the units that it is to bring.
    drawing: Option<(u64, Tick, u64)>,
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
            allowance: Allowance::default(),
            held: 0,
            dropped: 0,
            refusals: Refusals::default(),
            failed_until: Tick::EPOCH,
            full_at: Tick::EPOCH,
            demand: KeyDemand::default(),
            waits: false,
            answered: Tick::EPOCH,
            lead: 0,
            margin: 0,
            awaited: 0,
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
        if now >= self.good_until
            || now < batch.from
            || part < self.allowance.part
            || kept_back > batch.kept_back
        {
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
        if self.terms.is_window() && self.full_at <= now {
            self.remaining = self.terms.limit;
        }
        if self.current.as_ref().is_none_or(|current| current.left() < cost.units())
            && let Some(next) = self.next.take_if(|next| next.from <= now)
        {
            self.end(self.current.clone(), now, back);
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
        if self.refusals.lapse(now) && self.terms.is_window() {
            // The units left in the window are not known now: a draw will tell.
            self.remaining = self.terms.limit;
        }
        let (most, since) = self.kept_back;
        if kept_back >= most || now.since(since) >= self.terms.lasts {
            self.kept_back = (kept_back, now);
        }
        let allowance = self.allowance.ever(&self.terms, self.remaining);
        if left_to_others || allowance < LEAST_HELD || cost.units() > allowance / 2 {
            return Lookup::Engine;
        }
        Lookup::Draw
    }

    /// Begins a draw, sized by the demand alone without a `request`: its cost and what it has to leave to higher
    /// priorities. `None` if a draw is under way or there is no room, or if the engine decides better: keys that are
    /// asked for seldom, and those for which this node may not hold enough. No earlier draw had this `number`.
    pub(super) fn draw(
        &mut self,
        request: Option<(Cost, u64)>,
        now: Tick,
        number: u64,
        round_trip: Duration,
    ) -> Option<Draw> {
        if self.drawing.is_some() || self.next.is_some() {
            return None;
        }
        let (cost, kept_back) =
            request.map_or((0, self.kept_back.0), |(cost, kept_back)| (cost.units(), kept_back));
        let wanted = self.demand.wanted(now, round_trip, &self.terms)?;
        // If the limit is in full use, drawn units are spent later, after the present ones.
        let here = match &self.current {
            Some(current) if !self.waits => current.left().saturating_sub(wanted.within(round_trip)),
            _ => 0,
        };
        let full = self.in_full_use(now, round_trip);
        let here = here.saturating_add(self.held).saturating_add(cost);
        let size = self.allowance.size(&self.terms, self.remaining, &wanted, here, full, now)?;
        (self.lead, self.margin) = (wanted.within(round_trip * 5 / 4), wanted.within(PAUSE));
        // Where more than the part of `O` is held: not so far that little of the burst is known to be missing.
        let quarter = self.terms.time_of(self.terms.engine_burst() / 4);
        let ahead = match self.allowance.is_settled() || self.terms.is_window() {
            true => self.terms.ahead,
            false => self.terms.ahead.max(LONGEST_AHEAD.min(quarter)).max(2 * round_trip),
        };
        let many_meanwhile = wanted.within(2 * round_trip) >= FEW;
        self.allowance.far = 4 * round_trip >= self.terms.target || many_meanwhile;
        self.demand.drawn();
        self.draw_ahead(
            size,
            cost,
            kept_back,
            Draw { number, ahead, want: Cost::ONE, spent: 0, kept_back },
            now,
        )
    }

    /// Begins the draw of a size, besides the cost of a request.
    pub(super) fn draw_ahead(
        &mut self,
        size: DrawSize,
        cost: u64,
        kept_back: u64,
        draw: Draw,
        now: Tick,
    ) -> Option<Draw> {
        if self.drawing.is_some() || self.next.is_some() {
            return None;
        }
        let spent = Cost::new(size.units.saturating_add(cost))?;
        let want = Cost::new(spent.units().saturating_add(size.aside))?;
        (self.drawing, self.awaited) = (Some((draw.number, now, spent.units())), cost);
        Some(Draw { want, spent: spent.units(), kept_back, ..draw })
    }

    /// Returns whether the draw under way brings the units of one more request; notes that it waits for them.
    pub(super) fn awaits(&mut self, cost: Cost) -> bool {
        let awaited = self.awaited.saturating_add(cost.units());
        let brings = self.drawing.is_some_and(|(_, _, units)| awaited <= units);
        if brings {
            self.awaited = awaited;
        }
        brings
    }

    /// Returns whether the limit had nothing left when the engine last answered, which was just now.
    pub(super) fn in_full_use(&self, now: Tick, round_trip: Duration) -> bool {
        self.waits && now.since(self.answered) < 2 * round_trip + self.terms.target
    }

    #[inline]
    pub(super) const fn is_settled(&self) -> bool {
        self.allowance.is_settled()
    }

    pub(super) const fn settles(&mut self) {
        self.allowance.settles();
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
        self.drawing.map(|(_, since, _)| since)
    }

    pub(super) fn is_under_way(&self, draw: &Draw) -> bool {
        self.drawing.is_some_and(|(number, ..)| number == draw.number)
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
            self.give(drawn.receipt, times.received, back);
            return;
        }
        let DrawTimes { sent, received } = times;
        self.drawing = None;
        self.touched = received;
        self.failed_until = Tick::EPOCH;
        self.refusals.end_draw(draw.kept_back);
        self.remaining = drawn.remaining;
        self.full_at = received.after(drawn.reset_after);
        (self.waits, self.answered) = (!drawn.wait.is_zero(), received);
        // By what was known before: units that were too many by then are not spent, though more may be held now.
        self.tidy(received, part, back);
        // The limit has nothing left until units of the future may be spent.
        self.allowance.took(drawn.receipt.cost.units());
        self.note(drawn.remaining, drawn.receipt.cost.units(), sent.after(drawn.wait));
        let lasts = match self.terms.is_window() {
            // The engine told the window's end after this draw was sent. A thousandth is for clocks of different
            // speeds.
            true => self.terms.lasts.min(drawn.reset_after.saturating_sub(drawn.reset_after / 1000)),
            false => self.terms.lasts.saturating_add(drawn.wait),
        };
        let mut batch = Batch {
            quota: Arc::clone(&self.terms.engine),
            rest: Some(drawn.receipt),
            // A request that has read the clock before these arrived may spend them too.
            from: if drawn.wait.is_zero() { Tick::EPOCH } else { received.after(drawn.wait) },
            until: sent.after(lasts),
            kept_back: draw.kept_back,
            low: 0,
            loose: SmallVec::new(),
        };
        // Units set aside are not given back. If the limit turned out to be in full use, they are spent instead.
        if drawn.wait.is_zero() && batch.left() > draw.spent {
            self.dropped += batch.trim(draw.spent).iter().map(|aside| aside.cost.units()).sum::<u64>();
        }
        let here = if self.waits { 0 } else { self.current.as_ref().map_or(0, Batch::left) };
        let room = self.most_held(received).saturating_sub(here);
        for surplus in batch.trim(room) {
            self.give(surplus, received, back);
        }
        let units = batch.left();
        let margin = self.margin.min(units / 2).max(units.div_ceil(8));
        batch.low = if units < 4 && self.lead == 0 { 0 } else { margin.max(self.lead) };
        self.allowance.holds(&self.terms, units + here + self.held, batch.until);
        if batch.until <= received || batch.left() == 0 {
            self.end(Some(batch), received, back);
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
            // A draw that has to leave units to higher priorities is refused while there are some.
            let waits = refused.remaining == 0;
            (self.remaining, self.waits, self.answered) = (refused.remaining, waits, sent);
            self.allowance.took(0);
            self.note(refused.remaining, 0, sent);
            self.refusals.add_draw(draw.kept_back, refused.retry, sent, draw.ahead, self.terms.lasts);
            // Higher priorities may still be granted draws.
            self.kept_back = (0, sent);
        }
    }

    pub(super) fn refused_alone(&mut self, cost: Cost, kept_back: u64, after: Duration, sent: Tick) {
        self.refusals.add_request(cost, kept_back, after, sent, self.terms.lasts);
    }

    /// Notes what the engine had left after it answered something sent at a tick, and what this node took by that.
    pub(super) fn note(&mut self, level: u64, taken: u64, sent: Tick) {
        self.allowance.note(level, sent);
        self.demand.level(level, taken, sent);
    }

    pub(super) fn would_be_granted(&mut self, cost: Cost, kept_back: u64, remaining: u64) {
        self.refusals.end_for(cost, kept_back);
        (self.remaining, self.waits) = (remaining, self.waits && remaining == 0);
    }

    /// Notes that units came back: the engine may now grant what it refused before.
    pub(super) fn units_came_back(&mut self, remaining: u64, now: Tick) {
        self.refusals.clear(now);
        (self.remaining, self.waits) = (remaining, false);
    }

    pub(super) const fn returned(&mut self, units: u64) {
        self.allowance.returned(units);
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
    pub(super) fn put_back(&mut self, portion: &Portion, now: Tick, back: &mut GivenBack) {
        if !self.current.as_mut().is_some_and(|batch| batch.put_back(portion)) {
            self.give(portion.receipt(&self.terms.engine), now, back);
        }
    }

    /// Gives units back, if that may be.
    fn give(&mut self, receipt: Receipt, now: Tick, back: &mut GivenBack) {
        let units = receipt.cost.units();
        match self.allowance.may_give(&self.terms, units, now) {
            true => {
                self.allowance.returns(units);
                back.push(receipt);
            }
            false => self.dropped += units,
        }
    }

    fn trim(
        &mut self,
        mut batch: Option<Batch>,
        most: u64,
        now: Tick,
        back: &mut GivenBack,
    ) -> Option<Batch> {
        for surplus in batch.as_mut().map(|batch| batch.trim(most)).unwrap_or_default() {
            self.give(surplus, now, back);
        }
        batch
    }

    pub(super) fn tidy(&mut self, now: Tick, part: u32, back: &mut GivenBack) {
        let over = self.current.take_if(|batch| batch.until <= now);
        self.end(over, now, back);
        let over = self.next.take_if(|batch| batch.until <= now);
        self.end(over, now, back);
        self.drawing = self.drawing.filter(|(_, since, _)| now.since(*since) < LATE);
        self.allowance.part = part;
        self.allowance.turn(now);
        let most = self.most_held(now);
        // If both batches can be spent from, their sum counts.
        let (next, current) = (self.next.take(), self.current.take());
        let next = self.trim(next, most, now, back);
        let ready = next.as_ref().filter(|next| next.from <= now).map_or(0, Batch::left);
        self.current = self.trim(current, most - ready, now, back);
        self.next = next;
        self.update_good_until(now);
    }

    pub(super) fn close(&mut self, now: Tick, back: &mut GivenBack) {
        // It is not asked for here any more.
        self.allowance.far = false;
        let both = [self.current.take(), self.next.take()];
        for batch in both {
            self.end(batch, now, back);
        }
    }

    /// Drops everything, because the key was reset; units of a draw under way are given back when they arrive. Returns
    /// how many were held.
    pub(super) fn forget(&mut self, now: Tick) -> u64 {
        let left = self.units_held();
        (self.current, self.next, self.drawing) = (None, None, None);
        (self.remaining, self.waits, self.full_at) = (self.terms.limit, false, now);
        self.refusals.clear(now);
        self.allowance.forget();
        self.demand.forget_level();
        left
    }

    /// Returns how many units the batches may hold; for a window, the draws are bounded instead.
    fn most_held(&self, now: Tick) -> u64 {
        if self.terms.is_window() {
            return u64::MAX;
        }
        self.allowance.most(&self.terms, self.remaining, now).saturating_sub(self.held)
    }

    fn update_good_until(&mut self, now: Tick) {
        let Some(current) = &self.current else { return };
        let next = self.next.as_ref();
        // Once both batches can be spent from, their sum may exceed the allowance.
        let sum = next.map(|next| next.from).filter(|from| *from > now).unwrap_or(Tick::MAX);
        let ready = next.filter(|next| next.from <= now).map_or(0, Batch::left);
        let allowed = self.allowance.until(&self.terms, current.left() + ready + self.held, now);
        self.good_until = current.until.min(sum).min(allowed);
    }

    fn end(&mut self, batch: Option<Batch>, now: Tick, back: &mut GivenBack) {
        for rest in batch.into_iter().flat_map(Batch::rest) {
            self.give(rest, now, back);
        }
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
        self.ready(now).min(self.most_held(now)).saturating_add(self.held)
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
        let batches = [&self.current, &self.next].map(|batch| {
            batch.as_ref().map(|batch| (batch.rest, batch.loose.clone(), batch.from, batch.until))
        });
        let refused = (self.refusals.model_state(), self.failed_until);
        (
            batches,
            self.good_until,
            self.allowance.clone(),
            self.held,
            refused,
            self.waits,
            self.is_drawing(),
            self.remaining,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::leasable::LeaseOptions;
    use super::*;
    use tidegate_core::{Algorithm, Ask, Quota, Transition};

    /// Regression: of 5,000 requests at half of the rate one was refused, for 0.6 ms: the system had let its thread stand
    /// still between reading the clock and looking for units, and they arrived meanwhile.
    #[test]
    fn units_that_arrive_after_a_request_has_read_the_clock_may_be_spent_by_it() {
        let quota = Arc::new(Quota::per_second(2_000).burst(2_000).gcra().unwrap());
        let (outstanding, target, lasts) = (50, Duration::from_millis(50), Duration::from_secs(1));
        let options = LeaseOptions { outstanding, strict: true, target, lasts, nodes: 1 };
        let terms = Arc::new(Terms::of(&quota, &options).unwrap());
        let ms = |ms: u64| Tick::from_nanos(1_000_000_000 + ms * 1_000_000);
        let (mut lease, mut back) = (Lease::new(Arc::clone(&terms)), GivenBack::new());
        let part = crate::Part::WHOLE;
        let look = |lease: &mut Lease, at, back: &mut GivenBack| lease.look_up(Cost::ONE, 0, at, part, back);
        let draw = (0..)
            .find_map(|at| {
                lease.count_demand(Cost::ONE);
                look(&mut lease, ms(at), &mut back);
                lease
                    .draw(Some((Cost::ONE, 0)), ms(at), 1, Duration::from_millis(1))
                    .map(|draw| (draw, ms(at)))
            })
            .unwrap();
        let (draw, sent) = draw;
        let Transition::Allowed { receipt, .. } =
            terms.engine.decide(&terms.engine.fresh(sent), Ask::allow(sent, draw.want))
        else {
            panic!("within the limit")
        };
        let drawn = Drawn { receipt, wait: Duration::ZERO, remaining: 1_000, reset_after: Duration::ZERO };
        let received = sent.after(Duration::from_millis(3));
        lease.fill(&draw, &drawn, DrawTimes { sent, received }, part, &mut back);
        let read = sent.after(Duration::from_millis(1));
        assert_eq!(look(&mut lease, read, &mut back), Lookup::Ready);
    }
}
