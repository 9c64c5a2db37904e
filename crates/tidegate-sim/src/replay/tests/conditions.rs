//! Conditions and switches on numbers that requests tell, and what is said where nothing tells them.

use super::*;

/// Runs traffic whose requests take a while.
fn timed(policies: &str, traffic: &str) -> Replay {
    let mut replay = Replay::new(vec![("policies".into(), set(policies))], ReplayOptions::default()).unwrap();
    for arrival in traffic.parse::<Traffic>().unwrap().arrivals(Tick::from_secs(1_000_000), 1) {
        replay.feed_arrival(&arrival, &Descriptor::new());
    }
    replay.finish();
    replay
}

fn matched(replay: &Replay) -> Vec<u64> {
    replay.outcomes()[0].policies.iter().map(|policy| policy.matched).collect()
}

/// Conditions on what is in flight and on latency must hold in a replay as in a server: the durations are known.
#[test]
fn conditions_on_work_hold_as_in_a_server() {
    // 100 a second of 300 ms each: 30 are in flight.
    let traffic = "steady 100/s 5s taking 300ms";
    for (condition, holds) in [
        ("in-flight above 20", true),
        ("in-flight above 40", false),
        ("latency above 200ms", true),
        ("latency above 400ms", false),
    ] {
        let when = format!("  - {{ name: careful, when: {condition}, limit: {{ rate: 1/s }} }}\n");
        for beside in ["", "  - { name: places, limit: { algorithm: concurrency, max: 1000 } }\n"] {
            let replay = timed(&format!("{when}{beside}"), traffic);
            let matched = matched(&replay)[0];
            assert_eq!(matched > 100, holds, "{condition} {beside}: {matched}");
            assert_eq!((replay.unknown_numbers(), replay.unheld()), (vec![], 0));
        }
    }
    // Refused requests are not in flight, so the condition ends soon after the limit refuses.
    let replay = timed("  - { name: careful, when: 'in-flight above 20', limit: { rate: 1/h } }\n", traffic);
    let outcome = &replay.outcomes()[0];
    assert!((100..400).contains(&outcome.denied), "{outcome:?}");
    assert!(outcome.service.is_none(), "a condition is no guard");
}

