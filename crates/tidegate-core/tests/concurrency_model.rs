//! Compares the fixed bulkhead with a plain list of the callers inside: random walks, and a small world exhaustively.

use crate::random;

use std::time::Duration;

use tidegate_core::concurrency::Concurrency;
use tidegate_core::{
    Algorithm, Ask, Cost, Finish, Guard, Outcome, Quota, Receipt, Replace, Retry, Standing, State, Tick,
    Transition,
};

use random::Random;

/// A caller that entered, as the list records it.
#[derive(Clone, Debug)]
struct Inside {
    /// The caller's number, in order of entering.
    number: usize,
    until: u64,
    places: u64,
}

/// A plain model of a bulkhead.
#[derive(Clone, Debug)]
struct Model {
    max: u64,
    ttl: Option<u64>,
    last: u64,
    inside: Vec<Inside>,
}

impl Model {
    fn now(&mut self, now: u64) -> u64 {
        let at = now.max(self.last);
        self.inside.retain(|one| one.until > at);
        at
    }

    fn in_use(&self) -> u64 {
        self.inside.iter().map(|one| one.places).sum()
    }

    fn enter(&mut self, number: usize, now: u64, places: u64) -> Result<(), Retry> {
        let at = now.max(self.last);
        if places > self.max {
            return Err(Retry::Never);
        }
        let live: u64 = self.inside.iter().filter(|one| one.until > at).map(|one| one.places).sum();
        if live + places > self.max {
            return Err(Retry::Unknown);
        }
        self.last = self.now(now);
        let until = self.ttl.map_or(u64::MAX, |ttl| {
            // The first round tick that is not too early.
            let step = [10, 5, 2].into_iter().find(|step| step * 1000 <= ttl).unwrap_or(1);
            (at + ttl..).find(|until| until % step == 0).unwrap()
        });
        self.inside.push(Inside { number, until, places });
        Ok(())
    }

    fn leave(&mut self, number: usize, now: u64) {
        let at = now.max(self.last);
        if self.inside.iter().any(|one| one.number == number && one.until > at) {
            self.last = self.now(now);
            self.inside.retain(|one| one.number != number);
        }
    }

    fn standing(&mut self, now: u64) -> Standing {
        let mut then = self.clone();
        let at = then.now(now);
        let in_use = then.in_use();
        let last = then.inside.iter().map(|one| one.until).max();
        Standing {
            limit: self.max,
            remaining: self.max.saturating_sub(in_use),
            debt: in_use.saturating_sub(self.max),
            reset_after: match last {
                None => Duration::ZERO,
                Some(u64::MAX) => Duration::MAX,
                Some(last) => Duration::from_nanos(last - at),
            },
        }
    }
}

/// The next step. Clocks move in nanoseconds.
#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(u64),
    /// One of the callers that entered and have not left, including those with a lapsed place.
    Leave(usize),
    Clock(i64),
    Change(u64, Option<u64>, Replace),
}

/// A bulkhead and its model side by side.
#[derive(Clone)]
struct Pair {
    guard: Concurrency,
    state: <Concurrency as Guard>::State,
    model: Model,
    now: u64,
    entered: usize,
    held: Vec<(usize, Receipt)>,
}

const START: u64 = 100;

fn guard(max: u64, ttl: Option<u64>) -> Concurrency {
    let guard = Concurrency::new(max).unwrap();
    ttl.map_or(guard, |ttl| guard.ttl(Duration::from_nanos(ttl)).unwrap())
}

impl Pair {
    fn new(max: u64, ttl: Option<u64>) -> Self {
        let guard = guard(max, ttl);
        let state = guard.fresh(Tick::from_nanos(START));
        let model = Model { max, ttl, last: START, inside: Vec::new() };
        Self { guard, state, model, now: START, entered: 0, held: Vec::new() }
    }

    fn step(&mut self, step: Step) {
        let now = Tick::from_nanos(self.now);
        match step {
            Step::Clock(nanos) => self.now = self.now.saturating_add_signed(nanos),
            Step::Enter(places) => {
                let ask = Ask::within(now, Cost::new(places).unwrap(), Duration::from_secs(1));
                let expected = self.model.enter(self.entered, self.now, places);
                match self.guard.enter(&self.state, ask) {
                    Transition::Allowed { wait, next, receipt } => {
                        assert_eq!(expected, Ok(()));
                        assert!(wait.is_zero() && receipt.act == receipt.at);
                        self.undone(&next, &receipt);
                        self.held.push((self.entered, receipt));
                        self.state = next;
                    }
                    Transition::Denied { retry } => assert_eq!(expected, Err(retry)),
                }
                self.entered += 1;
            }
            Step::Leave(_) if self.held.is_empty() => {}
            Step::Leave(which) => {
                let (number, receipt) = self.held.remove(which % self.held.len());
                self.model.leave(number, self.now);
                self.state = self.guard.leave(&self.state, now, &receipt, Outcome::Failure);
            }
            Step::Change(max, ttl, how) => {
                let new = guard(max, ttl);
                self.state = new.carry(&self.guard, &self.state, now, how);
                self.guard = new;
                self.model.last = self.model.now(self.now);
                (self.model.max, self.model.ttl) = (max, ttl);
                if how == Replace::Reset {
                    self.model.inside.clear();
                    // A caller that enters now comes after those that were forgotten.
                    self.model.last += 1;
                }
            }
        }
        let standing = self.guard.standing(&self.state, Tick::from_nanos(self.now));
        assert_eq!(standing, self.model.standing(self.now), "{step:?}");
        if let Some(full) = self.guard.full_at(&self.state) {
            assert_eq!(self.guard.standing(&self.state, full).reset_after, Duration::ZERO);
        }
    }

