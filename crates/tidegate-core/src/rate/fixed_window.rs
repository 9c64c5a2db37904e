//! The fixed window: a number of units per window, counted from zero in each one.
//!
//! Any span of one window's length may see up to twice the limit, around an edge. Where that matters, use a sliding
//! limit.
//!
//! A *rolling* window opens at the first charge and lasts its period, so that "100 per hour" starts with the caller,
//! not on the hour. A *calendar* one follows the clock of a place ([`CalendarUnit`]). The state holds both edges of
//! the window, so a charge inside it costs two comparisons and no time-zone arithmetic. Every tick in the state of a
//! calendar window is one of the wall clock. A clock's own ticks ([`WallAhead`]) are converted on the way in and out,
//! so a wall clock that is set moves no unit to another window.
//!
//! A reservation that does not fit the window opens the next one ahead of time. From then on nobody acts in the
//! earlier window, because first come is first served; it is kept only for settling.

mod state;

use core::time::Duration;

use super::calendar::{Calendar, CalendarUnit};
use super::exact::{above, excess, grant, share, until, wide};
use super::ledger::Carried;
use crate::algorithm::{Algorithm, Storable};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::error::QuotaError;
use crate::time::{MAX_STEP_BACK, Rate, Tick, WallAhead};
use state::{OPENER, Span};

pub use state::{FixedWindowState, OneWindow};

/// A count per window, rolling from the first charge or aligned to the calendar.
///
/// Cheap to clone: a calendar shares its time zone.
///
/// # Examples
/// ```
/// # #[cfg(feature = "tz")] {
/// use tidegate_core::rate::{CalendarUnit, FixedWindow};
/// use tidegate_core::{Algorithm, Ask, Cost, Retry, Tick, Transition};
///
/// let daily = FixedWindow::calendar(5, CalendarUnit::Day, "America/New_York")?;
/// let now = Tick::from_secs(1_762_059_600); // 2025-11-02, 01:00: the clocks go back an hour tonight
/// let ask = Ask::allow(now, Cost::new(5).unwrap());
/// let Transition::Allowed { next, .. } = daily.decide(&daily.fresh(now), ask) else { panic!() };
/// let denied = daily.decide(&next, Ask::allow(now, Cost::ONE));
/// assert_eq!(denied, Transition::Denied { retry: Retry::After(std::time::Duration::from_secs(24 * 3600)) });
/// # }
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    window: Window,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Window {
    Rolling(Rate),
    Calendar(Calendar),
}

impl FixedWindow {
    /// Makes a window that opens at the first charge, lasts the period of `rate` and grants its count.
    #[must_use]
    pub const fn rolling(rate: Rate) -> Self {
        Self { limit: rate.count(), window: Window::Rolling(rate) }
    }

    /// Makes a window of one `unit` on the clock of `zone` that grants `limit` units, from 1 to [`Rate::MAX_COUNT`].
    /// `zone` is an IANA name in any case. The zone `epoch` has windows of the unit's usual length, one after the
    /// other since 1970. Without the feature `tz`, `UTC` is the only place.
    ///
    /// # Errors
    /// [`QuotaError::Count`] when the limit is out of range, [`QuotaError::Parameter`] when the zone is not known;
    /// [`zone_names`](super::zone_names) lists those that are.
    pub fn calendar(limit: u64, unit: CalendarUnit, zone: &str) -> Result<Self, QuotaError> {
        if limit == 0 || limit > Rate::MAX_COUNT {
            return Err(QuotaError::Count { count: limit });
        }
        Ok(Self { limit, window: Window::Calendar(Calendar::new(unit, zone)?) })
    }

    /// Returns how many units one window grants.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the period of a rolling window, or the usual length of the calendar unit.
    #[must_use]
    pub const fn period(&self) -> Duration {
        match &self.window {
            Window::Rolling(rate) => rate.period(),
            Window::Calendar(calendar) => calendar.unit().usual(),
        }
    }

