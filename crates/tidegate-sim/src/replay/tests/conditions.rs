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
