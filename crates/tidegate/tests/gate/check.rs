//! What may follow a decision: a partial refund, or a report of the outcome.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::gate::{Charged, Check, Fate, Finished, Part};
use tidegate::limiter::rate::CalendarUnit;
use tidegate::policy::{
    ChargeOn, Choice, CostRule, Descriptor, Limit, Mode, Policy, PolicySet, Share, Terms,
};
use tidegate::store::{Charge, Executed, Execution, Occupancy, PlainStore, Step, Store, StoreError};
use tidegate::{Cost, Gate, KeyedLimiter, Limiter, Outcome, Quota, Tick};

fn policy(name: &str, per_hour: u64) -> Policy {
    Policy::new(name, Limit::new(Quota::per_hour(per_hour).sliding_log().unwrap(), name))
}

fn gate(policies: Vec<Policy>) -> Gate {
    Gate::in_memory(PolicySet::new(policies).unwrap(), 100).unwrap().with_clock(ManualClock::default())
}

fn remaining(gate: &Gate, request: &Descriptor<'_>) -> Vec<u64> {
    let decision = gate.check(Check::of(request).peek()).now().unwrap();
    decision.limits.iter().map(|limit| limit.decision.standing.remaining).collect()
}

fn charge(gate: &Gate, check: Check<'_, '_>) -> Option<Charged> {
    let mut charged = Charged::default();
    gate.charge(check, &mut charged).now().unwrap().allowed.then_some(charged)
}

/// Gives back what was charged, or at most `cost` of each charge.
fn refund<'c>(gate: &Gate, charged: &'c Charged, cost: Option<Cost>) -> Finished<'c> {
    let used = |units: u64| units.saturating_sub(cost.map_or(units, Cost::units));
    gate.finish(charged, Part::Spent, Outcome::Ignored, |line| Some(used(line.charged.units())))
        .now()
        .unwrap()
}

/// Reports how the work ended.
fn report<'c>(gate: &Gate, charged: &'c Charged, outcome: Outcome) -> Finished<'c> {
    gate.finish(charged, Part::Outcome, outcome, |_| None).now().unwrap()
}

fn on_failure(name: &str, per_hour: u64) -> Policy {
    let mut policy = policy(name, per_hour);
    policy.charge = ChargeOn::Failure;
    policy
}

/// Regression: a policy with a fixed cost used it for a refund too, whatever was asked back. So three of ten gave ten
/// back, and a caller who refunded one unit after each request was never limited.
#[test]
fn a_refund_of_a_part_gives_back_that_part_and_never_more_than_was_charged() {
    let mut export = policy("export", 100);
    export.cost = Some(CostRule::Fixed(Cost::new(10).unwrap()));
    let gate = gate(vec![policy("all", 100), export]);
    let request = Descriptor::new();
    let cost = |units| Cost::new(units);

    let first = charge(&gate, Check::of(&request).cost(4)).unwrap();
    assert_eq!(remaining(&gate, &request), [96, 90]);
    assert_eq!(first.refundable(), 10);
    refund(&gate, &first, cost(3));
    assert_eq!(remaining(&gate, &request), [99, 93]);

    let second = charge(&gate, Check::of(&request).cost(20)).unwrap();
    assert_eq!(remaining(&gate, &request), [79, 83]);
    let each = refund(&gate, &second, cost(15));
    let told: Vec<_> = each.iter().map(|one| (one.policy, one.charged.units(), one.fate)).collect();
    assert_eq!(told, [("all", 20, Fate::Returned(15)), ("export", 10, Fate::Returned(10))]);
    assert_eq!(remaining(&gate, &request), [94, 93], "ten of fifteen where only ten were charged");
    assert_eq!(report(&gate, &second, Outcome::CallersFault).len(), 0, "nothing waited for a report");
}

