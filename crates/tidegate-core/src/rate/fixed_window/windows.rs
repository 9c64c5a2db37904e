//! Windows one after another, for settling: which of them a charge acts in, and what is left when it is undone.
//!
//! A rolling window stands where its first charge put it. When that charge is undone and later ones are left, they would have
//! opened a window of their own, later, and one that ended with the charge that is gone would forget them too soon. When the first
//! of those left acted is not known; so the window begins anew at the settlement, and all of them count as acting by its beginning.
//! It stays there until the last of *them* is undone: no charge is ever held up twice, and none by more than a period.

use core::time::Duration;

use smallvec::SmallVec;

use super::{FixedWindow, FixedWindowState, OPENER, Window};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::Receipt;
use crate::rate::carried::Carried;
use crate::rate::settle::MOST_UNITS;
use crate::time::Tick;

/// The most windows remembered before the newest. Who reserves further ahead than this can still settle, but of what acts in
/// windows forgotten nothing comes back, and the limit stays closed over them.
pub(super) const MOST_BEFORE: u64 = 64;

/// One window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: Tick,
    pub(super) through: Tick,
    pub(super) used: u64,
    /// The first tick at which something in it may have acted: before `start` once it has begun anew.
    pub(super) opened: Tick,
    /// Units that act by `start`, once it has begun anew; zero while its opener stands for them.
    pub(super) early: u64,
}

/// What most keys never need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct More {
    pub(super) opened: Tick,
    pub(super) early: u64,
    /// The windows before the newest that are not past, oldest first; none is empty.
    pub(super) before: Vec<Span>,
    /// Windows between now and the oldest were forgotten, with promises in them.
    pub(super) gap: bool,
    pub(super) carried: Option<Carried>,
}

impl FixedWindowState {
    pub(super) fn opened(&self) -> Tick {
        self.more.as_ref().filter(|more| more.early > 0).map_or(self.start, |more| more.opened)
    }

    pub(super) fn carried(&self) -> Option<Carried> {
        self.more.as_ref().and_then(|more| more.carried)
    }

    pub(super) fn before(&self) -> &[Span] {
        self.more.as_ref().map_or(&[], |more| &more.before)
    }

    pub(super) fn gap(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.gap)
    }

    /// The newest window.
    pub(super) fn top(&self) -> Span {
        let early = self.more.as_ref().map_or(0, |more| more.early);
        let Self { start, through, used, .. } = *self;
        Span { start, through, used, opened: self.opened(), early }
    }

    /// Puts a state together and leaves out what says nothing any more.
    pub(super) fn of(
        last: Tick,
        top: Span,
        mut before: Vec<Span>,
        mut gap: bool,
        carried: Option<Carried>,
    ) -> Self {
        before.retain(|span| span.through >= last);
        if !is_in_order(&before, &top) {
            // Only parameters that the state was not made under lead here; forgetting gives nobody anything.
            before.clear();
            gap = true;
        }
        let gap = gap && before.first().unwrap_or(&top).start > last;
        let Span { start, through, used, early, .. } = top;
        let opened = if early > 0 { top.opened } else { start };
        let state = Self { last, start, through, used, more: None };
        // A charge older than the change can act in no window opened after its latest act.
        let oldest =
            if state.counts(last) { before.first().map_or(opened, |span| span.opened) } else { last };
        let carried = carried.filter(|carried| carried.until() >= oldest);
        if early == 0 && before.is_empty() && !gap && carried.is_none() {
            return state;
        }
        Self { more: Some(Box::new(More { opened, early, before, gap, carried })), ..state }
    }

    pub(super) fn with_carried(self, carried: Carried) -> Self {
        Self::of(self.last, self.top(), Vec::new(), false, Some(carried))
    }

    /// Counts units in the newest window, which has not ended.
    pub(super) fn joined(&self, at: Tick, units: u64) -> Self {
        let used = self.used.saturating_add(units).min(MOST_UNITS);
        if self.more.is_none() {
            return Self { last: at, used, more: None, ..*self };
        }
        let mut top = self.top();
        top.used = used;
        if top.early > 0 && at <= top.start {
            top.early = top.early.saturating_add(units).min(used);
        }
        Self::of(at, top, self.before().to_vec(), self.gap(), self.carried())
    }
}

/// Says whether windows follow one another.
pub(super) fn is_in_order(before: &[Span], newest: &Span) -> bool {
    before.iter().chain([newest]).is_sorted_by(|a, b| a.opened < b.opened && a.start <= b.start)
}

impl FixedWindow {
    /// Opens a window for units that act at `act`.
    pub(super) fn open(&self, state: &FixedWindowState, at: Tick, act: Tick, units: u64) -> FixedWindowState {
        let (start, through) = self.window_at(act);
        let top = Span { start, through, used: units.min(MOST_UNITS), opened: start, early: 0 };
        if act <= at {
            // Nothing before it is left to settle.
            return FixedWindowState::of(at, top, Vec::new(), false, state.carried());
        }
        let (mut before, mut gap) = (state.before().to_vec(), state.gap());
        before.push(state.top());
        if before.len() as u64 > MOST_BEFORE {
            before.remove(0);
            gap = true;
        }
        FixedWindowState::of(at, top, before, gap, state.carried())
    }