    /// Returns the unit and the zone of a calendar window; `None` for a rolling one.
    #[must_use]
    pub fn calendar_parts(&self) -> Option<(CalendarUnit, &str)> {
        match &self.window {
            Window::Rolling(_) => None,
            Window::Calendar(calendar) => Some((calendar.unit(), calendar.zone())),
        }
    }

    /// Returns the first and the last tick of the window into which a first charge at `tick` falls.
    ///
    /// Only this call does time-zone arithmetic, for a calendar window: a few hundred nanoseconds.
    #[must_use]
    pub fn window_at(&self, tick: Tick) -> (Tick, Tick) {
        let ahead = self.ahead();
        let (first, last) = self.around(tick.shifted(ahead));
        (first.shifted(-ahead), last.shifted(-ahead))
    }

    fn around(&self, tick: Tick) -> (Tick, Tick) {
        match &self.window {
            Window::Rolling(rate) => (tick, tick.after(Duration::from_nanos(rate.period_nanos() - 1))),
            Window::Calendar(calendar) => calendar.around(tick),
        }
    }

    /// Returns how far the ticks of a state are ahead of a clock's, in nanoseconds.
    #[inline]
    fn ahead(&self) -> i64 {
        match &self.window {
            Window::Rolling(_) => 0,
            Window::Calendar(calendar) => calendar.ahead(),
        }
    }

    pub(crate) fn follow_wall(&self, wall: &WallAhead) {
        if let Window::Calendar(calendar) = &self.window {
            calendar.follow(wall);
        }
    }

    const fn blank(last: Tick) -> FixedWindowState {
        FixedWindowState { last, start: Tick::EPOCH, through: Tick::EPOCH, used: 0, more: None }
    }
}

impl FixedWindow {
    /// Returns the record of a change at `last`, by which older receipts are told from newer ones.
    fn change(&self, state: &FixedWindowState, last: Tick) -> Carried {
        let latest = last.max(state.start);
        // A calendar window may have begun before the change, so older charges can act in it until it ends.
        let until = if self.calendar_parts().is_some() { self.around(latest).1 } else { latest };
        Carried::new(last, until, state.carried())
    }
}

impl Storable for FixedWindow {
    type State = FixedWindowState;

    fn last_change(&self, state: &FixedWindowState) -> Option<Tick> {
        Some(state.last.shifted(-self.ahead()))
    }

    /// A rolling window moves back with the clock. Calendar windows keep their places. If `to` lies in the window
    /// just before the key's own, that is over for this key: it waits until its own window comes again. Otherwise the
    /// units count in the window around `to`.
    fn set_back(&self, state: &FixedWindowState, to: Tick) -> FixedWindowState {
        let to = match &self.window {
            Window::Rolling(_) => to,
            // The edges do not move with the clock, so the key need not stand still until it catches up.
            Window::Calendar(calendar) => to.before(MAX_STEP_BACK).shifted(calendar.ahead()),
        };
        let (from, back) = (state.last, state.last.since(to));
        let carried = self.change(state, from);
        if !state.counts(from) {
            return Self::blank(to).with_carried(carried);
        }
        let waits = |calendar: &Calendar| {
            let before = state.start.before(Duration::from_nanos(1));
            if state.start > from { state.gap() } else { to < state.start && calendar.around(to).1 == before }
        };
        if matches!(&self.window, Window::Calendar(calendar) if waits(calendar)) {
            return FixedWindowState::of(to, state.top(), Vec::new(), true, Some(carried));
        }
        let promised = state.start > from;
        let mut start = state.start.before(back);
        let through = match &self.window {
            Window::Rolling(_) => state.through.before(back),
            Window::Calendar(calendar) => {
                let (first, through) = calendar.around(start.max(to));
                start = if promised { start } else { first };
                through
            }
        };
        let opened = state.opened().before(back).min(start);
        let top = Span { start, through, used: state.used, opened, units_by_start: state.used };
        FixedWindowState::of(to, top, Vec::new(), promised, Some(carried))
    }