/// Regression: a refund looked up the policies by the request, so after a reload it credited policies that had never
/// charged the request.
#[test]
fn after_a_reload_a_refund_reaches_the_charges_that_were_made() {
    let gate = gate(vec![policy("stays", 100), policy("goes", 100), policy("changes", 100)]);
    let request = Descriptor::new();
    let first = charge(&gate, Check::of(&request).cost(5)).unwrap();
    let set = |policies| PolicySet::new(policies).unwrap();
    gate.replace(set(vec![policy("comes", 100), policy("stays", 100), policy("changes", 200)]));
    assert!(gate.check(Check::of(&request).cost(7)).now().unwrap().allowed);
    assert_eq!(remaining(&gate, &request), [93, 88, 188]);
    let fates: Vec<_> = refund(&gate, &first, None).iter().map(|one| (one.policy, one.fate)).collect();
    let returned = Fate::Returned;
    assert_eq!(fates, [("stays", returned(5)), ("goes", returned(5)), ("changes", returned(0))]);
    assert_eq!(remaining(&gate, &request), [93, 93, 188], "nothing for a limit that has changed");
    gate.replace(set(vec![policy("goes", 100)]));
    assert_eq!(remaining(&gate, &request), [100], "one that went has its charge back when it comes again");
}

/// Ten a second become ten an hour. Regression: once the key was full, five more than were charged were booked under ten
/// a second: called owed, gone half a second later, and shown with the old limit; whether the key was used since or not.
#[test]
fn what_is_used_beyond_a_charge_counts_under_the_limit_of_now() {
    let request = Descriptor::new();
    for used_since in [false, true] {
        let clock = ManualClock::default();
        let of = |quota: Quota| PolicySet::new(vec![Policy::new("llm", Limit::new(quota, "llm"))]).unwrap();
        let (fast, slow) = (Quota::per_second(10).gcra().unwrap(), Quota::per_hour(12).gcra().unwrap());
        let gate = Gate::in_memory(of(fast), 100).unwrap().with_clock(clock.clone());
        let [more, same, less] = [(); 3].map(|()| charge(&gate, Check::of(&request).cost(2)).unwrap());
        gate.replace(of(slow));
        clock.advance(Duration::from_secs(5));
        if used_since {
            let work = charge(&gate, Check::of(&request)).unwrap();
            assert_eq!(refund(&gate, &work, None)[0].standing.limit, 12);
        }
        let settle = |charged, used| {
            gate.finish(charged, Part::Spent, Outcome::Success, |_| Some(used)).now().unwrap()[0]
        };
        for (charged, used) in [(&same, 2), (&less, 1)] {
            let standing = settle(charged, used).standing;
            assert_eq!((standing.limit, standing.remaining), (12, 12), "{used_since}");
        }
        let settled = settle(&more, 7);
        assert_eq!(settled.fate, Fate::Owed(5));
        assert_eq!((settled.standing.limit, settled.standing.remaining), (12, 7), "{used_since}");
        clock.advance(Duration::from_secs(5));
        assert_eq!(remaining(&gate, &request), [7], "five minutes for each: {used_since}");
    }
}

/// A clock is set back far and set right, and later is set back a little. Regression: the store and the gate held its
/// ticks each for itself, and a refusal took the little step for progress since the far one: it filled a used key.
#[test]
fn a_clock_that_is_set_back_in_two_stages_fills_no_key() {
    let start = Tick::from_secs(100_000);
    for (first, right, second) in [(400, 5, 100), (400, 0, 250), (3600, 9, 299), (301, 8, 299)] {
        let clock = ManualClock::at(start);
        let quota = Quota::per_minute(1).burst(3).gcra().unwrap();
        let set = PolicySet::new(vec![Policy::new("all", Limit::new(quota, "all"))]);
        let gate = Gate::in_memory(set.unwrap(), 100).unwrap().with_clock(clock.clone());
        let request = Descriptor::new();
        let asks = |seconds: u64| {
            clock.set(start.before(Duration::from_secs(seconds)));
            (0..3).filter(|_| gate.check(Check::of(&request)).now().unwrap().allowed).count()
        };
        assert_eq!(asks(0), 3);
        let passed: usize = [first, right].into_iter().chain((0..=second).rev()).map(asks).sum();
        assert_eq!(passed, 0, "{first}, {right}, {second}");
    }
}

