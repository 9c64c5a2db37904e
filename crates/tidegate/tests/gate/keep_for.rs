//! Limits that keep a part for requests of higher priority (`keep_for`).

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::ManualClock;
use tidegate::gate::{Check, GateDecision};
use tidegate::limiter::rate::UberPacer;
use tidegate::limiter::{Rate, Retry};
use tidegate::policy::{
    Choice, CostRule, Descriptor, KeepFor, KeepForError, Kept, Learning, Limit, Policy, PolicySet,
    PolicySetError, Terms,
};
use tidegate::priority::Criticality;
use tidegate::store::{
    Charge, Executed, Execution, Fallback, MemoryStore, Occupancy, Op, PlainStore, Step, Store, StoreError,
    conformance,
};
use tidegate::{Cost, Gate, Quota, Tick};

use Criticality::{Critical, CriticalPlus, Sheddable};

const NOW: Tick = Tick::from_secs(1_600_000_000);

fn units(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

fn execute(store: &PlainStore, now: Tick, op: Op<'_>, charge: Charge<'_>) -> Executed {
    store.blocking_execute(&Step::new(now, op, &[charge])).unwrap()
}

/// Says whether a part of a limit can be kept. Some limits grant either nothing or any cost, and cannot keep a part.
fn keeps(quota: &Quota, units: u64, max_wait: Duration) -> bool {
    KeepFor::default().with(Critical, Kept::Units(units)).check(quota, max_wait).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Holds for every algorithm and guard and any history: with a part kept back, a request is decided like one that
    /// costs its own cost plus that part, and takes only its own cost.
    #[test]
    fn a_request_passes_exactly_if_one_of_its_cost_and_the_part_would(
        turns in prop::collection::vec((0..900_u64, 1..4_u64, 0..5_u64, prop::sample::select(vec![0, 0, 50, 5000_u64])), 1..60),
    ) {
        // An adaptive limit keeps a share, not units.
        for quota in conformance::quotas().into_iter().filter(|quota| !matches!(**quota, Quota::Adaptive(_))) {
            let (store, twin) = (PlainStore::default(), PlainStore::default());
            let mut now = NOW;
            for (pause, cost, kept_back, wait) in &turns {
                now = now.after(Duration::from_millis(*pause));
                let max_wait = Duration::from_millis(*wait);
                let plain = |cost| Charge { max_wait, ..Charge::new(b"key", &quota, units(cost)) };
                let both = execute(&twin, now, Op::Peek, plain(cost + kept_back));
                let ours = execute(&store, now, Op::Take, Charge { kept_back: *kept_back, ..plain(*cost) });
                prop_assert_eq!(ours.allowed, both.allowed, "{:?}", &quota);
                if both.allowed {
                    prop_assert_eq!(&ours, &execute(&twin, now, Op::Take, plain(*cost)), "{:?}", &quota);
                } else {
                    let theirs = execute(&twin, now, Op::Take, plain(cost + kept_back));
                    prop_assert_eq!(&ours, &theirs, "{:?}", &quota);
                }
            }
        }
    }

    /// However often less important requests ask, the part kept back stays available to others, also at the same tick.
    #[test]
    fn what_is_kept_back_is_there_for_others(
        turns in prop::collection::vec((0..900_u64, 1..4_u64), 1..60),
        kept_back in 1..4_u64,
        wait in prop::sample::select(vec![0, 0, 200_u64]),
    ) {
        let max_wait = Duration::from_millis(wait);
        for quota in conformance::quotas().into_iter().filter(|quota| keeps(quota, kept_back, max_wait) && quota.capacity() < 100) {
            let store = PlainStore::default();
            let (mut now, mut burst) = (NOW, 0);
            for (pause, cost) in &turns {
                now = now.after(Duration::from_millis(*pause));
                if *pause > 0 {
                    burst = 0;
                }
                let charge = Charge { max_wait, kept_back, ..Charge::new(b"key", &quota, units(*cost)) };
                while execute(&store, now, Op::Take, charge).allowed {
                    burst += cost;
                    let other = Charge { max_wait, ..Charge::new(b"key", &quota, units(kept_back)) };
                    prop_assert!(execute(&store, now, Op::Peek, other).allowed, "{:?}", &quota);
                    if wait == 0 {
                        prop_assert!(burst <= quota.capacity() - kept_back, "{burst} at one tick: {:?}", &quota);
                    }
                }
            }
        }
    }
}

fn gate(limit: Limit) -> Gate {
    let set = PolicySet::new(vec![Policy::new("p", limit)]).unwrap();
    Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(NOW))
}

fn kept(quota: Quota, level: Criticality, kept: Kept) -> Limit {
    let mut limit = Limit::new(quota, "l");
    limit.keep_for = KeepFor::default().with(level, kept);
    limit
}

fn gcra(count: u64) -> Quota {
    Quota::per_hour(count).gcra().unwrap()
}

fn passes(gate: &Gate, request: &Descriptor<'_>, level: Criticality) -> GateDecision {
    gate.check(Check::of(request).priority(level)).now().unwrap()
}

