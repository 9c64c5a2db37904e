//! The sliding counter as a list of every act, with the estimate as a fraction.

use num_bigint::BigInt;
use num_rational::BigRational;
use tidegate_core::{Ask, Quota, Rate, Replace, Standing, Tick};

use crate::windows_model::model::{Act, Answer, Made, Model, Wide, answer, excess, share, standing, wide};

pub(crate) struct CounterModel {
    rate: Rate,
    last: Wide,
    acts: Vec<Act>,
    charges: Vec<Made>,
    carried: Option<Wide>,
}

impl CounterModel {
    pub(crate) fn new(quota: &Quota, now: Tick) -> Self {
        let rate = rate(quota);
        Self { rate, last: wide(now), acts: Vec::new(), charges: Vec::new(), carried: None }
    }

    fn limit(&self) -> Wide {
        Wide::from(self.rate.count())
    }

    fn window(&self) -> Wide {
        self.rate.period().as_nanos()
    }

    /// Returns what was spent in the window of this index.
    fn spent(&self, index: Option<Wide>) -> Wide {
        let inside = |act: &&Act| Some(act.act / self.window()) == index;
        self.acts.iter().filter(inside).map(|act| act.units).sum()
    }

    /// Returns the first tick, not before `at`, at which a new charge overtakes no reservation.
    fn open_from(&self, at: Wide) -> Wide {
        self.acts.iter().filter(|act| act.units > 0).map(|act| act.act).fold(at, Wide::max)
    }

    /// `current + previous · (1 − elapsed/window)`, times the window.
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
        let from = self.open_from(at);
        let room = BigInt::from(self.limit() - units) * self.window();
        let fits = |place: Wide| self.estimate(place) <= room;
        // From the latest act on the estimate only falls, and after two windows it is zero: bisect until one tick is
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
            self.last = at;
            self.acts.push(Act { act, units, nth: Some(self.charges.len()) });
            self.charges.push(Made { at, act, units });
        }
        answer
    }

    fn standing(&self, now: Tick) -> Standing {
        let at = wide(now).max(self.last);
        let open = self.open_from(at);
        let index = open / self.window();
        let full = if self.spent(Some(index)) > 0 {
            (index + 2) * self.window()
        } else if self.spent(index.checked_sub(1)) > 0 {
            (index + 1) * self.window()
        } else {
            open
        };
        let whole = standing(self.limit(), self.units(open), at, full);
        if open > at { Standing { remaining: 0, ..whole } } else { whole }
    }

    fn settle(&mut self, now: Tick, nth: usize, used: u64) {
        let (made, at) = (self.charges[nth], self.last.max(wide(now)));
        if Wide::from(used) >= made.units {
            let units = excess(made, used);
            if units > 0 {
                self.last = at;
                self.acts.push(Act { act: self.open_from(at), units, nth: None });
            }
            return;
        }
        let counts = made.act > at || at / self.window() - made.act / self.window() <= 1;
        if counts && self.carried.is_none_or(|carried| made.at > carried) {
            self.last = at;
            for act in self.acts.iter_mut().filter(|act| act.nth == Some(nth)) {
                act.units = Wide::from(used);
            }
        }
    }

    fn carry(&mut self, to: &Quota, now: Tick, how: Replace) {
        let last = self.last.max(wide(now));
        (self.last, self.carried) = (last, Some(last));
        let (old, new) = (self.rate, rate(to));
        if how == Replace::Reset {
            self.rate = new;
            self.acts.clear();
            return;
        }
        let latest = self.open_from(last);
        let promised = latest > last;
        if old.period() != new.period() {
            let index = latest / self.window();
            let sum = self.spent(Some(index)) + self.spent(index.checked_sub(1));
            let units = if promised { sum } else { self.units(latest) };
            self.acts = vec![Act { act: latest, units, nth: None }];
        }
        self.rate = new;
        if how == Replace::Proportional && !promised {
            let index = latest / self.window();
            let scale = |units| share(units, Wide::from(new.count()), Wide::from(old.count()));
            let (current, previous) =
                (scale(self.spent(Some(index))), scale(self.spent(index.checked_sub(1))));
            self.acts = vec![Act { act: latest, units: current, nth: None }];
            if let Some(before) = index.checked_sub(1) {
                self.acts.insert(0, Act { act: before * self.window(), units: previous, nth: None });
            }
        }
    }
}
