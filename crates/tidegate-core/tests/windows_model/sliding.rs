//! The sliding log and the sliding window as a list of every act, searched from end to end.

use num_bigint::BigUint;
use tidegate_core::{Ask, Quota, Replace, Standing, Tick};

use crate::windows_model::model::{Act, Answer, Made, Model, Wide, answer, excess, share, standing, wide};

/// The units, the span, and the number of buckets unless it is a log.
struct Law {
    limit: Wide,
    window: Wide,
    buckets: Option<Wide>,
}

impl Law {
    fn of(quota: &Quota) -> Self {
        let (rate, buckets) = match quota {
            Quota::SlidingLog(law) => (law.rate(), None),
            Quota::SlidingWindow(law) => (law.rate(), Some(Wide::from(law.buckets()))),
            _ => unreachable!("laws stay of one kind"),
        };
        Self { limit: Wide::from(rate.count()), window: rate.period().as_nanos(), buckets }
    }

    /// `⌊tick · N / window⌋`; for a log, each tick is a bucket.
    fn bucket(&self, tick: Wide) -> Wide {
        self.buckets.map_or(tick, |n| Wide::try_from(BigUint::from(tick) * n / self.window).unwrap())
    }

    /// `⌈index · window / N⌉`.
    fn begins(&self, index: Wide) -> Wide {
        let Some(n) = self.buckets else { return index };
        Wide::try_from((BigUint::from(index) * self.window + (n - 1)) / n).unwrap()
    }

    /// Returns the first tick at which an act at `tick` no longer counts.
    fn ends(&self, tick: Wide) -> Wide {
        self.buckets.map_or_else(|| tick + self.window, |n| self.begins(self.bucket(tick) + n + 1))
    }
}

/// A floor at the last tick or after it is never reached.
fn floor(tick: Wide) -> Wide {
    if tick < Wide::from(u64::MAX) { tick } else { 1 << 64 }
}

pub(crate) struct SlidingModel {
    law: Law,
    last: Wide,
    floor: Wide,
    /// In order; none is empty.
    acts: Vec<Act>,
    charges: Vec<Made>,
    carried: Option<Wide>,
}

impl SlidingModel {
    pub(crate) fn new(quota: &Quota, now: Tick) -> Self {
        let (acts, charges) = (Vec::new(), Vec::new());
        Self { law: Law::of(quota), last: wide(now), floor: 0, acts, charges, carried: None }
    }

    fn spent(&self, at: Wide) -> Wide {
        self.acts.iter().filter(|act| self.law.ends(act.act) > at).map(|act| act.units).sum()
    }

    fn open_from(&self, at: Wide) -> Wide {
        at.max(self.floor).max(self.acts.last().map_or(0, |newest| newest.act))
    }

    /// Adds an act at the end.
    fn push(&mut self, at: Wide, act: Act) {
        self.last = at;
        self.acts.retain(|act| self.law.ends(act.act) > at);
        self.acts.push(act);
    }
}

impl Model for SlidingModel {
    fn decide(&mut self, ask: Ask) -> Answer {
        let (at, units) = (wide(ask.now).max(self.last), Wide::from(ask.cost.units()));
        if units > self.law.limit {
            return Answer::Never;
        }
        // The spent units fall only when an act ends, so the first possible tick is the first open tick or such an end.
        let open = self.open_from(at);
        let ends = self.acts.iter().map(|act| self.law.ends(act.act)).filter(|end| *end > open);
        let act =
            std::iter::once(open).chain(ends).find(|place| self.spent(*place) + units <= self.law.limit);
        let act = act.expect("when all have ended there is room");
        let answer = answer(ask, at, act);
        if let Answer::Allowed { .. } = answer {
            self.push(at, Act { act, units, nth: Some(self.charges.len()) });
            self.charges.push(Made { at, act, units });
        }
        answer
    }

    fn standing(&self, now: Tick) -> Standing {
        let at = wide(now).max(self.last);
        let open = self.open_from(at);
        let full = self.acts.last().map_or(0, |newest| self.law.ends(newest.act)).max(self.floor);
        let whole = standing(self.law.limit, self.spent(open), at, full);
        if open > at { Standing { remaining: 0, ..whole } } else { whole }
    }

    fn settle(&mut self, now: Tick, nth: usize, used: u64) {
        let (made, at) = (self.charges[nth], self.last.max(wide(now)));
        if Wide::from(used) >= made.units {
            let units = excess(made, used);
            if units > 0 {
                let act = self.open_from(at).min(Wide::from(u64::MAX));
                self.push(at, Act { act, units, nth: None });
            }
            return;
        }
        if self.carried.is_some_and(|carried| made.at <= carried) || self.law.ends(made.act) <= at {
            return;
        }
        if let Some(act) = self.acts.iter_mut().find(|act| act.nth == Some(nth)) {
            (self.last, act.units) = (at, Wide::from(used));
        }
        self.acts.retain(|act| act.units > 0);
    }

    fn carry(&mut self, to: &Quota, now: Tick, how: Replace) {
        let changed = self.last;
        self.last = self.last.max(wide(now));
        let debt = self.spent(self.open_from(self.last)).saturating_sub(self.law.limit).min(1 << 60);
        let old = std::mem::replace(&mut self.law, Law::of(to));
        self.carried = Some(self.last);
        if how == Replace::Reset {
            (self.floor, self.acts) = (0, Vec::new());
            return;
        }
        let (last, law) = (self.last, &self.law);
        self.acts.retain(|act| old.ends(act.act) > last);
        // Each bucket acts as late as it can: at its end, or at the last change if it has begun. A reservation acts
        // when its bucket begins, or at the floor if an earlier change has put it between two edges.
        let acted = |act: &Act| old.begins(old.bucket(act.act)) <= last;
        let had_acted: Vec<bool> = self.acts.iter().map(acted).collect();
        for (act, acted) in self.acts.iter_mut().zip(&had_acted) {
            let (begins, ends) = (old.begins(old.bucket(act.act)), old.begins(old.bucket(act.act) + 1));
            let latest = if *acted { changed } else { 0 };
            act.act = (ends - 1).min(begins.max(self.floor).max(latest)).min(Wide::from(u64::MAX));
            act.nth = None;
        }
        // A reservation between two edges is not overtaken, even if it is undone later.
        for (act, acted) in self.acts.iter().zip(&had_acted) {
            if !acted && law.begins(law.bucket(act.act)) < act.act {
                self.floor = floor(self.floor.max(act.act));
            }
        }
        if how == Replace::Proportional {
            let mut sum = 0;
            for (act, _) in self.acts.iter_mut().zip(&had_acted).filter(|(_, acted)| **acted) {
                let before = share(sum, law.limit, old.limit);
                sum = (sum + act.units).min(1 << 60);
                act.units = share(sum, law.limit, old.limit) - before;
            }
        }
        // Keeps the newest units, up to the limit plus the debt; nothing acts before the newest of the dropped ones has
        // ended.
        let mut room = law.limit + debt;
        let mut cut = None;
        for act in self.acts.iter_mut().rev() {
            if act.units > room {
                cut = cut.max(Some(act.act));
            }
            act.units = room.min(act.units);
            room -= act.units;
        }
        if let Some(cut) = cut {
            self.floor = floor(self.floor.max(law.ends(cut)));
        }
        self.acts.retain(|act| act.units > 0);
    }
}