/// Returns how many requests are allowed one after the other before the first refusal.
fn allowed(gate: &Gate, request: &Descriptor<'_>, level: Criticality) -> usize {
    (0..1000).take_while(|_| passes(gate, request, level).allowed).count()
}

#[test]
fn each_level_takes_what_is_not_kept_for_those_above_it() {
    for quota in [
        gcra(20),
        Quota::per_hour(20).fixed_window().unwrap(),
        Quota::concurrency(20, Duration::from_secs(60)).unwrap(),
    ] {
        let mut limit = kept(quota, Critical, Kept::Percent(50));
        limit.keep_for = limit.keep_for.with(CriticalPlus, Kept::Units(3));
        let (gate, request) = (gate(limit), Descriptor::new());
        let first = passes(&gate, &request, Sheddable);
        assert_eq!((first.limits[0].remaining(), first.limits[0].decision.standing.remaining), (9, 19));
        assert_eq!(allowed(&gate, &request, Sheddable), 9);
        let refused = passes(&gate, &request, Criticality::SheddablePlus);
        assert_eq!(
            (refused.allowed, refused.limits[0].kept_back, refused.limits[0].remaining()),
            (false, 10, 0)
        );
        assert_eq!(allowed(&gate, &request, Critical), 7);
        assert_eq!(allowed(&gate, &request, CriticalPlus), 3);
    }
}

/// A queue keeps places for a priority. A request that waits in the queue counts as allowed.
#[test]
fn a_queue_keeps_places() {
    let mut limit = kept(Quota::per_second(1).burst(1).leaky_queue(10).unwrap(), Critical, Kept::Units(4));
    limit.max_wait = Duration::from_secs(60);
    let (gate, request) = (gate(limit), Descriptor::new());
    assert_eq!(allowed(&gate, &request, Sheddable), 7, "one goes at once, six of ten wait");
    assert_eq!(allowed(&gate, &request, Critical), 4);
}

/// Regression: a part kept beyond `max_wait` refused all other requests for ever, and the check of the file accepted
/// it.
#[test]
fn a_queue_keeps_no_more_than_passes_within_its_longest_delay() {
    let queue = Quota::per_second(1).burst(1).leaky_queue(10).unwrap();
    let max_wait = Duration::from_secs(5);
    let charge = |kept_back| {
        let quota = Arc::new(queue.clone());
        let charge = Charge { kept_back, max_wait, ..Charge::new(b"key", &quota, Cost::ONE) };
        execute(&PlainStore::default(), NOW, Op::Take, charge).lines[0].decision.retry()
    };
    assert_eq!((charge(5), charge(6)), (Retry::After(Duration::ZERO), Retry::Never));
    let keep_for = |units| KeepFor::default().with(Critical, Kept::Units(units));
    assert_eq!(keep_for(5).check(&queue, max_wait), Ok(()));
    let beyond = KeepForError::MaxWait { level: Critical, units: 6, most: 6 };
    assert_eq!(keep_for(6).check(&queue, max_wait), Err(beyond));
    assert_eq!(keep_for(10).check(&queue, Duration::from_secs(60)), Ok(()));
    assert_eq!(KeepFor::default().with(Critical, Kept::Percent(100)).check(&queue, max_wait), Ok(()));

    // A pacer has no saved-up units for a key that it has not seen.
    let pacer = UberPacer::new(Rate::new(100, Duration::from_secs(1)).unwrap(), 99).unwrap().into();
    let beyond = KeepForError::MaxWait { level: Critical, units: 6, most: 1 };
    assert_eq!(keep_for(6).check(&pacer, Duration::ZERO), Err(beyond));
    assert_eq!(keep_for(6).check(&pacer, Duration::from_secs(1)), Ok(()));
}

/// A share is a share of the limit that applies: the tier's limit, or the quota that the caller brings.
#[test]
fn a_share_is_one_of_the_limit_that_holds() {
    let mut limit = kept(gcra(10), Critical, Kept::Percent(20));
    let pro = Terms { quota: Some(Arc::new(gcra(100))), label: "pro".to_owned() };
    let values = [("pro".to_owned(), pro)].into_iter().collect();
    limit.tiers = Some(Choice { by: "user.tier".to_owned(), values });
    let gate = gate(limit);
    let (free, pro) = (Descriptor::new(), Descriptor::new().with("user.tier", "pro"));
    assert_eq!(passes(&gate, &free, Sheddable).limits[0].kept_back, 2);
    assert_eq!(passes(&gate, &pro, Sheddable).limits[0].kept_back, 20);
    let brought = Arc::new(gcra(50));
    let check = Check::of(&free).quota(&brought).priority(Sheddable);
    assert_eq!(gate.check(check).now().unwrap().limits[0].kept_back, 10);
}

