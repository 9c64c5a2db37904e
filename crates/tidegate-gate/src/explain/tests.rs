use std::time::Duration;

use super::*;
use crate::policy::{Block, Match};
use tidegate_core::breaker::CircuitBreaker;
use tidegate_core::rate::CalendarUnit;
use tidegate_core::{Criticality, Outcome, Quota, Rate};
use tidegate_limits::priority::{KeepFor, Kept};
use tidegate_limits::{ManualClock, Tick};

#[test]
fn each_policy_says_what_it_saw() {
    let quota = |rate, burst| Quota::per_second(rate).burst(burst).gcra().unwrap();
    let shield = Policy::new("shield", Limit::new(quota(5000, 5000), "gcra 5000/s"));
    let mut client = Policy::new("per-ip", Limit::new(quota(2, 1), "gcra 2/s burst 1"));
    client.by = vec!["client.ip".to_owned()];
    let mut login = Policy::new("login", Limit::new(quota(1, 1), "gcra 1/s"));
    login.matching = Match::any().path("/login").unwrap();
    let set = PolicySet::new(vec![shield, client, login]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    let request = Descriptor::new().with("client.ip", "203.0.113.9").with("request.path", "/");
    let before = gate.explain(&request).now().unwrap().to_string();
    assert!(before.contains("needs 1, has 1 of 1"), "what is there, not what would be left: {before}");
    assert!(gate.check(&request).now().unwrap().allowed);
    assert_eq!(
        gate.explain(&request).now().unwrap().to_string(),
        "DENIED by per-ip, retry after 500 ms
  1 shield   allowed     gcra 5000/s: needs 1, has 4999 of 5000; key (all); not charged, another limit denied
  2 per-ip   DENIED      gcra 2/s burst 1: needs 1, has 0 of 1; key client.ip=203.0.113.9
  3 login    not charged path does not match
    would be allowed with   burst >= 2   or   max_wait >= 500ms
"
    );
}

/// It said `not charged charged` of each policy that the request would have been charged to.
#[test]
fn a_request_refused_before_its_limits_says_so_of_each_policy() {
    let policy = |name, by: &str| {
        let limit = Limit::new(Quota::per_second(2).gcra().unwrap(), "gcra 2/s");
        Policy::new(name, limit).by([by])
    };
    let set = PolicySet::new(vec![policy("per-ip", "client.ip"), policy("login", "form.user")]).unwrap();
    let now = Tick::from_secs(1);
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(now));
    let request = Descriptor::new().with("client.ip", "203.0.113.9");
    let block = Block::new("client.ip=203.0.113.9", now, now.after(Duration::from_secs(60)), "abuse");
    gate.blocks().add("per-ip", &request, block).unwrap();
    assert_eq!(
        gate.explain(&request).now().unwrap().to_string(),
        "DENIED by a block of its key under per-ip for 60 s more: abuse
  1 per-ip   not charged refused before any of its limits was asked
  2 login    not charged the request has no form.user
"
    );
}

#[test]
fn what_would_be_allowed_is_a_word_of_the_file() {
    let hour = || Quota::per_hour(1000);
    let zone = Quota::per_hour(1000).calendar_window(CalendarUnit::Hour, "UTC");
    for (quota, expected) in [
        (hour().gcra(), "burst >= 1100"),
        (hour().token_bucket(), "burst >= 1100"),
        (hour().leaky_bucket(), "burst >= 1100"),
        (hour().fixed_window(), "rate >= 1100 per window"),
        (zone, "rate >= 1100 per window"),
        (hour().sliding_window(10), "rate >= 1100 per window"),
        (hour().sliding_counter(), "rate >= 1100 per window"),
        (hour().sliding_log(), "rate >= 1100 per window"),
    ] {
        let set = PolicySet::new(vec![Policy::new("p", Limit::new(quota.unwrap(), "l"))]).unwrap();
        let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
        let request = Descriptor::new();
        assert!(gate.check(Check::of(&request).cost(800)).now().unwrap().allowed);
        let told = gate.explain(Check::of(&request).cost(300)).now().unwrap().to_string();
        assert!(told.contains(&format!("would be allowed with   {expected}   or   cost <= 200")), "{told}");
        let told = gate.explain(Check::of(&request).cost(Rate::MAX_COUNT)).now().unwrap().to_string();
        assert!(told.ends_with("would be allowed with   cost <= 200\n"), "{told}");
    }
}