    /// Takes units out of the window in which the charge acts.
    pub(super) fn give_back(
        &self,
        state: &FixedWindowState,
        at: Tick,
        receipt: &Receipt,
        back: u64,
    ) -> FixedWindowState {
        if !state.counts(at) {
            return state.clone();
        }
        let undone = back == receipt.cost.units();
        let mut spans: SmallVec<[Span; 2]> = SmallVec::from_slice(state.before());
        spans.push(state.top());
        spans.retain(|span| span.through >= at);
        // Windows that begin anew overlap the first tick of the next, so the newest that was open by then is the one.
        let found = spans.iter().rposition(|span| span.opened <= receipt.act);
        let outdated = state.carried().is_some_and(|carried| carried.outdates(receipt));
        match found.filter(|found| receipt.act <= spans[*found].through) {
            Some(found) if outdated => {
                // Nothing comes back, but it may have been the one that opened the window.
                let rolls = matches!(self.window, Window::Rolling(_));
                if !(undone && rolls) || receipt.act > spans[found].start {
                    return state.clone();
                }
                self.begin_anew(&mut spans[found..], at);
            }
            Some(found) => {
                let span = &mut spans[found];
                let stood = if span.early > 0 {
                    receipt.act > span.start || back < span.early
                } else {
                    receipt.marks().0 != OPENER || !undone
                };
                if span.early > 0 && receipt.act <= span.start {
                    span.early = span.early.saturating_sub(back).max(1);
                }
                span.used = span.used.saturating_sub(back);
                span.early = span.early.min(span.used);
                if span.used > 0 && !stood {
                    self.begin_anew(&mut spans[found..], at);
                }
            }
            // Of a window forgotten among those ahead. It may have been the opener; then all that follow have begun too early, by less
            // than a period from where they were opened.
            None if undone && state.gap() && !outdated && self.precedes(receipt, &spans[0]) => {
                let late = spans[0].opened.after(self.period());
                self.shift(&mut spans, late);
            }
            None => return state.clone(),
        }
        let mut gap = state.gap();
        let newest = spans.pop().expect("the newest window has not ended");
        spans.retain(|span| span.used > 0);
        let top = match spans.last() {
            // Nobody is left in a window opened ahead of time: the one before it is open again.
            Some(_) if newest.used == 0 => spans.pop().expect("there is one"),
            None if newest.used == 0 && !(gap && newest.start > at) => {
                gap = false;
                Span { start: Tick::EPOCH, through: Tick::EPOCH, used: 0, opened: Tick::EPOCH, early: 0 }
            }
            _ => newest,
        };
        FixedWindowState::of(at, top, spans.into_vec(), gap, state.carried())
    }

    /// Begins the first of these windows anew at a tick, unless it begins later anyway; those behind it make way.
    fn begin_anew(&self, spans: &mut [Span], at: Tick) {
        let late = spans.first().map_or(at, |first| first.start.max(at));
        self.shift(spans, late);
        if let (Some(first), Window::Rolling(_)) = (spans.first_mut(), &self.window) {
            first.early = first.used;
        }
    }

    /// Moves rolling windows on so that the first begins at `late` or after it, and none before the one in front of it ends.
    fn shift(&self, spans: &mut [Span], mut late: Tick) {
        if matches!(self.window, Window::Calendar(_)) {
            return;
        }
        for span in spans {
            if span.start < late {
                let (start, through) = self.window_at(late);
                *span = Span { start, through, early: span.used, ..*span };
            }
            late = span.through.after(Duration::from_nanos(1));
        }
    }

    fn precedes(&self, receipt: &Receipt, span: &Span) -> bool {
        matches!(self.window, Window::Rolling(_)) && span.used > 0 && receipt.act < span.opened
    }
}

impl Bytes for Span {
    fn write(&self, out: &mut Writer) {
        out.tick(self.start);
        out.tick(self.through);
        out.u64(self.used);
        out.tick(self.opened);
        out.u64(self.early);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (start, through, used) = (from.tick()?, from.tick()?, from.u64()?);
        let (opened, early) = (from.tick()?, from.u64()?);
        if start > through || opened > start || (early == 0 && opened < start) {
            return Err(DecodeError::Value { field: "window" });
        }
        if used > MOST_UNITS || early > used {
            return Err(DecodeError::Value { field: "used" });
        }
        Ok(Self { start, through, used, opened, early })
    }
}

impl Bytes for FixedWindowState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.last);
        self.top().write(out);
        out.u8(u8::from(self.gap()));
        self.carried().write(out);
        out.u64(self.before().len() as u64);
        for span in self.before() {
            span.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (last, top) = (from.tick()?, Span::read(from)?);
        let gap = match from.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Value { field: "gap" }),
        };
        let (carried, count) = (Option::<Carried>::read(from)?, from.u64()?);
        if count > MOST_BEFORE {
            return Err(DecodeError::Value { field: "windows" });
        }
        let mut before: Vec<Span> = Vec::new();
        for _ in 0..count {
            before.push(Span::read(from)?);
        }
        if !is_in_order(&before, &top) || before.iter().any(|span| span.used == 0) {
            return Err(DecodeError::Value { field: "windows" });
        }
        Ok(Self::of(last, top, before, gap, carried))
    }
}
