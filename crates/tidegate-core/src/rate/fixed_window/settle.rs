//! Settling a fixed window: in which window a charge acts, and what is left when it is undone.
//!
//! The first charge determines where a rolling window stands. If that charge is undone and later ones are left, those
//! would have opened a window of their own, later. A window that kept its end would forget them too soon. The tick at
//! which the first of them acted is not known. So the window starts anew at the settlement, and all of them count as
//! acting by its beginning. It stays there until the last of *them* is undone: no charge is ever held up twice, and
//! none by more than a period.

use core::time::Duration;

use smallvec::SmallVec;

use super::state::{FixedWindowState, OPENER, Span};
use super::{FixedWindow, Window};
use crate::decision::Receipt;
use crate::rate::windows::MOST_UNITS;
use crate::time::Tick;

impl FixedWindow {
    /// Opens a window for units that act at `act`.
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
            // The charge acts in a forgotten window ahead, and may have opened it. Then all windows that follow have
            // begun too early, by less than a period.
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

    /// Moves rolling windows on, so that the first begins at `late` or later, and each of the others after the end of
    /// the one before.
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
