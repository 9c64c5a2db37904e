use super::*;

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

fn matched(replay: &Replay) -> u64 {
    replay.outcomes()[0].policies[0].matched
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
        assert!((matched_from..500).contains(&matched(&replay)), "{trigger}: {}", matched(&replay));
        assert_eq!(assumed(&replay), Vec::<String>::new(), "{trigger}");
    }
    let idle = busy(FEW, &["in-flight above 40"], &[]);
    assert_eq!((matched(&idle), assumed(&idle).len()), (0, 0));
}

#[test]
fn a_switch_that_nothing_tells_is_taken_as_on_and_said_to_be() {
    let unknown = busy(FEW, &["cpu above 80%"], &[]);
    assert_eq!(matched(&unknown), 0);
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
    assert!(matched(&in_part) >= 400);
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
        assert_eq!((matched(&replay), replay.outcomes()[0].allowed), (500, 1), "{triggers:?}");
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
