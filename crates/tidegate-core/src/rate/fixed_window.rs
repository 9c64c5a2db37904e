//! The fixed window: so many units per window, and a clean slate at its end.
//!
//! The cheapest limit to explain ("5 per day, new at midnight") and to keep: one window and its count. What it costs is
//! the edge: a full window's worth just before the end and another just after it are both within the law, so any span
//! of one window's length may see up to twice the limit. Where that matters, take a sliding one.
//!
//! Windows come in two kinds. A *rolling* one opens at the first charge and lasts its period, so that "100 per hour"
//! starts with the caller, not on the hour. A *calendar* one follows the clock of a place ([`CalendarUnit`]); ticks are
//! then nanoseconds since 1970. Both edges of the window lie in the state, so a charge inside it costs two comparisons
//! and no look at a time zone.
//!
//! A reservation that the window has no room for opens the next one ahead of time. From then on nobody acts in the one
//! before, for first come, first served forbids it; it is kept for settling alone.

mod windows;

use core::time::Duration;

use super::calendar::{Calendar, CalendarUnit};
use super::carried::Carried;
use super::settle::{above, excess, settle, share, until, wide};
use crate::algorithm::Algorithm;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::error::QuotaError;
use crate::time::{Rate, Tick};
use windows::{More, Span};

/// A count per window, rolling from the first charge or aligned to the calendar.
///
/// Cheap to clone: a calendar shares its time zone.
///
/// # Examples
/// ```
/// use tidegate_core::rate::{CalendarUnit, FixedWindow};
/// use tidegate_core::{Algorithm, Ask, Cost, Retry, Tick, Transition};
///
/// let daily = FixedWindow::calendar(5, CalendarUnit::Day, "America/New_York")?;
/// let now = Tick::from_secs(1_762_059_600); // 2025-11-02, 01:00: the clocks go back an hour tonight
/// let ask = Ask::allow(now, Cost::new(5).unwrap());
/// let Transition::Allowed { next, .. } = daily.decide(&daily.fresh(now), ask) else { panic!() };
/// let denied = daily.decide(&next, Ask::allow(now, Cost::ONE));
/// assert_eq!(denied, Transition::Denied { retry: Retry::After(std::time::Duration::from_secs(24 * 3600)) });
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

/// What [`FixedWindow`] remembers of a key: 40 bytes, the window and what was spent in it. On the heap, 100 bytes while a change of
/// parameters or an undone opener matters, and 40 per window that was opened ahead of time, of at most 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindowState {
    last: Tick,
    /// First tick of the window; later than `last` when a reservation has opened it ahead of time.
    start: Tick,
    /// Last tick of the window, so that the one that holds the last tick of all has an end too.
    through: Tick,
    used: u64,
    more: Option<Box<More>>,
}

impl FixedWindow {
    /// Makes a window that opens at the first charge, lasts the period of `rate` and grants its count.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::FixedWindow, Rate};
    /// let hourly = FixedWindow::rolling(Rate::new(100, Duration::from_secs(3600))?);
    /// assert_eq!(hourly.limit(), 100);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn rolling(rate: Rate) -> Self {
        Self { limit: rate.count(), window: Window::Rolling(rate) }
    }

    /// Makes a window of one `unit` on the clock of `zone`, an IANA name in any case, that grants `limit` units, from 1
    /// to [`Rate::MAX_COUNT`].
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

    /// Returns unit and zone of a calendar window; `None` for a rolling one.
    #[must_use]
    pub fn calendar_parts(&self) -> Option<(CalendarUnit, &str)> {
        match &self.window {
            Window::Rolling(_) => None,
            Window::Calendar(calendar) => Some((calendar.unit(), calendar.zone())),
        }
    }

    /// Returns the first and last tick of the window that a first charge at `tick` falls into.
    ///
    /// A calendar does time-zone arithmetic here, and only here: a few hundred nanoseconds.
    #[must_use]
    pub fn window_at(&self, tick: Tick) -> (Tick, Tick) {
        match &self.window {
            Window::Rolling(rate) => (tick, tick.after(Duration::from_nanos(rate.period_nanos() - 1))),
            Window::Calendar(calendar) => calendar.around(tick),
        }
    }
}

impl FixedWindowState {
    /// Says whether the window still counts at `at`: something was spent in it, or a reservation has moved its start
    /// ahead.
    const fn counts(&self, at: Tick) -> bool {
        let (at, start) = (at.as_nanos(), self.start.as_nanos());
        at <= self.through.as_nanos() && (self.used > 0 || start > at)
    }

    /// The tick after the window.
    fn end(&self) -> u128 {
        wide(self.through) + 1
    }
}

/// In the receipt of the charge that opened a window.
const OPENER: u128 = 1;

impl Algorithm for FixedWindow {
    type State = FixedWindowState;

