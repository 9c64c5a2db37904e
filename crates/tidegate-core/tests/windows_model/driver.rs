//! Random traffic through an algorithm and its model, and the promises that need no model.

use std::time::Duration;

use tidegate_core::{Algorithm, Ask, Cost, Quota, Receipt, Replace, Retry, State, Tick, Transition};

use crate::random::Random;
use crate::windows_model::model::{self, Model, Wide, wide};

/// How many steps one history has: long enough to fill windows and let them pass, short enough to try many quotas.
const STEPS_PER_LIFE: u64 = 64;

/// How many steps each algorithm takes; `TIDEGATE_MODEL_STEPS` sets another number.
pub(crate) fn steps() -> u64 {
    const BY_DEFAULT: u64 = 250_000;
    std::env::var("TIDEGATE_MODEL_STEPS")
        .map_or(BY_DEFAULT, |steps| steps.parse().expect("a number of steps"))
}

/// One algorithm under test.
pub(crate) struct Subject {
    /// Makes a random quota; given one, a random change of it.
    pub(crate) quota: fn(&mut Random, Option<&Quota>) -> Quota,
    pub(crate) model: fn(&Quota, Tick) -> Box<dyn Model>,
    /// The law for everything that acted under one quota without debts, as `(act, units)` in order.
    pub(crate) law: fn(&Quota, &[(Wide, Wide)]),
}

/// Runs as many histories as the steps allow.
pub(crate) fn drive(subject: &Subject, salt: u64) {
    for life in 0..steps().div_ceil(STEPS_PER_LIFE) {
        Life::begin(subject, Random::new(life.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ salt)).live();
    }
}

struct Charge {
    nth: usize,
    receipt: Receipt,
    /// No change since then allows others to overtake it.
    in_line: bool,
}

struct Life<'a> {
    subject: &'a Subject,
    random: Random,
    quota: Quota,
    state: State,
    model: Box<dyn Model>,
    now: Tick,
    /// The latest tick that changed something. An earlier clock counts as this tick.
    at: Tick,
    window: u64,
    /// A span from the last answer; stepping the clock by it hits edges.
    hint: Duration,
    /// Charges that are not settled yet.
    charges: Vec<Charge>,
    charged: usize,
    changed: bool,
    /// The tick of the last change of the quota.
    changed_at: Tick,
    /// Whether the largest possible debt was booked.
    overdrawn: bool,
    /// What acts in the end; `None` after a debt or a change that forgets.
    acts: Option<Vec<(usize, Wide, Wide)>>,
}

impl<'a> Life<'a> {
    fn begin(subject: &'a Subject, mut random: Random) -> Self {
        let quota = (subject.quota)(&mut random, None);
        let now = Tick::from_nanos(match random.below(8) {
            0 => 0,
            1 => u64::MAX - random.one_to(1 << 62),
            2..=4 => random.one_to(1 << 62),
            _ => 1_760_000_000_000_000_000 + random.one_to(1 << 60),
        });
        let window = period(&quota);
        Self {
            subject,
            state: quota.fresh(now),
            model: (subject.model)(&quota, now),
            now,
            at: now,
            window,
            hint: Duration::ZERO,
            charges: Vec::new(),
            charged: 0,
            changed: false,
            overdrawn: false,
            changed_at: Tick::EPOCH,
            acts: random.one_in(2).then(Vec::new),
            random,
            quota,
        }
    }

    fn live(mut self) {
        for _ in 0..STEPS_PER_LIFE {
            self.turn_the_clock();
            match self.random.below(16) {
                0 => self.check_standing(),
                1..=3 => self.settle(),
                4 if self.random.one_in(4) => self.change(),
                5 => self.store_and_load(),
                6 => self.check_full(),
                _ => self.ask(),
            }
        }
        if let Some(acts) = self.acts.as_ref().filter(|_| !self.changed) {
            let mut acts: Vec<(Wide, Wide)> = acts.iter().map(|(_, act, units)| (*act, *units)).collect();
            acts.sort_unstable();
            (self.subject.law)(&self.quota, &acts);
        }
    }

    fn turn_the_clock(&mut self) {
        let step = match self.random.below(16) {
            0..=4 => 0,
            5 => 1,
            6..=8 => self.random.one_to(self.window),
            9 => self.random.one_to(self.window.saturating_mul(4)),
            10 | 11 => nanos(self.hint),
            12 => nanos(self.hint).saturating_sub(1),
            13 => self.window / 2,
            _ => {
                let back = if self.random.one_in(4) { self.random.one_to(self.window) } else { 0 };
                self.now = Tick::from_nanos(self.now.as_nanos().saturating_sub(back));
                0
            }
        };
        self.now = Tick::from_nanos(self.now.as_nanos().saturating_add(step));
    }