/// An estimate is bounded by what is left for the request's level; a larger one would never pass.
#[test]
fn a_learned_estimate_leaves_what_is_kept_back() {
    let mut policy = Policy::new("p", kept(gcra(100), Critical, Kept::Percent(30)));
    policy.cost = Some(CostRule::Learned(Learning::from(units(1_000_000))));
    let gate =
        Gate::in_memory(PolicySet::new(vec![policy]).unwrap(), 10).unwrap().with_clock(ManualClock::at(NOW));
    let request = Descriptor::new();
    let peek = |level: Criticality| gate.check(Check::of(&request).priority(level).peek()).now().unwrap();
    assert_eq!((peek(Critical).allowed, peek(Critical).limits[0].cost), (true, units(100)));
    assert_eq!((peek(Sheddable).allowed, peek(Sheddable).limits[0].cost), (true, units(70)));
}

/// Checks of one call are decided as one: all of them leave the largest part that one of them has to leave.
#[test]
fn checks_of_one_call_leave_what_one_of_them_has_to_leave() {
    let (gate, request) = (gate(kept(gcra(10), Critical, Kept::Units(4))), Descriptor::new());
    let of = |level: Criticality, cost| Check::of(&request).priority(level).cost(units(cost));
    let together = gate.check_together(&[of(Critical, 4), of(Sheddable, 3)]).now().unwrap();
    assert!(!together.allowed, "7 and 4 are more than 10");
    assert!(together.decisions.iter().all(|decision| decision.limits[0].kept_back == 4));
    assert!(gate.check_together(&[of(Critical, 4), of(Sheddable, 2)]).now().unwrap().allowed);
    assert!(gate.check_together(&[of(Critical, 2), of(Critical, 2)]).now().unwrap().allowed);
}

#[test]
fn a_cost_that_never_leaves_enough_is_refused_for_good() {
    let (gate, request) = (gate(kept(gcra(10), Critical, Kept::Units(4))), Descriptor::new());
    let never = gate.check(Check::of(&request).priority(Sheddable).cost(units(7))).now().unwrap();
    assert_eq!((never.allowed, never.retry()), (false, Retry::Never));
    let later = {
        assert!(gate.check(Check::of(&request).cost(units(6))).now().unwrap().allowed);
        passes(&gate, &request, Sheddable)
    };
    assert_eq!(later.retry(), Retry::After(Duration::from_secs(360)), "one unit of ten in an hour");
}

#[test]
fn a_part_that_cannot_be_kept_makes_no_set() {
    let policy = Policy::new("p", kept(gcra(10), Critical, Kept::Units(10)));
    let error = PolicySet::new(vec![policy]).unwrap_err();
    assert!(matches!(error, PolicySetError::KeepFor { .. }));
    let told = "policy \"p\": keep_for.critical: 10 is all of a limit of 10, and nothing would be left for others; keep less, or write 100% (l)";
    assert_eq!(error.to_string(), told);
}

/// Each node keeps the same fraction of its part. Regression: a cost of 18 passed on a full part and took the kept
/// units too.
#[test]
fn while_the_engine_is_gone_each_node_keeps_the_part() {
    #[derive(Debug)]
    struct Gone;
    impl Store for Gone {
        fn execute_into(&self, _: &Step<'_>, _: &mut Executed) -> Execution {
            Execution::Done(Err(StoreError::Unavailable { reason: "gone".to_owned() }))
        }
        fn occupancy(&self) -> Occupancy {
            Occupancy::default()
        }
    }
    let clock = ManualClock::at(NOW);
    let make = || {
        let store = Fallback::around(Gone, clock.clone()).nodes(3).build();
        let set = PolicySet::new(vec![Policy::new("p", kept(gcra(30), Critical, Kept::Units(12)))]).unwrap();
        Gate::new(set, store).with_clock(clock.clone())
    };
    let (node, request) = (make(), Descriptor::new());
    assert_eq!(allowed(&node, &request, Sheddable), 6, "a third of the 18 that are not kept");
    assert_eq!(allowed(&node, &request, Critical), 4, "and the rest of a third of 30");
    let large = |cost| Check::of(&request).priority(Sheddable).cost(units(cost));
    assert!(make().check(large(6)).now().unwrap().allowed);
    for cost in [7, 18] {
        let refused = make().check(large(cost)).now().unwrap();
        assert_eq!((refused.allowed, refused.retry()), (false, Retry::Unknown), "the engine grants {cost}");
    }
    assert_eq!(make().check(large(19)).now().unwrap().retry(), Retry::Never);
}

/// Peeks, batches and waits of the word table agree with the plain map, for two keys in turn.
#[test]
fn the_table_of_words_refuses_like_any_other() {
    let quota = Arc::new(gcra(10));
    let (table, plain) = (MemoryStore::with_capacity(100).unwrap(), PlainStore::default());
    for (secs, cost, kept_back) in
        [(0, 3, 4), (0, 3, 4), (0, 1, 4), (0, 4, 0), (360, 1, 4), (3600, 1, 9), (7200, 1, 10), (7200, 10, 0)]
    {
        for key in [&b"one"[..], b"two"] {
            let charges = [Charge { kept_back, ..Charge::new(key, &quota, units(cost)) }];
            for op in [Op::Peek, Op::Take] {
                let step = Step::new(NOW.after(Duration::from_secs(secs)), op, &charges);
                assert_eq!(table.blocking_execute(&step), plain.blocking_execute(&step), "{step:?}");
            }
        }
    }
}
