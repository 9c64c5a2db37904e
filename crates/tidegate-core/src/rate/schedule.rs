//! A limit kept as a schedule: the part that [`Gcra`](super::Gcra), [`LeakyBucket`](super::LeakyBucket) and
//! [`LeakyQueue`](super::LeakyQueue) share.
//!
//! The state is one number, the *arrival time*: the tick at which the limit would be full again if nothing more were
//! asked. With a rate of `c` units per `p` nanoseconds in lowest terms, one unit takes `p/c` ns, which is rarely
//! whole. So the arrival time is kept as *scaled time*, in units of `1/c` ns: a unit takes exactly `p`, a nanosecond
//! exactly `c`, and nothing is rounded until a wait is returned.
//!
//! # Settling
//! Let a charge `i` be made at `t_i`, promised to act at `a_i`, and finally use `u_i`. For each charge `j`, the
//! arrival time `T` stays at least `a_j + Σ u_i` over all `i ≥ j`. Since `a_j ≥ t_j`, the limit is never fuller than
//! if only the units used had been charged. Since the next charge acts no earlier than a burst before `T`, acts do
//! not bunch beyond the burst. Giving `d` back of a charge `Z` keeps this with `T = min(T, max(T − d, floor))`. For
//! `j ≤ Z` both sides lose the same. For `j > Z` the floor is the sum: what the charges after `Z` hold, counted from
//! now or from the last promise, whichever is later. If no charge stands after `Z`, there is no floor. Positions tell
//! what the charges after `Z` hold, see [`Book`].

use core::time::Duration;

use smallvec::smallvec;

use super::book::Book;
use super::exact::mul_div_ceil;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Cost, Receipt, Replace, Retry, Standing, Transition};
use crate::time::{Rate, Tick, nanos, span};

/// How fast a schedule moves, and how much passes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pace {
    /// Units per `unit` nanoseconds, in lowest terms: how much scaled time passes in a nanosecond.
    pub(crate) scale: u64,
    pub(crate) unit: u64,
    pub(crate) at_once: u64,
}

/// The state of a schedule for one key: 32 bytes in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// The arrival time. Two halves instead of a `u128` avoid its alignment, which would enlarge the state.
    tat: [u64; 2],
    pub(crate) last: Tick,
    pub(crate) book: Option<Box<Book>>,
}

/// Returns the arrival time after a charge, in scaled time of 64 bits (a word) or 128 (the general form). The charge
/// may act as soon as the arrival time is at most a full burst away.
#[inline]
pub(crate) fn arrival<T: Ord>(tat: T, now: T, charge: T, plus: impl FnOnce(T, T) -> T) -> T {
    plus(tat.max(now), charge)
}

impl Schedule {
    pub(crate) const LARGEST: usize = 8 + 16 + Book::largest(1);

    #[inline]
    pub(crate) fn new(tat: u128, last: Tick) -> Self {
        Self::with(tat, last, None)
    }

    #[inline]
    fn with(tat: u128, last: Tick, book: Option<Box<Book>>) -> Self {
        // Each half fits 64 bits.
        Self { tat: [(tat >> 64) as u64, tat as u64], last, book }
    }

    #[inline]
    pub(crate) fn tat(&self) -> u128 {
        (u128::from(self.tat[0]) << 64) | u128::from(self.tat[1])
    }

    /// Returns the schedule with the fewer gaps that an engine has room for; `None` if it has no more than those.
    pub(crate) fn shortened(&self) -> Option<Self> {
        let book = self.book.as_ref()?.shortened()?;
        Some(Self { book: Some(Box::new(book)), ..self.clone() })
    }

    fn end(&self) -> u128 {
        self.tat().saturating_add(self.book.as_ref().map_or(0, |book| book.given))
    }
}

impl Pace {
    pub(crate) fn new(rate: Rate, at_once: u64) -> Self {
        let (scale, unit) = rate.reduced();
        Self { scale, unit, at_once }
    }

    /// Returns the scaled time of a tick. Below 2^124, since a scale is at most 2^60.
    #[inline]
    pub(crate) fn scaled(&self, tick: Tick) -> u128 {
        u128::from(tick.as_nanos()) * u128::from(self.scale)
    }