    fn random_ask(&mut self) -> Ask {
        let limit = self.quota.standing(&self.state, self.now).limit;
        let units = match self.random.below(16) {
            0 => limit.saturating_add(1),
            1 if self.random.one_in(8) => u64::MAX,
            2 => limit,
            3 | 4 => limit.div_ceil(2),
            5..=8 => 1,
            _ => self.random.one_to(limit),
        };
        let max_wait = match self.random.below(16) {
            0 => Duration::MAX,
            1..=3 => self.random.span(self.window.saturating_mul(4)),
            4 => self.hint,
            5 => self.random.span(self.window),
            _ => Duration::ZERO,
        };
        Ask::within(self.now, Cost::new(units).unwrap(), max_wait)
    }

    fn ask(&mut self) {
        let ask = self.random_ask();
        let transition = self.quota.decide(&self.state, ask);
        let expected = self.model.decide(ask);
        if let Transition::Allowed { receipt, .. } = &transition {
            assert_eq!(receipt.at, self.now.max(self.at));
        }
        assert_eq!(model::of(&transition), expected, "{:?} {:?} {ask:?}", self.quota, self.state);
        match transition {
            Transition::Allowed { next, receipt, wait } => self.accept(ask, next, receipt, wait),
            Transition::Denied { retry: Retry::After(later) } => self.check_retry(ask, later),
            Transition::Denied { retry: Retry::Never | Retry::Unknown } => {}
        }
        self.check_standing();
    }

    fn accept(&mut self, ask: Ask, next: State, receipt: Receipt, wait: Duration) {
        assert!(wait <= ask.max_wait);
        let before = self.quota.standing(&self.state, self.now);
        assert!(!wait.is_zero() || before.remaining >= ask.cost.units(), "{:?} {:?}", self.quota, self.state);
        self.check_undone(&next, &receipt);
        let mut in_line = self.charges.iter().filter(|earlier| earlier.in_line);
        let in_order = in_line.all(|earlier| earlier.receipt.act <= receipt.act);
        assert!(in_order, "overtaken: {:?} {:?}", self.quota, self.state);
        self.state = next;
        self.at = receipt.at;
        self.hint = wait;
        // A receipt from the very tick of a change counts as an older one while the change matters, and not afterwards.
        if !self.changed || receipt.at > self.changed_at {
            self.charges.push(Charge { nth: self.charged, receipt, in_line: true });
        }
        if let Some(acts) = &mut self.acts {
            acts.push((self.charged, wide(receipt.act), Wide::from(ask.cost.units())));
            // These limits promise something about any span, so the span that ends here is checked, across changes of
            // the limit.
            if matches!(self.quota, Quota::SlidingLog(_) | Quota::SlidingWindow(_)) {
                let counts = |act: &Wide| act + Wide::from(self.window) > wide(receipt.act);
                let sum: Wide = acts.iter().filter(|(_, act, _)| counts(act)).map(|(.., units)| units).sum();
                assert!(sum <= Wide::from(before.limit), "{sum}: {:?} {:?}", self.quota, self.state);
            }
        }
        self.charged += 1;
    }

    /// A charge that is made and undone leaves the state as it was, now and later. A charge at the tick of a change
    /// counts as an older one.
    fn check_undone(&mut self, next: &State, receipt: &Receipt) {
        let mut now = self.now.max(self.at);
        for _ in 0..2 {
            let undone = self.quota.settle(next, now, receipt, 0);
            let (then, without) = (self.quota.standing(&undone, now), self.quota.standing(&self.state, now));
            let exact = receipt.at > self.changed_at;
            assert!(
                then == without || (!exact && then.remaining <= without.remaining),
                "{:?} {:?} {now:?}",
                self.quota,
                self.state
            );
            now = now.after(self.random.span(self.window));
        }
    }

    /// The returned wait is enough, and a nanosecond less is not.
    fn check_retry(&mut self, ask: Ask, later: Duration) {
        assert!(!later.is_zero());
        let (at, least) = (self.now.max(self.at), nanos(later));
        self.hint = later;
        let Some(then) = at.as_nanos().checked_add(least) else { return };
        let ask_at = |now| self.quota.decide(&self.state, Ask { now: Tick::from_nanos(now), ..ask });
        assert!(
            matches!(ask_at(then), Transition::Allowed { .. }),
            "{:?} {:?} {ask:?}",
            self.quota,
            self.state
        );
        let early = ask_at(then - 1);
        assert_eq!(
            early,
            Transition::Denied { retry: Retry::After(Duration::from_nanos(1)) },
            "{:?}",
            self.quota
        );
    }

    fn check_standing(&mut self) {
        let standing = self.quota.standing(&self.state, self.now);
        assert_eq!(
            standing,
            self.model.standing(self.now),
            "{:?} {:?} {:?}",
            self.quota,
            self.state,
            self.now
        );
        // Exactly what remains can be spent at once, and not a unit more.
        let fits = |units| {
            let cost = Cost::new(units).unwrap();
            matches!(self.quota.decide(&self.state, Ask::allow(self.now, cost)), Transition::Allowed { .. })
        };
        assert!(standing.remaining == 0 || fits(standing.remaining), "{:?} {:?}", self.quota, self.state);
        assert!(!fits(standing.remaining + 1), "{:?} {:?}", self.quota, self.state);
        if self.random.one_in(4) {
            self.hint = standing.reset_after;
        }
    }

