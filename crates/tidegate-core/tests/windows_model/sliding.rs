//! The sliding log and the sliding window as a list of every act, searched from end to end.

use num_bigint::BigUint;
use tidegate_core::{Ask, Quota, Replace, Standing, Tick};

use crate::model::{Answer, Model, Wide, answer, share, standing, wide};

/// How many units in which span, and the bucket count unless it is a log.
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

    /// `⌊tick · N / window⌋`; to a log each tick is a bucket.
    fn bucket(&self, tick: Wide) -> Wide {
        self.buckets.map_or(tick, |n| Wide::try_from(BigUint::from(tick) * n / self.window).unwrap())
    }

    /// `⌈index · window / N⌉`.
    fn begins(&self, index: Wide) -> Wide {
        let Some(n) = self.buckets else { return index };
        Wide::try_from((BigUint::from(index) * self.window + (n - 1)) / n).unwrap()
    }

    /// The first tick at which an act of `tick` no longer counts.
    fn ends(&self, tick: Wide) -> Wide {
        self.buckets.map_or_else(|| tick + self.window, |n| self.begins(self.bucket(tick) + n + 1))
    }

    fn slots_in_use(&self, acts: &[(Wide, Wide)]) -> Wide {
        let mut slots: Vec<Wide> = acts.iter().map(|(act, _)| self.bucket(*act)).collect();
        slots.dedup();
        slots.len() as Wide
    }
}

/// A floor at the last tick or behind it is never reached.
fn floor(tick: Wide) -> Wide {
    if tick < Wide::from(u64::MAX) { tick } else { 1 << 64 }
}

pub(crate) struct SlidingModel {
    law: Law,
    last: Wide,
    floor: Wide,
    /// (act, units), in order.
    acts: Vec<(Wide, Wide)>,
    charges: Vec<(Wide, Wide)>,
}

impl SlidingModel {
    pub(crate) fn new(quota: &Quota, now: Tick) -> Self {
        Self { law: Law::of(quota), last: wide(now), floor: 0, acts: Vec::new(), charges: Vec::new() }
    }

    fn spent(&self, at: Wide) -> Wide {
        self.acts.iter().filter(|(act, _)| self.law.ends(*act) > at).map(|(_, units)| units).sum()
    }

    fn open_from(&self, at: Wide) -> Wide {
        at.max(self.floor).max(self.acts.last().map_or(0, |(act, _)| *act))
    }

    fn forget_before(&mut self, tick: Wide) {
        let law = &self.law;
        let ended =
            self.acts.iter().filter(|(act, _)| law.ends(*act) <= tick).map(|(act, _)| law.ends(*act)).max();
        self.floor = floor(self.floor.max(ended.unwrap_or(0)));
        self.acts.retain(|(act, _)| law.ends(*act) > tick);
    }

    fn stay_small(&mut self) {
        let most = self.law.buckets.map_or(self.law.limit, |n| n + 1) * 2;
        if self.law.slots_in_use(&self.acts) > most {
            let newest = self.acts.last().unwrap().0;
            self.forget_before(self.law.begins(self.law.bucket(newest)));
        }
    }
}

impl Model for SlidingModel {
    fn decide(&mut self, ask: Ask) -> Answer {
        let (at, units) = (wide(ask.now).max(self.last), Wide::from(ask.cost.units()));
        if units > self.law.limit {
            return Answer::Never;
        }
        // What is spent falls only where an act ends, so the first place is the first open tick or one of those.
        let open = self.open_from(at);
        let ends = self.acts.iter().map(|(act, _)| self.law.ends(*act)).filter(|end| *end > open);
        let act =
            std::iter::once(open).chain(ends).find(|place| self.spent(*place) + units <= self.law.limit);
        let act = act.expect("when all have ended there is room");
        let answer = answer(ask, at, act);
        if let Answer::Allowed { .. } = answer {
            self.last = at;
            self.acts.retain(|(act, _)| self.law.ends(*act) > at);
            self.acts.push((act, units));
            self.charges.push((act, units));
            self.stay_small();
        }
        answer
    }

    fn standing(&self, now: Tick) -> Standing {
        let at = wide(now).max(self.last);
        let spent = if self.open_from(at) > at { self.law.limit } else { self.spent(at) };
        let full = self.acts.last().map_or(0, |(act, _)| self.law.ends(*act)).max(self.floor);
        standing(self.law.limit, spent, at, full)
    }

    fn refund(&mut self, now: Tick, units: u64) {
        self.last = self.last.max(wide(now));
        let mut back = Wide::from(units);
        for (act, units) in &mut self.acts {
            if self.law.ends(*act) > self.last && self.law.begins(self.law.bucket(*act)) <= self.last {
                let taken = back.min(*units);
                (*units, back) = (*units - taken, back - taken);
            }
        }
        self.acts.retain(|(_, units)| *units > 0);
    }

    fn cancel(&mut self, now: Tick, nth: usize) {
        let ((act, mut back), last) = (self.charges[nth], self.last.max(wide(now)));
        let slot = self.law.bucket(act);
        if act < last || !self.acts.iter().any(|(act, _)| self.law.bucket(*act) == slot) {
            return;
        }
        self.last = last;
        let law = &self.law;
        for (_, units) in self.acts.iter_mut().rev().filter(|(act, _)| law.bucket(*act) == slot) {
            let taken = back.min(*units);
            (*units, back) = (*units - taken, back - taken);
        }
        self.acts.retain(|(_, units)| *units > 0);
    }

    fn carry(&mut self, to: &Quota, now: Tick, how: Replace) {
        let changed = self.last;
        self.last = self.last.max(wide(now));
        let old = std::mem::replace(&mut self.law, Law::of(to));
        if how == Replace::Reset {
            (self.floor, self.acts) = (0, Vec::new());
            return;
        }
        let (last, law) = (self.last, &self.law);
        self.acts.retain(|(act, _)| old.ends(*act) > last);
        // Each bucket is taken to act as late as it can: at its end, or by the last change if it has begun; a promise as it
        // begins, or by the floor if an earlier change has put it between two edges.
        let acted = |act: Wide| old.begins(old.bucket(act)) <= last;
        for (act, _) in &mut self.acts {
            let (begins, ends) = (old.begins(old.bucket(*act)), old.begins(old.bucket(*act) + 1));
            let latest = if acted(*act) { changed } else { 0 };
            *act = (ends - 1).min(begins.max(self.floor).max(latest)).min(Wide::from(u64::MAX));
        }
        // A promise between two edges is not overtaken, even when it is cancelled later.
        for (act, _) in
            self.acts.iter().filter(|(act, _)| !acted(*act) && law.begins(law.bucket(*act)) < *act)
        {
            self.floor = floor(self.floor.max(*act));
        }
        if how == Replace::Proportional {
            let mut sum = 0;
            for (_, units) in self.acts.iter_mut().filter(|(act, _)| acted(*act)) {
                let before = share(sum, law.limit, old.limit);
                sum = (sum + *units).min(1 << 60);
                *units = share(sum, law.limit, old.limit) - before;
            }
        }
        // The newest units, as many as the limit; nothing acts before the newest of the others has ended.
        let mut room = law.limit;
        let mut cut = None;
        for (act, units) in self.acts.iter_mut().rev() {
            if *units > room {
                cut = cut.max(Some(*act));
            }
            *units = room.min(*units);
            room -= *units;
        }
        if let Some(cut) = cut {
            self.floor = floor(self.floor.max(law.ends(cut)));
        }
        self.acts.retain(|(_, units)| *units > 0);
        self.stay_small();
    }
}
