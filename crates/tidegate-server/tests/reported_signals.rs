//! Signals that users report, and the policies that go by them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod running;

use http::{Method, StatusCode};
use running::{send, start, start_with};
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
        (r#"{"value": "many"}"#, "f64"),
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
