//! Admissions: finished, cancelled, waited for, or dropped. For orders of several admissions see `admission_orders.rs`.

mod endings;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::ManualClock;
use tidegate::gate::{Admission, Check, Entry, Fate, Part};
use tidegate::policy::{ChargeOn, CostRule, Descriptor, Limit, Policy, PolicySet};
use tidegate::store::conformance;
use tidegate::{Cost, Gate, Outcome, Quota};

fn policy(name: &str, quota: Quota) -> Policy {
    Policy::new(name, Limit::new(quota, name))
}

fn per_hour(count: u64) -> Quota {
    Quota::per_hour(count).gcra().unwrap()
}

fn gate(policies: Vec<Policy>) -> (Arc<Gate>, ManualClock) {
    let clock = ManualClock::default();
    let gate = Gate::in_memory(PolicySet::new(policies).unwrap(), 100).unwrap().with_clock(clock.clone());
    (Arc::new(gate), clock)
}

fn admit(gate: &Gate, cost: u64) -> Option<Admission<&Gate>> {
    gate.admit(Check::of(&Descriptor::new()).cost(cost)).now().unwrap().admitted()
}

/// Returns what is left of every limit; a debt is negative.
fn levels(gate: &Gate) -> Vec<i64> {
    let decision = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap();
    let level = |limit: &tidegate::gate::LimitDecision| {
        let standing = limit.decision.standing;
        standing.remaining as i64 - standing.debt as i64
    };
    decision.limits.iter().map(level).collect()
}

/// Regression: charge ten, wait until they have returned, charge ten again, and refund the first charge. That let ten
/// more pass at once, for every charge that was remembered.
#[test]
fn undoing_a_charge_that_time_has_returned_gives_nothing_back() {
    let (gate, clock) = gate(vec![policy("all", Quota::per_second(1).burst(10).gcra().unwrap())]);
    let first = admit(&gate, 10).unwrap();
    clock.advance(Duration::from_secs(10));
    let _second = admit(&gate, 10).unwrap();
    first.cancel().now().unwrap();
    assert_eq!(levels(&gate), [0]);
    assert!(admit(&gate, 1).is_none());
}

/// Regression: a limit that changed its algorithm, filled up, and changed back mistook charges from before for later
/// ones. Undone, they gave back what others had charged.
#[test]
fn what_was_charged_before_a_limit_changed_and_changed_back_gives_nothing_back() {
    let slow = || Quota::per(10, Duration::from_secs(1000)).gcra().unwrap();
    let set = |quota: &Quota| PolicySet::new(vec![policy("all", quota.clone())]).unwrap();
    // Returns what is left after nine are charged first and undone in the end, or without those nine, for comparison.
    let left = |between: &Quota, pause: u64, first: bool, then: Option<(bool, u64)>| {
        let (gate, clock) = gate(vec![policy("all", slow())]);
        let before = first.then(|| admit(&gate, 9).unwrap());
        clock.advance(Duration::from_secs(1));
        gate.replace(set(between));
        let asks = then.is_none_or(|(allowed, _)| allowed);
        let allowed = asks && gate.check(&Descriptor::new()).now().unwrap().allowed;
        clock.advance(Duration::from_secs(pause));
        gate.replace(set(&slow()));
        let then = then.map_or_else(|| levels(&gate)[0].try_into().unwrap_or(0), |(_, then)| then);
        let after = Cost::new(then).map(|_| admit(&gate, then).unwrap());
        if let Some(before) = before {
            before.cancel().now().unwrap();
        }
        let left = levels(&gate)[0];
        if let Some(after) = after {
            after.cancel().now().unwrap();
            assert_eq!(levels(&gate)[0], left + then as i64, "those that came after are undone: {between:?}");
        }
        (left, (allowed, then))
    };
    let soon_full = [
        Quota::per_second(10).token_bucket(),
        Quota::per_second(10).gcra(),
        Quota::per_second(10).leaky_bucket(),
        Quota::per_second(10).fixed_window(),
        Quota::per_second(10).sliding_window(10),
        Quota::per_second(10).sliding_counter(),
        Quota::per_second(10).sliding_log(),
    ];
    let mut all: Vec<_> = soon_full.into_iter().map(|quota| Arc::new(quota.unwrap())).collect();
    all.extend(conformance::quotas());
    for between in all.iter().filter(|quota| !quota.is_guard()) {
        for pause in [2, 500, 998, 1000] {
            let (undone, then) = left(between, pause, true, None);
            let (never, _) = left(between, pause, false, Some(then));
            assert!(
                undone <= never,
                "{undone} and not {never}, {then:?} charged, after {pause} s: {between:?}"
            );
        }
    }
    let bucket = Quota::per_second(10).token_bucket().unwrap();
    assert_eq!(left(&bucket, 2, true, None), (0, (true, 10)));
}

