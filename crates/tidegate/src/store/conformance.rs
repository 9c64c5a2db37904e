//! The law that every store passes, remote ones included.
//!
//! [`run`] takes a way to make an empty store and panics, naming the law and the seed, where the store breaks one. Most laws
//! are one differential trace: random steps on the store and on [`PlainStore`], whose answers must be equal line by line.

mod random;

use std::sync::Arc;
use std::time::Duration;

pub use random::Random;
use tidegate_core::concurrency::Concurrency;
use tidegate_core::rate::{
    Bandwidth, CalendarUnit, ColdFactor, GuavaBursty, GuavaWarming, TokenBucket, UberPacer, XTime,
};
use tidegate_core::{Cost, Finish, Outcome, Quota, Rate, Receipt, Replace, Tick};

use super::step::{Charge, DecidedBy, Ending, Op, Settled, Step};
use super::{Answer, PlainStore, Store, StoreError};

/// Runs the whole suite against stores that `make` returns empty.
///
/// `quotas` are the limits to try; [`quotas`] gives one of every algorithm. `steps` is the length of each random trace: a
/// thousand for an engine over the network, a hundred thousand in memory.
///
/// # Panics
/// When a law is broken; the message names law, seed and step.
pub fn run<S: Store>(make: impl Fn() -> S, quotas: &[Arc<Quota>], steps: u64) {
    repeated_keys_are_refused(&make(), quotas);
    a_refused_step_changes_nothing(&make(), quotas);
    a_step_that_happens_once_is_all_or_nothing(&make(), quotas);
    for seed in 1..=3 {
        answers_equal_the_plain_map(&make(), quotas, seed, steps);
    }
    permits_are_neither_lost_nor_doubled(&make());
}

/// Returns one limit of every algorithm there is, awkward rates among them.
///
/// # Panics
/// Never: the parameters are constants that the tests build.
#[must_use]
pub fn quotas() -> Vec<Arc<Quota>> {
    let all = [
        Quota::per_second(7).burst(5).gcra(),
        Quota::per_second(999_999_937).burst(1000).gcra(),
        Quota::per_day(3).gcra(),
        Quota::per_second(5).fixed_window(),
        Quota::per_day(5).calendar_window(CalendarUnit::Day, "Asia/Shanghai"),
        Quota::per_second(6).sliding_window(7),
        Quota::per_second(6).sliding_counter(),
        Quota::per_second(6).sliding_log(),
        Quota::per_second(7).burst(4).token_bucket(),
        Quota::per_second(3).burst(9).interval_bucket(),
        Quota::per_second(7).burst(4).leaky_bucket(),
        Quota::per_second(20).burst(2).leaky_queue(8),
        Quota::per_second(20).warm_up(Duration::from_secs(2), ColdFactor::THREE),
        XTime::new(3.7, 6).map(Quota::from),
        Rate::new(30, Duration::from_secs(1)).and_then(|rate| UberPacer::new(rate, 4)).map(Quota::from),
        GuavaBursty::new(5.5, 1.0).map(Quota::from),
        GuavaWarming::new(9.0, Duration::from_secs(1), 3.0).map(Quota::from),
        // Starts below the cost of some asks, so that denied strangers have to be kept.
        Rate::new(3, Duration::from_secs(1))
            .and_then(|rate| Bandwidth::new(rate, 8)?.initial(1))
            .map(|bandwidth| TokenBucket::new(bandwidth).into()),
        Quota::concurrency(5, Duration::from_secs(2)),
        Concurrency::new(7).map(Quota::from),
    ];
    all.into_iter().map(|quota| Arc::new(quota.expect("constant parameters in range"))).collect()
}

fn repeated_keys_are_refused(store: &dyn Store, quotas: &[Arc<Quota>]) {
    let charges =
        [Charge::new(b"twice", &quotas[0], Cost::ONE), Charge::new(b"twice", &quotas[0], Cost::ONE)];
    let answer = store.blocking_settle(&Step::new(Tick::from_secs(1), Op::Take, &charges));
    assert_eq!(answer, Err(StoreError::RepeatedKey), "law: a key named twice is refused");
}

fn a_refused_step_changes_nothing(store: &dyn Store, quotas: &[Arc<Quota>]) {
    let now = Tick::from_secs(1_000_000);
    let small = Arc::new(Quota::per_second(1).gcra().expect("constant parameters in range"));
    for (index, quota) in quotas.iter().enumerate() {
        let (key, other) = ([b'k', index as u8], [b'o', index as u8]);
        let peek = |cost| {
            let charges = [Charge::new(&key, quota, cost)];
            store.blocking_settle(&Step::new(now, Op::Peek, &charges)).expect("a peek is answered")
        };
        let before = peek(Cost::ONE);
        let charges = [Charge::new(&key, quota, Cost::ONE), Charge::new(&other, &small, Cost::MAX)];
        let refused =
            store.blocking_settle(&Step::new(now, Op::Take, &charges)).expect("a refusal is an answer");
        assert!(!refused.allowed, "law: the maximum cost is refused");
        assert_eq!(peek(Cost::ONE), before, "law: a refused step changes nothing ({quota:?})");
    }
}

