//! The sliding counter with every act kept, and the estimate as a fraction.

use num_bigint::BigInt;
use num_rational::BigRational;
use tidegate_core::{Ask, Quota, Rate, Replace, Standing, Tick};

use crate::model::{Answer, Model, Wide, answer, share, standing, wide};

pub(crate) struct CounterModel {
    rate: Rate,
    last: Wide,
    latest: Wide,
    /// (act, units).
    acts: Vec<(Wide, Wide)>,
    /// (act, units, where the charge waited from).
    charges: Vec<(Wide, Wide, Wide)>,
}

impl CounterModel {
    pub(crate) fn new(quota: &Quota, now: Tick) -> Self {
        let rate = rate(quota);
        Self { rate, last: wide(now), latest: 0, acts: Vec::new(), charges: Vec::new() }
    }

    fn limit(&self) -> Wide {
        Wide::from(self.rate.count())
    }

    fn window(&self) -> Wide {
        self.rate.period().as_nanos()
    }

    /// What was spent in the window of this number.
    fn spent(&self, index: Option<Wide>) -> Wide {
        self.acts.iter().filter(|(act, _)| Some(act / self.window()) == index).map(|(_, units)| units).sum()
    }

    /// `current + previous · (1 − elapsed/window)`, as the numerator over the window.
    fn estimate(&self, at: Wide) -> BigInt {
        let index = at / self.window();
        let left = self.window() - at % self.window();
        BigInt::from(self.spent(Some(index))) * self.window()
            + BigInt::from(self.spent(index.checked_sub(1))) * left
    }

    /// The estimate in whole units, rounded up.
    fn units(&self, at: Wide) -> Wide {
        BigRational::new(self.estimate(at), BigInt::from(self.window()))
            .ceil()
            .to_integer()
            .try_into()
            .unwrap()
    }

    /// Takes units out of one window, the newest first.
    fn take(&mut self, index: Option<Wide>, mut back: Wide) -> Wide {
        let window = self.window();
        for (_, units) in self.acts.iter_mut().rev().filter(|(act, _)| Some(act / window) == index) {
            let taken = back.min(*units);
            (*units, back) = (*units - taken, back - taken);
        }
        back
    }
}

fn rate(quota: &Quota) -> Rate {
    let Quota::SlidingCounter(law) = quota else { unreachable!("laws stay of one kind") };
    law.rate()
}

impl Model for CounterModel {
    fn decide(&mut self, ask: Ask) -> Answer {
        let (at, units) = (wide(ask.now).max(self.last), Wide::from(ask.cost.units()));
        if units > self.limit() {
            return Answer::Never;
        }
        let from = at.max(self.latest);
        let room = BigInt::from(self.limit() - units) * self.window();
        let fits = |place: Wide| self.estimate(place) <= room;
        // From the latest act on the estimate only falls, and after two windows it is zero: halve until one tick is
        // left.
        let (mut no, mut yes) = (from, from + 2 * self.window());
        if fits(from) {
            yes = from;
        }
        while yes - no > 1 {
            let middle = no + (yes - no) / 2;
            if fits(middle) { yes = middle } else { no = middle }
        }
        let answer = answer(ask, at, yes);
        if let Answer::Allowed { act, .. } = answer {
            (self.last, self.latest) = (at, act);
            self.acts.push((act, units));
            self.charges.push((act, units, from));
        }
        answer
    }

    fn standing(&self, now: Tick) -> Standing {
        let at = wide(now).max(self.last);
        let spent = if self.latest > at { self.limit() } else { self.units(at) };
        let index = self.latest / self.window();
        let full = if self.spent(Some(index)) > 0 {
            (index + 2) * self.window()
        } else if self.spent(index.checked_sub(1)) > 0 {
            (index + 1) * self.window()
        } else {
            self.latest
        };
        standing(self.limit(), spent, at, full)
    }

    fn refund(&mut self, now: Tick, units: u64) {
        self.last = self.last.max(wide(now));
        self.latest = self.latest.max(self.last);
        let index = self.latest / self.window();
        let mut back = Wide::from(units);
        for index in [Some(index), index.checked_sub(1)] {
            if index.is_some_and(|index| index * self.window() <= self.last) {
                back = self.take(index, back);
            }
        }
    }

    fn cancel(&mut self, now: Tick, nth: usize) {
        let ((act, units, from), last) = (self.charges[nth], self.last.max(wide(now)));
        let (index, cancelled) = (self.latest / self.window(), act / self.window());
        if act < last || cancelled > index || index - cancelled > 1 {
            return;
        }
        self.last = last;
        self.take(Some(cancelled), units);
        let begins = index * self.window();
        let nobody_left = cancelled == index && self.spent(Some(index)) == 0;
        if nobody_left && begins > last && from / self.window() + 1 >= index {
            self.latest = from;
        }
    }

    fn carry(&mut self, to: &Quota, now: Tick, how: Replace) {
        self.last = self.last.max(wide(now));
        let (old, new) = (self.rate, rate(to));
        if how == Replace::Reset {
            (self.rate, self.latest) = (new, 0);
            self.acts.clear();
            return;
        }
        let promised = self.latest > self.last;
        self.latest = self.latest.max(self.last);
        if old.period() != new.period() {
            let index = self.latest / self.window();
            let sum = self.spent(Some(index)) + self.spent(index.checked_sub(1));
            let estimate = self.units(self.latest);
            self.acts = vec![(self.latest, if promised { sum } else { estimate }.min(1 << 60))];
        }
        self.rate = new;
        if how == Replace::Proportional && !promised {
            let index = self.latest / self.window();
            let scale = |units| share(units, Wide::from(new.count()), Wide::from(old.count()));
            let (current, previous) =
                (scale(self.spent(Some(index))), scale(self.spent(index.checked_sub(1))));
            self.acts = vec![(self.latest, current)];
            if let Some(before) = index.checked_sub(1) {
                self.acts.insert(0, (before * self.window(), previous));
            }
        }
    }
}
