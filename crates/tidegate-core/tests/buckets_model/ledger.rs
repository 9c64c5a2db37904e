//! Checks settlements against a plain list of charges, with what each finally used.
//!
//! *Never fuller*: the list is charged again, with what was used, to a rational bucket without reservations; the limit
//! has no more left than that. *As full as can be*: everything comes back that later charges do not depend on, and
//! everything if there are none; with interval refills only the latter is checked. *Acts do not bunch*: over any span,
//! what acts uses no more than a burst plus what the rate gives. The encoded state is read for what is left, because
//! answers do not show fractions of units.

use tidegate_core::rate::{Bandwidth, Refill};
use tidegate_core::{Algorithm, Quota, Rate, Receipt, State, Tick};

use crate::buckets_model::models::{Band, Q, Spent, q};
use crate::random::Random;

/// A charge, or a debt booked later.
struct Entry {
    at: u64,
    units: u64,
    /// The receipt, and when the limit would be full again; `None` for a debt.
    charge: Option<(Receipt, Tick)>,
    /// Not settled yet.
    open: bool,
    /// A later charge found the limit full: what this charge held is not distinguished any more.
    rested: bool,
}

pub(crate) struct Ledger {
    /// The bandwidths at the start, or at the last change.
    bands: Vec<Band>,
    entries: Vec<Entry>,
    /// Receipts from before the last change.
    stale: Vec<Receipt>,
    start: u64,
    /// The latest tick promised to any reservation.
    promise: u64,
    /// A charge was settled after an interval refill, or undone, while others stood: since then a refill may come
    /// early.
    loose: bool,
}

/// Returns the tick of a state's last change, and what the state says is spent of each bandwidth.
pub(crate) fn spent(quota: &Quota, state: &State) -> (u64, Vec<Spent>) {
    let bytes = state.encode();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let wide = |at: usize| u128::from_le_bytes(bytes[at..at + 16].try_into().unwrap());
    let last = word(2);
    let line = |rate: Rate| {
        let (scale, unit) = rate.reduced();
        let left = wide(10).saturating_sub(u128::from(last) * u128::from(scale));
        vec![(Q::new(left.into(), unit.into()), 0)]
    };
    let spent = match quota {
        Quota::Gcra(limit) => line(limit.rate()),
        Quota::LeakyBucket(limit) => line(limit.rate()),
        Quota::LeakyQueue(limit) => line(limit.rate()),
        Quota::TokenBucket(limit) => {
            let level = |(band, at): (&Bandwidth, usize)| {
                let even = band.refill(Refill::Continuous) == *band;
                let weight = if even { band.rate().reduced().1 } else { 1 };
                (Q::new(wide(at).into(), weight.into()), word(at + 16))
            };
            limit.bandwidths().iter().zip((11..).step_by(24)).map(level).collect()
        }
        _ => Vec::new(),
    };
    (last, spent)
}

fn at_intervals(band: &Band) -> bool {
    band.refill == Refill::Interval
}

impl Ledger {
    pub(crate) fn new(bands: Vec<Band>, start: u64) -> Self {
        Self { bands, entries: Vec::new(), stale: Vec::new(), start, promise: 0, loose: false }
    }

    /// Starts again after a change; what was spent stays spent.
    pub(crate) fn carried(&mut self, bands: Vec<Band>, quota: &Quota, state: &State) {
        self.bands = bands;
        self.stale.extend(
            self.entries
                .iter()
                .filter(|entry| entry.open)
                .filter_map(|entry| entry.charge)
                .map(|(receipt, _)| receipt),
        );
        self.stale.drain(..self.stale.len().saturating_sub(8));
        self.rebase(quota, state);
    }

    fn rebase(&mut self, quota: &Quota, state: &State) {
        self.entries.clear();
        self.loose = false;
        let (last, spent) = spent(quota, state);
        self.start = last;
        for (band, (spent, into)) in self.bands.iter_mut().zip(spent) {
            band.start(last, spent, into);
        }
    }

    pub(crate) fn charged(&mut self, quota: &Quota, before: &State, after: &State, receipt: Receipt) {
        let full = |state| quota.standing(state, receipt.at).reset_after;
        if full(before).is_zero() {
            self.entries.iter_mut().for_each(|entry| entry.rested = true);
        }
        let charge = Some((receipt, receipt.at.after(full(after))));
        let (at, units) = (receipt.at.as_nanos(), receipt.cost.units());
        self.promise = self.promise.max(receipt.act.as_nanos());
        self.entries.push(Entry { at, units, charge, open: true, rested: false });
    }