/// Regression: an undo gave nothing back a millisecond after the charge, since the work might have begun.
#[test]
fn undone_after_the_fact_a_charge_leaves_no_trace() {
    let (gate, clock) = gate(vec![policy("all", Quota::per_second(1).burst(10).gcra().unwrap())]);
    let held = admit(&gate, 10).unwrap();
    clock.advance(Duration::from_millis(1));
    held.cancel().now().unwrap();
    assert_eq!(levels(&gate), [10]);
}

#[test]
fn each_limit_settles_by_its_own_units_and_says_what_became_of_it() {
    let mut requests = policy("requests", per_hour(100));
    requests.cost = Some(CostRule::Fixed(Cost::ONE));
    let (gate, _) = gate(vec![requests, policy("tokens", per_hour(1000)), policy("money", per_hour(5000))]);
    let held = admit(&gate, 800).unwrap();
    assert_eq!(levels(&gate), [99, 200, 4200]);
    assert_eq!(
        held.charged().lines().map(|line| line.policy).collect::<Vec<_>>(),
        ["requests", "tokens", "money"]
    );
    let used = |line: &tidegate::gate::ChargedLine<'_>| match line.policy {
        "tokens" => Some(1300),
        "money" => Some(650),
        _ => None,
    };
    let told = held.finish(Outcome::Success).used(used).tell(|told| {
        told.iter()
            .map(|one| (one.policy.to_owned(), one.used, one.fate, one.standing.debt))
            .collect::<Vec<_>>()
    });
    let expected = [
        ("requests".to_owned(), 1, Fate::Kept, 0),
        ("tokens".to_owned(), 1300, Fate::Owed(500), 300),
        ("money".to_owned(), 650, Fate::Returned(150), 0),
    ];
    assert_eq!(told.unwrap(), expected);
    assert_eq!(levels(&gate), [99, -300, 4350]);
    assert!(admit(&gate, 1).is_none(), "the debt is waited off first");
}

/// Regression: four logins at once could all pass on one place while the first had not failed yet.
#[test]
fn the_outcome_decides_what_failures_only_took() {
    let login = || {
        let mut login = policy("login", per_hour(3));
        login.charge = ChargeOn::Failure;
        login
    };
    for (outcome, left) in [
        (Outcome::Success, 3),
        (Outcome::CallersFault, 0),
        (Outcome::Failure, 1),
        (Outcome::Overloaded, 1),
        (Outcome::Ignored, 1),
    ] {
        let (gate, _) = gate(vec![login()]);
        let held: Vec<_> = (0..4).filter_map(|_| admit(&gate, 1)).collect();
        assert_eq!((held.len(), levels(&gate)), (3, vec![0]));
        let mut held = held.into_iter();
        held.next().unwrap().finish(outcome).now().unwrap();
        assert_eq!(levels(&gate), [left], "{outcome:?}");
        drop(held);
        assert_eq!(levels(&gate), [left], "an outcome that nobody told teaches nothing: {outcome:?}");
    }
}

#[test]
fn dropped_it_leaves_its_places_and_keeps_its_charges() {
    let places = Quota::concurrency(2, Duration::from_secs(60)).unwrap();
    let (gate, _) = gate(vec![policy("places", places), policy("all", per_hour(10))]);
    let (one, two) = (admit(&gate, 1).unwrap(), admit(&gate, 1).unwrap());
    assert!(admit(&gate, 1).is_none());
    drop(one);
    assert_eq!(levels(&gate), [1, 8]);
    two.finish(Outcome::Failure).now().unwrap();
    assert_eq!(levels(&gate), [2, 8]);
    let three = admit(&gate, 1).unwrap();
    three.cancel().now().unwrap();
    assert_eq!(levels(&gate), [2, 8], "undone, it has spent nothing");
    let four = admit(&gate, 1).unwrap().undo_if_dropped(true);
    drop(four);
    assert_eq!(levels(&gate), [2, 8]);
}

