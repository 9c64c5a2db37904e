//! What a node holds of one key: a state that is handed the time, and knows no engine and no lock.
//!
//! A purse has two pockets: the one that is spent from, and the next one, drawn while the first is still being spent. At no time may
//! it hold more units that can be spent than its allowance, those in the hands of requests that are not yet admitted included. Whatever
//! it holds beyond that, too long, or under an allowance that has shrunk, is given back.

#[cfg(test)]
mod essence;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Receipt, Retry, Tick};

use super::demand::Demand;
use super::draw::{Draw, Drawn, Times};
use super::pocket::{Piece, Pocket};
use super::terms::{LEAST_HELD, Terms};

/// For how long a key is decided by the engine alone when a draw has failed.
const AFTER_A_FAILURE: Duration = Duration::from_millis(100);

/// When a refusal whose end the engine does not know is asked about again.
const AFTER_AN_UNKNOWN: Duration = Duration::from_millis(100);

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
    blocked: Option<Blocked>,
    /// What the engine said at the last draw.
    pub(super) remaining: u64,
    pub(super) full_at: Tick,
    demand: Demand,
    /// Whether the last draw has to wait: then the limit is in full use, and the next one will too.
    waits: bool,
    /// What draws leave to requests of higher priority: the most that a request had to leave.
    kept_back: u64,
    /// The number of the draw under way, and when it was begun.
    drawing: Option<(u64, Tick)>,
    touched: Tick,
}

/// Why nothing is drawn for a while.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    until: Tick,
    /// What the engine has refused, and how much of the limit was to be left beside it; `None` if it did not answer.
    refused: Option<(u64, u64)>,
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
            blocked: None,
            full_at: Tick::EPOCH,
            demand: Demand::default(),
            waits: false,
            kept_back: 0,
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

    /// Looks whether units can be spent, and puts the pockets in order first.
    pub(super) fn look(
        &mut self,
        cost: Cost,
        kept_back: u64,
        (now, part): (Tick, u32),
        back: &mut GivenBack,
    ) -> Look {
        self.touched = now;
        self.demand.asks(cost.units());
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
        self.kept_back = self.kept_back.max(kept_back);
        if let Some(pocket) = self.current.as_ref().filter(|pocket| pocket.left() >= cost.units()) {
            return match pocket.from {
                _ if kept_back > pocket.kept_back => Look::Engine,
                from if from > now => Look::Refused(from.since(now)),
                _ => Look::Ready,
            };
        }
        if let Some(next) = self.next.as_ref().filter(|next| next.left() >= cost.units()) {
            return if kept_back > next.kept_back {
                Look::Engine
            } else {
                Look::Refused(next.from.since(now))
            };
        }
        if let Some(blocked) = self.blocked.filter(|blocked| now < blocked.until) {
            return match blocked.refused {
                Some((units, kept)) if cost.units() >= units && kept_back >= kept => {
                    Look::Refused(blocked.until.since(now))
                }
                // What was refused asked for more than this request does, or had to leave more.
                _ => Look::Engine,
            };
        }
        let allowance = self.allowance();
        if allowance < LEAST_HELD || cost.units() > allowance / 2 {
            return Look::Engine;
        }
        Look::Draw
    }

    /// Begins a draw for a request of so many units; without a request, of what the demand tells. `None` where one is under way, or there is
    /// no room. The number is one that no draw had before.
    pub(super) fn draw(&mut self, cost: u64, now: Tick, number: u64) -> Option<Draw> {
        if self.drawing.is_some() || self.next.is_some() {
            return None;
        }
        let ahead = self.demand.sized(now, self.terms.target);
        self.draw_ahead(ahead, cost, now, number)
    }

    /// Begins a draw of so many units beyond those of a request.
    pub(super) fn draw_ahead(&mut self, ahead: u64, cost: u64, now: Tick, number: u64) -> Option<Draw> {
        if self.drawing.is_some() || self.next.is_some() {
            return None;
        }
        // Where the limit is in full use, what is drawn now can be spent only later, when what is here has been.
        let here = if self.waits { 0 } else { self.current.as_ref().map_or(0, Pocket::left) };
        let room = self.allowance().saturating_sub(self.held).saturating_sub(here);
        let units = ahead.saturating_add(cost).max(1).min(room);
        let want = Cost::new(units).filter(|want| want.units() >= cost)?;
        self.drawing = Some((number, now));
        Some(Draw { number, want, kept_back: self.kept_back })
    }

    /// Says whether the next draw is to be made ahead of need.
    #[inline]
    pub(super) fn runs_low(&self, now: Tick) -> bool {
        self.drawing.is_none()
            && self.next.is_none()
            && self.current.as_ref().is_some_and(|pocket| pocket.left() < pocket.low)
            && self.blocked.is_none_or(|blocked| blocked.until <= now)
    }

    /// Says whether a draw is under way.
    pub(super) const fn is_drawing(&self) -> bool {
        self.drawing.is_some()
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
        self.blocked = None;
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
    pub(super) fn refused(&mut self, draw: &Draw, retry: Retry, sent: Tick) {
        if self.is_under_way(draw) {
            self.drawing = None;
            // From when it was sent: an ask at that tick reaches the engine no earlier than it said.
            let until = sent.after(retry.after().unwrap_or(AFTER_AN_UNKNOWN));
            (self.remaining, self.waits) = (0, true);
            self.blocked = Some(Blocked { until, refused: Some((1, draw.kept_back)) });
        }
    }

    /// Takes note that the engine has refused a request that it decided alone: none that asks for as much is sent before its time.
    pub(super) fn refused_alone(&mut self, cost: Cost, kept_back: u64, after: Duration, sent: Tick) {
        let until = sent.after(after);
        if self.blocked.is_none_or(|blocked| blocked.until <= sent) {
            self.blocked = Some(Blocked { until, refused: Some((cost.units(), kept_back)) });
        }
    }

    /// Takes note that a draw has no answer: what it may have drawn is lost.
    pub(super) fn failed(&mut self, draw: &Draw, now: Tick) {
        if self.is_under_way(draw) {
            self.drawing = None;
            let until = now.after(AFTER_A_FAILURE);
            self.blocked = Some(Blocked { until, refused: None });
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
    pub(super) fn forget(&mut self) -> u64 {
        let left = self.left();
        (self.current, self.next, self.drawing, self.blocked) = (None, None, None, None);
        left
    }

    /// Returns how many units are held, whether they can be spent by now or not.
    pub(super) fn left(&self) -> u64 {
        [&self.current, &self.next].into_iter().flatten().map(Pocket::left).sum()
    }

    /// Returns how many units can be spent at once.
    pub(super) fn ready(&self, now: Tick) -> u64 {
        let both = [&self.current, &self.next].into_iter().flatten();
        both.filter(|pocket| pocket.from <= now && now < pocket.until).map(Pocket::left).sum()
    }

    /// Returns how many units can be spent at once or are in the hands of requests.
    pub(super) fn outstanding(&self, now: Tick) -> u64 {
        self.ready(now).min(self.most_held()).saturating_add(self.held)
    }

    /// Returns how many units are held whose time has not come.
    pub(super) fn reserved(&self, now: Tick) -> u64 {
        [&self.current, &self.next]
            .into_iter()
            .flatten()
            .filter(|pocket| pocket.from > now)
            .map(Pocket::left)
            .sum()
    }

    /// Says whether nothing is lost if the purse is forgotten.
    pub(super) fn is_idle(&self, now: Tick) -> bool {
        let quiet = now.since(self.touched) >= self.terms.lasts;
        self.left() == 0 && self.held == 0 && self.drawing.is_none() && quiet
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