/// A condition that never held because its number is not known must be told apart from one that did not become true.
#[test]
fn numbers_that_nobody_tells_are_reported() {
    let policies = "  - { name: busy, when: cpu above 80%, limit: { rate: 1/s } }\n  \
        - { name: queue, when: signal queue above 5, limit: { rate: 1/s } }\n  \
        - { name: slow, when: latency above 1s, limit: { rate: 1/s } }\n  \
        - { name: rush, when: rate above 9/s, limit: { rate: 1/s } }\n  \
        - { name: asleep, mode: 'off', when: cpu above 80%, limit: { rate: 1/s } }\n  \
        - { name: bbr, limit: { algorithm: adaptive, law: bbr } }\n";
    let told = |traffic| {
        let unknown = timed(policies, traffic).unknown_numbers();
        unknown.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let known = [
        "the traffic does not say what `cpu` was: the condition `cpu above 80%, until 72%` of policy busy never held",
        "the traffic does not say what `signal queue` was: the condition `signal queue above 5, until 4.5` of policy queue never held",
        "the traffic does not say what `cpu` was: the law of policy bbr took the processor as idle",
    ];
    assert_eq!(told("burst 5 taking 20ms"), known);
    let untimed = told("burst 5");
    let slow = "the traffic does not say how long requests took: the condition `latency above 1000ms, until 900ms` of policy slow never held";
    assert!(untimed.len() == 4 && untimed.contains(&slow.to_owned()), "{untimed:?}");
}

const FEW: &str = "  - { name: few, when: switch previews off, limit: { rate: 1/h } }\n";

/// Runs a hundred requests a second for five seconds, of 300 ms each.
fn busy(policies: &str, triggers: &[&str], off: &[&str]) -> Replay {
    let triggers: String = triggers.iter().map(|when| format!("    - {{ off_when: {when} }}\n")).collect();
    let switches =
        if triggers.is_empty() { String::new() } else { format!("switches:\n  previews:\n{triggers}") };
    let mut replay = Replay::new(
        vec![("policies".into(), set(&format!("{policies}{switches}")))],
        ReplayOptions::default(),
    )
    .unwrap();
    off.iter().for_each(|name| replay.turn_off(name).unwrap());
    let traffic: Traffic = "steady 100/s 5s taking 300ms".parse().unwrap();
    for arrival in traffic.arrivals(Tick::from_secs(1_000_000), 1) {
        replay.feed_arrival(&arrival, &Descriptor::new());
    }
    replay.finish();
    replay
}

fn assumed(replay: &Replay) -> Vec<String> {
    assert_eq!(replay.unknown_numbers(), [], "a switch is reported as such");
    replay.assumed_on().iter().map(ToString::to_string).collect()
}

/// Triggers did nothing in a replay, and the remark named only the policy that reads the switch.
#[test]
fn a_trigger_on_a_number_that_requests_tell_turns_its_switch() {
    for (trigger, matched_from) in
        [("in-flight above 20", 400), ("latency above 200ms", 300), ("rate above 50/s", 300)]
    {
        let replay = busy(FEW, &[trigger], &[]);
        assert!((matched_from..500).contains(&matched(&replay)[0]), "{trigger}: {}", matched(&replay)[0]);
        assert_eq!(assumed(&replay), Vec::<String>::new(), "{trigger}");
    }
    let idle = busy(FEW, &["in-flight above 40"], &[]);
    assert_eq!((matched(&idle)[0], assumed(&idle).len()), (0, 0));
}

#[test]
fn a_switch_that_nothing_tells_is_taken_as_on_and_said_to_be() {
    let unknown = busy(FEW, &["cpu above 80%"], &[]);
    assert_eq!(matched(&unknown)[0], 0);
    assert_eq!(
        assumed(&unknown),
        [
            "switch previews was taken as on throughout: the traffic does not say what `cpu` was; policy few was never in force"
        ]
    );
    assert_eq!(
        assumed(&busy(FEW, &[], &[])),
        [
            "switch previews was taken as on throughout: only a person or a program turns it; policy few was never in force"
        ]
    );
    let in_part = busy(FEW, &["cpu above 80%", "in-flight above 20", "signal queue above 3"], &[]);
    assert!(matched(&in_part)[0] >= 400);
    assert_eq!(
        assumed(&in_part),
        [
            "switch previews was turned by a part of its triggers only: the traffic does not say what `cpu` was, and the traffic does not say what `signal queue` was"
        ]
    );
    // No policy reads it: it is for programs.
    let unread = "  - { name: all, limit: { rate: 1000/s } }\n";
    assert_eq!(
        assumed(&busy(unread, &["cpu above 80%"], &[])),
        ["switch previews was taken as on throughout: the traffic does not say what `cpu` was"]
    );
}

#[test]
fn a_switch_that_is_turned_off_is_off_from_the_first_request_to_the_last() {
    for triggers in [&[][..], &["cpu above 80%"], &["in-flight above 4000"]] {
        let replay = busy(FEW, triggers, &["previews"]);
        assert_eq!((matched(&replay)[0], replay.outcomes()[0].allowed), (500, 1), "{triggers:?}");
        assert_eq!(assumed(&replay), Vec::<String>::new());
    }
}

#[test]
fn a_switch_that_there_is_not_cannot_be_turned_off() {
    let mut replay = Replay::new(vec![("policies".into(), set(FEW))], ReplayOptions::default()).unwrap();
    assert_eq!(replay.turn_off("preview"), Err(vec!["previews".to_owned()]));
    let mut none = Replay::new(vec![("policies".into(), set(PER_IP))], ReplayOptions::default()).unwrap();
    assert_eq!(none.turn_off("previews"), Err(Vec::new()));
}
