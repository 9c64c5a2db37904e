//! How much all nodes together grant while they decide by themselves, beside what one store would have granted.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod engine;

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::{Charge, Fallback, Op, PlainStore, Step, Store, conformance, conformance::Random};
use tidegate::{Ask, Cost, ManualClock, Quota, Tick};
use tidegate_core::{Algorithm, Transition};

use engine::{Engine, Mood};

const START: Tick = Tick::from_secs(1_600_000_000);

fn take(store: &dyn Store, quota: &Arc<Quota>, now: Tick, cost: Cost) -> bool {
    let charges = [Charge::new(b"k", quota, cost)];
    store.blocking_settle(&Step::new(now, Op::Take, &charges)).unwrap().allowed
}

/// Nodes whose engine is gone.
fn nodes(count: u64) -> Vec<Fallback> {
    let engine = Engine::default();
    engine.be(Mood::Errs);
    let node = |_| Fallback::around(engine.clone(), ManualClock::at(START)).nodes(count).build();
    (0..count).map(node).collect()
}

/// The most that a full limit grants at once.
fn limit_of(quota: &Quota) -> u64 {
    quota.standing(&quota.fresh(START), START).limit
}

/// Whether a limit remembers what is owed: windows forget it when they end, and places are not owed.
fn owes(quota: &Quota) -> bool {
    !matches!(
        quota,
        Quota::FixedWindow(_)
            | Quota::SlidingWindow(_)
            | Quota::SlidingCounter(_)
            | Quota::SlidingLog(_)
            | Quota::Concurrency(_)
            | Quota::Adaptive(_)
    )
}

/// Returns the units in a second of a limit that is slower for being asked less, when it is warm.
fn warm_rate(quota: &Quota) -> Option<u64> {
    match quota {
        Quota::WarmUp(_) => Some(20),
        Quota::GuavaWarming(_) => Some(9),
        _ => None,
    }
}

/// How long a limit takes to come back from empty.
fn span_of(quota: &Quota) -> Duration {
    let limit = Cost::new(limit_of(quota)).unwrap();
    match quota.decide(&quota.fresh(START), Ask::within(START, limit, Duration::MAX)) {
        Transition::Allowed { next, .. } => quota.standing(&next, START).reset_after,
        Transition::Denied { .. } => Duration::from_secs(5),
    }
    .clamp(Duration::from_micros(10), Duration::from_secs(100_000))
}

/// At every moment of a random trace all nodes together have granted at most the limit, and one request of each node, more than one store
/// grants that is asked for all it has. Pauses are such that limits are met full, empty and in between.
///
/// Beside a store that sees the same requests this holds where each costs one unit. Where one that is refused leaves room for smaller
/// ones, what a store grants is no measure; nor where a limit is slower for being asked less, whose measure is its rate.
#[test]
fn all_nodes_together_grant_the_limit_and_one_request_each_at_most() {
    for (index, quota) in conformance::quotas().iter().enumerate() {
        let (limit, span) = (limit_of(quota), span_of(quota));
        for seed in 0..16 {
            let mut random = Random::seeded(1000 * index as u64 + seed);
            let count = [1, 2, 3, 5, 8][random.below(5) as usize];
            let largest = if seed % 2 == 0 { 1 } else { 1 + random.below(limit.min(4)) };
            // What windows and places do beyond that is told below.
            let count = if owes(quota) { count } else { count.min(limit / largest) };
            let (nodes, plain) = (nodes(count), PlainStore::default());
            let (mut now, mut theirs, mut ours) = (START, 0, 0);
            let busy = 1 + random.below(8);
            let steps = (limit.min(100) * 5).max(300);
            for step in 0..steps {
                if random.below(8) < busy {
                    let most = span.as_nanos() as u64 * 4 / limit.min(200);
                    now = now.after(Duration::from_nanos(random.below(most.max(2))));
                }
                let cost = Cost::new(1 + random.below(largest)).unwrap();
                let node = &nodes[random.below(count) as usize];
                if let Some(rate) = warm_rate(quota) {
                    theirs = (now.since(START).as_secs_f64() * rate as f64) as u64;
                } else if largest == 1 {
                    theirs += u64::from(take(&plain, quota, now, cost));
                } else {
                    while take(&plain, quota, now, Cost::ONE) {
                        theirs += 1;
                    }
                }
                ours += u64::from(take(node, quota, now, cost)) * cost.units();
                let most = theirs + limit + count * largest;
                assert!(
                    ours <= most,
                    "{ours} and not {theirs} of {quota:?}; {count} nodes, seed {seed}, step {step}"
                );
            }
        }
    }
}

