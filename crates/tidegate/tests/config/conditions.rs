//! `when` and `follows` in a policy file: what is accepted, what is refused, and what is shown.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use tidegate::clock::ManualClock;
use tidegate::config::{Config, Format, schema};
use tidegate::gate::Check;
use tidegate::gate::switches::{Off, Switches};
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::priority::Criticality;
use tidegate::{Gate, Quota};

/// A file with one policy of these lines, a policy named `writes`, and a policy with a key for each caller.
fn file(lines: &[&str]) -> String {
    let indented: String = lines.iter().map(|line| format!("    {line}\n")).collect();
    format!(
        "version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: p\n{indented}  - name: writes\n    limit: {{ rate: 5/s }}\n  \
         - name: each\n    by: user.id\n    limit: {{ rate: 6/s }}\n"
    )
}

fn mistakes(lines: &[&str]) -> Vec<String> {
    let mistakes = Config::parse(&file(lines), "t", Format::Yaml).unwrap_err();
    mistakes.iter().map(ToString::to_string).collect()
}

/// Says whether the schema accepts a file.
fn fits_the_schema(text: &str) -> bool {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    validator.is_valid(&serde_saphyr::from_str::<serde_json::Value>(text).unwrap())
}

#[test]
fn one_condition_or_several_and_a_rate_that_follows() {
    for lines in [
        &["when: cpu above 80%, until 70%", "limit: { rate: 1/s }"][..],
        &["when:", "  - load above 8", "  - policy writes above 50%", "limit: { rate: 1/s }"],
        &["when: switch previews off", "limit: { rate: 1/s }"],
        &["limit: { rate: 600/min, follows: signal queue.length 10..20.5 to 60/min }"],
        &["limit: { algorithm: sliding-log, rate: 10/s, follows: policy writes 50%..100% to 1/s }"],
        &[
            "limit: { algorithm: leaky-bucket, rate: 10/s, queue: 5, max_wait: 1s, follows: latency 50ms..1s to 1/s }",
        ],
    ] {
        let text = file(lines);
        let (config, warnings) = Config::parse(&text, "t", Format::Yaml).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let policy = &config.policies.policies()[0];
        assert!(!policy.when.is_empty() || policy.limits[0].follows.is_some(), "{text}");
        assert!(fits_the_schema(&text), "{text}");
        assert!(config.effective.to_yaml().contains(if policy.when.is_empty() { "follows" } else { "when" }));
    }
}