/// Regression: a caller who hung up while delayed was charged.
#[test]
fn a_caller_who_hangs_up_while_delayed_has_not_spent() {
    let queue = || {
        let mut queue = policy("queue", Quota::per_second(1).leaky_queue(10).unwrap());
        queue.limits[0].max_wait = Duration::from_secs(10);
        queue
    };
    let mut cx = Context::from_waker(Waker::noop());
    for polled in [false, true] {
        let (gate, clock) = gate(vec![queue(), policy("all", per_hour(10))]);
        admit(&gate, 1).unwrap().finish(Outcome::Success).now().unwrap();
        let Entry::Admitted(second) = Admission::ask(Arc::clone(&gate), &Descriptor::new()).now().unwrap()
        else {
            panic!()
        };
        assert_eq!(second.wait, Duration::from_secs(1));
        {
            let mut waiting = pin!(second.delayed());
            if polled {
                assert!(waiting.as_mut().poll(&mut cx).is_pending());
            }
        }
        assert_eq!(levels(&gate)[1], 9, "polled: {polled}");
        let third = admit(&gate, 1).unwrap();
        assert_eq!(third.wait, Duration::from_secs(1), "the place in the line is free again");
        {
            let mut waiting = pin!(third.delayed());
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            clock.advance(Duration::from_secs(1));
            let Poll::Ready(held) = waiting.as_mut().poll(&mut cx) else { panic!("its time has come") };
            drop(held);
        }
        assert_eq!(levels(&gate)[1], 8, "whoever has waited has spent");
    }
}

#[test]
fn halves_of_one_check_are_settled_apart() {
    let mut login = policy("login", per_hour(3));
    login.charge = ChargeOn::Failure;
    let (gate, _) = gate(vec![login, policy("all", per_hour(10))]);
    let mut charged = tidegate::gate::Charged::default();
    let request = Descriptor::new();
    assert!(gate.charge(Check::of(&request).cost(2), &mut charged).now().unwrap().allowed);
    assert_eq!(levels(&gate), [1, 8]);
    gate.finish(&charged, Part::Outcome, Outcome::Failure, |_| None).now().unwrap();
    assert_eq!(levels(&gate), [3, 8]);
    gate.finish(&charged, Part::Spent, Outcome::Ignored, |_| Some(1)).now().unwrap();
    assert_eq!(levels(&gate), [3, 9]);
}

proptest! {
    /// Over several overlapping policies and with any estimate, the final charge is what was used. The limits' hours
    /// are long compared with the nanoseconds of the history, so no unit comes back meanwhile.
    #[test]
    fn what_is_charged_in_the_end_is_what_was_used(
        steps in prop::collection::vec((1..40_u64, 0..60_u64, 0..4_usize, any::<bool>()), 1..60),
    ) {
        let quotas = [
            per_hour(16_000),
            Quota::per_hour(16_000).fixed_window().unwrap(),
            Quota::per_hour(16_000).sliding_log().unwrap(),
            Quota::per_hour(16_000).leaky_bucket().unwrap(),
            Quota::per_hour(16_000).token_bucket().unwrap(),
            Quota::per_hour(16_000).sliding_window(12).unwrap(),
        ];
        let policies = quotas.into_iter().enumerate().map(|(at, quota)| policy(&format!("limit-{at}"), quota));
        let mut requests = policy("requests", per_hour(1000));
        requests.cost = Some(CostRule::Fixed(Cost::ONE));
        let (gate, clock) = gate(policies.chain([requests]).collect());
        let mut open = Vec::new();
        let (mut spent, mut requests) = (0, 0);
        for (estimate, used, back, ends) in steps {
            open.push((admit(&gate, estimate).unwrap(), used));
            if ends && back < open.len() {
                let (held, used) = open.remove(open.len() - 1 - back);
                // The work runs, and is settled afterwards.
                clock.advance(Duration::from_nanos(1));
                if used == 0 {
                    held.cancel().now().unwrap();
                } else {
                    held.finish(Outcome::Success).used(|line| (line.policy != "requests").then_some(used)).now().unwrap();
                    requests += 1;
                    spent += used as i64;
                }
            }
        }
        for (held, used) in open {
            held.finish(Outcome::Success).used(|line| (line.policy != "requests").then_some(used)).now().unwrap();
            requests += 1;
            spent += used as i64;
        }
        let mut expected = vec![16_000 - spent; 6];
        expected.push(1000 - requests);
        prop_assert_eq!(levels(&gate), expected);
    }
}