/// Regression: forty logins at once were all checked before the first had failed, and all of them passed a limit of
/// three an hour.
#[test]
fn attempts_take_their_place_at_the_check() {
    let gate = gate(vec![on_failure("login", 3), policy("all", 100)]);
    let request = Descriptor::new();
    let begun: Vec<_> = (0..40).filter_map(|_| charge(&gate, Check::of(&request))).collect();
    assert_eq!((begun.len(), remaining(&gate, &request)), (3, vec![0, 97]));
    assert!(begun.iter().all(Charged::awaits_report));

    // `Ignored`: the attempt failed for another reason, which shows nothing about the password, and the place is free
    // again. A failure keeps its place, and so does an attempt without a report.
    let fate = |one: &Charged, outcome| report(&gate, one, outcome).first().unwrap().fate;
    assert_eq!(fate(&begun[0], Outcome::Ignored), Fate::Returned(1));
    assert_eq!(fate(&begun[1], Outcome::CallersFault), Fate::Kept);
    assert_eq!(remaining(&gate, &request)[0], 1);
    // A refund does not return a place that waits for a report.
    assert_eq!(refund(&gate, &begun[2], None).len(), 1);
    assert_eq!(remaining(&gate, &request), [1, 98]);
}

/// A success forgets what is held against its key, including places of attempts in flight. If those then fail, they are
/// charged: otherwise a guesser with one right password would get any number of wrong ones for free.
#[test]
fn a_failure_that_a_success_had_forgotten_is_charged_again() {
    let gate = gate(vec![on_failure("account", 3), on_failure("address", 100)]);
    let request = Descriptor::new();
    let [one, two, three] = [0; 3].map(|_| charge(&gate, Check::of(&request)).unwrap());
    assert_eq!(remaining(&gate, &request), [0, 97]);
    report(&gate, &one, Outcome::Success);
    assert_eq!(remaining(&gate, &request), [3, 100]);
    let told = report(&gate, &two, Outcome::CallersFault);
    assert!(told.iter().all(|one| one.fate == Fate::Kept));
    assert_eq!(remaining(&gate, &request), [2, 99]);
    report(&gate, &three, Outcome::Ignored);
    assert_eq!(remaining(&gate, &request), [2, 99], "it holds nothing any more");
    // Attempts that come later have places of their own.
    let four = charge(&gate, Check::of(&request)).unwrap();
    report(&gate, &four, Outcome::CallersFault);
    assert_eq!(remaining(&gate, &request), [1, 98]);
}

/// A success after a reload forgets under the policy's present limit, unless the policy now charges every check.
#[test]
fn a_success_after_a_reload_forgets_only_what_still_charges_failures() {
    let gate = gate(vec![on_failure("login", 3), on_failure("charges", 3)]);
    let request = Descriptor::new();
    let first = charge(&gate, Check::of(&request)).unwrap();
    let second = charge(&gate, Check::of(&request)).unwrap();
    gate.replace(PolicySet::new(vec![on_failure("login", 5), policy("charges", 3)]).unwrap());
    assert_eq!(remaining(&gate, &request), [3, 1]);
    let fates: Vec<_> =
        report(&gate, &first, Outcome::Success).iter().map(|one| (one.policy, one.fate)).collect();
    assert_eq!(fates, [("login", Fate::Forgotten), ("charges", Fate::Returned(1))]);
    assert_eq!(remaining(&gate, &request), [5, 2]);
    // The limit is a different one now, so the failure forgotten before is not charged to it.
    report(&gate, &second, Outcome::CallersFault);
    assert_eq!(remaining(&gate, &request), [5, 2]);
}