/// A charge that ends, a key that is forgotten and a mark, in one step, twice: the second finds the mark and changes nothing.
fn a_step_that_happens_once_is_all_or_nothing(store: &dyn Store, quotas: &[Arc<Quota>]) {
    let now = Tick::from_secs(1_000_000);
    let mark = Arc::new(Quota::per_hour(1).gcra().expect("constant parameters in range"));
    let settle = |op: Op<'_>, charges: &[Charge<'_>]| {
        store.blocking_settle(&Step::new(now, op, charges)).expect("a step over distinct keys is settled")
    };
    for (index, quota) in quotas.iter().enumerate() {
        let keys = [b'e', b'f', b'm'].map(|first| [first, index as u8]);
        let charges = [quota, quota, &mark];
        let charges: Vec<_> =
            keys.iter().zip(charges).map(|(key, quota)| Charge::new(key, quota, Cost::ONE)).collect();
        let taken = settle(Op::Take, &charges[..2]);
        let Some(receipt) = taken.lines[0].receipt else { continue };
        let undone = Ending::new(receipt, Finish::UNDONE);
        let endings = [undone, Ending::Forget, Ending::Once];
        let first = settle(Op::Finish(&endings), &charges);
        assert!(first.allowed, "law: what was not yet done is done ({quota:?})");
        // Nothing is left of what the first step ended, so a second that acted would show as debts and forgotten charges.
        let more = settle(Op::Take, &charges[1..2]);
        let before = settle(Op::Peek, &charges);
        let owed = Ending::new(receipt, Finish { used: 100, outcome: Outcome::Success });
        let second = settle(Op::Finish(&[owed, Ending::Forget, Ending::Once]), &charges);
        assert!(!second.allowed, "law: a mark is made once ({quota:?}, {more:?})");
        assert!(second.lines.iter().all(|line| line.receipt.is_none()), "law: refused, nothing is charged");
        assert_eq!(
            settle(Op::Peek, &charges),
            before,
            "law: a refused settlement changes nothing ({quota:?})"
        );
    }
}

