//! How much a node may hold of one key, and how much a draw takes.
//!
//! All nodes together never hold more than `B − V` units, where `B` is the burst and `V` what the engine has left. So
//! whatever is granted next, by whom and from where, is at most `B` at once.
//!
//! A node may always hold its part of `O`: the engine's limit is smaller by `O`. It may hold more if it knows that more is
//! missing at the engine. `V` rises by the rate at most, so after a draw that left `V₀`, at most `V₀ + R·t` is there, and
//! the node may hold its part of what is missing below the engine's burst. The parts add up to the whole, and the node
//! that knows of the most missing units is right: the bound holds without any message.
//!
//! * To hold more than is missing, a node draws units that it never spends: they are *set aside*, and come back at the
//!   rate. Far from the engine it needs units for the time of a round trip and of the next one.
//! * Units that come back by another way than the rate make `V₀ + R·t` wrong. Units held within the part of `O` may come
//!   back: they are in `O`. A node that holds more gives nothing back: what it does not spend comes back at the rate.
//!   Nor does what a caller who went away was charged. Where charges may be settled later with less than they cost, or
//!   undone, a node holds its part of `O` and no more.

use std::time::Duration;

use tidegate_core::Tick;
use tidegate_core::time::nanos;

use super::leasable::{FEW, Terms, part_of};
use crate::Part;

/// Draws of fewer units are hardly worth a call.
const LEAST_DRAWN: u64 = 8;

/// A draw of so many units is one call for many requests: no more are held beyond the part of `O` than that or the
/// distance asks for, because they are lost to a key that goes idle.
pub(super) const MANY: u64 = 64;

/// After this time, a call that was not answered never arrives: longer than any wait for an engine.
pub(super) const LATE: Duration = Duration::from_secs(60);

/// Where the engine's level falls by itself, as much is not set aside as it falls within this time.
const FALLS_WITHIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Allowance {
    /// This node's part of the whole at the last look.
    pub(super) part: u32,
    /// What the engine had left after it answered a draw, and when that was sent.
    level: Option<(u64, Tick)>,
    /// The units that the last draw took.
    taken: u64,
    /// Whether what is given back costs the key more than it is worth: until the limit is full once, an engine may decide
    /// each further step in two exchanges, one step after the other.
    pub(super) far: bool,
    /// Units on their way back to the engine, and those that were [`LATE`] ago.
    returning: [u64; 2],
    turned: Tick,
    /// Whether charges of this key are settled later: units may come back in any number.
    settled: bool,
    /// Until when nothing is given back.
    beyond: Tick,
}

/// The size of a draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DrawSize {
    /// Units to be spent.
    pub(super) units: u64,
    /// Units to be set aside.
    pub(super) aside: u64,
}

/// The demand by which a draw is sized.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// In thousandths of a unit a second.
    pub(super) rate: u64,
    /// The most units that the demand justifies.
    pub(super) units: u64,
    pub(super) round_trip: Duration,
    /// How fast the engine's level rises without this node, in thousandths of a unit a second; negative if it falls.
    /// `None` if that is not known.
    pub(super) rises: Option<i64>,
}

/// Returns whether a burst, this node's part of it, and what comes back within a round trip allow no more than the part
/// of the outstanding units.
const fn is_little(burst: u64, part: u64, meanwhile: u64) -> bool {
    burst < 3 * meanwhile || part < FEW
}

