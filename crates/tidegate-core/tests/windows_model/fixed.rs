//! The fixed window as a stack of windows, the newest on top, each with everything that acts in it.

use tidegate_core::rate::FixedWindow;
use tidegate_core::{Ask, Quota, Replace, Standing, Tick};

use crate::windows_model::model::{Act, Answer, Made, Model, Wide, answer, excess, share, standing, wide};

struct Opened {
    start: Wide,
    through: Wide,
    /// The first tick at which something in the window may act.
    opened: Wide,
    acts: Vec<Act>,
    /// The charge that opened the window, until the window begins anew.
    opener: Option<usize>,
    anew: bool,
}

impl Opened {
    fn used(&self) -> Wide {
        self.acts.iter().map(|act| act.units).sum()
    }
}

pub(crate) struct FixedModel {
    law: FixedWindow,
    last: Wide,
    pile: Vec<Opened>,
    charges: Vec<Made>,
    carried: Option<Wide>,
    /// A change forgot the windows before the oldest one in the stack.
    gap: bool,
}

impl FixedModel {
    pub(crate) fn new(law: FixedWindow, now: Tick) -> Self {
        let (pile, charges) = (Vec::new(), Vec::new());
        Self { law, last: wide(now), pile, charges, carried: None, gap: false }
    }

    fn limit(&self) -> Wide {
        Wide::from(self.law.limit())
    }

    fn is_rolling(&self) -> bool {
        self.law.calendar_parts().is_none()
    }

    /// The window around a tick. Calendar edges are tested elsewhere, so this takes them from the law.
    fn around(&self, tick: Wide) -> (Wide, Wide) {
        if self.is_rolling() {
            return (tick, (tick + self.law.period().as_nanos() - 1).min(Wide::from(u64::MAX)));
        }
        let (start, through) = self.law.window_at(Tick::from_nanos(tick as u64));
        (wide(start), wide(through))
    }

    /// Returns the newest window, unless it is over, or it is empty and has begun.
    fn top(&self, at: Wide) -> Option<&Opened> {
        self.pile.last().filter(|top| at <= top.through && (top.used() > 0 || at < top.start))
    }

    /// Drops windows that are over.
    fn pass(&mut self, at: Wide) {
        self.last = at;
        self.pile.retain(|window| window.through >= at);
        self.gap &= self.pile.first().is_some_and(|oldest| oldest.start > at);
    }

    /// Counts units in the newest window, or in a new window that they open.
    fn act(&mut self, at: Wide, (act, fits): (Wide, bool), units: Wide, nth: Option<usize>) {
        if !fits {
            let (start, through) = self.around(act);
            if act <= at {
                self.pile.clear();
            }
            let window = Opened { start, through, opened: start, acts: Vec::new(), opener: nth, anew: false };
            self.pile.push(window);
        }
        self.pile.last_mut().unwrap().acts.push(Act { act, units, nth });
        self.pass(at);
    }

    /// A rolling window begins anew, and later windows move behind it.
    fn begin_anew(&mut self, first: usize, at: Wide) {
        let mut late = self.pile[first].start.max(at);
        for index in first..self.pile.len() {
            let (start, through) = self.around(late);
            let window = &mut self.pile[index];
            if window.start < late || index == first {
                (window.start, window.through) = (start, through);
                window.anew = true;
            }
            late = (window.through + 1).min(Wide::from(u64::MAX));
        }
    }
}

impl Model for FixedModel {
    fn decide(&mut self, ask: Ask) -> Answer {
        let (at, units) = (wide(ask.now).max(self.last), Wide::from(ask.cost.units()));
        if units > self.limit() {
            return Answer::Never;
        }
        let (act, fits) = match self.top(at) {
            Some(top) if top.used() + units <= self.limit() => (at.max(top.start), true),
            Some(top) => (top.through + 1, false),
            None => (at, false),
        };
        let answer = answer(ask, at, act);
        if let Answer::Allowed { .. } = answer {
            self.act(at, (act, fits), units, Some(self.charges.len()));
            self.charges.push(Made { at, act, units });
        }
        answer
    }