#[test]
fn a_part_that_is_kept_back_is_told_with_the_priority_that_would_do() {
    let mut limit = Limit::new(Quota::per_hour(10).gcra().unwrap(), "gcra 10/h");
    limit.keep_for = KeepFor::default().with(Criticality::Critical, Kept::Percent(20));
    let set = PolicySet::new(vec![Policy::new("p", limit)]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    let request = Descriptor::new();
    let report = Check::of(&request).priority(Criticality::Sheddable);
    assert!(gate.check(report.cost(7)).now().unwrap().allowed);
    assert_eq!(
        gate.explain(report.cost(2)).now().unwrap().to_string(),
        "DENIED by p, retry after 6 min
  1 p   DENIED      gcra 10/h: needs 2, has 3 of 10, keeps 2 for higher priority and sheds sheddable: none of it is admitted now; key (all)
    would be allowed with   burst >= 12   or   cost <= 1   or   priority >= critical   or   max_wait >= 360s
"
    );
    let never = gate.explain(report.cost(9)).now().unwrap().to_string();
    assert!(never.starts_with("DENIED by p, never allowed at this cost and priority\n"), "{never}");
    let critical = gate.explain(Check::of(&request).cost(2)).now().unwrap().to_string();
    assert!(critical.contains("allowed     gcra 10/h: needs 2, has 3 of 10; key (all)"), "{critical}");
}

/// It named a word that no file has, `limit >= 3`.
#[test]
fn a_queue_names_no_size_that_the_file_cannot_set() {
    let queue = Quota::per_second(1).leaky_queue(5).unwrap();
    let mut limit = Limit::new(queue, "leaky-bucket 1/s queue 5");
    limit.max_wait = Duration::from_millis(1500);
    let set = PolicySet::new(vec![Policy::new("q", limit)]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    let request = Descriptor::new();
    for _ in 0..2 {
        assert!(gate.check(&request).now().unwrap().allowed);
    }
    assert_eq!(
        gate.explain(&request).now().unwrap().to_string(),
        "DENIED by q, retry after 500 ms
  1 q   DENIED      leaky-bucket 1/s queue 5: needs 1, has 0 of 1; key (all)
    would be allowed with   max_wait >= 2000ms
"
    );
}

/// It said that no policy limits a request that is over a limit.
#[test]
fn a_request_that_passes_over_a_limit_names_the_policy() {
    let one = || Limit::new(Quota::per_hour(1).gcra().unwrap(), "gcra 1/h");
    let over = |name, over| {
        let mut policy = Policy::new(name, one());
        policy.over = over;
        policy
    };
    let set = PolicySet::new(vec![over("marks", Over::Mark), over("denies", Over::Deny)]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    let request = Descriptor::new();
    assert!(gate.check(&request).now().unwrap().allowed);
    assert!(gate.explain(&request).now().unwrap().to_string().starts_with("DENIED by denies, "));
    let set = PolicySet::new(vec![
        over("marks", Over::Mark),
        Policy::new("wide", Limit::new(Quota::per_hour(9).gcra().unwrap(), "gcra 9/h")),
    ])
    .unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    assert!(gate.check(&request).now().unwrap().allowed);
    assert!(
        gate.explain(&request)
            .now()
            .unwrap()
            .to_string()
            .starts_with("ALLOWED, tightest is wide\n  1 marks   marked ")
    );
    let gate = Gate::in_memory(PolicySet::new(vec![over("marks", Over::Mark)]).unwrap(), 100).unwrap();
    let gate = gate.with_clock(ManualClock::at(Tick::from_secs(1)));
    assert!(gate.check(&request).now().unwrap().allowed);
    assert!(
        gate.explain(&request)
            .now()
            .unwrap()
            .to_string()
            .starts_with("ALLOWED, though over the limit of marks\n")
    );
}

#[test]
fn a_breaker_says_whether_it_lets_the_call_through() {
    let quota = Quota::Breaker(CircuitBreaker::builder().consecutive(1).jitter(0.0).build().unwrap());
    let set = PolicySet::new(vec![Policy::new("pay", Limit::new(quota, "breaker consecutive 1"))]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    let request = Descriptor::new();
    let looked_up = "    whether the breaker of pay is half-open or forced, and why, is not looked up here; Keys::handle_breaker tells it\n";
    assert_eq!(
        gate.explain(&request).now().unwrap().to_string(),
        format!(
            "ALLOWED, tightest is pay\n  1 pay   allowed     breaker consecutive 1: lets this call through; key (all)\n{looked_up}"
        )
    );
    gate.admit(&request).now().unwrap().admitted().unwrap().finish(Outcome::Failure).now().unwrap();
    assert_eq!(
        gate.explain(&request).now().unwrap().to_string(),
        format!(
            "DENIED by pay, retry after 5 s
  1 pay   DENIED      breaker consecutive 1: is open, lets the first probe through in 5 s; key (all)
{looked_up}"
        )
    );
}

#[test]
fn a_guard_tells_how_many_are_inside() {
    let places = Quota::concurrency(2, Duration::from_secs(30)).unwrap();
    let set = PolicySet::new(vec![Policy::new("work", Limit::new(places, "concurrency 2 ttl 30s"))]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    let request = Descriptor::new();
    for _ in 0..2 {
        assert!(
            gate.check(Check::of(&request).cost(800)).now().unwrap().allowed,
            "one place, whatever it costs others"
        );
    }
    assert_eq!(
        gate.explain(&request).now().unwrap().to_string(),
        "DENIED by work, it is unknown when it would be allowed
  1 work   DENIED      concurrency 2 ttl 30s: needs 1, 2 of 2 places in use; key (all)
    would be allowed with   max >= 3
"
    );
}

#[test]
fn attributes_that_no_policy_uses_are_named() {
    let mut policy = Policy::new("per-ip", Limit::new(Quota::per_minute(2).gcra().unwrap(), "gcra 2/min"));
    policy.by = vec!["client.ip".to_owned()];
    let set = PolicySet::new(vec![policy]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    let of = |names: &[&'static str]| {
        let mut request = Descriptor::new();
        names.iter().for_each(|name| request.push(*name, "x"));
        gate.explain(&request).now().unwrap().to_string()
    };
    let told = of(&["ip"]);
    assert!(told.ends_with("\n    no policy uses the attribute ip (did you mean client.ip?)\n"), "{told}");
    let told = of(&["user.id", "a", "b", "c", "d", "e", "f"]);
    assert!(told.ends_with("\n    no policy uses the attributes user.id, a, b, c, d and 2 more\n"), "{told}");
    let told = of(&["client.ip", "request.path"]);
    assert!(!told.contains("no policy uses"), "{told}");
}

#[test]
fn a_breaker_says_what_is_known_of_it() {
    let quota = Quota::Breaker(CircuitBreaker::builder().consecutive(1).jitter(0.0).build().unwrap());
    let set = PolicySet::new(vec![Policy::new("pay", Limit::new(quota, "breaker consecutive 1"))]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    let explained = gate.explain(&Descriptor::new()).now().unwrap();
    assert!(explained.has_breakers());
    let told = explained.clone().with_breakers(|policy, at| {
        Some(BreakerState { words: format!("{policy} {at} is forced"), admitted_share: None })
    });
    assert!(told.to_string().contains("breaker consecutive 1: pay 0 is forced; key (all)"), "{told}");
    let left = explained.with_breakers(|_, _| None).to_string();
    assert!(left.contains("breaker consecutive 1: lets this call through; key (all)"), "{left}");
}

#[test]
fn a_level_that_is_shed_in_part_says_which_share_is_admitted() {
    let places = Quota::concurrency(10, Duration::from_secs(30)).unwrap();
    let mut limit = Limit::new(places, "concurrency 10 ttl 30s");
    limit.keep_for = KeepFor::default()
        .with(Criticality::Critical, Kept::Percent(60))
        .with(Criticality::CriticalPlus, Kept::Percent(20));
    let set = PolicySet::new(vec![Policy::new("work", limit)]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    let request = Descriptor::new();
    for _ in 0..6 {
        assert!(gate.check(Check::of(&request).priority(Criticality::CriticalPlus)).now().unwrap().allowed);
    }
    // Of four free places, cohort 0 of critical leaves two, and cohorts 32, 64 and 96 one more each.
    let ask = |priority: &str| Check::of(&request).priority(priority.parse::<Priority>().unwrap());
    assert!(gate.explain(ask("critical/63")).now().unwrap().reasons[0].limits[0].admitted_share.is_none());
    let shed = gate.explain(ask("critical/64")).now().unwrap();
    assert_eq!(shed.reasons[0].limits[0].admitted_share, Some(0.5));
    assert_eq!(
        shed.to_string(),
        "DENIED by work, it is unknown when it would be allowed
  1 work   DENIED      concurrency 10 ttl 30s: needs 1, 6 of 10 places in use, keeps 4 for higher priority and sheds critical: 50% of it is admitted now, cohorts 0 to 63 of 128; key (all)
    would be allowed with   max >= 12   or   priority >= critical
"
    );
    let none = gate.explain(ask("sheddable")).now().unwrap();
    assert_eq!(none.reasons[0].limits[0].admitted_share, Some(0.0));
    assert!(none.to_string().contains("and sheds sheddable: none of it is admitted now; key"), "{none}");
    for _ in 0..4 {
        assert!(gate.check(ask("critical-plus")).now().unwrap().allowed);
    }
    let full = gate.explain(ask("sheddable")).now().unwrap();
    assert!(!full.to_string().contains("sheds"), "full for everybody: {full}");
    assert_eq!(full.reasons[0].limits[0].admitted_share, None);
}

#[test]
fn a_longer_wait_is_named_only_if_the_caller_has_that_time() {
    let gate = |max_wait| {
        let mut limit = Limit::new(Quota::per_second(1).gcra().unwrap(), "gcra 1/s");
        limit.max_wait = Duration::from_millis(max_wait);
        let set = PolicySet::new(vec![Policy::new("p", limit)]).unwrap();
        let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
        assert!(gate.check(&Descriptor::new()).now().unwrap().allowed);
        gate
    };
    let least = |gate: &Gate, request: &Descriptor<'_>| {
        gate.explain(request).now().unwrap().reasons[0].limits[0].allowed_with.unwrap().max_wait_at_least_ms
    };
    let of = |left: &'static str| Descriptor::new().with("request.header.grpc-timeout", left);
    for max_wait in [0, 300] {
        let gate = gate(max_wait);
        assert_eq!(least(&gate, &Descriptor::new()), Some(1000));
        assert_eq!(least(&gate, &of("1000m")), Some(1000));
        assert_eq!(least(&gate, &of("999m")), None, "the caller is gone by then");
        assert_eq!(least(&gate, &of("100m")), None, "its time is less than the delay that the limit accepts");
        let request = Descriptor::new();
        let bounded = Check::of(&request).deadline(Tick::from_nanos(1_100_000_000));
        let with = gate.explain(bounded).now().unwrap().reasons[0].limits[0].allowed_with.unwrap();
        assert_eq!(with.max_wait_at_least_ms, None);
    }
}

#[test]
fn a_breaker_that_sheds_refuses_by_chance() {
    let quota = Quota::Breaker(CircuitBreaker::sre().build().unwrap());
    let set = PolicySet::new(vec![Policy::new("pay", Limit::new(quota, "breaker sheds"))]).unwrap();
    let clock = ManualClock::at(Tick::from_secs(1));
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(clock.clone());
    let request = Descriptor::new();
    for _ in 0..200 {
        clock.advance(Duration::from_millis(7));
        if let Some(admission) = gate.admit(&request).now().unwrap().admitted() {
            admission.finish(Outcome::Failure).now().unwrap();
        }
    }
    let refused = (0..200).find_map(|_| {
        clock.advance(Duration::from_millis(7));
        let told = gate.explain(&request).now().unwrap();
        (told.decision == "denied").then(|| told.to_string())
    });
    let refused = refused.unwrap();
    assert!(
        refused.contains("breaker sheds: refuses this call by chance, as a share of the calls; key"),
        "{refused}"
    );
}

/// The state of a breaker and the places in use were passed over in silence, as if a file could know them.
#[test]
fn what_is_not_known_is_told() {
    let breaker = Quota::Breaker(CircuitBreaker::builder().consecutive(1).build().unwrap());
    let mut late = Policy::new("late", Limit::new(Quota::per_second(1).gcra().unwrap(), "l"));
    late.deadline = Some(Duration::from_millis(10));
    let places = Quota::from(tidegate_core::concurrency::Concurrency::new(5).unwrap());
    let mut elsewhere = Policy::new("elsewhere", Limit::new(breaker.clone(), "b"));
    elsewhere.matching = Match::any().path("/x").unwrap();
    let set = vec![
        Policy::new("calls", Limit::new(breaker, "b")),
        Policy::new("work", Limit::new(places, "c")),
        late,
        elsewhere,
    ];
    let gate = Gate::in_memory(PolicySet::new(set).unwrap(), 100).unwrap();
    let request = Descriptor::new();
    let told = gate.explain(&request).now().unwrap();
    let untimed = "the deadline of late was not compared, since the request does not say how long its caller waits; request.header.grpc-timeout and request.header.x-envoy-expected-rq-timeout-ms say it";
    assert_eq!(
        told.remarks,
        [
            "whether the breaker of calls is half-open or forced, and why, is not looked up here; Keys::handle_breaker tells it",
            untimed
        ]
    );
    let fresh = told.over_fresh_counters();
    assert_eq!(
        fresh.remarks,
        [
            "only a running server knows the state of the breaker of calls, here it is new and closed; ask by tidegate explain --server URL, or by tidegate breaker list --server URL",
            "only a running server knows how many places of work are in use, here all are free; ask by tidegate explain --server URL",
            untimed
        ]
    );
    let text = fresh.to_string();
    assert!(fresh.remarks.iter().all(|remark| text.contains(&format!("\n    {remark}\n"))), "{text}");
    let timed = request.with("request.header.grpc-timeout", "50m");
    assert_eq!(gate.explain(&timed).now().unwrap().remarks.len(), 1, "the deadline was compared");
}

/// A pacer spaces the units of one request too, so a request for many may never pass within its `max_wait`. No `max_wait`
/// was named that would do.
#[test]
fn a_pacer_that_never_answers_in_time_says_what_would_work() {
    let pacer = |max_wait| {
        let rate = Rate::new(1, Duration::from_secs(1)).unwrap();
        let mut limit = Limit::new(
            Quota::UberPacer(tidegate_core::rate::UberPacer::new(rate, 2).unwrap()),
            "uber-pacer 1/s",
        );
        limit.max_wait = max_wait;
        let clock = ManualClock::at(Tick::from_secs(100));
        let gate = Gate::in_memory(PolicySet::new(vec![Policy::new("p", limit)]).unwrap(), 100).unwrap();
        (gate.with_clock(clock.clone()), clock)
    };
    let request = Descriptor::new();
    let of = |cost| Check::of(&request).cost(cost);
    let (gate, clock) = pacer(Duration::from_secs(1));
    assert!(gate.check(of(1)).now().unwrap().allowed);
    clock.advance(Duration::from_secs(50));
    assert_eq!(
        gate.explain(of(6)).now().unwrap().to_string(),
        "DENIED by p, never allowed at this cost with this max_wait
  1 p   DENIED      uber-pacer 1/s: needs 6, has 3 of 3; key (all)
    would be allowed with   cost <= 3   or   max_wait >= 3000ms
"
    );
    for (max_wait, passes) in [(2999, false), (3000, true)] {
        let (gate, clock) = pacer(Duration::from_millis(max_wait));
        assert!(gate.check(of(1)).now().unwrap().allowed);
        clock.advance(Duration::from_secs(50));
        assert_eq!(gate.check(of(6)).now().unwrap().allowed, passes, "{max_wait}");
    }
    // One that was never asked has nothing to catch up on.
    let told = pacer(Duration::from_secs(1)).0.explain(of(6)).now().unwrap();
    assert_eq!(told.reasons[0].limits[0].allowed_with.unwrap().max_wait_at_least_ms, Some(5000));
}

/// The lines of an explanation are read by people and split by programs. A caller who put a line end into its user name
/// could add a line that says that a policy allowed it.
#[test]
fn a_line_end_in_a_key_or_in_a_name_begins_no_line() {
    let mut policy = Policy::new("p", Limit::new(Quota::per_hour(1).gcra().unwrap(), "1/h"));
    policy.by = vec!["user.id".to_owned()];
    let gate = Gate::in_memory(PolicySet::new(vec![policy]).unwrap(), 100).unwrap();
    let request =
        Descriptor::new().with("user.id", "a\n  2 q   allowed\t1/h").with("b\n  3 r   allowed", "c");
    let told = gate.explain(&request).now().unwrap().to_string();
    assert_eq!(told.lines().count(), 3, "{told}");
    assert!(told.contains(r"key user.id=a\n  2 q   allowed\t1/h"), "{told}");
    assert!(told.contains(r"the attribute b\n  3 r   allowed"), "{told}");
}
