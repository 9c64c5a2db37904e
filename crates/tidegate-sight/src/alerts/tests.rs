//! Tests of what is kept of alerts. The time is a number.

use super::*;

const NOW: u64 = 1_800_000_000;

fn alerts(history: &Arc<History>, now: u64) -> Alerts {
    let delivery = Delivery::new(&tidegate::config::AlertSettings::default()).unwrap();
    Alerts::new(Arc::clone(history), delivery, now)
}

fn history() -> Arc<History> {
    Arc::new(History::open(None, NOW).0)
}

/// Runs seconds in which the store is away or not.
fn run(alerts: &Alerts, seconds: std::ops::Range<u64>, away: Option<&str>) {
    for at in seconds {
        alerts.second(&Second { now: NOW + at, store: "redis", store_away: away, ..Second::default() });
    }
}

fn shown(alerts: &Alerts, at: u64) -> Vec<(u64, bool)> {
    let value = alerts.read(99, NOW + at);
    let of = |one: &Value| (one["number"].as_u64().unwrap(), one["resolved"].is_null());
    value["alerts"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn an_alert_is_kept_while_it_fires_and_for_a_week_after() {
    let history = history();
    let alerts = alerts(&history, NOW);
    run(&alerts, 0..61, Some("connection refused"));
    assert_eq!(shown(&alerts, 61), [(1, true)]);
    let one = alerts.read(9, NOW + 61)["alerts"][0].clone();
    assert_eq!(one["text"], "the store (redis) cannot be asked: connection refused");
    assert_eq!(
        (&one["since"], &one["fired"]),
        (&json!("2027-01-15T08:00:00Z"), &json!("2027-01-15T08:01:00Z"))
    );
    let firing: Vec<(&str, u64)> = alerts.firing().iter().map(|one| (one.rule, one.alerts)).collect();
    assert_eq!((firing.len(), firing[4]), (8, ("store-away", 1)));
    assert_eq!((&one["severity"], &one["path"]), (&json!("critical"), &json!("/ui/")));
    run(&alerts, 61..200, None);
    assert_eq!(shown(&alerts, 200), [(1, false)]);
    run(&alerts, 200..300, Some("again"));
    assert_eq!(shown(&alerts, 300), [(2, true), (1, false)], "those that fire first");
    assert_eq!(shown(&alerts, 120 + KEPT_FOR), [(2, true), (1, false)]);
    assert_eq!(shown(&alerts, 300 + KEPT_FOR), [(2, true)]);
}

#[test]
fn after_a_restart_an_alert_is_found_again_or_is_over() {
    let history = history();
    run(&alerts(&history, NOW), 0..61, Some("away"));
    let again = alerts(&history, NOW + 100);
    run(&again, 100..170, Some("away"));
    assert_eq!(shown(&again, 170), [(1, true)], "one and the same");
    run(&again, 170..600, None);
    assert_eq!(shown(&again, 600), [(1, false)]);

    run(&alerts(&history, NOW), 700..780, Some("away"));
    let calm = alerts(&history, NOW + 800);
    run(&calm, 800..800 + FOUND_AGAIN_WITHIN, None);
    assert_eq!(shown(&calm, 1_160), [(2, true), (1, false)]);
    run(&calm, 1_160..1_161, None);
    assert_eq!(shown(&calm, 1_161), [(2, false), (1, false)]);
}

#[test]
fn a_silence_has_a_reason_and_an_end() {
    let history = history();
    let alerts = alerts(&history, NOW);
    let act = |body: &str| alerts.act(body.as_bytes(), "ann", NOW).map(|done| done.text);
    for (wrong, told) in [
        ("{}", "missing field `do`"),
        (r#"{"do": "delete"}"#, "unknown variant"),
        (r#"{"do": "silence", "why": "x"}"#, "unknown field"),
        (r#"{"do": "silence", "for": "2h"}"#, "`reason`"),
        (r#"{"do": "silence", "for": "25h", "reason": "x"}"#, "1min to 24h"),
        (r#"{"do": "silence", "for": "1s", "reason": "x"}"#, "1min to 24h"),
        (r#"{"do": "silence", "rule": "store", "reason": "x"}"#, "there is no rule `store`"),
        (r#"{"do": "end-silence"}"#, "not silenced"),
        (r#"{"do": "test"}"#, "no receiver"),
    ] {
        let why = act(wrong).unwrap_err();
        assert!(why.contains(told), "{wrong}: {why}");
    }
    let text = act(
        r#"{"do": "silence", "rule": "store-away", "policy": "", "for": "2min", "reason": "moved\u001b"}"#,
    );
    assert_eq!(text, Ok("alerts of store-away are silenced for 2 min".to_owned()));
    run(&alerts, 0..61, Some("away"));
    let value = alerts.read(9, NOW + 61);
    assert_eq!(
        (&value["alerts"][0]["silenced"], &value["silences"][0]["reason"]),
        (&json!(true), &json!("moved\\u{1b}"))
    );
    run(&alerts, 61..121, Some("away"));
    let value = alerts.read(9, NOW + 121);
    assert_eq!((&value["alerts"][0]["silenced"], &value["silences"]), (&json!(false), &json!([])));
    for one in 0..MOST_SILENCES {
        act(&format!(r#"{{"do": "silence", "policy": "p{one}", "reason": "x"}}"#)).unwrap();
    }
    assert!(act(r#"{"do": "silence", "reason": "x"}"#).unwrap_err().contains("100 silences"));
    assert!(act(r#"{"do": "silence", "policy": "p1", "reason": "y"}"#).is_ok(), "in place of the one before");
}

#[test]
fn alerts_of_keys_take_no_room_of_those_of_the_server() {
    let history = history();
    let alerts = alerts(&history, NOW);
    for key in 0..MOST_FIRING as u64 {
        // Of the process before, so they are not over yet.
        let alert = Alert {
            rule: Rule::TenantNear,
            policy: "p".to_owned(),
            key: format!("#{key}"),
            since: NOW - 9,
            fired: NOW - 9,
            resolved: None,
            text: String::new(),
            path: String::new(),
        };
        alerts.state.lock().firing.insert(alert.subject(), (key, alert));
    }
    run(&alerts, 0..61, Some("away"));
    assert!(alerts.firing().iter().any(|one| (one.rule, one.alerts) == ("store-away", 1)));
}

#[test]
fn lists_stay_bounded_whatever_happens() {
    let history = history();
    let alerts = alerts(&history, NOW);
    for at in 0..2_100 {
        alerts.second(&Second {
            now: NOW + at * 100,
            dropped: u64::from(at.is_multiple_of(4)),
            ..Second::default()
        });
    }
    assert!(history.alerts(9_999).len() <= MOST);
    assert!(alerts.state.lock().firing.len() <= MOST_FIRING);
    assert!(alerts.read(1_000, NOW + 210_000)["alerts"].as_array().unwrap().len() <= MOST);
}
