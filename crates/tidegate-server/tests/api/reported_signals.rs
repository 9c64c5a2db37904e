//! Signals that users report, and the policies that depend on them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::{send, start, start_with};
use http::{Method, StatusCode};
use serde_json::json;
use tidegate_server::Token;

const FILE: &str = "
version: 1
policies:
  - name: careful
    when: signal queue-length above 1000, until 800
    limit: { algorithm: fixed-window, rate: 1/day }
  - name: other
    when: signal errors above 5
    limit: { algorithm: fixed-window, rate: 1/day }
";

#[tokio::test]
async fn a_reported_signal_puts_a_policy_in_force_and_is_listed() {
    let server = start(FILE).await;
    let report = async |name: &str, body: &str| {
        send(server.addr, Method::POST, &format!("/v1/signals/{name}"), &[], body).await
    };
    for _ in 0..3 {
        assert_eq!(server.check("192.0.2.1").await.status, StatusCode::OK);
    }
    let told = report("queue-length", r#"{"value": 1200}"#).await;
    assert_eq!(
        (told.status, told.json()),
        (StatusCode::OK, json!({ "signal": "queue-length", "value": 1200.0 }))
    );
    assert_eq!(server.check("192.0.2.1").await.status, StatusCode::OK);
    assert_eq!(server.check("192.0.2.1").await.status, StatusCode::TOO_MANY_REQUESTS);
    let listed = server.get("/v1/signals").await.json();
    assert_eq!(listed["signals"][0]["name"], "signal queue-length");
    assert_eq!(listed["signals"][0]["value"], 1200.0);
    assert!(listed["signals"][1]["value"].is_null(), "{listed}");
    assert_eq!(
        server.get("/v1/policies/careful").await.json()["when"][0],
        "signal queue-length above 1000, until 800"
    );

    let unknown = report("queue-lenght", r#"{"value": 1}"#).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert!(unknown.detail().contains("did you mean \"queue-length\"?"), "{}", unknown.detail());
    for (body, says) in [
        ("", "send JSON such as {\"value\": 1200}"),
        ("{}", "value"),
        (r#"{"value": "many"}"#, "expected `value` as a number such as 1200"),
        ("[5]", "expected an object such as {\"value\": 1200}"),
        (r#"{"value": 1e999}"#, "number out of range"),
        (r#"{"value": 1, "for": 3}"#, "unknown field"),
    ] {
        let refused = report("errors", body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(refused.detail().contains(says), "{body}: {}", refused.detail());
    }
    assert_eq!(report("errors", &" ".repeat(5000)).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(server.get("/v1/signals/errors").await.status, StatusCode::METHOD_NOT_ALLOWED);
}

/// A number that is too old for every policy is not known. The list showed it as known, so nobody saw why a policy was
/// not in force.
#[tokio::test]
async fn a_stale_number_is_not_shown_as_known() {
    let server = start(
        "
version: 1
policies:
  - name: careful
    when: signal errors above 5, stale after 3s
    limit: { rate: 1/day }
  - name: patient
    when: signal errors above 5, stale after 8s
    limit: { rate: 1/day }
",
    )
    .await;
    send(server.addr, Method::POST, "/v1/signals/errors", &[], r#"{"value": 9}"#).await;
    let shown = async || server.get("/v1/signals").await.json()["signals"][0].clone();
    let known = |age_ms: u64| json!({ "name": "signal errors", "value": 9.0, "last": 9.0, "age_ms": age_ms });
    assert_eq!(shown().await, known(0));
    server.clock.advance(Duration::from_secs(4));
    assert_eq!(shown().await, known(4000), "one policy goes by it still");
    server.clock.advance(Duration::from_millis(4001));
    let stale = json!({ "name": "signal errors", "value": null, "last": 9.0, "age_ms": 8001 });
    assert_eq!(shown().await, stale);
}

#[tokio::test]
async fn nobody_reports_without_the_token_or_from_a_web_page() {
    let token = "a-token-of-24-characters";
    let locked = start_with(FILE, |mut options| {
        options.token = Some(Token::new(token).unwrap());
        options
    })
    .await;
    let open = start(FILE).await;
    let (path, body) = ("/v1/signals/errors", r#"{"value": 99}"#);
    let ask =
        async |addr, headers: &[(&str, &str)]| send(addr, Method::POST, path, headers, body).await.status;
    assert_eq!(ask(locked.addr, &[]).await, StatusCode::UNAUTHORIZED);
    assert_eq!(
        ask(locked.addr, &[("x-tidegate-token", "a-token-of-24-charakters")]).await,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(ask(locked.addr, &[("x-tidegate-token", token)]).await, StatusCode::OK);
    assert_eq!(ask(open.addr, &[("origin", "https://evil.example")]).await, StatusCode::FORBIDDEN);
}

const SWITCHED: &str = "
version: 1
policies:
  - name: few previews
    when: switch previews off
    limit: { algorithm: fixed-window, rate: 1/day }
  - name: no search
    when: switch search off
    limit: { algorithm: fixed-window, rate: 1/day }
";

/// A switch is turned by hand or by a signal, for all requests or below a level, with an end and a reason. Policies
/// follow it at once, and a reload leaves it unchanged.
#[tokio::test]
async fn a_switch_is_turned_over_http_and_policies_go_by_it() {
    let server = start(SWITCHED).await;
    let put = async |name: &str, body: &str| server.put(&format!("/v1/switches/{name}"), body).await;
    let check = async |priority: &str| {
        let body = format!(r#"{{"attributes": {{}}, "priority": "{priority}"}}"#);
        send(server.addr, Method::POST, "/v1/check", &[], &body).await.status
    };
    let on = |name: &str| json!({ "name": name, "state": "on", "by_hand": null, "by_signal": null });
    let listed = server.get("/v1/switches").await.json();
    assert_eq!(listed, json!({ "switches": [on("previews"), on("search")] }));

    let off =
        r#"{"state": "off", "below": "critical", "for": "10min", "reason": "the image service is moved"}"#;
    let told = put("previews", off).await;
    assert_eq!(told.status, StatusCode::OK, "{}", told.json());
    let one = told.json()["switches"][0].clone();
    assert_eq!((&one["state"], &one["by_signal"]), (&json!("off"), &json!(null)));
    assert_eq!(one["by_hand"]["below"], "critical");
    assert_eq!(one["by_hand"]["reason"], "the image service is moved");
    assert!(one["by_hand"]["until"].as_str().unwrap().ends_with('Z'), "{one}");
    assert_eq!(
        [check("sheddable").await, check("sheddable").await],
        [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS]
    );
    assert_eq!(check("critical").await, StatusCode::OK, "on for what is critical");

    assert_eq!(
        put("search", r#"{"state": "off", "by": "signal", "for": "30s"}"#).await.status,
        StatusCode::OK
    );
    assert_eq!(
        [check("critical").await, check("critical").await],
        [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS]
    );
    let still = put("search", r#"{"state": "on"}"#).await.json()["switches"][0].clone();
    assert_eq!(
        (&still["state"], &still["by_signal"]["below"]),
        (&json!("off"), &json!(null)),
        "a hand overrules no signal"
    );
    put("search", r#"{"state": "on", "by": "signal"}"#).await;
    assert_eq!(check("critical").await, StatusCode::OK);

    server.write(&SWITCHED.replace("switch search off", "switch find off"));
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    let names = server.get("/v1/switches").await.json();
    let names: Vec<_> = names["switches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["name"].clone(), one["state"].clone()))
        .collect();
    assert_eq!(names, [(json!("find"), json!("on")), (json!("previews"), json!("off"))]);
    assert_eq!(check("sheddable").await, StatusCode::TOO_MANY_REQUESTS);

    let unknown = put("preview", off).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert!(unknown.detail().contains("did you mean \"previews\"?"), "{}", unknown.detail());
    for (body, says) in [
        ("", "the body is empty; send JSON such as {\"state\": \"off\""),
        (r#"["off"]"#, "expected an object such as {\"state\": \"off\""),
        (r#"{"state": "off", "below": 3}"#, "expected `below` as a string"),
        (r#"{"state": "offf"}"#, "use on, off"),
        (r#"{"state": "off", "below": "crtical"}"#, "did you mean \"critical\"?"),
        (
            r#"{"state": "off", "below": "sheddable"}"#,
            "off for nobody; use sheddable-plus, critical or critical-plus",
        ),
        (r#"{"state": "off", "by": "me"}"#, "`by` is `me`; "),
        (r#"{"state": "off", "for": "0s"}"#, "is not a time for a switch to be off; use up to 30d"),
        (r#"{"state": "off", "reason": "a\nb"}"#, "control character"),
        (r#"{"state": "on", "below": "critical"}"#, "a switch that is on has no `below`; leave it out"),
    ] {
        let refused = put("previews", body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(refused.detail().contains(says), "{body}: {}", refused.detail());
    }
    assert_eq!(put("previews", &" ".repeat(5000)).await.status, StatusCode::PAYLOAD_TOO_LARGE);
}