    /// Law: leaving without an outcome is the same as not having entered.
    fn undone(&self, next: &<Concurrency as Guard>::State, receipt: &Receipt) {
        for later in 0..3 {
            let at = Tick::from_nanos(self.now + later);
            let back = self.guard.leave(next, Tick::from_nanos(self.now), receipt, Outcome::Ignored);
            assert_eq!(self.guard.standing(&back, at), self.guard.standing(&self.state, at));
        }
    }
}

#[test]
fn every_sequence_of_six_steps_of_a_small_world_is_as_the_list() {
    const STEPS: [Step; 9] = [
        Step::Enter(1),
        Step::Enter(2),
        Step::Leave(0),
        Step::Leave(1),
        Step::Clock(1),
        Step::Clock(2),
        Step::Clock(-1),
        Step::Change(1, Some(1), Replace::AsIs),
        Step::Change(2, Some(2), Replace::Reset),
    ];
    fn walk(pair: &Pair, left: u32, ends: &mut u64) {
        if left == 0 {
            *ends += 1;
            return;
        }
        for step in STEPS {
            let mut next = pair.clone();
            next.step(step);
            walk(&next, left - 1, ends);
        }
    }
    let mut ends = 0;
    for ttl in [None, Some(2)] {
        walk(&Pair::new(2, ttl), 6, &mut ends);
    }
    assert_eq!(ends, 2 * 9u64.pow(6));
}

#[test]
fn long_walks_are_as_the_list() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        // Half of them long enough for places to lapse at round ticks.
        let coarse = seed % 2 == 1;
        let pace = if coarse { 200 } else { 1 };
        let ttl = |random: &mut Random| {
            let ttl = 1 + random.below(if coarse { 12_000 } else { 40 });
            (random.below(4) > 0).then_some(ttl)
        };
        let (max, first) = (1 + random.below(9), ttl(&mut random));
        let mut pair = Pair::new(max, first);
        for _ in 0..5_000 {
            let step = match random.below(100) {
                0..40 => Step::Enter(1 + random.below(3)),
                40..70 => Step::Leave(random.below(9) as usize),
                70..90 => Step::Clock((pace * random.below(6) + random.below(pace)) as i64),
                90..95 => Step::Clock(-(random.below(10) as i64)),
                95..97 => Step::Clock(50 * pace as i64),
                kind => {
                    let how = [Replace::AsIs, Replace::Proportional, Replace::Reset][(kind - 97) as usize];
                    Step::Change(1 + random.below(9), ttl(&mut random), how)
                }
            };
            pair.step(step);
        }
    }
}

#[test]
fn a_quota_enters_and_leaves_and_settles_only_what_was_undone() {
    let quota = Quota::concurrency(2, Duration::from_secs(9)).unwrap();
    let now = Tick::from_secs(1);
    let Transition::Allowed { next, receipt, .. } =
        quota.decide(&quota.fresh(now), Ask::allow(now, Cost::ONE))
    else {
        panic!("two places are free")
    };
    let remaining = |state: &State| quota.standing(state, now).remaining;
    assert_eq!(remaining(&next), 1);
    assert_eq!(quota.settle(&next, now, &receipt, 1), next, "what was used does not end the work");
    assert_eq!(remaining(&quota.settle(&next, now, &receipt, 0)), 2, "undone");
    let finish = Finish { used: 700, outcome: Outcome::Overloaded };
    assert_eq!(remaining(&quota.finish(&next, now, &receipt, finish)), 2);
    assert!(quota.is_guard() && !Quota::per_second(1).gcra().unwrap().is_guard());
}

#[test]
fn bytes_from_nowhere_are_refused_or_harmless() {
    let quota = Quota::concurrency(3, Duration::from_secs(9)).unwrap();
    let mut random = Random::new(7);
    let number = |random: &mut Random| match random.below(6) {
        0 => u64::MAX - random.below(2),
        1 => Concurrency::MAX_PLACES + random.below(3) - 1,
        2 => random.below(u64::MAX),
        _ => random.below(9),
    };
    let mut read = 0;
    for _ in 0..100_000 {
        let count = random.below(4);
        let mut bytes = vec![1, 40];
        let mut fields = vec![number(&mut random), number(&mut random)];
        fields.push(if random.below(9) == 0 { number(&mut random) } else { count });
        fields.extend((0..2 * count).map(|_| number(&mut random)));
        fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        let Ok(state) = State::decode(&bytes) else { continue };
        read += 1;
        assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
        let now = Tick::from_nanos(number(&mut random));
        let mark = [0; 4].map(|_: u64| number(&mut random));
        let receipt = Receipt { at: now, act: now, cost: Cost::new(1 + random.below(9)).unwrap(), mark };
        let left = quota.finish(&state, now, &receipt, Finish::UNDONE);
        assert!(quota.standing(&left, now).remaining >= quota.standing(&state, now).remaining);
        let _ = quota.decide(&left, Ask::allow(Tick::MAX, Cost::MAX));
        if let Transition::Allowed { next, .. } = quota.decide(&left, Ask::allow(now, Cost::ONE)) {
            assert!(quota.standing(&next, now).remaining < quota.standing(&left, now).remaining);
        }
    }
    assert!(read > 5_000, "{read} were states");
}
