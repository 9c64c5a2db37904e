//! The state of a fixed window: the window in use, and what settling has to know of earlier ones.

use core::time::Duration;

use smallvec::SmallVec;

use super::{FixedWindow, Window};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::Receipt;
use crate::rate::exact::{AHEAD, AHEAD_IN_ENGINE, MOST_UNITS, until, wide};
use crate::rate::ledger::Carried;
use crate::time::Tick;

/// The state of [`FixedWindow`] for one key, 40 bytes: the window, and the units spent in it. On
/// the heap, 72 bytes while a change of parameters, an undone opening charge or a window opened ahead of time matters,
/// and 40 for each window kept before the newest, at most 4,096 of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindowState {
    pub(super) last: Tick,
    /// First tick of the window; later than `last` if a reservation has opened it ahead of time.
    pub(super) start: Tick,
    /// Last tick of the window. Not the tick after it, so that the window that holds [`Tick::MAX`] has an end too.
    pub(super) through: Tick,
    pub(super) used: u64,
    pub(super) more: Option<Box<More>>,
}

/// The window of a [`FixedWindowState`] that holds nothing else, for stores that keep these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneWindow {
    /// The tick of the last change.
    pub last: Tick,
    /// The first tick of the window, not after `last`.
    pub start: Tick,
    /// The last tick of the window.
    pub through: Tick,
    /// Units spent in it.
    pub used: u64,
}

/// The mark in the receipt of a charge that opened a window.
pub(super) const OPENER: u128 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: Tick,
    pub(super) through: Tick,
    pub(super) used: u64,
    /// The first tick at which a unit in it may have acted: before `start` once the window has started anew.
    pub(super) opened: Tick,
    /// Units that count as acting by `start`, once the window has started anew; zero while its opening charge stands.
    pub(super) units_by_start: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct More {
    pub(super) opened: Tick,
    pub(super) units_by_start: u64,
    /// The windows before the newest that are not over, oldest first; none is empty.
    pub(super) before: Vec<Span>,
    /// Whether windows between now and the oldest, with promises in them, were forgotten: by a change of the limit, or
    /// by a version that kept fewer windows.
    pub(super) gap: bool,
    pub(super) carried: Option<Carried>,
}

impl FixedWindowState {
    /// Returns the window if it is all that the state holds. `None`: the state holds more, because of windows opened
    /// ahead of time, a change of the limit, or settlements that moved a window.
    #[must_use]
    pub fn one_window(&self) -> Option<OneWindow> {
        let Self { last, start, through, used, .. } = *self;
        (self.more.is_none() && start <= last).then_some(OneWindow { last, start, through, used })
    }

    /// Returns the state that consists of one window.
    #[must_use]
    pub const fn of_one_window(window: OneWindow) -> Self {
        let OneWindow { last, start, through, used } = window;
        Self { last, start, through, used, more: None }
    }

    /// The size of the largest state in byte form, with the windows ahead that an engine has room for.
    pub(super) const LARGEST: usize = 8 + 40 + 1 + Carried::LARGEST + 8 + AHEAD_IN_ENGINE * 40;

    /// Says whether the window still counts at `at`: units were spent in it, or a reservation has moved its start ahead.
    pub(super) const fn counts(&self, at: Tick) -> bool {
        let (at, start) = (at.as_nanos(), self.start.as_nanos());
        at <= self.through.as_nanos() && (self.used > 0 || start > at)
    }

    pub(super) fn end(&self) -> u128 {
        wide(self.through) + 1
    }

