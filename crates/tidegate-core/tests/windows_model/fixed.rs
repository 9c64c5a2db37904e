//! The fixed window as a pile of windows: all that were ever opened, the newest on top.

use tidegate_core::rate::FixedWindow;
use tidegate_core::{Ask, Quota, Replace, Standing, Tick};

use crate::model::{Answer, Model, Wide, answer, share, standing, wide};

struct Opened {
    start: Wide,
    through: Wide,
    used: Wide,
    /// The charge that had to wait for this window to begin.
    waiter: Option<usize>,
}

pub(crate) struct FixedModel {
    law: FixedWindow,
    last: Wide,
    pile: Vec<Opened>,
    charges: Vec<(Wide, Wide)>,
}

impl FixedModel {
    pub(crate) fn new(law: FixedWindow, now: Tick) -> Self {
        Self { law, last: wide(now), pile: Vec::new(), charges: Vec::new() }
    }

    fn limit(&self) -> Wide {
        Wide::from(self.law.limit())
    }

    /// Calendar edges have tables of their own; here they are taken from the law.
    fn around(&self, tick: Wide) -> (Wide, Wide) {
        if self.law.calendar_parts().is_none() {
            return (tick, (tick + self.law.period().as_nanos() - 1).min(Wide::from(u64::MAX)));
        }
        let (start, through) = self.law.window_at(Tick::from_nanos(tick as u64));
        (wide(start), wide(through))
    }

    /// The newest window, unless it is over, or empty and begun.
    fn top(&self, at: Wide) -> Option<&Opened> {
        self.pile.last().filter(|top| at <= top.through && (top.used > 0 || at < top.start))
    }
}

impl Model for FixedModel {
    fn decide(&mut self, ask: Ask) -> Answer {
        let (at, units) = (wide(ask.now).max(self.last), Wide::from(ask.cost.units()));
        if units > self.limit() {
            return Answer::Never;
        }
        let (act, fits, waits) = match self.top(at) {
            Some(top) if top.used + units <= self.limit() => (at.max(top.start), true, false),
            Some(top) => (top.through + 1, false, true),
            None => (at, false, false),
        };
        let answer = answer(ask, at, act);
        if let Answer::Allowed { .. } = answer {
            self.last = at;
            if !fits {
                let (start, through) = self.around(act);
                let waiter = waits.then_some(self.charges.len());
                self.pile.push(Opened { start, through, used: 0, waiter });
            }
            self.pile.last_mut().unwrap().used += units;
            self.charges.push((act, units));
        }
        answer
    }

    fn standing(&self, now: Tick) -> Standing {
        let at = wide(now).max(self.last);
        match self.top(at) {
            None => standing(self.limit(), 0, at, at),
            Some(top) => {
                let spent = if at < top.start { self.limit() } else { top.used };
                let full = if top.used == 0 { top.start } else { top.through + 1 };
                standing(self.limit(), spent, at, full)
            }
        }
    }

    fn refund(&mut self, now: Tick, units: u64) {
        self.last = self.last.max(wide(now));
        if let Some(top) = self.pile.last_mut().filter(|top| (top.start..=top.through).contains(&self.last)) {
            top.used = top.used.saturating_sub(Wide::from(units));
        }
    }

    fn cancel(&mut self, now: Tick, nth: usize) {
        let ((act, units), last) = (self.charges[nth], self.last.max(wide(now)));
        let Some(top) = self.pile.last_mut() else { return };
        if act < last || !(top.start..=top.through).contains(&act) || top.used == 0 {
            return;
        }
        self.last = last;
        top.used = top.used.saturating_sub(units);
        if top.used == 0 && top.start > last && top.waiter == Some(nth) {
            let start = top.start;
            self.pile.pop();
            self.pile.last_mut().unwrap().through = start - 1;
        }
    }

    fn carry(&mut self, to: &Quota, now: Tick, how: Replace) {
        let Quota::FixedWindow(to) = to else { unreachable!("laws stay of one kind") };
        let (changed, old) = (self.last, self.limit());
        self.last = self.last.max(wide(now));
        self.law = to.clone();
        let Some(top) = self.top(self.last).filter(|_| how != Replace::Reset) else {
            self.pile.clear();
            return;
        };
        let promised = top.start > self.last;
        let used = if how == Replace::Proportional && !promised {
            share(top.used, self.limit(), old)
        } else {
            top.used
        };
        let (start, through) = if self.law.calendar_parts().is_some() {
            let (start, through) = self.around(self.last.max(top.start));
            (if promised { top.start } else { start }, through)
        } else if self.around(top.start).1 < changed {
            self.around(changed)
        } else {
            self.around(top.start)
        };
        let top = self.pile.last_mut().unwrap();
        (top.start, top.through, top.used) = (start, through, used);
    }
}