    /// Returns the scaled time that `units` take. Below 2^126, since a unit is at most 2^62.
    #[inline]
    pub(crate) fn time_of(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.unit)
    }

    #[inline]
    pub(crate) fn full(&self) -> u128 {
        self.time_of(self.at_once)
    }

    /// Returns the first tick not before a scaled time; [`Tick::MAX`] if the scaled time is later than that.
    fn tick(&self, scaled: u128) -> Tick {
        Tick::from_nanos(u64::try_from(scaled.div_ceil(u128::from(self.scale))).unwrap_or(u64::MAX))
    }

    fn shown(&self, tat: u128) -> Tick {
        self.tick(tat.saturating_sub(self.full()))
    }

    /// Decides as a meter does: a cost above `at_once` is never allowed.
    #[inline]
    pub(crate) fn decide(&self, schedule: &Schedule, ask: Ask) -> Transition<Schedule> {
        let units = ask.cost.units();
        if units > self.at_once {
            return Transition::NEVER;
        }
        let at = ask.now.max(schedule.last);
        let now = self.scaled(at);
        let tat = arrival(schedule.tat(), now, self.time_of(units), u128::saturating_add);
        let act = tat.saturating_sub(self.full()).max(now);
        if act == now {
            return self.charge(schedule, at, tat, Duration::ZERO, ask.cost);
        }
        let wait = (act - now).div_ceil(u128::from(self.scale));
        let max_wait = u128::from(nanos(ask.max_wait));
        if wait > max_wait {
            return Transition::Denied { retry: Retry::After(span(wait - max_wait)) };
        }
        self.charge(schedule, at, tat, span(wait), ask.cost)
    }

    /// Moves the arrival time to `tat` by a charge that waits for `wait`.
    #[inline]
    pub(crate) fn charge(
        &self,
        schedule: &Schedule,
        at: Tick,
        tat: u128,
        wait: Duration,
        cost: Cost,
    ) -> Transition<Schedule> {
        let act = at.after(wait);
        let book = match &schedule.book {
            None => None,
            Some(book) => self.follow(book, schedule.tat(), at, tat, act),
        };
        let mark = match &book {
            None => self.mark(tat),
            Some(book) => {
                let arrival = u128::from(self.tick(tat).as_nanos()) << 64;
                Receipt::mark(arrival | u128::from(self.scale), tat.saturating_add(book.given))
            }
        };
        let next = Schedule::with(tat, at, book);
        Transition::Allowed { wait, next, receipt: Receipt { at, act, cost, mark } }
    }

    /// Returns the mark of a charge after which a schedule without a book ends at `tat`. To spare a division, its
    /// first half holds the scaled time of a nanosecond instead of the tick at which the charge runs out.
    #[inline]
    pub(crate) fn mark(&self, tat: u128) -> [u64; 4] {
        Receipt::mark(u128::from(self.scale), tat)
    }

    /// Returns the book after a charge that acts at `act` has moved the arrival time from `before` to `tat`.
    #[cold]
    fn follow(&self, book: &Book, before: u128, at: Tick, tat: u128, act: Tick) -> Option<Box<Book>> {
        if book.has_passed(at) {
            return None;
        }
        let mut book = Box::new(book.clone());
        if before <= self.scaled(at) {
            book.clear_holes();
        }
        book.expires = book.expires.max(self.tick(tat));
        if act > at {
            book.promise = book.promise.max(act);
        }
        book.bound(at);
        self.keep(book, tat, at)
    }

    /// Keeps a book for as long as it says more than the arrival time. While somebody waits, it is kept even if both
    /// name the same promise, since they no longer do once the last charge is undone.
    fn keep(&self, book: Box<Book>, tat: u128, at: Tick) -> Option<Box<Book>> {
        let waits = book.promise > at || self.shown(tat) > at;
        (!book.has_passed(at) && (waits || !book.is_blank())).then_some(book)
    }

    /// Returns the book of a schedule, or a new one that says the same as the arrival time.
    fn book(&self, schedule: &Schedule, at: Tick) -> Box<Book> {
        let kept = schedule.book.as_ref().filter(|book| !book.has_passed(at));
        kept.cloned()
            .unwrap_or_else(|| Box::new(Book::new(self.tick(schedule.tat()), self.shown(schedule.tat()))))
    }

    pub(crate) fn standing(&self, schedule: &Schedule, now: Tick) -> Standing {
        let spent = schedule.tat().saturating_sub(self.scaled(now.max(schedule.last)));
        let (full, unit) = (self.full(), u128::from(self.unit));
        let (left, debt) = (full.saturating_sub(spent) / unit, spent.saturating_sub(full).div_ceil(unit));
        Standing {
            limit: self.at_once,
            // At most `at_once`, which fits 64 bits.
            remaining: left as u64,
            debt: u64::try_from(debt).unwrap_or(u64::MAX),
            reset_after: span(spent.div_ceil(u128::from(self.scale))),
        }
    }

    /// Settles a charge, see the module. If its cost is above `at_once` and a part was used, only units within
    /// `at_once` come back: the others were departures that no other charge could have taken before it.
    pub(crate) fn settle(&self, schedule: &Schedule, now: Tick, receipt: &Receipt, used: u64) -> Schedule {
        let (units, at) = (receipt.cost.units(), now.max(schedule.last));
        if used > units {
            return self.owe(schedule, at, used - units);
        }
        let back = if used == 0 { units } else { units.min(self.at_once) - used.min(self.at_once) };
        let (arrival, position) = read_mark(receipt);
        let (from, tat, mut end) = (self.scaled(at), schedule.tat(), schedule.end());
        let since = schedule.book.as_ref().map_or(0, |book| book.void_up_to);
        // Once the end of the schedule has reached the largest number, positions mean nothing.
        let known = position > since && position <= end && end < u128::MAX;
        if back == 0 || arrival <= at || tat <= from || !known {
            return schedule.clone();
        }
        let (amount, mut spent) = (self.time_of(back), tat - from);
        let mut book = self.book(schedule, at);
        let front = self.scaled(book.promise).saturating_sub(from);
        if used == 0 && position == end && schedule.book.is_none() {
            // Everything is as it was before the charge, promises included.
            return Schedule::new(from + spent.saturating_sub(amount), at);
        }
        let floor = match book.standing_after(position, end) {
            0 => 0,
            standing => front.saturating_add(standing),
        };
        let given = amount.min(spent.saturating_sub(floor));
        spent -= given;
        book.open(position, amount, smallvec![amount - given]);
        spent = spent.saturating_sub(book.cut(&mut end).first().copied().unwrap_or(0));
        book.release(0, &mut spent, front, 1, end);
        let tat = from + spent;
        book.given = end.saturating_sub(tat);
        // A charge that still waits acts one unit before the arrival time at the latest.
        let latest = self.tick(tat.saturating_sub(self.time_of(1)));
        book.promise = book.promise.min(latest);
        book.bound(at);
        if book.given == 0 && book.void_up_to == 0 {
            // No charge runs out later than its position says, and no position lies beyond the end.
            book.expires = book.expires.min(self.tick(end.max(tat)));
        }
        Schedule::with(tat, at, self.keep(book, tat, at))
    }

    /// Books units behind all promises, down to [`Rate::MAX_COUNT`] units below empty.
    fn owe(&self, schedule: &Schedule, at: Tick, units: u64) -> Schedule {
        let (from, before) = (self.scaled(at), schedule.tat());
        let deepest = from + self.full() + self.time_of(Rate::MAX_COUNT);
        let owed = before.max(from).saturating_add(self.time_of(units.min(Rate::MAX_COUNT)));
        let tat = before.max(owed.min(deepest));
        let mut book = self.book(schedule, at);
        if before <= from {
            book.clear_holes();
        }
        book.expires = book.expires.max(self.tick(tat));
        Schedule::with(tat, at, self.keep(book, tat, at))
    }

    /// Carries over a schedule made under `old`. Receipts issued so far give nothing back, because their scaled time
    /// was a different one.
    pub(crate) fn carry(&self, old: &Self, schedule: &Schedule, now: Tick, how: Replace) -> Schedule {
        let at = now.max(schedule.last);
        let spent = schedule.tat().saturating_sub(old.scaled(at));
        let (within, over) = (spent.min(old.full()), spent.saturating_sub(old.full()));
        let convert = |scaled| mul_div_ceil(scaled, u128::from(self.unit), u128::from(old.unit));
        let within = match how {
            Replace::AsIs => Some(convert(within).min(self.full())),
            Replace::Proportional => Some(mul_div_ceil(within, self.full(), old.full())),
            Replace::Reset => None,
        };
        let tat =
            within.map_or(0, |within| self.scaled(at).saturating_add(within).saturating_add(convert(over)));
        let mut book = old.book(schedule, at);
        if book.has_passed(at) {
            return Schedule::new(tat, at);
        }
        book.clear_holes();
        book.void_up_to = schedule.end().max(tat);
        book.given = book.void_up_to - tat;
        book.expires = book.expires.max(self.tick(tat));
        if how == Replace::Reset {
            book.promise = Tick::EPOCH;
        }
        Schedule::with(tat, at, Some(book))
    }

    /// Returns the schedule as it was at its last change, as if that had been at `to`, an earlier tick.
    pub(crate) fn set_back(&self, schedule: &Schedule, to: Tick) -> Schedule {
        let from = schedule.last;
        let tat = schedule.tat().saturating_sub(self.scaled(from).saturating_sub(self.scaled(to)));
        let mut book = self.book(schedule, from);
        book.set_back(from.since(to), from, schedule.end().max(tat));
        book.given = book.void_up_to - tat;
        Schedule::with(tat, to, Some(book))
    }

    pub(crate) fn full_at(&self, schedule: &Schedule) -> Option<Tick> {
        let full =
            u64::try_from(schedule.tat().div_ceil(u128::from(self.scale))).ok().map(Tick::from_nanos)?;
        match &schedule.book {
            None => Some(full),
            Some(book) => Some(full.max(book.expires)).filter(|full| *full < Tick::MAX),
        }
    }
}