/// Asked without a pause and for long, where the limit has less than a unit for each node: they grant its rate together, or, under a
/// limit that counts windows, one on each node in each window.
#[test]
fn a_limit_smaller_than_the_number_of_nodes_keeps_its_rate_or_grants_one_to_each_in_a_window() {
    for quota in [
        Quota::per_minute(2).burst(2).gcra(),
        Quota::per_minute(2).fixed_window(),
        Quota::per_minute(2).sliding_window(6),
        Quota::per_minute(2).sliding_counter(),
        Quota::per_minute(2).sliding_log(),
        Quota::per_minute(2).burst(2).token_bucket(),
        Quota::per_minute(2).burst(2).leaky_bucket(),
    ] {
        let quota = Arc::new(quota.unwrap());
        let (nodes, minutes) = (nodes(8), 60);
        let mut granted = 0;
        for second in 0..minutes * 60 {
            let now = START.after(Duration::from_secs(second));
            granted += nodes.iter().filter(|node| take(*node, &quota, now, Cost::ONE)).count() as u64;
        }
        let limit = limit_of(&quota);
        if !owes(&quota) {
            assert!(granted <= 8 * (minutes + 1), "{granted} in {minutes} minutes under {quota:?}");
            continue;
        }
        assert!(granted <= 2 * minutes + limit + 8, "{granted} in {minutes} minutes under {quota:?}");
        assert!(granted >= minutes / 2, "{granted} in {minutes} minutes under {quota:?}");
    }
}

/// Bulkheads cannot owe: as many inside as there are places, or one on each node.
#[test]
fn places_are_divided() {
    for (places, count, most) in [(6, 3, 6), (7, 3, 6), (2, 5, 5), (1, 4, 4)] {
        let quota = Arc::new(Quota::concurrency(places, Duration::from_secs(60)).unwrap());
        let nodes = nodes(count);
        let inside = nodes.iter().flat_map(|node| (0..10).map(move |_| node));
        let inside = inside.filter(|node| take(*node, &quota, START, Cost::ONE)).count();
        assert_eq!(inside, most, "{places} places on {count} nodes");
    }
}

/// Whatever requests of lower priority ask of a node, and however often: its part still has the fraction that is kept, as many whole units
/// of it as there are. They took most of it, where one of them asked for more than the rest.
#[test]
fn a_node_keeps_the_fraction_that_the_limit_keeps() {
    for seed in 0..300 {
        let mut random = Random::seeded(seed);
        let (count, limit) = (1 + random.below(6), 2 + random.below(60));
        let kept_back = random.below(limit);
        let quota = match random.below(4) {
            0 => Quota::per_minute(limit).gcra(),
            1 => Quota::per_minute(limit).token_bucket(),
            2 => Quota::per_minute(limit).fixed_window(),
            _ => Quota::per_minute(limit).sliding_log(),
        };
        let (quota, node) = (Arc::new(quota.unwrap()), nodes(count).remove(0));
        let (mut now, mut passed) = (START, 0);
        for step in 0..200 {
            now = now.after(Duration::from_millis(random.below(4000)));
            let most = if random.below(2) == 0 { 1 } else { limit };
            let cost = Cost::new(1 + random.below(most)).unwrap();
            let low = [Charge { kept_back, ..Charge::new(b"k", &quota, cost) }];
            let settled = node.blocking_settle(&Step::new(now, Op::Take, &low)).unwrap();
            passed += u64::from(settled.allowed);
            if let Some(kept) = Cost::new(kept_back / count) {
                let high = [Charge::new(b"k", &quota, kept)];
                let left = node.blocking_settle(&Step::new(now, Op::Peek, &high)).unwrap();
                assert!(
                    left.allowed,
                    "{kept} of {limit} over {count}, after {cost}: seed {seed}, step {step}"
                );
            }
        }
        let one_fits = count + kept_back <= limit || kept_back < count;
        assert_eq!(passed > 0, one_fits, "{kept_back} of {limit} over {count}: seed {seed}");
    }
}

/// One node decides alone as a store that nobody stands in for.
#[test]
fn one_node_alone_conforms() {
    let of = |mood| {
        move || {
            let engine = Engine::default();
            engine.be(mood);
            Fallback::around(engine, ManualClock::at(START)).build()
        }
    };
    conformance::run(of(Mood::Later), &conformance::quotas(), 5000);
    conformance::run(of(Mood::Now), &conformance::quotas(), 5000);
}