    /// Returns what would be left if only what was used had been charged.
    fn truth(&self, at: u64) -> Vec<Band> {
        let mut bands = self.bands.clone();
        for band in &mut bands {
            let mut last = self.start;
            for entry in &self.entries {
                band.advance(last, entry.at);
                band.tokens -= q(entry.units);
                last = entry.at;
            }
            band.advance(last, at);
        }
        bands
    }

    /// Settles a random charge, and checks the result.
    pub(crate) fn settle(
        &mut self,
        random: &mut Random,
        quota: &Quota,
        state: &State,
        now: Tick,
        place: &dyn Fn() -> String,
    ) -> State {
        let at = now.as_nanos().max(spent(quota, state).0);
        if !self.stale.is_empty() && random.up_to(3) == 0 {
            let receipt = self.stale[random.up_to(self.stale.len() as u64 - 1) as usize];
            let settled = quota.settle(state, now, &receipt, receipt.cost.units() - 1);
            assert_eq!(&settled, state, "issued before the change, {}", place());
            return settled;
        }
        let open: Vec<usize> = (0..self.entries.len()).filter(|nth| self.entries[*nth].open).collect();
        let Some(newest) = open.len().checked_sub(1) else { return state.clone() };
        let back = if random.up_to(2) == 0 { 0 } else { random.up_to(newest as u64) as usize };
        let nth = open[newest - back];
        let (receipt, arrival) = self.entries[nth].charge.unwrap();
        let units = receipt.cost.units();
        let used = match random.up_to(5) {
            0..=2 => 0,
            3 | 4 => random.up_to(units),
            _ => units + random.one_to(units.min(1000)),
        };
        let settled = quota.settle(state, now, &receipt, used);
        let place = || format!("#{nth} at {at} used {used}, {}", place());
        self.entries[nth].open = false;
        let (last, after) = spent(quota, &settled);
        let before = self.at(quota, state, at);
        if used > units {
            let more = q(used - units);
            let deepest = |band: &Band| q(band.capacity) + q(Rate::MAX_COUNT);
            let bounded = self.bands.iter().zip(&before).any(|(band, was)| was + &more > deepest(band));
            if bounded {
                self.rebase(quota, &settled);
                return settled;
            }
            assert_eq!(last, at, "{}", place());
            for ((after, _), before) in after.iter().zip(&before) {
                assert_eq!(after, &(before + &more), "a debt, {}", place());
            }
            self.entries.push(Entry { at, units: used - units, charge: None, open: false, rested: false });
            return settled;
        }
        self.entries[nth].units = used;
        let now_spent = self.at(quota, &settled, at);
        let standing: u128 = self.entries[nth + 1..].iter().map(|entry| u128::from(entry.units)).sum();
        // Its period may have begun long before the charge.
        let refilled = |band: &Band| at_intervals(band) && band.began() > receipt.at.as_nanos();
        // The undone charge may have begun the others' period, which then begins anew, with refills at other ticks than
        // without it.
        let begun_anew = |band: &Band| at_intervals(band) && used == 0;
        let running = self.running(quota, state, at);
        self.loose |= standing > 0 && running.iter().any(|band| refilled(band) || begun_anew(band));
        self.is_never_fuller(quota, &settled, at, &place);
        let alive = arrival.as_nanos() > at && !self.entries[nth].rested;
        if alive {
            let standing: u128 = self.entries[nth + 1..].iter().map(|entry| u128::from(entry.units)).sum();
            let front = self.promise.saturating_sub(at);
            let back = if used == 0 { units } else { self.part(quota, units, used) };
            for ((band, before), after) in self.bands.iter().zip(&before).zip(&now_spent) {
                let floor = match standing {
                    0 => q(0),
                    _ if at_intervals(band) => continue,
                    _ if band.refill == Refill::Aligned => {
                        let period = band.rate.period_nanos();
                        let ends = self.promise.max(at) / period - at / period;
                        q(standing) + q(ends) * q(band.rate.count())
                    }
                    _ => q(standing) + q(front) / band.time_of_one(),
                };
                let expected = (before - q(back)).max(floor).min(before.clone());
                assert!(after <= &expected, "{after} of {before} stay, not {expected}, {}", place());
            }
        }
        if settled == *state {
            // Too late to matter, and the state is unchanged: a clock that steps back may find it as it was.
            self.entries[nth].units = units;
            self.entries[..=nth].iter_mut().for_each(|entry| entry.rested = true);
        }
        settled
    }