/// Threads charge, give back and charge again: in the end exactly what was kept is spent.
#[test]
fn what_threads_give_back_is_neither_lost_nor_doubled() {
    let gate = gate(vec![policy("all", 10_000), on_failure("failures", 10_000)]);
    let kept: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|worker| {
                let gate = &gate;
                scope.spawn(move || {
                    let request = Descriptor::new();
                    let mut kept = 0;
                    for turn in 0..500 {
                        let charged = charge(gate, Check::of(&request)).unwrap();
                        if (turn + worker) % 3 == 0 {
                            kept += 1;
                            report(gate, &charged, Outcome::CallersFault);
                        } else {
                            refund(gate, &charged, None);
                            report(gate, &charged, Outcome::Ignored);
                        }
                    }
                    kept
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert_eq!(remaining(&gate, &Descriptor::new()), [10_000 - kept; 2]);
}

#[test]
fn what_was_charged_is_printed_without_its_keys() {
    let mut by_token = policy("by-token", 3);
    by_token.by = vec!["request.header.authorization".to_owned()];
    let gate = gate(vec![by_token]);
    let request = Descriptor::new().with("request.header.authorization", "Bearer hunter2");
    let charged = charge(&gate, Check::of(&request)).unwrap();
    let text = format!("{charged:?}");
    assert!(text.contains("by-token") && !text.contains("hunter2"), "{text}");
}

/// A decision keeps the policies that made it, however many decisions are kept and whatever replaces the policies.
#[test]
fn a_decision_keeps_its_policies_when_others_are_put_in_force() {
    let gate = gate(vec![policy("before", 100)]);
    let kept: Vec<_> = (0..20).map(|_| gate.check(&Descriptor::new()).now().unwrap()).collect();
    let copy = kept[0].clone();
    gate.replace(PolicySet::new(vec![policy("after", 100)]).unwrap());
    let after = gate.check(&Descriptor::new()).now().unwrap();
    let name = |decision: &tidegate::gate::GateDecision| decision.policies.policies()[0].name.clone();
    let names =
        std::thread::spawn(move || kept.iter().chain([&copy]).map(name).collect::<Vec<_>>()).join().unwrap();
    assert_eq!(names, vec!["before"; 21]);
    assert_eq!(name(&after), "after");
}

/// Regression: a bulkhead's places were forgotten under a quota that a caller brought, so as many callers again were
/// admitted.
#[test]
fn a_quota_that_a_caller_brings_leaves_the_places_of_guards_alone() {
    let places = Policy::new(
        "places",
        Limit::new(Quota::concurrency(2, Duration::from_secs(60)).unwrap(), "2 at once"),
    );
    let gate = gate(vec![policy("rate", 1), places]);
    let request = Descriptor::new();
    let brought = Arc::new(Quota::per_hour(100).sliding_log().unwrap());
    let check = Check::of(&request).quota(&brought);
    let first = charge(&gate, check).unwrap();
    let decision = gate.check(check.peek()).now().unwrap();
    let limits: Vec<u64> = decision.limits.iter().map(|limit| limit.decision.standing.limit).collect();
    assert_eq!(limits, [100, 2]);
    let _second = charge(&gate, check).unwrap();
    assert!(charge(&gate, check).is_none(), "both places are taken");
    gate.finish(&first, Part::All, Outcome::Success, |_| None).now().unwrap();
    assert!(charge(&gate, check).is_some(), "one was left");
}

/// A shadow is also measured by the quota that a caller brings. A tier without a limit stays without one.
#[test]
fn a_quota_that_a_caller_brings_takes_the_place_of_limits_and_makes_none() {
    let mut shadow = policy("shadow", 100);
    shadow.mode = Mode::Shadow;
    let mut tiers = policy("tiers", 100);
    let unlimited = Terms { quota: None, label: "unlimited".to_owned() };
    let values = [("gold".to_owned(), unlimited)].into_iter().collect();
    tiers.limits[0].tiers = Some(Choice { by: "tier".to_owned(), values });
    let gate = gate(vec![shadow, tiers]);
    let one = Arc::new(Quota::per_hour(1).sliding_log().unwrap());
    let (gold, other) = (Descriptor::new().with("tier", "gold"), Descriptor::new());
    assert!(gate.check(Check::of(&gold).quota(&one)).now().unwrap().allowed);
    let decision = gate.check(Check::of(&gold).quota(&one)).now().unwrap();
    assert!(decision.allowed && decision.limits.len() == 1 && !decision.limits[0].decision.is_allowed());
    assert!(gate.check(Check::of(&other).quota(&one)).now().unwrap().allowed);
    assert!(!gate.check(Check::of(&other).quota(&one)).now().unwrap().allowed);
}

/// Regression: answers mixed the numbers of the brought quota with the window and the label of the policy's own.
#[cfg(feature = "http")]
#[test]
fn a_quota_that_a_caller_brings_is_the_one_that_is_shown() {
    use tidegate::gate::GateDecision;
    use tidegate::http_answer::HttpAnswer;

    let places = Quota::concurrency(2, Duration::from_secs(60)).unwrap();
    let gate = gate(vec![policy("rate", 1), Policy::new("places", Limit::new(places, "2 at once"))]);
    let (request, brought) = (Descriptor::new(), Arc::new(Quota::per_minute(5).fixed_window().unwrap()));
    let check = Check::of(&request).quota(&brought);
    let shown = |decision: &GateDecision, header: &str| {
        let pairs = HttpAnswer::of_gate(decision, &request).pairs();
        pairs.into_iter().find(|(name, _)| name == header).map(|(_, value)| value).unwrap_or_default()
    };
    let places = r#""places";q=2;qu="concurrent-requests""#;
    let decision = gate.check(check.cost(5)).now().unwrap();
    assert!(decision.allowed);
    assert_eq!(shown(&decision, "ratelimit-policy"), format!(r#""rate";q=5;w=60, {places}"#));
    let refused = gate.check(check).now().unwrap();
    let body = HttpAnswer::of_gate(&refused, &request).body().unwrap();
    let wait = refused.retry().after().unwrap();
    assert!(
        wait <= Duration::from_secs(60) && body.contains(&format!("\"retry_after_ms\":{}", wait.as_millis()))
    );
    let told = gate.explain(check).now().unwrap().to_string();
    assert!(told.contains("the check's own quota: needs 1, has 0 of 5"), "{told}");
    assert!(told.contains("would be allowed with   rate >= 6 per window"), "{told}");
    let own = gate.check(&request).now().unwrap();
    assert_eq!(shown(&own, "ratelimit-policy"), format!(r#""rate";q=1;w=3600, {places}"#));
    assert!(own.brought.is_none() && refused.brought.as_ref() == Some(&brought));
}

/// Regression: where several limits of one policy refused, `t` was that of the one with the smallest share left, and
/// `Retry-After` that of the longest wait.
#[cfg(feature = "http")]
#[test]
fn of_the_limits_of_a_policy_that_refuse_the_one_that_lasts_longest_is_shown() {
    use tidegate::http_answer::HttpAnswer;

    let second = Limit::new(Quota::per_second(1).gcra().unwrap(), "1/s");
    let day = Limit::new(Quota::per_day(1).fixed_window().unwrap(), "1/day");
    let mut two = Policy::new("two", second);
    two.limits.push(day);
    let gate = gate(vec![two]);
    let request = Descriptor::new();
    assert!(gate.check(&request).now().unwrap().allowed);
    let refused = gate.check(&request).now().unwrap();
    let pairs = HttpAnswer::of_gate(&refused, &request).pairs();
    let header = |name: &str| {
        let found = pairs.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    assert_eq!(header("ratelimit-policy"), r#""two";q=1;w=86400"#);
    let wait = header("retry-after");
    assert_eq!(header("ratelimit"), format!(r#""two";r=0;t={wait}"#));
    assert!(wait.parse::<u64>().unwrap() > 86_000, "{wait}");
}

/// Regression: the end of a charge under a brought quota did not say that it was brought, so the store noted a new key.
#[test]
fn the_end_of_a_charge_says_that_its_quota_was_brought() {
    #[derive(Debug, Default)]
    struct Looks(PlainStore);
    impl Store for Looks {
        fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
            assert!(step.charges.iter().all(|charge| charge.inline_quota), "{step:?}");
            self.0.execute_into(step, out)
        }
        fn occupancy(&self) -> Occupancy {
            self.0.occupancy()
        }
    }
    let gate = Gate::new(PolicySet::new(vec![policy("all", 5)]).unwrap(), Looks::default());
    let brought = Arc::new(Quota::per_hour(100).sliding_log().unwrap());
    let request = Descriptor::new();
    let charged = charge(&gate, Check::of(&request).quota(&brought)).unwrap();
    gate.finish(&charged, Part::All, Outcome::Ignored, |_| Some(0)).now().unwrap();
}

/// Regression: a store for a share that another store had replaced was still sent resets, and its failure failed them.
#[test]
fn a_store_that_another_one_has_replaced_is_not_asked() {
    #[derive(Debug)]
    struct Gone;
    impl Store for Gone {
        fn execute_into(&self, _: &Step<'_>, _: &mut Executed) -> Execution {
            Execution::Done(Err(StoreError::Unavailable { reason: "it was replaced".to_owned() }))
        }
        fn occupancy(&self) -> Occupancy {
            Occupancy::default()
        }
    }
    let mut central = policy("central", 1);
    central.share = Some(Share::Central);
    let gate = gate(vec![policy("own", 5), central])
        .with_store(Share::Central, Gone)
        .with_store(Share::Central, PlainStore::default());
    let request = Descriptor::new();
    assert!(gate.check(&request).now().unwrap().allowed && !gate.check(&request).now().unwrap().allowed);
    let (key, quota) =
        (gate.policies().key(1, 0, &request).unwrap(), Quota::per_hour(1).sliding_log().unwrap());
    gate.keys().reset(&[Charge::new(&key, &Arc::new(quota), Cost::ONE)]).now().unwrap();
    assert!(gate.check(&request).now().unwrap().allowed);
    // The gate's own store stays in use for policies without `share`, even if another store now decides `share: local`.
    let gate = gate.with_store(Share::Local, PlainStore::default());
    assert_eq!(remaining(&gate, &request)[0], 3);
}

/// A process that starts with a clock that is 5.5 hours slow, and a time service that corrects it. Regression: calendar
/// windows kept the clock of the start until the next one.
#[test]
fn calendar_windows_follow_a_clock_that_is_corrected() {
    let hourly = || Quota::per_hour(3).calendar_window(CalendarUnit::Hour, "UTC").unwrap();
    let set = || PolicySet::new(vec![Policy::new("hour", Limit::new(hourly(), "3/h"))]).unwrap();
    let [slow, right] = [6 * 3600 + 25 * 60, 11 * 3600 + 55 * 60].map(Tick::from_secs);
    let clock = ManualClock::at(slow);
    let gate = Gate::in_memory(set(), 100).unwrap().with_clock(clock.clone());
    let limiter = Limiter::new(hourly()).unwrap().with_clock(clock.clone());
    let keyed = KeyedLimiter::new(hourly(), 100).unwrap().with_clock(clock.clone());
    let request = Descriptor::new();
    let resets = || {
        let decision = gate.check(&request).now().unwrap();
        assert!(decision.allowed);
        let of_gate = decision.limits[0].decision.standing.reset_after;
        let [one, of_key] = [limiter.allow(), keyed.allow("ann")].map(|answer| {
            assert!(answer.is_allowed());
            answer.decision().standing.reset_after
        });
        assert!(of_gate == one && one == of_key, "{of_gate:?} {one:?} {of_key:?}");
        of_gate.as_secs()
    };
    assert_eq!(resets(), 35 * 60);
    clock.set_wall(right);
    assert_eq!(resets(), 5 * 60);
    gate.replace(set());
    assert_eq!(resets(), 5 * 60, "after a reload too");
    clock.advance(Duration::from_secs(300));
    assert_eq!(resets(), 3600, "the hour is over when the wall clock says so");
    // Back by two minutes: the hour before is not opened again.
    clock.set_wall(Tick::from_secs(11 * 3600 + 58 * 60));
    assert!(!gate.check(&request).now().unwrap().allowed && !limiter.allow().is_allowed());
    assert!(!keyed.allow("ann").is_allowed());
    clock.advance(Duration::from_secs(120));
    assert_eq!(resets(), 3600);
}

/// A hundred at each full hour, by the wall clock that a time service corrects.
#[test]
fn aligned_refills_follow_a_clock_that_is_corrected() {
    let hourly = || Quota::per_hour(100).burst(250).aligned_bucket().unwrap();
    let set = || PolicySet::new(vec![Policy::new("hour", Limit::new(hourly(), "100/h"))]).unwrap();
    let [slow, right] = [6 * 3600 + 25 * 60, 11 * 3600 + 55 * 60].map(Tick::from_secs);
    let clock = ManualClock::at(slow);
    let gate = Gate::in_memory(set(), 100).unwrap().with_clock(clock.clone());
    let limiter = Limiter::new(hourly()).unwrap().with_clock(clock.clone());
    let keyed = KeyedLimiter::new(hourly(), 100).unwrap().with_clock(clock.clone());
    let request = Descriptor::new();
    let resets = || {
        let decision = gate.check(&request).now().unwrap();
        assert!(decision.allowed);
        let of_gate = decision.limits[0].decision.standing.reset_after;
        let [one, of_key] = [limiter.allow(), keyed.allow("ann")].map(|answer| {
            assert!(answer.is_allowed());
            answer.decision().standing.reset_after
        });
        assert!(of_gate == one && one == of_key, "{of_gate:?} {one:?} {of_key:?}");
        of_gate.as_secs()
    };
    assert_eq!(resets(), 35 * 60);
    clock.set_wall(right);
    // Noon comes 35 minutes after six o'clock by the clock of the start: too early for a period.
    assert_eq!(resets(), 65 * 60);
    gate.replace(set());
    assert_eq!(resets(), 65 * 60, "after a reload too");
    clock.advance(Duration::from_secs(65 * 60));
    assert_eq!(resets(), 3600, "full at one o'clock, and used");
}
