//! What a node holds of one key: a state that is handed the time, and knows no engine and no lock.
//!
//! A purse has two pockets: the one that is spent from, and the next one, drawn while the first is still being spent. At no time may
//! it hold more units that can be spent than its allowance, those in the hands of requests that are not yet admitted included. Whatever
//! it holds beyond that, too long, or under an allowance that has shrunk, is given back.

#[cfg(test)]
mod essence;
mod figures;
mod refusals;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Receipt, Tick};

use super::demand::Demand;
use super::draw::{Draw, Drawn, Refused, Times};
use super::pocket::{Piece, Pocket};
use super::terms::{LEAST_HELD, Terms};
use refusals::Refusals;

/// For how long a key is decided by the engine alone when a draw has failed.
const AFTER_A_FAILURE: Duration = Duration::from_millis(100);

/// After so long a draw is given up, should nobody have said that it has ended: longer than anything waits for an engine.
const LONGEST_DRAW: Duration = Duration::from_secs(60);

/// Receipts of units that are to be given back.
pub(super) type GivenBack = SmallVec<[Receipt; 2]>;

/// What a node holds of one key.
#[derive(Clone, Debug)]
pub(super) struct Purse {
    pub(super) terms: Arc<Terms>,
    current: Option<Pocket>,
    next: Option<Pocket>,
    /// Until when the current pocket is spent from without another look.
    good_until: Tick,
    /// The part of all that this node had at the last look.
    part: u32,
    /// Units in the hands of requests that are not yet admitted.
    held: u64,
    refusals: Refusals,
    /// Until when nothing is drawn, because the engine did not answer.
    failed_until: Tick,
    /// What the engine said at the last draw.
    pub(super) remaining: u64,
    pub(super) full_at: Tick,
    demand: Demand,
    /// Whether the last draw has to wait: then the limit is in full use, and the next one will too.
    waits: bool,
    /// What draws ahead of need leave to requests of higher priority: the most that a request had to leave lately, and when it came.
    kept_back: (u64, Tick),
    /// The number of the draw under way, and when it was begun.
    drawing: Option<(u64, Tick)>,
    touched: Tick,
}

/// What a request finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The units are there.
    Ready,
    /// Not before a time: known without asking.
    Refused(Duration),
    /// A draw is needed, or one under way has to be awaited.
    Draw,
    /// Decided by the engine alone.
    Engine,
}