/// Random takes, peeks, endings and resets over few keys, with a clock that stands, walks, jumps and steps back. Charges end before
/// and after their work acted, at once and long after, with nothing, a part, all, or more than was charged.
fn answers_equal_the_plain_map(store: &dyn Store, quotas: &[Arc<Quota>], seed: u64, steps: u64) {
    let (plain, mut random) = (PlainStore::default(), Random::seeded(seed));
    let mut now = Tick::from_secs(1_600_000_000);
    let mut open: Vec<Open> = Vec::new();
    // There are fewer keys than limits: each seed begins elsewhere in the list.
    let start = seed as usize * KEYS.len();
    for step in 0..steps {
        now = match random.below(8) {
            0..3 => now,
            3..6 => now.after(Duration::from_nanos(random.below(400_000_000))),
            6 => now.after(Duration::from_secs(random.below(90_000))),
            _ => Tick::from_nanos(now.as_nanos().saturating_sub(random.below(1_000_000_000))),
        };
        let first = random.below(KEYS.len() as u64) as usize;
        let count = 1 + random.below(3) as usize;
        let mut spec: Vec<(usize, Charge<'_>)> = (0..count)
            .map(|offset| {
                let key = (first + offset) % KEYS.len();
                // A key now and then meets another quota of the list: a live change.
                let other = if random.below(50) == 0 { 1 } else { 0 };
                let charge = Charge {
                    max_wait: Duration::from_millis([0, 0, 0, 50, 5000][random.below(5) as usize]),
                    binding: random.below(8) != 0,
                    replace: [Replace::AsIs, Replace::Proportional, Replace::Reset][random.below(3) as usize],
                    ..Charge::new(
                        KEYS[key].as_bytes(),
                        &quotas[(start + key + other) % quotas.len()],
                        Cost::new(1 + random.below(4)).unwrap_or(Cost::ONE),
                    )
                };
                (key, charge)
            })
            .collect();
        let turn = random.below(16);
        let mut endings = Vec::new();
        if (3..9).contains(&turn) && !open.is_empty() {
            spec.clear();
            for _ in 0..count {
                let Some(last) = open.len().checked_sub(1) else { break };
                // The latest as a rule, an older one now and then.
                let back = if random.below(3) == 0 { random.below(open.len() as u64) as usize } else { 0 };
                let ended = open.swap_remove(last - back);
                if spec.iter().all(|(key, _)| *key != ended.key) {
                    let (key, quota) = (KEYS[ended.key].as_bytes(), &quotas[ended.quota]);
                    spec.push((ended.key, Charge::new(key, quota, ended.receipt.cost)));
                    endings.push(ended.ending(now, &mut random));
                }
            }
            // Keys that are forgotten, or charged once, in the same step: before the others, between them, after them.
            for key in 0..KEYS.len() {
                if random.below(16) != 0 || spec.iter().any(|(other, _)| *other == key) {
                    continue;
                }
                let quota = &quotas[(start + key) % quotas.len()];
                let cost = Cost::new(1 + random.below(4)).unwrap_or(Cost::ONE);
                let charge = Charge {
                    binding: random.below(2) != 0,
                    ..Charge::new(KEYS[key].as_bytes(), quota, cost)
                };
                let at = random.below(1 + spec.len() as u64) as usize;
                spec.insert(at, (key, charge));
                endings.insert(at, if random.below(2) == 0 { Ending::Once } else { Ending::Forget });
            }
        }
        let charges: Vec<_> = spec.iter().map(|(_, charge)| *charge).collect();
        let op = match turn {
            _ if !endings.is_empty() => Op::Finish(&endings),
            0..2 => Op::Peek,
            2 => Op::Reset,
            _ => Op::Take,
        };
        let step_made = Step::new(now, op, &charges);
        let (ours, theirs) = (store.blocking_settle(&step_made), plain.blocking_settle(&step_made));
        assert_eq!(
            alike(ours),
            alike(theirs.clone()),
            "law: equal to the plain map; seed {seed}, step {step}, {step_made:?}"
        );
        if let Ok(Settled { lines, .. }) = theirs {
            // Charged by this step: all of a take, and of endings those that charge once.
            let charged = |at: usize| endings.get(at).is_none_or(|ending| *ending == Ending::Once);
            let made = spec.iter().zip(lines).enumerate().filter(|(at, _)| charged(*at));
            open.extend(made.filter_map(|(_, ((key, charge), line))| {
                let quota = quotas.iter().position(|quota| Arc::ptr_eq(quota, charge.quota))?;
                Some(Open { key: *key, quota, receipt: line.receipt? })
            }));
        }
        if open.len() > MOST_OPEN {
            open.drain(..MOST_OPEN / 2);
        }
    }
}

/// Leaves out who decided: a store, or its plain twin.
fn alike(answer: Answer) -> Answer {
    answer.map(|settled| Settled { by: DecidedBy::Local, ..settled })
}

/// How many charges a trace keeps to be ended later.
const MOST_OPEN: usize = 64;

/// A charge that has not ended yet.
struct Open {
    key: usize,
    quota: usize,
    receipt: Receipt,
}

impl Open {
    fn ending(&self, now: Tick, random: &mut Random) -> Ending {
        let units = self.receipt.cost.units();
        let used = match random.below(8) {
            0..4 => 0,
            4 => units / 2,
            5 => units,
            6 => units + 1 + random.below(5),
            // Far more than any limit: debts have a bound.
            _ => u64::MAX >> random.below(64),
        };
        let outcome = [Outcome::Success, Outcome::CallersFault, Outcome::Failure, Outcome::Ignored];
        let finish = Finish { used, outcome: outcome[random.below(4) as usize] };
        let renew = (random.below(4) == 0).then(|| now.after(Duration::from_millis(random.below(2000))));
        Ending::Finish { receipt: self.receipt, finish, renew }
    }
}

const KEYS: [&str; 13] =
    ["", "i", "j", "a", "b", "c", "d", "e", "f", "g", "h", "a longer key, as paths are", "\u{1F30A}"];

/// Threads race for one shared limit and one each of their own, in one step: the shared one is spent exactly.
fn permits_are_neither_lost_nor_doubled(store: &dyn Store) {
    const BURST: u64 = 200;
    let shared = Arc::new(Quota::per_day(1).burst(BURST).gcra().expect("constant parameters in range"));
    let (now, threads) = (Tick::from_secs(1), 4u8);
    let allowed: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let shared = &shared;
                scope.spawn(move || {
                    let own = [b'w', thread];
                    let charges =
                        [Charge::new(b"all", shared, Cost::ONE), Charge::new(&own, shared, Cost::ONE)];
                    let step = Step::new(now, Op::Take, &charges);
                    // A store may give up under contention; then nothing was spent, and the caller asks again.
                    let taken = || store.blocking_settle(&step).is_ok_and(|settled| settled.allowed);
                    (0..BURST).filter(|_| taken()).count() as u64
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker only settles")).sum()
    });
    let charges = [Charge::new(b"all", &shared, Cost::ONE)];
    let left = store.blocking_settle(&Step::new(now, Op::Peek, &charges)).expect("a peek is answered");
    let left = left.lines[0].decision.standing.remaining;
    assert_eq!(allowed + left, BURST, "law: every permit is given once");
}