    fn largest(&self) -> usize {
        FixedWindowState::LARGEST
    }
}

impl Algorithm for FixedWindow {
    type State = FixedWindowState;

    fn fresh(&self, now: Tick) -> FixedWindowState {
        Self::blank(now.shifted(self.ahead()))
    }

    fn decide(&self, state: &FixedWindowState, ask: Ask) -> Transition<FixedWindowState> {
        match self.ahead() {
            0 => self.decide_by_state(state, ask),
            ahead => self.decide_by_wall(state, ask, ahead),
        }
    }

    fn standing(&self, state: &FixedWindowState, now: Tick) -> Standing {
        let at = now.shifted(self.ahead()).max(state.last);
        let limit = self.limit;
        if !state.counts(at) {
            return Standing { limit, remaining: limit, debt: 0, reset_after: Duration::ZERO };
        }
        let remaining = if state.start > at { 0 } else { limit.saturating_sub(state.used) };
        let full = if state.used == 0 { wide(state.start) } else { state.end() };
        Standing { limit, remaining, debt: above(state.used, limit), reset_after: until(at, full) }
    }

    /// Takes unused units out of the window in which the charge acts, unless that window is over. The windows after
    /// it stay where they are.
    ///
    /// If a rolling window's opening charge is undone and nothing else acted in it, the window was never opened. If
    /// units that acted later are left, the window starts anew at this tick, so that none of them is forgotten sooner
    /// than in a window of its own: each is held up once and by less than a period. A window that was opened ahead of
    /// time and is emptied again leaves the one before it open.
    ///
    /// Units used beyond the charge count in the window of `now`, or in the last one opened ahead of time. The
    /// windows that follow are not filled. The window may then stand above its limit, and the next request waits for
    /// its end.
    fn settle(&self, state: &FixedWindowState, now: Tick, receipt: &Receipt, used: u64) -> FixedWindowState {
        let at = now.shifted(self.ahead()).max(state.last);
        match receipt.cost.units().checked_sub(used) {
            Some(0) => state.clone(),
            Some(back) => self.give_back(state, at, &by_wall(receipt), back),
            None if state.counts(at) => state.joined(at, excess(receipt, used)),
            None => self.open(state, at, at, excess(receipt, used)),
        }
    }

    /// Carries the count over for as long as the old window lasts. A rolling window keeps its start, or starts at the
    /// change if it would have been over by the last change under the new period. A window opened ahead of time keeps
    /// its start and its units, because they are promises.
    fn carry(&self, old: &Self, state: &FixedWindowState, now: Tick, how: Replace) -> FixedWindowState {
        // Only between a rolling window and a calendar are the ticks of the states different ones.
        let state = &match (&old.window, &self.window) {
            (Window::Rolling(_), Window::Calendar(_)) => state.shifted(self.ahead()),
            (Window::Calendar(_), Window::Rolling(_)) => state.shifted(-old.ahead()),
            _ => state.clone(),
        };
        let last = now.shifted(self.ahead()).max(state.last);
        let carried = self.change(state, last);
        if how == Replace::Reset || !state.counts(last) {
            return Self::blank(last).with_carried(carried);
        }
        let promised = state.start > last;
        let used = match how {
            Replace::Proportional if !promised => share(state.used, self.limit, old.limit),
            _ => state.used,
        };
        let (start, through) = match &self.window {
            Window::Rolling(_) => {
                let (start, through) = self.around(state.start);
                if through < state.last { self.around(state.last) } else { (start, through) }
            }
            Window::Calendar(calendar) => {
                let (start, through) = calendar.around(last.max(state.start));
                (if promised { state.start } else { start }, through)
            }
        };
        let opened = state.opened().min(start);
        let top = Span { start, through, used, opened, units_by_start: used };
        FixedWindowState::of(last, top, Vec::new(), promised, Some(carried))
    }