    pub(super) fn opened(&self) -> Tick {
        self.more.as_ref().filter(|more| more.units_by_start > 0).map_or(self.start, |more| more.opened)
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

    /// Returns the wait until there is room for one more window ahead of time; zero if there is.
    pub(super) fn room(&self, at: Tick) -> Duration {
        let before = self.before();
        if before.len() < AHEAD {
            return Duration::ZERO;
        }
        let still = &before[before.partition_point(|span| span.through < at)..];
        let many = still.len().checked_sub(AHEAD);
        many.map_or(Duration::ZERO, |many| until(at, wide(still[many].through) + 1))
    }

    pub(super) fn top(&self) -> Span {
        let units_by_start = self.more.as_ref().map_or(0, |more| more.units_by_start);
        let Self { start, through, used, .. } = *self;
        Span { start, through, used, opened: self.opened(), units_by_start }
    }

    pub(super) fn of(
        last: Tick,
        top: Span,
        mut before: Vec<Span>,
        mut gap: bool,
        carried: Option<Carried>,
    ) -> Self {
        before.retain(|span| span.through >= last);
        if !is_in_order(&before, &top) {
            // Happens only under other parameters than those the state was made under. Forgetting these windows frees
            // no capacity.
            before.clear();
            gap = true;
        }
        let gap = gap && before.first().unwrap_or(&top).start > last;
        let Span { start, through, used, units_by_start, .. } = top;
        let opened = if units_by_start > 0 { top.opened } else { start };
        let state = Self { last, start, through, used, more: None };
        // A charge made before the change cannot act in a window that opened after the latest act of such charges.
        let oldest =
            if state.counts(last) { before.first().map_or(opened, |span| span.opened) } else { last };
        let carried = carried.filter(|carried| carried.until() >= oldest);
        if units_by_start == 0 && before.is_empty() && !gap && carried.is_none() {
            return state;
        }
        Self { more: Some(Box::new(More { opened, units_by_start, before, gap, carried })), ..state }
    }

    pub(super) fn shifted(&self, by: i64) -> Self {
        let moved = |span: &Span| Span {
            start: span.start.shifted(by),
            through: span.through.shifted(by),
            opened: span.opened.shifted(by),
            ..*span
        };
        let carried = self.carried().map(|carried| carried.shifted(by));
        let before = self.before().iter().map(moved).collect();
        Self::of(self.last.shifted(by), moved(&self.top()), before, self.gap(), carried)
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
        if top.units_by_start > 0 && at <= top.start {
            top.units_by_start = top.units_by_start.saturating_add(units).min(used);
        }
        Self::of(at, top, self.before().to_vec(), self.gap(), self.carried())
    }
}

pub(super) fn is_in_order(before: &[Span], newest: &Span) -> bool {
    before.iter().chain([newest]).is_sorted_by(|a, b| a.opened < b.opened && a.start <= b.start)
}

impl Bytes for Span {
    fn write(&self, out: &mut Writer) {
        out.tick(self.start);
        out.tick(self.through);
        out.u64(self.used);
        out.tick(self.opened);
        out.u64(self.units_by_start);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (start, through, used) = (from.tick()?, from.tick()?, from.u64()?);
        let (opened, units_by_start) = (from.tick()?, from.u64()?);
        if start > through || opened > start || (units_by_start == 0 && opened < start) {
            return Err(DecodeError::Value { field: "window" });
        }
        if used > MOST_UNITS || units_by_start > used {
            return Err(DecodeError::Value { field: "used" });
        }
        Ok(Self { start, through, used, opened, units_by_start })
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
        if count > AHEAD as u64 {
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

// If the first charge of a rolling window is undone and later ones are left, a window that kept its end would forget them
// too soon. The tick at which the first of them acted is not known. So the window starts anew at the settlement, and all
// of them count as acting by its beginning. It stays there until the last of *them* is undone: no charge is ever held up
// twice, and none by more than a period.

impl FixedWindow {
    pub(super) fn open(&self, state: &FixedWindowState, at: Tick, act: Tick, units: u64) -> FixedWindowState {
        let (start, through) = self.around(act);
        let top = Span { start, through, used: units.min(MOST_UNITS), opened: start, units_by_start: 0 };
        if act <= at {
            // No earlier window is left to settle.
            return FixedWindowState::of(at, top, Vec::new(), false, state.carried());
        }
        let mut before = state.before().to_vec();
        before.push(state.top());
        FixedWindowState::of(at, top, before, state.gap(), state.carried())
    }

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
        // A window that started anew overlaps the first tick of the next. So the right one is the newest that was open by then.
        let found = spans.iter().rposition(|span| span.opened <= receipt.act);
        let outdated = state.carried().is_some_and(|carried| carried.outdates(receipt));
        match found.filter(|found| receipt.act <= spans[*found].through) {
            Some(found) if outdated => {
                // Nothing comes back, but the charge may have opened the window.
                let rolls = matches!(self.window, Window::Rolling(_));
                if !(undone && rolls) || receipt.act > spans[found].start {
                    return state.clone();
                }
                self.begin_anew(&mut spans[found..], at);
            }
            Some(found) => {
                let span = &mut spans[found];
                let stood = if span.units_by_start > 0 {
                    receipt.act > span.start || back < span.units_by_start
                } else {
                    receipt.marks().0 != OPENER || !undone
                };
                if span.units_by_start > 0 && receipt.act <= span.start {
                    span.units_by_start = span.units_by_start.saturating_sub(back).max(1);
                }
                span.used = span.used.saturating_sub(back);
                span.units_by_start = span.units_by_start.min(span.used);
                if span.used > 0 && !stood {
                    self.begin_anew(&mut spans[found..], at);
                }
            }
            // The charge may have opened a forgotten window ahead. Then all that follow have begun too early, by less
            // than a period.
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
            // Nobody is left in a window opened ahead of time, so the one before it is open again.
            Some(_) if newest.used == 0 => spans.pop().expect("there is one"),
            None if newest.used == 0 && !(gap && newest.start > at) => {
                gap = false;
                Span {
                    start: Tick::EPOCH,
                    through: Tick::EPOCH,
                    used: 0,
                    opened: Tick::EPOCH,
                    units_by_start: 0,
                }
            }
            _ => newest,
        };
        FixedWindowState::of(at, top, spans.into_vec(), gap, state.carried())
    }

    /// Starts the first of these windows anew at a tick, unless it begins later anyway; those behind it make way.
    fn begin_anew(&self, spans: &mut [Span], at: Tick) {
        let late = spans.first().map_or(at, |first| first.start.max(at));
        self.shift(spans, late);
        if let (Some(first), Window::Rolling(_)) = (spans.first_mut(), &self.window) {
            first.units_by_start = first.used;
        }
    }

    /// Moves rolling windows on: the first to `late` or later, each other one after the end of the one before.
    fn shift(&self, spans: &mut [Span], mut late: Tick) {
        if matches!(self.window, Window::Calendar(_)) {
            return;
        }
        for span in spans {
            if span.start < late {
                let (start, through) = self.around(late);
                *span = Span { start, through, units_by_start: span.used, ..*span };
            }
            late = span.through.after(Duration::from_nanos(1));
        }
    }

    fn precedes(&self, receipt: &Receipt, span: &Span) -> bool {
        matches!(self.window, Window::Rolling(_)) && span.used > 0 && receipt.act < span.opened
    }
}
