use std::time::Duration;

use super::*;
use crate::policy::{Kept, Match};
use crate::{ManualClock, Tick};
use tidegate_core::Outcome;
use tidegate_core::breaker::CircuitBreaker;
use tidegate_core::rate::CalendarUnit;

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
    let before = gate.explain(&request).unwrap().to_string();
    assert!(before.contains("needs 1, has 1 of 1"), "what is there, not what would be left: {before}");
    assert!(gate.check(&request).unwrap().allowed);
    assert_eq!(
        gate.explain(&request).unwrap().to_string(),
        "DENIED by per-ip, retry after 500 ms
  1 shield   allowed     gcra 5000/s: needs 1, has 4999 of 5000; key (all); not charged, another limit denied
  2 per-ip   DENIED      gcra 2/s burst 1: needs 1, has 0 of 1; key client.ip=203.0.113.9
  3 login    not charged path does not match
    would be allowed with   burst >= 2
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
        assert!(gate.check(Check::of(&request).cost(800)).unwrap().allowed);
        let told = gate.explain(Check::of(&request).cost(300)).unwrap().to_string();
        assert!(
            told.ends_with(&format!("would be allowed with   {expected}   or   cost <= 200\n")),
            "{told}"
        );
        let told = gate.explain(Check::of(&request).cost(Rate::MAX_COUNT)).unwrap().to_string();
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
    assert!(gate.check(report.cost(7)).unwrap().allowed);
    assert_eq!(
        gate.explain(report.cost(2)).unwrap().to_string(),
        "DENIED by p, retry after 6 min
  1 p   DENIED      gcra 10/h: needs 2, has 3 of 10, keeps 2 for higher priority; key (all)
    would be allowed with   burst >= 12   or   cost <= 1   or   priority >= critical
"
    );
    let never = gate.explain(report.cost(9)).unwrap().to_string();
    assert!(never.starts_with("DENIED by p, never allowed at this cost and priority\n"), "{never}");
    let critical = gate.explain(Check::of(&request).cost(2)).unwrap().to_string();
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
        assert!(gate.check(&request).unwrap().allowed);
    }
    assert_eq!(
        gate.explain(&request).unwrap().to_string(),
        "DENIED by q, retry after 500 ms
  1 q   DENIED      leaky-bucket 1/s queue 5: needs 1, has 0 of 1; key (all)
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
    assert!(gate.check(&request).unwrap().allowed);
    assert!(gate.explain(&request).unwrap().to_string().starts_with("DENIED by denies, "));
    let set = PolicySet::new(vec![
        over("marks", Over::Mark),
        Policy::new("wide", Limit::new(Quota::per_hour(9).gcra().unwrap(), "gcra 9/h")),
    ])
    .unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    assert!(gate.check(&request).unwrap().allowed);
    assert!(
        gate.explain(&request)
            .unwrap()
            .to_string()
            .starts_with("ALLOWED, tightest is wide\n  1 marks   marked ")
    );
    let gate = Gate::in_memory(PolicySet::new(vec![over("marks", Over::Mark)]).unwrap(), 100).unwrap();
    let gate = gate.with_clock(ManualClock::at(Tick::from_secs(1)));
    assert!(gate.check(&request).unwrap().allowed);
    assert!(
        gate.explain(&request).unwrap().to_string().starts_with("ALLOWED, though over the limit of marks\n")
    );
}

#[test]
fn a_breaker_says_whether_it_lets_the_call_through() {
    let quota = Quota::Breaker(CircuitBreaker::builder().consecutive(1).jitter(0.0).build().unwrap());
    let set = PolicySet::new(vec![Policy::new("pay", Limit::new(quota, "breaker consecutive 1"))]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::at(Tick::from_secs(1)));
    let request = Descriptor::new();
    assert_eq!(
        gate.explain(&request).unwrap().to_string(),
        "ALLOWED, tightest is pay\n  1 pay   allowed     breaker consecutive 1: lets this call through; key (all)\n"
    );
    gate.admit(&request).unwrap().admitted().unwrap().finish(Outcome::Failure).unwrap();
    assert_eq!(
        gate.explain(&request).unwrap().to_string(),
        "DENIED by pay, retry after 5 s
  1 pay   DENIED      breaker consecutive 1: is open, lets the first probe through in 5 s; key (all)
"
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
            gate.check(Check::of(&request).cost(800)).unwrap().allowed,
            "one place, whatever it costs others"
        );
    }
    assert_eq!(
        gate.explain(&request).unwrap().to_string(),
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
        gate.explain(&request).unwrap().to_string()
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
    let explained = gate.explain(&Descriptor::new()).unwrap();
    assert!(explained.has_breakers());
    let told = explained.with_breakers(|policy, at| Some(format!("{policy} {at} is forced")));
    assert!(told.to_string().contains("breaker consecutive 1: pay 0 is forced; key (all)"), "{told}");
}