    fn full_at(&self, state: &FixedWindowState) -> Option<Tick> {
        let full = if state.used == 0 { wide(state.start) } else { state.end() };
        let outdated = state.carried().map_or(0, |carried| wide(carried.until()) + 1);
        u64::try_from(full.max(outdated)).ok().map(|full| Tick::from_nanos(full).shifted(-self.ahead()))
    }
}

/// The upper half of a mark's second number where the lower half says how far the wall clock was ahead. Positions,
/// which receipts of other algorithms have there, are not as large as this.
const BY_WALL: u128 = 0x7761_6c6c;

/// Returns a receipt with its ticks by the wall clock, as that stood when the charge was made.
fn by_wall(receipt: &Receipt) -> Receipt {
    let second = receipt.marks().1;
    if second >> 64 != BY_WALL << 32 {
        return *receipt;
    }
    // The low half.
    let ahead = second as i64;
    Receipt { at: receipt.at.shifted(ahead), act: receipt.act.shifted(ahead), ..*receipt }
}

impl FixedWindow {
    /// Decides a request whose ticks are `ahead` nanoseconds behind the wall clock, and notes that in the receipt.
    #[cold]
    fn decide_by_wall(&self, state: &FixedWindowState, ask: Ask, ahead: i64) -> Transition<FixedWindowState> {
        let ask = Ask { now: ask.now.shifted(ahead), ..ask };
        match self.decide_by_state(state, ask) {
            Transition::Allowed { wait, next, receipt } => {
                let mark =
                    Receipt::mark(receipt.marks().0, BY_WALL << 96 | u128::from(ahead.cast_unsigned()));
                let (at, act) = (receipt.at.shifted(-ahead), receipt.act.shifted(-ahead));
                Transition::Allowed { wait, next, receipt: Receipt { at, act, mark, ..receipt } }
            }
            denied @ Transition::Denied { .. } => denied,
        }
    }

    #[inline]
    fn decide_by_state(&self, state: &FixedWindowState, ask: Ask) -> Transition<FixedWindowState> {
        let units = ask.cost.units();
        if units > self.limit {
            return Transition::NEVER;
        }
        let at = ask.now.max(state.last);
        let counts = state.counts(at);
        let fits = counts && state.used.saturating_add(units) <= self.limit;
        let place = match (counts, fits) {
            (false, _) => wide(at),
            (true, true) => wide(at.max(state.start)),
            (true, false) => state.end(),
        };
        let room = if counts && !fits { state.room(at) } else { Duration::ZERO };
        let (act, wait) = match grant(ask, at, place, room) {
            Ok(granted) => granted,
            Err(refused) => return refused,
        };
        let receipt =
            Receipt { at, act, cost: ask.cost, mark: Receipt::mark(if fits { 0 } else { OPENER }, 0) };
        let next = if fits { state.joined(at, units) } else { self.open(state, at, act, units) };
        Transition::Allowed { wait, next, receipt }
    }
}

const ROLLING: u8 = 0;

impl Bytes for FixedWindow {
    fn write(&self, out: &mut Writer) {
        match &self.window {
            Window::Rolling(rate) => {
                out.u8(ROLLING);
                out.rate(*rate);
            }
            Window::Calendar(calendar) => {
                let unit = CalendarUnit::ALL.iter().position(|unit| *unit == calendar.unit());
                // Seven units.
                out.u8(1 + unit.expect("all units are in the list") as u8);
                out.u64(self.limit);
                out.short_str(calendar.zone());
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = from.u8()?;
        if kind == ROLLING {
            return from.rate().map(Self::rolling);
        }
        let unit =
            CalendarUnit::ALL.get(usize::from(kind) - 1).ok_or(DecodeError::Value { field: "window" })?;
        let (limit, zone) = (from.u64()?, from.short_str()?);
        Self::calendar(limit, *unit, zone).map_err(|error| DecodeError::Value {
            field: match error {
                QuotaError::Count { .. } => "limit",
                _ if cfg!(feature = "tz") => "zone",
                _ => "zone, without the feature `tz`",
            },
        })
    }
}

#[cfg(test)]
mod tests;