    fn fresh(&self, now: Tick) -> FixedWindowState {
        FixedWindowState { last: now, start: Tick::EPOCH, through: Tick::EPOCH, used: 0, more: None }
    }

    fn decide(&self, state: &FixedWindowState, ask: Ask) -> Transition<FixedWindowState> {
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
        let (act, wait) = match settle(ask, at, place) {
            Ok(settled) => settled,
            Err(refused) => return refused,
        };
        let receipt =
            Receipt { at, act, cost: ask.cost, mark: Receipt::mark(if fits { 0 } else { OPENER }, 0) };
        let next = if fits { state.joined(at, units) } else { self.open(state, at, act, units) };
        Transition::Allowed { wait, next, receipt }
    }

    fn standing(&self, state: &FixedWindowState, now: Tick) -> Standing {
        let at = now.max(state.last);
        let limit = self.limit;
        if !state.counts(at) {
            return Standing { limit, remaining: limit, debt: 0, reset_after: Duration::ZERO };
        }
        let remaining = if state.start > at { 0 } else { limit.saturating_sub(state.used) };
        let full = if state.used == 0 { wide(state.start) } else { state.end() };
        Standing { limit, remaining, debt: above(state.used, limit), reset_after: until(at, full) }
    }

    /// Takes what was not used out of the window in which the charge acts, as long as that is not past; of one that is past nothing
    /// comes back, and what followed it stays where it was.
    ///
    /// A rolling window that this charge opened does not outlive it: undone alone, it was never opened. Undone while units that
    /// acted later are left, it begins anew at this tick, so that none of them is forgotten sooner than in a window of its own;
    /// those left then stand at its beginning, so each is held up once and by less than a period. A window opened ahead of time and
    /// emptied again leaves the one before it open.
    ///
    /// What was used beyond the charge counts in the window of `now`, or in the last that was opened ahead, and is forgotten with
    /// it: the window may stand above its limit, the next ask waits for its end, and the windows that follow are not filled.
    fn settle(&self, state: &FixedWindowState, now: Tick, receipt: &Receipt, used: u64) -> FixedWindowState {
        let at = now.max(state.last);
        match receipt.cost.units().checked_sub(used) {
            Some(0) => state.clone(),
            Some(back) => self.give_back(state, at, receipt, back),
            None if state.counts(at) => state.joined(at, excess(receipt, used)),
            None => self.open(state, at, at, excess(receipt, used)),
        }
    }

    /// Carries the count over for as long as the old window lasts. A rolling window keeps its start, unless it would
    /// have been over by the last change under the new period: then it counts from that change. A window opened ahead
    /// of time keeps its start and its units under [`Replace::Proportional`] too, for they are promises.
    fn carry(&self, old: &Self, state: &FixedWindowState, now: Tick, how: Replace) -> FixedWindowState {
        let last = now.max(state.last);
        let latest = last.max(state.start);
        // A calendar window opens at its first tick, whenever that was; so older charges can act in it until it ends.
        let until = if self.calendar_parts().is_some() { self.window_at(latest).1 } else { latest };
        let carried = Carried::new(last, until, state.carried());
        if how == Replace::Reset || !state.counts(last) {
            return self.fresh(last).with_carried(carried);
        }
        let promised = state.start > last;
        let used = match how {
            Replace::Proportional if !promised => share(state.used, self.limit, old.limit),
            _ => state.used,
        };
        let (start, through) = match &self.window {
            Window::Rolling(_) => {
                let (start, through) = self.window_at(state.start);
                if through < state.last { self.window_at(state.last) } else { (start, through) }
            }
            Window::Calendar(calendar) => {
                let (start, through) = calendar.around(last.max(state.start));
                (if promised { state.start } else { start }, through)
            }
        };
        let opened = state.opened().min(start);
        let top = Span { start, through, used, opened, early: used };
        FixedWindowState::of(last, top, Vec::new(), promised, Some(carried))
    }