/// Returns the highest number up to `most` for which `fits` holds, if it holds for all lower ones.
fn highest(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Returns whether the engine decides a limit because it is too far away, if all nodes have even parts.
pub(super) fn is_too_far(terms: &Terms, part: u32, round_trip: Duration) -> bool {
    let of = |units| part_of(units, u64::from(part), u64::from(Part::WHOLE));
    let (burst, meanwhile) = (terms.engine_burst(), terms.refill(round_trip));
    !terms.is_window()
        && of(terms.outstanding) < of(terms.refill(round_trip * 3 / 5)).max(1)
        && is_little(burst, of(burst), meanwhile)
}

impl Wanted {
    /// Returns the units asked for within a span.
    pub(super) fn within(&self, span: Duration) -> u64 {
        units_within(self.rate, span)
    }
}

/// Returns the units of a span at a rate in thousandths of a unit a second.
fn units_within(rate: u64, span: Duration) -> u64 {
    let units = u128::from(rate) * u128::from(nanos(span)) / 1_000_000_000_000;
    u64::try_from(units).unwrap_or(u64::MAX)
}

impl Allowance {
    /// Notes what the engine has left at most at a tick.
    pub(super) fn note(&mut self, level: u64, sent: Tick) {
        if self.level.is_none_or(|(_, at)| at <= sent) {
            self.level = Some((level, sent));
        }
    }

    /// Notes how many units a draw took.
    pub(super) const fn took(&mut self, units: u64) {
        self.taken = units;
    }

    /// Notes that units are on their way back to the engine.
    pub(super) const fn returns(&mut self, units: u64) {
        self.returning[0] = self.returning[0].saturating_add(units);
    }

    pub(super) const fn returned(&mut self, units: u64) {
        let [young, old] = self.returning;
        self.returning = [young.saturating_sub(units), old.saturating_sub(units.saturating_sub(young))];
    }

    /// Forgets units that never arrived.
    pub(super) fn turn(&mut self, now: Tick) {
        if now.since(self.turned) >= LATE {
            (self.returning, self.turned) = ([0, self.returning[0]], now);
        }
    }

    pub(super) const fn forget(&mut self) {
        self.level = None;
    }

    pub(super) const fn settles(&mut self) {
        self.settled = true;
    }

    fn of(&self, units: u64) -> u64 {
        part_of(units, u64::from(self.part), u64::from(Part::WHOLE))
    }

    /// Returns the number of which `units` is this node's part, rounded up.
    fn whole_of(&self, units: u64) -> u64 {
        let whole = u128::from(units) * u128::from(Part::WHOLE);
        u64::try_from(whole.div_ceil(u128::from(self.part.max(1)))).unwrap_or(u64::MAX)
    }

    /// Returns how much of the part of `O` may be held or given back, besides what is on its way back: another node may take
    /// that for missing.
    fn always(&self, terms: &Terms, remaining: u64) -> u64 {
        let part = terms.allowance(self.part, remaining);
        let [young, old] = self.returning;
        if terms.is_window() { part } else { part.saturating_sub(young + old) }
    }

    /// Returns the most units that this node may hold at a tick. For a window, `remaining` is what it has left.
    pub(super) fn most(&self, terms: &Terms, remaining: u64, now: Tick) -> u64 {
        terms.allowance(self.part, remaining).max(self.of(self.missing(terms, now)))
    }

    /// Returns the most units that this node may ever hold.
    pub(super) fn ever(&self, terms: &Terms, remaining: u64) -> u64 {
        let always = terms.allowance(self.part, remaining);
        if self.settled || terms.is_window() { always } else { always.max(self.of(terms.engine_burst())) }
    }

    pub(super) const fn is_settled(&self) -> bool {
        self.settled
    }

    /// Returns how many units are missing at the engine at least.
    fn missing(&self, terms: &Terms, now: Tick) -> u64 {
        match self.level {
            Some((level, sent)) if !self.settled && !terms.is_window() => {
                // The level was rounded down.
                let there = level.saturating_add(1).saturating_add(terms.refill(now.since(sent)));
                terms.engine_burst().saturating_sub(there)
            }
            _ => 0,
        }
    }

    /// Returns until when this node may hold so many units.
    pub(super) fn until(&self, terms: &Terms, units: u64, now: Tick) -> Tick {
        if terms.is_window() || units <= terms.allowance(self.part, 0) {
            return Tick::MAX;
        }
        let spare = self.missing(terms, now).saturating_sub(self.whole_of(units));
        now.after(terms.time_of(spare))
    }

    /// Notes that this node holds so many units until a tick.
    pub(super) fn holds(&mut self, terms: &Terms, units: u64, until: Tick) {
        if !terms.is_window() && units > terms.allowance(self.part, 0) {
            self.beyond = self.beyond.max(until.after(2 * terms.lasts));
        }
    }

    /// Returns whether units may be given back: not by a node that held more than its part of `O` lately. Far away units
    /// that the rate returns soon are not; those of a window or of a slow limit would be missing for long.
    pub(super) fn may_give(&self, terms: &Terms, units: u64, now: Tick) -> bool {
        let within = now >= self.beyond && units <= self.always(terms, 0);
        let soon = self.far && units <= terms.refill(terms.lasts);
        terms.is_window() || (within && !soon)
    }

    /// Returns how much to draw; `None` if the engine decides better, because this node may not hold enough for the
    /// time that a draw takes. `here` will be held when the draw arrives; `in_full_use`: the limit has nothing left.
    pub(super) fn size(
        &self,
        terms: &Terms,
        remaining: u64,
        wanted: &Wanted,
        here: u64,
        in_full_use: bool,
        now: Tick,
    ) -> Option<DrawSize> {
        let most = self.always(terms, remaining);
        let always = most.saturating_sub(here);
        // More than the rate is not granted in the long run, whatever the demand.
        let wanted = &Wanted { rate: wanted.rate.min(terms.rate_in_thousandths()), ..*wanted };
        let least = wanted.within(wanted.round_trip * 3 / 5);
        if wanted.units <= always || terms.is_window() || self.settled {
            let units = wanted.units.min(always);
            return (units >= least).then_some(DrawSize { units, aside: 0 });
        }
        let within_always = |units: u64| {
            let units = units.min(always);
            (units >= least && units > 0).then_some(DrawSize { units, aside: 0 })
        };
        // If the part of `O` is enough for many requests, and lasts until the next draw arrives, what is not spent can be
        // given back.
        let (burst, meanwhile) = (terms.engine_burst(), terms.refill(wanted.round_trip));
        if most >= lasting(wanted).max(wanted.units.min(MANY)) || is_little(burst, self.of(burst), meanwhile)
        {
            return within_always(wanted.units);
        }
        // What is held or set aside beyond `O` may be lost until the rate returns it: no more than it does soon.
        let enough = wanted.within(wanted.round_trip * 3).max(MANY).min(terms.refill(terms.lasts) - 1);
        let wanted = &Wanted { units: wanted.units.min(enough), ..*wanted };
        if wanted.units <= always {
            return within_always(wanted.units);
        }
        if in_full_use {
            let room = self.of(burst.saturating_sub(meanwhile + 2)).saturating_sub(here);
            // The others need their parts of what comes back.
            let fair = self.of(terms.refill(2 * wanted.round_trip + terms.target));
            // What is held when the demand ends was kept from the others: little of it where draws are soon answered.
            let fair = if most >= lasting(wanted) { fair.max(always) } else { fair.max(2 * self.taken) };
            let units = wanted.units.min(always.max(room)).min(fair);
            return (units >= least).then_some(DrawSize { units, aside: 0 });
        }
        let size = self.size_beyond(terms, wanted, here, now);
        if size.units <= always {
            return within_always(wanted.units);
        }
        (size.units >= least).then_some(size)
    }

    /// Returns how much to draw of what is missing at the engine, and what has to be set aside for that: hardly anything
    /// where the part of `O` lasts for the distance, since demand that comes and goes loses it each time; else at most a
    /// quarter of the burst, or up to three quarters for the distance alone.
    fn size_beyond(&self, terms: &Terms, wanted: &Wanted, here: u64, now: Tick) -> DrawSize {
        let lasts = self.always(terms, 0) >= lasting(wanted);
        let (burst, meanwhile) = (terms.engine_burst(), terms.refill(wanted.round_trip));
        // What comes back in the time of a round trip, and of the next one, is not known in time.
        let by_rate = |units: u64| {
            let span = u128::from(units) * 1_000_000_000_000 / u128::from(wanted.rate.max(1));
            terms.refill(Duration::from_nanos(u64::try_from(span).unwrap_or(u64::MAX)))
        };
        // What has to be missing for the units that are held: the others' parts of it, or what comes back until they are
        // spent.
        let needs = |units: u64| meanwhile + by_rate(units).max(self.whole_of(units + here)) + 2;
        // What this node does not know, it takes to be as here: the others ask for as much.
        let (rate, all) = (signed(wanted.rate), signed(terms.rate_in_thousandths()));
        let others = signed(self.whole_of(wanted.rate)).saturating_sub(rate);
        let rises = wanted.rises.unwrap_or_else(|| all.saturating_sub(others));
        let there = self.level.map_or(burst, |(level, sent)| {
            let moved = units_within(rises.unsigned_abs(), now.since(sent));
            if rises < 0 { level.saturating_sub(moved) } else { level.saturating_add(moved).min(burst) }
        });
        // Near the engine what is there is soon known again, and a guess in vain costs what was drawn by it.
        let missing = if lasts { self.missing(terms, now) } else { burst - there.min(burst) };
        let soon = terms.refill(terms.lasts);
        let far =
            (burst * 3 / 4).min(soon).min(needs(wanted.within(wanted.round_trip * 3 / 2).max(LEAST_DRAWN)));
        let fits = |units: u64| {
            let needs = needs(units);
            match lasts {
                true => needs <= missing + units + self.of(burst / 16),
                false => needs <= far || needs.saturating_sub(units) <= soon.min(burst / 4),
            }
        };
        let units = highest(wanted.units, fits);
        let lacks = needs(units).saturating_sub(missing + units);
        let falls = units_within(u64::try_from(rate.saturating_sub(rises)).unwrap_or(0), FALLS_WITHIN);
        let aside = lacks.saturating_sub(falls);
        if aside == lacks {
            return DrawSize { units, aside };
        }
        // No more than may be held of what is missing then.
        let held =
            |units: u64| units + here <= self.of((missing + aside + units).saturating_sub(meanwhile + 2));
        DrawSize { units: highest(units, held), aside }
    }
}

/// Returns how many units last until the next draw arrives.
fn lasting(wanted: &Wanted) -> u64 {
    wanted.within(wanted.round_trip * 2).max(LEAST_DRAWN / 2)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