/// A policy that was never in force passed the check.
#[test]
fn conditions_that_never_hold_at_once_are_told() {
    let told = |when: &str| {
        let when = format!("when: [{when}]");
        let text = file(&[when.as_str(), "limit: { rate: 1/s }"]);
        let (_, warnings) = Config::parse(&text, "t", Format::Yaml).unwrap();
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for when in ["cpu above 80%, cpu below 50%", "load above 1, cpu above 80%, cpu below 50%"] {
        assert_eq!(
            told(when),
            [
                "t:5:5  warn   policy \"p\": when: `cpu above 80%, until 72%` and `cpu below 50%, until 55%` never hold at once, so the policy is never in force; write a policy for each"
            ]
        );
    }
    assert_eq!(told("signal a below 10, signal a above 20").len(), 1);
    for right in [
        "cpu above 50%, cpu below 80%",
        "cpu above 80%, memory below 50%",
        "signal a above 80, signal b below 50",
        // It holds on until 40 %, where the other holds too.
        "'cpu above 80%, until 40%', cpu below 50%",
        "switch a off, switch b off",
    ] {
        assert_eq!(told(right), [""; 0], "{right}");
    }
}

#[test]
fn mistakes_name_the_place_and_what_would_work() {
    let limit = "limit: { rate: 10/s }";
    let follows = |rest: &str| format!("limit: {{ rate: 10/s, {rest} }}");
    let cases: [(&str, &str, &str); 29] = [
        (
            "when: cpus above 80%",
            limit,
            "5:11  error  policy \"p\": when: unknown word \"cpus\"; did you mean \"cpu\"?",
        ),
        (
            "when: memory above 80",
            limit,
            "5:11  error  policy \"p\": when: \"80\" is not a value of memory; write 80%",
        ),
        ("when: cpu over 80%", limit, "when: \"cpu over 80%\" is not a condition"),
        (
            "when: cpu above 80%, untl 70%",
            limit,
            "unknown word \"untl\" after the value; did you mean \"until\"?",
        ),
        ("when: cpu above 80%, until 90%", limit, "use an end at or below 80%"),
        (
            "when: policy wirtes above 80%",
            limit,
            "5:11  error  policy \"p\": there is no policy \"wirtes\"; did you mean \"writes\"?",
        ),
        (
            "when: policy p above 80%",
            limit,
            "5:11  error  policy \"p\" depends on policy \"p\": a policy cannot depend on itself",
        ),
        (
            "when: policy each above 80%",
            limit,
            "5:11  error  policy \"p\" depends on policy \"each\": it has `by`, so each of its keys has a figure of its own",
        ),
        // Neither the policy itself nor one with a key for each caller is suggested.
        (
            "when: policy q above 80%",
            limit,
            "5:11  error  policy \"p\": there is no policy \"q\"; possible are writes",
        ),
        (
            "when: policy eech above 80%",
            limit,
            "5:11  error  policy \"p\": there is no policy \"eech\"; possible are writes",
        ),
        (
            "when: cpu above 80% until 70%",
            limit,
            "when: \"80% until 70%\" lacks a comma; write 80%, until 70%",
        ),
        (
            "when: cpu above 80% stale after 1min, until 70%",
            limit,
            "when: \"80% stale after 1min\" lacks a comma; write 80%, stale after 1min",
        ),
        (
            "when: cpu above 80%, until 70% stale after 1s",
            limit,
            "when: \"70% stale after 1s\" lacks a comma; write 70%, stale after 1s",
        ),
        (
            "when: cpu above 80%, stale after 2days",
            limit,
            "when: a reading is stale after 1s to 1day; 2days is out of range",
        ),
        // A second comparison was told of as a wrong name of the number.
        (
            "when: signal x above 1000, below 2",
            limit,
            "when: \"signal x above 1000, below 2\" compares twice; write two conditions, one for each value",
        ),
        ("when: signal x above 1000,below 2", limit, "compares twice"),
        ("when: cpu above 80% below 90%", limit, "compares twice"),
        ("when: policy writes above 80%, below 90%", limit, "compares twice"),
        (
            "mode: enforce",
            &follows("follows: memory to 1/s"),
            "has no range over which the rate falls; write memory 70%..90% to 10/s",
        ),
        (
            "mode: enforce",
            &follows("follows: memory 1%..2%"),
            "has no rate at the upper end; write memory 1%..2% to 10/s",
        ),
        (
            "mode: enforce",
            &follows("follows: memory 1%..2% to 1/s, between: 1%..2%"),
            "write follows: \"memory 1%..2% to 1/s\", with the range",
        ),
        (
            "mode: enforce",
            &follows("follows: latency 200 ms..1 s to 10/s"),
            "follows: \"latency 200 ms..1 s to 10/s\" has a blank within a value; write latency 200ms..1s to 10/s",
        ),
        (
            "mode: enforce",
            &follows("follows: policy writes 50 %..80 %"),
            "write policy writes 50%..80% to 10/s",
        ),
        ("mode: enforce", &follows("follows: memry 1%..2% to 1/s"), "did you mean \"memory\"?"),
        (
            "mode: enforce",
            &follows("follows: memory 70..90 to 1/s"),
            "follows: \"70\" is not a value of memory; write 80%",
        ),
        (
            "mode: enforce",
            &follows("follows: memory 90%..70% to 1/s"),
            "follows: 90% and 70% are not a band; use a low and a higher one",
        ),
        (
            "mode: enforce",
            &follows("follows: memory 70%..90% to 20/s"),
            "follows: 20/s is above the rate 10/s",
        ),
        ("mode: enforce", &follows("follows: memory 70%..90% to 20/min"), "write both over the same"),
        ("cost: 5", &follows("follows: memory 70%..90% to 1/s"), "a request may cost 5"),
    ];
    for (first, second, says) in cases {
        let found = mistakes(&[first, second]);
        assert!(found.iter().any(|one| one.contains(says)), "{first} {second}: {found:?}");
    }
}

#[test]
fn what_was_read_goes_on_when_policies_are_replaced() {
    let set = |limit: u64| {
        let policy =
            Policy::new("careful", Limit::new(Quota::per_second(limit).fixed_window().unwrap(), "few"))
                .when("signal errors above 10, until 5".parse().unwrap());
        PolicySet::new(vec![policy]).unwrap()
    };
    let gate = Gate::in_memory(set(1), 1000).unwrap().with_clock(ManualClock::default());
    let request = Descriptor::new();
    let limited = |gate: &Gate| !gate.check(Check::of(&request).peek()).now().unwrap().limits.is_empty();
    gate.signals().report("errors", 11.0).unwrap();
    gate.signals().report("errors", 7.0).unwrap();
    assert!(limited(&gate), "it ends at 5");
    gate.replace(set(2));
    assert!(limited(&gate), "and is not forgotten by a reload");
    assert!(!limited(&Gate::in_memory(set(2), 1000).unwrap()));
}

#[test]
fn more_numbers_than_can_be_gone_through_are_refused() {
    let policies = |most: usize| {
        let policy = |at: usize| {
            Policy::new(format!("p{at}"), Limit::new(Quota::per_second(1).gcra().unwrap(), "1/s"))
                .when(format!("signal s{at} above 1").parse().unwrap())
        };
        PolicySet::new((0..most).map(policy).collect())
    };
    assert!(policies(64).is_ok());
    let error = policies(65).unwrap_err().to_string();
    assert_eq!(
        error,
        "65 conditions and moving rates on 65 different numbers are too many; use up to 1024 on up to 64"
    );
}

/// Policies read a degrade switch as code does: for the priorities that it is off for, until its end; `explain` gives
/// the reason.
#[test]
fn a_switch_puts_policies_in_force_for_the_priorities_that_it_is_off_for() {
    let text = "version: 1\nclient_ip: { trusted_proxies: [] }\npolicies:\n  - name: few previews\n    when: switch previews off\n    \
                access: { deny: [feature=large] }\n    limit: { algorithm: fixed-window, rate: 1/day }\n";
    let (config, warnings) = Config::parse(text, "t", Format::Yaml).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let clock = ManualClock::default();
    let switches = Switches::new(["previews"]).unwrap().with_clock(clock.clone());
    let gate = Gate::in_memory(config.policies, 1000).unwrap().with_clock(clock.clone());
    let (any, large) = (Descriptor::new(), Descriptor::new().with("feature", "large"));
    let asked = |gate: &Gate, request, level: Criticality| {
        let decision = gate.check(Check::of(request).priority(level)).now().unwrap();
        (decision.allowed, decision.limits.len())
    };
    let why = |gate: &Gate, level: Criticality| {
        gate.explain(Check::of(&any).priority(level)).now().unwrap().reasons[0].why.clone()
    };
    let (low, usual) = (Criticality::Sheddable, Criticality::Critical);
    assert_eq!(asked(&gate, &any, low), (true, 0), "a gate without switches");
    assert_eq!(why(&gate, low), "not charged: holds while switch previews off: it is not known");

    let gate = gate.with_switches(switches.clone());
    let soon = || clock.advance(std::time::Duration::from_millis(100));
    soon();
    assert_eq!(asked(&gate, &any, low), (true, 0));
    assert_eq!(why(&gate, low), "not charged: holds while switch previews off: it is on");

    let minute = std::time::Duration::from_secs(60);
    switches.turn_off("previews", Off::below(usual, "the image service is moved").lasting(minute)).unwrap();
    soon();
    assert_eq!(asked(&gate, &large, low), (false, 0), "its list holds too");
    assert_eq!([asked(&gate, &any, low), asked(&gate, &any, low)], [(true, 1), (false, 1)]);
    assert_eq!([asked(&gate, &any, usual), asked(&gate, &large, usual)], [(true, 0), (true, 0)]);
    assert_eq!(why(&gate, usual), "not charged: holds while switch previews off: it is on from critical up");
    gate.replace(gate.policies());
    assert_eq!(asked(&gate, &any, low), (false, 1), "through a reload");

    switches.signal("previews", Some(Off::for_all("p99 is 2 s").lasting(minute * 2))).unwrap();
    soon();
    assert_eq!([asked(&gate, &any, usual), asked(&gate, &any, low)], [(true, 0), (false, 1)], "by hand");
    clock.advance(minute);
    assert_eq!(asked(&gate, &any, usual), (false, 1), "the key is one for all");
    clock.advance(minute);
    assert_eq!(
        [asked(&gate, &any, usual), asked(&gate, &any, low)],
        [(true, 0), (true, 0)],
        "the end has come"
    );
}

/// Regression: the last reading was told as if it were in force, so a value above the mark seemed to hold nothing.
#[test]
fn a_stale_reading_is_not_known() {
    let text = "version: 1\npolicies:\n  - name: p\n    when: signal queue above 1000, stale after 3s\n    limit: { rate: 1/s }\n";
    let (config, _) = Config::parse(text, "t", Format::Yaml).unwrap();
    let clock = ManualClock::default();
    let gate = Gate::in_memory(config.policies, 1000).unwrap().with_clock(clock.clone());
    let any = Descriptor::new();
    let why = || gate.explain(&any).now().unwrap().reasons[0].why.clone();
    let condition = "not charged: holds while signal queue above 1000, until 900, stale after 3s";
    assert_eq!(why(), format!("{condition}: it is not known"));
    gate.signals().report("queue", 800.0).unwrap();
    assert_eq!(why(), format!("{condition}: last read as 800"));
    gate.signals().report("queue", 1200.0).unwrap();
    assert_eq!(why(), "charged");
    clock.advance(std::time::Duration::from_secs(4));
    assert!(gate.check(&any).now().unwrap().allowed);
    let stale = format!("{condition}: it is not known; last read as 1200, more than 3s ago");
    assert_eq!(why(), stale);
    gate.replace(gate.policies());
    assert_eq!(why(), stale, "through a reload");
}

/// A floor at the rate leaves the number nothing to move.
#[test]
fn a_floor_that_is_the_rate_is_told() {
    let warned = |floor: &str| {
        let line = format!("limit: {{ rate: 10/s, follows: signal x 1..9 to {floor} }}");
        let (_, warnings) = Config::parse(&file(&[&line]), "t", Format::Yaml).unwrap();
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(warned("9/s").is_empty());
    let told = warned("10/s");
    assert!(told.len() == 1 && told[0].contains("follows: 10/s is the rate itself"), "{told:?}");
}