    fn standing(&self, now: Tick) -> Standing {
        let at = wide(now).max(self.last);
        let Some(top) = self.top(at) else { return standing(self.limit(), 0, at, at) };
        let full = if top.used() == 0 { top.start } else { top.through + 1 };
        let whole = standing(self.limit(), top.used(), at, full);
        if at < top.start { Standing { remaining: 0, ..whole } } else { whole }
    }

    fn settle(&mut self, now: Tick, nth: usize, used: u64) {
        let (made, at) = (self.charges[nth], self.last.max(wide(now)));
        if Wide::from(used) >= made.units {
            let units = excess(made, used);
            if units > 0 {
                let place = self.top(at).map_or((at, false), |top| (at.max(top.start), true));
                self.act(at, place, units, None);
            }
            return;
        }
        if self.top(at).is_none() {
            return;
        }
        let undone = used == 0;
        if self.carried.is_some_and(|carried| made.at <= carried) {
            // Nothing comes back, but the charge may have opened the present window.
            let found =
                self.pile.iter().rposition(|window| window.opened <= made.act && at <= window.through);
            let opened = |window: &Opened| made.act <= window.start.min(window.through);
            if let Some(found) =
                found.filter(|found| undone && self.is_rolling() && opened(&self.pile[*found]))
            {
                self.begin_anew(found, at);
                self.pass(at);
            }
            return;
        }
        let holds = |window: &Opened| window.acts.iter().any(|act| act.nth == Some(nth));
        let Some(found) = self.pile.iter().position(|window| at <= window.through && holds(window)) else {
            return;
        };
        let window = &mut self.pile[found];
        window
            .acts
            .iter_mut()
            .filter(|act| act.nth == Some(nth))
            .for_each(|act| act.units = Wide::from(used));
        window.acts.retain(|act| act.units > 0);
        let stands = if window.anew {
            made.act > window.start || window.acts.iter().any(|act| act.act <= window.start)
        } else {
            window.opener != Some(nth) || !undone
        };
        if !stands && !window.acts.is_empty() && self.is_rolling() {
            self.begin_anew(found, at);
        }
        self.pass(at);
        // An empty window is dropped, so that the one before it is open again, unless windows before the stack were
        // forgotten.
        let kept = self.gap && self.pile.iter().all(|window| window.acts.is_empty());
        if kept {
            let newest = self.pile.pop();
            self.pile = newest.into_iter().collect();
        } else {
            self.pile.retain(|window| !window.acts.is_empty());
        }
    }

    fn carry(&mut self, to: &Quota, now: Tick, how: Replace) {
        let Quota::FixedWindow(to) = to else { unreachable!("laws stay of one kind") };
        let (changed, old) = (self.last, self.limit());
        self.last = self.last.max(wide(now));
        self.carried = Some(self.last);
        self.law = to.clone();
        let Some(top) = self.top(self.last).filter(|_| how != Replace::Reset) else {
            self.pile.clear();
            return;
        };
        let promised = top.start > self.last;
        let used = if how == Replace::Proportional && !promised {
            share(top.used(), self.limit(), old)
        } else {
            top.used()
        };
        let (start, through) = if !self.is_rolling() {
            let (start, through) = self.around(self.last.max(top.start));
            (if promised { top.start } else { start }, through)
        } else if self.around(top.start).1 < changed {
            self.around(changed)
        } else {
            self.around(top.start)
        };
        let opened = top.opened.min(start);
        let acts = vec![Act { act: start, units: used, nth: None }];
        self.pile = vec![Opened { start, through, opened, acts, opener: None, anew: true }];
        self.pile[0].acts.retain(|act| act.units > 0);
        self.gap = promised;
    }
}