    fn full_at(&self, state: &FixedWindowState) -> Option<Tick> {
        let full = if state.used == 0 { wide(state.start) } else { state.end() };
        let outdated = state.carried().map_or(0, |carried| wide(carried.until()) + 1);
        u64::try_from(full.max(outdated)).ok().map(Tick::from_nanos)
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
                // Six units.
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
            field: if matches!(error, QuotaError::Count { .. }) { "limit" } else { "zone" },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Cost;

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_timeline() {
        let limit = FixedWindow::rolling(Rate::new(3, Duration::from_secs(1)).unwrap());
        let mut state = limit.fresh(ms(0));
        // (ms, cost, most wait in ms, answer: wait or least further wait in ms, remaining afterwards)
        for (at, cost, max_wait, expected, remaining) in [
            (500, 1, 0, Ok(0), 2), // opens the window
            (900, 2, 0, Ok(0), 0),
            (900, 1, 0, Err(600), 0),
            (100, 1, 0, Err(600), 0), // a step back stands still at 900
            (1499, 1, 0, Err(1), 0),
            (1500, 2, 0, Ok(0), 1), // opens the next
            (1600, 2, 899, Err(1), 1),
            (1600, 2, 900, Ok(900), 0), // opens the one from 2500 ahead of time
            (1600, 1, 0, Err(900), 0),  // although 1 is left: nobody overtakes
            (2500, 1, 0, Ok(0), 0),
        ] {
            let ask = Ask::within(ms(at), Cost::new(cost).unwrap(), Duration::from_millis(max_wait));
            let answer = match limit.decide(&state, ask) {
                Transition::Allowed { wait, next, .. } => {
                    state = next;
                    Ok(wait.as_millis())
                }
                Transition::Denied { retry } => Err(retry.after().unwrap().as_millis()),
            };
            assert_eq!(answer, expected, "at {at}");
            assert_eq!(limit.standing(&state, ms(at)).remaining, remaining, "at {at}");
        }
    }

    #[test]
    fn cancelling_the_opener_brings_the_window_before_back() {
        let limit = FixedWindow::rolling(Rate::new(5, Duration::from_secs(1)).unwrap());
        let ask = |cost| Ask::within(ms(0), Cost::new(cost).unwrap(), Duration::from_secs(60));
        let Transition::Allowed { next: three, .. } = limit.decide(&limit.fresh(ms(0)), ask(3)) else {
            panic!()
        };
        let Transition::Allowed { next: ahead, receipt, .. } = limit.decide(&three, ask(4)) else { panic!() };
        assert_eq!(receipt.act, ms(1000));
        assert_eq!(limit.standing(&ahead, ms(1)).remaining, 0);
        assert_eq!(limit.settle(&ahead, ms(0), &receipt, 0), three);
        let undone = limit.settle(&ahead, ms(1001), &receipt, 0);
        assert_eq!(limit.standing(&undone, ms(1001)), limit.standing(&limit.fresh(ms(1001)), ms(1001)));
    }

    #[test]
    fn a_changed_limit_keeps_what_was_spent() {
        let per_minute = |count| FixedWindow::rolling(Rate::new(count, Duration::from_secs(60)).unwrap());
        let (old, new) = (per_minute(100), per_minute(50));
        let ask = Ask::allow(ms(0), Cost::new(40).unwrap());
        let Transition::Allowed { next: spent, .. } = old.decide(&old.fresh(ms(0)), ask) else { panic!() };
        let left = |new: &FixedWindow, how| {
            let standing = new.standing(&new.carry(&old, &spent, ms(10), how), ms(10));
            (standing.remaining, standing.reset_after.as_millis())
        };
        assert_eq!(left(&new, Replace::AsIs), (10, 59_990));
        assert_eq!(left(&new, Replace::Proportional), (30, 59_990));
        assert_eq!(left(&new, Replace::Reset), (50, 0));
        let hourly = FixedWindow::calendar(50, CalendarUnit::Hour, "Asia/Kolkata").unwrap();
        assert_eq!(left(&hourly, Replace::AsIs), (10, 1_800_000 - 10), "05:30 there: half an hour to go");
    }

    #[test]
    fn an_unknown_zone_is_named() {
        let error = FixedWindow::calendar(5, CalendarUnit::Day, "Asia/Shangai").unwrap_err();
        assert_eq!(
            error.to_string(),
            "time zone `Asia/Shangai` is not known; use an IANA name such as `Europe/Berlin` or `UTC`"
        );
        let known = FixedWindow::calendar(5, CalendarUnit::Day, "asia/shanghai").unwrap();
        assert_eq!(known.calendar_parts(), Some((CalendarUnit::Day, "Asia/Shanghai")));
    }

    fn charged(
        limit: &FixedWindow,
        state: &FixedWindowState,
        at: u64,
        units: u64,
    ) -> (FixedWindowState, Receipt) {
        let ask = Ask::within(ms(at), Cost::new(units).unwrap(), Duration::from_secs(60));
        let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else { panic!("any wait") };
        (next, receipt)
    }

    /// Somebody who undid the first charge of a window had the limit full again before those charged after it were a window old: asking
    /// and taking it back was worth more than not asking.
    #[test]
    fn a_window_does_not_outlive_the_charge_that_opened_it() {
        let limit = FixedWindow::rolling(Rate::new(5, Duration::from_secs(1)).unwrap());
        let (one, first) = charged(&limit, &limit.fresh(ms(0)), 0, 1);
        let (two, second) = charged(&limit, &one, 900, 4);
        let anew = limit.settle(&two, ms(950), &first, 0);
        assert_eq!(limit.standing(&anew, ms(950)).remaining, 1);
        assert_eq!(limit.standing(&anew, ms(1900)).remaining, 1, "those of 900 count a whole window");
        assert_eq!(limit.standing(&anew, ms(1950)).remaining, 5);
        // What is left of it acts before the window's new beginning, and is still found there.
        assert_eq!(limit.standing(&limit.settle(&anew, ms(1000), &second, 1), ms(1000)).remaining, 4);
        let nothing = limit.settle(&anew, ms(1000), &second, 0);
        assert_eq!(limit.standing(&nothing, ms(1000)), limit.standing(&limit.fresh(ms(1000)), ms(1000)));
        // In part, it stands where it was opened.
        let (two, first) = (charged(&limit, &charged(&limit, &limit.fresh(ms(0)), 0, 2).0, 900, 3).0, first);
        let part = limit.settle(&two, ms(950), &Receipt { cost: Cost::new(2).unwrap(), ..first }, 1);
        assert_eq!(limit.standing(&part, ms(950)).remaining, 1);
        assert_eq!(limit.standing(&part, ms(1000)).remaining, 5);
    }

    #[test]
    fn an_undone_opener_moves_the_windows_that_follow_and_no_promise() {
        let limit = FixedWindow::rolling(Rate::new(2, Duration::from_secs(1)).unwrap());
        let (one, first) = charged(&limit, &limit.fresh(ms(0)), 0, 1);
        let (two, _) = charged(&limit, &one, 400, 1);
        let (ahead, promised) = charged(&limit, &two, 400, 1);
        assert_eq!(promised.act, ms(1000));
        let moved = limit.settle(&ahead, ms(500), &first, 0);
        assert_eq!(charged(&limit, &moved, 500, 1).1.act, ms(1500), "when the one that began anew ends");
        // The one ahead undone, the one before it is open again, where it stands now.
        let back = limit.settle(&moved, ms(600), &promised, 0);
        assert_eq!(limit.standing(&back, ms(600)).remaining, 1);
        assert_eq!(limit.standing(&back, ms(1500)).remaining, 2);
    }

    #[test]
    fn windows_ahead_are_emptied_in_any_order() {
        let limit = FixedWindow::rolling(Rate::new(1, Duration::from_secs(1)).unwrap());
        let (a, _) = charged(&limit, &limit.fresh(ms(0)), 0, 1);
        let (b, second) = charged(&limit, &a, 0, 1);
        let (c, third) = charged(&limit, &b, 0, 1);
        assert_eq!((second.act, third.act), (ms(1000), ms(2000)));
        let only_third = limit.settle(&c, ms(10), &second, 0);
        assert_eq!(charged(&limit, &only_third, 10, 1).1.act, ms(3000), "nobody overtakes the third");
        assert_eq!(limit.settle(&only_third, ms(0), &third, 0).top(), a.top());
        // Far more of them than are remembered: closed over the forgotten ones, and no larger for them.
        let (mut state, mut receipts) = (c, vec![second, third]);
        for _ in 0..200 {
            let (next, receipt) = charged_far(&limit, &state);
            receipts.push(receipt);
            state = next;
            assert!(state.before().len() <= 64);
        }
        for receipt in receipts.iter().rev() {
            state = limit.settle(&state, ms(20), receipt, 0);
        }
        assert_eq!(limit.standing(&state, ms(20)).remaining, 0);
        assert_eq!(limit.standing(&state, ms(202_000)).remaining, 1);
    }

    fn charged_far(limit: &FixedWindow, state: &FixedWindowState) -> (FixedWindowState, Receipt) {
        let ask = Ask::within(ms(0), Cost::ONE, Duration::MAX);
        let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else { panic!("any wait") };
        (next, receipt)
    }

    #[test]
    fn a_debt_stays_in_its_window() {
        let limit = FixedWindow::rolling(Rate::new(5, Duration::from_secs(1)).unwrap());
        let (one, first) = charged(&limit, &limit.fresh(ms(0)), 0, 4);
        let debt = limit.settle(&one, ms(500), &first, 9);
        let standing = limit.standing(&debt, ms(500));
        assert_eq!((standing.remaining, standing.debt, standing.reset_after.as_millis()), (0, 4, 500));
        assert_eq!(charged(&limit, &debt, 500, 5).1.act, ms(1000), "the window that follows is not filled");
        // Told when the window is past, it counts in a window of now.
        let late = limit.settle(&one, ms(3000), &first, 9);
        let standing = limit.standing(&late, ms(3000));
        assert_eq!((standing.remaining, standing.debt, standing.reset_after.as_millis()), (0, 0, 1000));
        let most = limit.settle(&one, ms(500), &first, u64::MAX);
        assert_eq!(limit.standing(&most, ms(500)).debt, Rate::MAX_COUNT - 1);
    }
}
