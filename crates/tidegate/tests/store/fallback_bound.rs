//! How much all nodes together grant while each decides alone, compared with what one store would have granted.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::limiter::Ask;
use tidegate::store::conformance::Random;
use tidegate::store::{Charge, Fallback, Op, PlainStore, Step, Store, conformance};
use tidegate::{Cost, Quota, Tick};
use tidegate_core::{Algorithm, Transition};

use crate::engine::{Engine, Mood};

const START: Tick = Tick::from_secs(1_600_000_000);

fn take(store: &dyn Store, quota: &Arc<Quota>, now: Tick, cost: Cost) -> bool {
    let charges = [Charge::new(b"k", quota, cost)];
    store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap().allowed
}

/// Makes nodes whose engine is gone.
fn nodes(count: u64) -> Vec<Fallback> {
    let engine = Engine::default();
    engine.be(Mood::Errs);
    let node = |_| Fallback::around(engine.clone(), ManualClock::at(START)).nodes(count).build();
    (0..count).map(node).collect()
}

/// Returns the most that a full limit grants at once.
fn limit_of(quota: &Quota) -> u64 {
    quota.standing(&quota.fresh(START), START).limit
}

/// Says whether a limit remembers a debt. Windows forget it when they end, and places have no debt.
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

/// Returns the units per second, when warm, of a limit that is slower while it is asked for less.
fn warm_rate(quota: &Quota) -> Option<u64> {
    match quota {
        Quota::WarmUp(_) => Some(20),
        Quota::GuavaWarming(_) => Some(9),
        _ => None,
    }
}

/// Returns how long a limit takes from empty to full.
fn span_of(quota: &Quota) -> Duration {
    let limit = Cost::new(limit_of(quota)).unwrap();
    match quota.decide(&quota.fresh(START), Ask::within(START, limit, Duration::MAX)) {
        Transition::Allowed { next, .. } => quota.standing(&next, START).reset_after,
        Transition::Denied { .. } => Duration::from_secs(5),
    }
    .clamp(Duration::from_micros(10), Duration::from_secs(100_000))
}

/// At every moment of a random trace, all nodes together have granted at most the limit plus one request per node more
/// than one store that is asked for all it has. The pauses are chosen so that limits are full, empty and in between.
///
/// With requests of one unit, that store sees the same requests. With larger requests it is asked unit by unit, because
/// a refused request leaves room for smaller ones. A limit that is slower while it is asked for less is compared with
/// its rate.
#[test]
fn all_nodes_together_grant_the_limit_and_one_request_each_at_most() {
    for (index, quota) in conformance::quotas().iter().enumerate() {
        let (limit, span) = (limit_of(quota), span_of(quota));
        for seed in 0..16 {
            let mut random = Random::seeded(1000 * index as u64 + seed);
            let count = [1, 2, 3, 5, 8][random.below(5) as usize];
            let largest = if seed % 2 == 0 { 1 } else { 1 + random.below(limit.min(4)) };
            // Other tests below cover what windows and places do with more nodes.
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

/// Asked continuously for a long time, with less than one unit of the limit per node. Together the nodes grant the
/// rate; under a limit that counts windows, at most one unit per node and window.
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

/// Places have no debt: as many callers enter as there are places, or one per node if there are more nodes.
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

/// However much requests of lower priority ask of a node, its part keeps its fraction, rounded down to whole units.
/// Regression: a request for more than the rest took most of the kept fraction.
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
            let executed = node.blocking_execute(&Step::new(now, Op::Take, &low)).unwrap();
            passed += u64::from(executed.allowed);
            if let Some(kept) = Cost::new(kept_back / count) {
                let high = [Charge::new(b"k", &quota, kept)];
                let left = node.blocking_execute(&Step::new(now, Op::Peek, &high)).unwrap();
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

/// A single node decides like a store without a fallback.
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