impl Purse {
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
            demand: Demand::default(),
            waits: false,
            kept_back: (0, Tick::EPOCH),
            drawing: None,
            touched: Tick::EPOCH,
        }
    }

    /// Takes units if they are there without any doubt: the usual case, which changes nothing else.
    #[inline]
    pub(super) fn take_at_once(&mut self, cost: Cost, kept_back: u64, now: Tick, part: u32) -> Option<Piece> {
        let pocket = self.current.as_mut()?;
        if now >= self.good_until || now < pocket.from || part < self.part || kept_back > pocket.kept_back {
            return None;
        }
        let piece = pocket.take(cost)?;
        self.demand.asks(cost.units());
        Some(piece)
    }

    /// Takes units that a look has found.
    pub(super) fn take(&mut self, cost: Cost) -> Option<Piece> {
        self.current.as_mut()?.take(cost)
    }

    /// Takes note that a request asks for units: once for each request, however often it looks.
    pub(super) const fn asked(&mut self, cost: Cost) {
        self.demand.asks(cost.units());
    }

    /// Looks whether units can be spent, and puts the pockets in order first.
    pub(super) fn look(
        &mut self,
        cost: Cost,
        kept_back: u64,
        (now, part): (Tick, u32),
        back: &mut GivenBack,
    ) -> Look {
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
        self.judge(now);
        let enough = |pocket: &&Pocket| pocket.left() >= cost.units();
        let (current, next) = (self.current.as_ref().filter(enough), self.next.as_ref().filter(enough));
        let may_take = |pocket: &&Pocket| kept_back <= pocket.kept_back;
        if let Some(pocket) = current.filter(may_take) {
            return if pocket.from > now { Look::Refused(pocket.from.since(now)) } else { Look::Ready };
        }
        if let Some(next) = next.filter(may_take).filter(|next| next.from > now) {
            return Look::Refused(next.from.since(now));
        }
        let left_to_others = current.is_some() || next.is_some();
        if now < self.failed_until {
            return Look::Engine;
        }
        if let Some(wait) = self.refusals.of(cost, kept_back, now) {
            return Look::Refused(wait);
        }
        if self.refusals.lapse(now) && self.terms.window {
            // What the window has by now is not known: a draw will tell.
            self.remaining = self.terms.limit;
        }
        let (most, since) = self.kept_back;
        if kept_back >= most || now.since(since) >= self.terms.lasts {
            self.kept_back = (kept_back, now);
        }
        let allowance = self.allowance();
        if left_to_others || allowance < LEAST_HELD || cost.units() > allowance / 2 {
            return Look::Engine;
        }
        Look::Draw
    }

    /// Begins a draw for a request of such a cost, which has to leave so much to higher priorities; without a request, of what the demand
    /// tells. `None` where one is under way, or there is no room. The number is one that no draw had before.
    pub(super) fn draw(&mut self, request: Option<(Cost, u64)>, now: Tick, number: u64) -> Option<Draw> {
        if self.drawing.is_some() || self.next.is_some() {
            return None;
        }
        let ahead = self.demand.sized(now, self.terms.target, self.terms.lasts);
        let (cost, kept_back) =
            request.map_or((0, self.kept_back.0), |(cost, kept_back)| (cost.units(), kept_back));
        self.draw_ahead(ahead, (cost, kept_back), now, number)
    }

    /// Begins a draw of so many units beyond those of a request.
    pub(super) fn draw_ahead(
        &mut self,
        ahead: u64,
        (cost, kept_back): (u64, u64),
        now: Tick,
        number: u64,
    ) -> Option<Draw> {
        if self.drawing.is_some() || self.next.is_some() {
            return None;
        }
        // Where the limit is in full use, what is drawn now can be spent only later, when what is here has been.
        let here = if self.waits { 0 } else { self.current.as_ref().map_or(0, Pocket::left) };
        let room = self.allowance().saturating_sub(self.held).saturating_sub(here);
        let units = ahead.saturating_add(cost).max(1).min(room);
        let want = Cost::new(units).filter(|want| want.units() >= cost)?;
        self.drawing = Some((number, now));
        Some(Draw { number, want, kept_back })
    }

    /// Says whether the next draw is to be made ahead of need.
    #[inline]
    pub(super) fn runs_low(&self, now: Tick) -> bool {
        self.drawing.is_none()
            && self.next.is_none()
            && self.current.as_ref().is_some_and(|pocket| pocket.left() < pocket.low)
            && self.failed_until <= now
            && !self.refusals.forbid_draw(self.kept_back.0, now)
    }

    /// Says whether a draw is under way.
    pub(super) const fn is_drawing(&self) -> bool {
        self.drawing.is_some()
    }

    /// Returns since when a draw is under way.
    pub(super) fn drawing_since(&self) -> Option<Tick> {
        self.drawing.map(|(_, since)| since)
    }

    pub(super) fn is_under_way(&self, draw: &Draw) -> bool {
        self.drawing.is_some_and(|(number, _)| number == draw.number)
    }

    /// Takes in what was drawn. What does not fit is given back, and so is all of a draw that nobody waits for any more.
    pub(super) fn fill(&mut self, draw: &Draw, drawn: &Drawn, times: Times, part: u32, back: &mut GivenBack) {
        if !self.is_under_way(draw) {
            back.push(drawn.receipt);
            return;
        }
        let Times { sent, received } = times;
        self.drawing = None;
        self.touched = received;
        self.failed_until = Tick::EPOCH;
        self.refusals.end_draw(draw.kept_back);
        self.remaining = drawn.remaining;
        self.full_at = received.after(drawn.reset_after);
        self.waits = !drawn.wait.is_zero();
        self.tidy(received, part, back);
        let lasts = match self.terms.window {
            // The window's end was told by the engine, later than this was sent. A thousandth is for clocks that run unlike each other.
            true => self.terms.lasts.min(drawn.reset_after.saturating_sub(drawn.reset_after / 1000)),
            false => self.terms.lasts.saturating_add(drawn.wait),
        };
        let units = drawn.receipt.cost.units();
        let mut pocket = Pocket {
            quota: Arc::clone(&self.terms.engine),
            rest: Some(drawn.receipt),
            from: received.after(drawn.wait),
            until: sent.after(lasts),
            kept_back: draw.kept_back,
            low: if units < 4 { 0 } else { units.div_ceil(2) },
        };
        let here = if self.waits { 0 } else { self.current.as_ref().map_or(0, Pocket::left) };
        let room = self.most_held().saturating_sub(here);
        if units > room {
            back.extend(pocket.trim(room));
        }
        if pocket.until <= received || pocket.left() == 0 {
            self.end(Some(pocket), back);
        } else if self.current.as_ref().is_some_and(|current| current.left() > 0) {
            self.next = Some(pocket);
        } else {
            self.current = Some(pocket);
        }
        self.judge(received);
    }

    /// Takes note that the engine has refused a draw.
    pub(super) fn refused(&mut self, draw: &Draw, refused: &Refused, sent: Tick) {
        if self.is_under_way(draw) {
            self.drawing = None;
            (self.remaining, self.waits) = (refused.remaining, true);
            let spans = (self.terms.ahead, self.terms.lasts);
            self.refusals.add_draw(draw.kept_back, refused.retry, sent, spans);
            // Higher priorities are drawn for all the same, and say themselves what they leave.
            self.kept_back = (0, sent);
        }
    }

    /// Takes note that the engine has refused a request that it decided alone.
    pub(super) fn refused_alone(&mut self, cost: Cost, kept_back: u64, after: Duration, sent: Tick) {
        self.refusals.add_request((cost, kept_back), after, sent, self.terms.lasts);
    }

    /// Takes note that the engine would grant a request, and what it has left.
    pub(super) fn would_be_granted(&mut self, cost: Cost, kept_back: u64, remaining: u64) {
        self.refusals.end_for(cost, kept_back);
        self.remaining = remaining;
    }

    /// Takes note that units came back to the engine, and what it has left: what it refused before it may grant now.
    pub(super) fn units_came_back(&mut self, remaining: u64, now: Tick) {
        self.refusals.clear(now);
        self.remaining = remaining;
    }

    /// Takes note that a draw has no answer: what it may have drawn is lost.
    pub(super) fn failed(&mut self, draw: &Draw, now: Tick) {
        if self.is_under_way(draw) {
            self.drawing = None;
            self.failed_until = now.after(AFTER_A_FAILURE);
        }
    }

    /// Notes that units are in the hands of a request that is not yet admitted.
    pub(super) const fn hold(&mut self, piece: &Piece) {
        self.held = self.held.saturating_add(piece.cost.units());
    }

    /// Notes that such a request is admitted.
    pub(super) const fn release(&mut self, piece: &Piece) {
        self.held = self.held.saturating_sub(piece.cost.units());
    }

    /// Puts units back; if others were taken since, or the pocket has ended, they are given back.
    pub(super) fn put_back(&mut self, piece: &Piece, back: &mut GivenBack) {
        if !self.current.as_mut().is_some_and(|pocket| pocket.put_back(piece)) {
            back.push(piece.receipt(&self.terms.engine));
        }
    }

    /// Ends what is held too long.
    pub(super) fn tidy(&mut self, now: Tick, part: u32, back: &mut GivenBack) {
        if let Some(over) = self.current.take_if(|pocket| pocket.until <= now) {
            self.end(Some(over), back);
        }
        if let Some(over) = self.next.take_if(|pocket| pocket.until <= now) {
            self.end(Some(over), back);
        }
        self.drawing = self.drawing.filter(|(_, since)| now.since(*since) < LONGEST_DRAW);
        self.part = part;
        let most = self.most_held();
        // The units of both count where both can be spent.
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
        self.judge(now);
    }

    /// Ends both pockets.
    pub(super) fn close(&mut self, back: &mut GivenBack) {
        let both = [self.current.take(), self.next.take()];
        for pocket in both {
            self.end(pocket, back);
        }
    }

    /// Forgets all: the key was reset. A draw under way is given back when it comes. Returns the units that were held.
    pub(super) fn forget(&mut self, now: Tick) -> u64 {
        let left = self.left();
        (self.current, self.next, self.drawing) = (None, None, None);
        (self.remaining, self.waits, self.full_at) = (self.terms.limit, false, now);
        self.refusals.clear(now);
        left
    }

    fn allowance(&self) -> u64 {
        self.terms.allowance(self.part, self.remaining)
    }

    /// Returns how many units the pockets may hold. Those of a window are bounded by what the window has left, when they are drawn.
    fn most_held(&self) -> u64 {
        if self.terms.window { u64::MAX } else { self.allowance().saturating_sub(self.held) }
    }

    /// Works out until when the current pocket is spent from without another look.
    fn judge(&mut self, now: Tick) {
        let Some(current) = &self.current else { return };
        let next = self.next.as_ref().map_or(Tick::MAX, |next| next.from);
        // When the next one can be spent too, there may be too much of both.
        self.good_until = if next > now { current.until.min(next) } else { current.until };
    }

    fn end(&mut self, pocket: Option<Pocket>, back: &mut GivenBack) {
        back.extend(pocket.and_then(|pocket| pocket.rest));
    }
}