/// Returns when a receipt runs out, and its position. If the upper half of the mark's first number, a tick, is zero,
/// the lower half says how far positions move in a nanosecond.
pub(crate) fn read_mark(receipt: &Receipt) -> (Tick, u128) {
    let (first, position) = receipt.marks();
    // Each half fits 64 bits.
    let (arrival, scale) = ((first >> 64) as u64, first as u64);
    if arrival > 0 || scale == 0 {
        return (Tick::from_nanos(arrival), position);
    }
    let arrival = u64::try_from(position.div_ceil(u128::from(scale))).unwrap_or(u64::MAX);
    (Tick::from_nanos(arrival), position)
}

impl Bytes for Schedule {
    fn write(&self, out: &mut Writer) {
        out.tick(self.last);
        out.u128(self.tat());
        Book::write_some(self.book.as_deref(), out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (last, tat) = (from.tick()?, from.u128()?);
        Ok(Self::with(tat, last, Book::read_some(from)?.map(Box::new)))
    }
}

/// Implements a limit whose state is one [`Schedule`]; `$decide` is its decision about a line of charges.
macro_rules! kept_as_schedule {
    ($limit:ty, $state:ident, |$of:ident, $line:ident, $ask:ident| $decide:expr) => {
        impl Algorithm for $limit {
            type State = $state;

            fn fresh(&self, now: Tick) -> $state {
                $state(Schedule::new(0, now))
            }

            fn decide(&self, state: &$state, $ask: Ask) -> Transition<$state> {
                let ($of, $line) = (self, &state.0);
                $decide.map($state)
            }

            fn standing(&self, state: &$state, now: Tick) -> Standing {
                self.pace.standing(&state.0, now)
            }

            fn settle(&self, state: &$state, now: Tick, receipt: &Receipt, used: u64) -> $state {
                $state(self.pace.settle(&state.0, now, receipt, used))
            }

            fn carry(&self, old: &Self, state: &$state, now: Tick, how: Replace) -> $state {
                $state(self.pace.carry(&old.pace, &state.0, now, how))
            }

            fn full_at(&self, state: &$state) -> Option<Tick> {
                self.pace.full_at(&state.0)
            }
        }

        impl crate::algorithm::Storable for $limit {
            type State = $state;

            fn last_change(&self, state: &$state) -> Option<Tick> {
                Some(state.0.last)
            }

            fn set_back(&self, state: &$state, to: Tick) -> $state {
                $state(self.pace.set_back(&state.0, to))
            }

            fn shortened(&self, state: &$state) -> Option<$state> {
                state.0.shortened().map($state)
            }

            fn largest(&self) -> usize {
                Schedule::LARGEST
            }
        }

        impl Bytes for $state {
            fn write(&self, out: &mut Writer) {
                self.0.write(out);
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Schedule::read(from).map(Self)
            }
        }
    };
}
pub(super) use kept_as_schedule;