    /// The part of a job that it can give back, if the job is longer than what leaves at once.
    fn part(&self, quota: &Quota, units: u64, used: u64) -> u64 {
        let at_once = if matches!(quota, Quota::LeakyQueue(_)) { self.bands[0].capacity } else { u64::MAX };
        units.min(at_once) - used.min(at_once)
    }

    /// The bandwidths as a state has them, at a tick not before its last change.
    fn running(&self, quota: &Quota, state: &State, at: u64) -> Vec<Band> {
        let (last, spent) = spent(quota, state);
        let band = |(band, (spent, into)): (&Band, Spent)| {
            let mut band = band.clone();
            band.start(last, spent, into);
            band.advance(last, at);
            band
        };
        self.bands.iter().zip(spent).map(band).collect()
    }

    /// What is spent at a tick not before the last change.
    fn at(&self, quota: &Quota, state: &State, at: u64) -> Vec<Q> {
        self.running(quota, state, at).into_iter().map(|band| q(band.capacity) - band.tokens).collect()
    }

    fn is_never_fuller(&self, quota: &Quota, state: &State, at: u64, place: &dyn Fn() -> String) {
        let (last, spent) = spent(quota, state);
        for (truth, (spent, into)) in self.truth(at).into_iter().zip(spent) {
            let mut found = truth.clone();
            found.start(last, spent, into);
            found.advance(last, at);
            let mut ticks = vec![at];
            if truth.refill != Refill::Continuous {
                // Also around the refills of both.
                let period = truth.rate.period_nanos();
                ticks.extend([found.next_refill(), truth.next_refill()]);
                ticks.extend([&found, &truth].map(|band| band.next_refill().saturating_add(period)));
                ticks.extend(ticks.clone().iter().skip(1).map(|tick| tick - 1));
            }
            for tick in ticks.into_iter().filter(|tick| *tick >= at) {
                let tokens = |band: &Band| {
                    let mut band = band.clone();
                    band.advance(at, tick);
                    band.tokens
                };
                let early = if self.loose && at_intervals(&truth) { truth.rate.count() } else { 0 };
                let (has, most) = (tokens(&found), tokens(&truth) + q(early));
                assert!(has <= most, "{has} left at {tick}, {most} at most, {}", place());
            }
        }
    }

    /// No span has more acts than a burst plus what the rate gives in it. Not checked for several bandwidths, where one
    /// may hold work back until it reaches the others in a bunch, nor for interval refills, which may come at both ends
    /// of a span.
    pub(crate) fn ends_well(&self, quota: &Quota) {
        let [band] = self.bands.as_slice() else { return };
        if at_intervals(band) {
            return;
        }
        let used = self.entries.iter().filter(|entry| entry.units > 0);
        let mut acts: Vec<(u64, u64)> = used
            .filter_map(|entry| Some((entry.charge?.0.act.as_nanos(), entry.units)))
            // An act beyond the last tick is reported at the last tick.
            .filter(|(act, _)| *act < u64::MAX)
            .collect();
        acts.sort_by_key(|(act, _)| *act);
        for first in 0..acts.len() {
            // A job longer than what leaves at once has only its last departures here, and the others before.
            let mut sum = u128::from(acts[first].1.min(band.capacity));
            for (act, units) in &acts[first + 1..] {
                sum += u128::from(*units);
                let most = q(band.capacity)
                    + match band.refill {
                        // Also the end for which the first one may have waited.
                        Refill::Aligned => {
                            let period = band.rate.period_nanos();
                            q(band.rate.count()) * q(act / period + 1 - acts[first].0.div_ceil(period))
                        }
                        // Waits are rounded up to the nanosecond.
                        _ => q(act - acts[first].0 + 1) / band.time_of_one(),
                    };
                assert!(
                    q(sum) <= most,
                    "{sum} act where {most} may, from {} to {act}: {quota:?}",
                    acts[first].0
                );
            }
        }
    }
}