    fn settle(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        // Most often the newest charges: they have not acted yet.
        let newest = self.charges.len() as u64 - 1;
        let back = if self.random.one_in(2) { 0 } else { self.random.below(newest + 1).min(8) };
        let Charge { nth, receipt, .. } = self.charges.remove((newest - back) as usize);
        let used = self.random_use(receipt.cost.units());
        let settled = self.quota.settle(&self.state, self.now, &receipt, used);
        self.model.settle(self.now, nth, used);
        match &mut self.acts {
            Some(_) if used > receipt.cost.units() => self.acts = None,
            Some(acts) => {
                for (_, _, units) in acts.iter_mut().filter(|(other, ..)| *other == nth) {
                    *units = Wide::from(used);
                }
            }
            None => {}
        }
        if settled != self.state {
            self.at = self.now.max(self.at);
        }
        self.state = settled;
        self.check_standing();
    }

    /// Returns how much of a charge was used: nothing, a part, all, or more.
    fn random_use(&mut self, units: u64) -> u64 {
        let limit = self.quota.standing(&self.state, self.now).limit;
        match self.random.below(8) {
            0..=3 => 0,
            4 | 5 => self.random.below(units + 1),
            6 => units.saturating_add(self.random.one_to(limit.div_ceil(4))),
            // Only once, and only where the counts do not saturate; hostile.rs covers saturation.
            _ if self.random.one_in(4) && !self.overdrawn && limit < 1 << 50 => {
                self.overdrawn = true;
                u64::MAX
            }
            _ => units + 1,
        }
    }

    fn change(&mut self) {
        let to = (self.subject.quota)(&mut self.random, Some(&self.quota));
        // After the largest debt, counts that grow with the limit would saturate; hostile.rs covers that.
        let grown = if self.overdrawn { Replace::AsIs } else { Replace::Proportional };
        let how = self.random.pick(&[Replace::AsIs, Replace::AsIs, grown, Replace::Reset]);
        self.state = to.carry(&self.quota, &self.state, self.now, how);
        self.model.carry(&to, self.now, how);
        let keeps = how == Replace::AsIs && period(&to) == self.window;
        if !keeps || matches!(to, Quota::FixedWindow(_)) {
            self.charges.iter_mut().for_each(|charge| charge.in_line = false);
            self.acts = None;
        }
        (self.changed, self.changed_at) = (true, self.now.max(self.at));
        self.quota = to;
        self.window = period(&self.quota);
        self.at = self.now.max(self.at);
        self.check_standing();
    }

    fn store_and_load(&mut self) {
        self.state = State::decode(&self.state.encode()).unwrap();
        self.quota = Quota::decode(&self.quota.encode()).unwrap();
    }

    /// From the returned tick on, and not before, the state is as good as a fresh one.
    fn check_full(&mut self) {
        let Some(full) = self.quota.full_at(&self.state) else { return };
        let then = full.max(self.now).max(self.at);
        let standing = self.quota.standing(&self.state, then);
        assert_eq!(
            (standing.remaining, standing.reset_after),
            (standing.limit, Duration::ZERO),
            "{:?}",
            self.state
        );
        let ask = Ask { now: then, ..self.random_ask() };
        let fresh = self.quota.decide(&self.quota.fresh(then), ask);
        match (self.quota.decide(&self.state, ask), fresh) {
            (
                Transition::Allowed { wait, next, .. },
                Transition::Allowed { wait: fresh_wait, next: fresh, .. },
            ) => {
                assert_eq!(
                    (wait, self.quota.standing(&next, then)),
                    (fresh_wait, self.quota.standing(&fresh, then))
                );
            }
            (Transition::Denied { retry }, Transition::Denied { retry: fresh }) => {
                assert_eq!(retry, fresh);
            }
            _ => panic!("{:?} {:?} {ask:?}", self.quota, self.state),
        }
        // After a change, the state is kept for as long as an older receipt could do harm.
        if full > self.now.max(self.at) && !self.changed {
            let before = Tick::from_nanos(full.as_nanos() - 1);
            assert!(!self.quota.standing(&self.state, before).reset_after.is_zero(), "{:?}", self.state);
        }
    }
}

fn nanos(span: Duration) -> u64 {
    tidegate_core::time::nanos(span)
}

fn period(quota: &Quota) -> u64 {
    nanos(match quota {
        Quota::FixedWindow(law) => law.period(),
        Quota::SlidingWindow(law) => law.rate().period(),
        Quota::SlidingCounter(law) => law.rate().period(),
        Quota::SlidingLog(law) => law.rate().period(),
        other => unreachable!("{other:?} is not a window"),
    })
}
