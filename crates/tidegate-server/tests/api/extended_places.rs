//! Places that are held longer over HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::{Answer, Running, start};
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;

const WORK: &str = "
version: 1
policies:
  - name: work
    match: { path: /work }
    limit: { algorithm: concurrency, max: 2, ttl: 30s }
  - name: rate
    limit: { rate: 1000/s }
";

async fn check(server: &Running) -> Answer {
    server.post("/v1/check", r#"{"attributes": {"request.path": "/work"}}"#).await
}

/// Checks how often extensions had each result.
async fn count_is(server: &Running, results: &[(&str, u64)]) {
    let metrics = server.get("/metrics").await.text;
    for (result, count) in results {
        let line = format!("tidegate_extensions_total{{result=\"{result}\"}} {count}");
        assert!(metrics.lines().any(|have| have == line), "{line} is missing in\n{metrics}");
    }
}

async fn send(server: &Running, path: &str, ticket: &str, more: &str) -> Answer {
    server.post(path, &format!(r#"{{"ticket": "{ticket}"{more}}}"#)).await
}

#[tokio::test]
async fn long_work_keeps_its_place_and_returns_it_with_the_last_ticket() {
    let server = start(WORK).await;
    let mut ticket = check(&server).await.ticket();
    for _ in 0..4 {
        server.clock.advance(Duration::from_secs(25));
        let extended = send(&server, "/v1/extend", &ticket, "").await;
        let next = extended.ticket();
        let body = extended.json();
        assert_eq!((&body["places"][0]["name"], &body["places"][0]["places"]), (&json!("work"), &json!(1)));
        let lapses = body["places"][0]["lapses_after_ms"].as_u64().unwrap();
        assert!((30_000..30_100).contains(&lapses), "{body}");
        assert_eq!(body["expires_after_ms"], 600_000);
        assert_eq!(
            send(&server, "/v1/settle", &ticket, r#", "status": 200"#).await.status,
            StatusCode::CONFLICT
        );
        ticket = next;
    }
    count_is(&server, &[("extended", 4), ("repeated", 0)]).await;
    check(&server).await.ticket();
    assert_eq!(check(&server).await.status, StatusCode::SERVICE_UNAVAILABLE);
    let settled = send(&server, "/v1/settle", &ticket, r#", "status": 200"#).await;
    assert_eq!(settled.json()["policies"][0]["returned"], 1, "{settled:?}");
    check(&server).await.ticket();
}

#[tokio::test]
async fn what_cannot_be_held_longer_is_told() {
    let server = start(WORK).await;
    let lapsed = check(&server).await.ticket();
    server.clock.advance(Duration::from_secs(31));
    let refused = send(&server, "/v1/extend", &lapsed, "").await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert!(refused.detail().contains("they have lapsed"), "{}", refused.detail());
    let rate = server.post("/v1/check", r#"{"attributes": {}, "ticket": true}"#).await;
    let refused = send(&server, "/v1/extend", &rate.ticket(), "").await;
    assert_eq!((refused.status, refused.detail().ends_with("it has none")), (StatusCode::CONFLICT, true));
    server.clock.advance(Duration::from_secs(600));
    assert_eq!(send(&server, "/v1/extend", &lapsed, "").await.status, StatusCode::GONE);
    for body in
        ["", "{}", "[]", r#"{"ticket": 3}"#, r#"{"ticket": "x", "ttl": "1h"}"#, r#"{"ticket": "AAAA"}"#]
    {
        let refused = server.post("/v1/extend", body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(!refused.detail().contains("settlement"), "{}", refused.detail());
    }
    let refused = server.post("/v1/extend", "{}").await;
    assert!(refused.detail().contains("the check that took the places"), "{}", refused.detail());
    let foreign = check(&start(WORK).await).await.ticket();
    assert_eq!(send(&server, "/v1/extend", &foreign, "").await.status, StatusCode::BAD_REQUEST);
    let results = [("not_held", 2), ("expired", 1), ("refused", 2), ("extended", 0), ("error", 0)];
    count_is(&server, &results).await;
}

#[tokio::test]
async fn a_place_of_a_shadow_is_marked_and_refuses_no_extension() {
    let shadow = "
  - name: measured
    mode: shadow
    limit: { algorithm: concurrency, max: 2, ttl: 10s }
";
    let server = start(&format!("{WORK}{shadow}")).await;
    let names = |answer: &Answer| {
        let body = answer.json();
        let places = body["places"].as_array().unwrap();
        places.iter().map(|one| (one["name"].clone(), one["shadow"].clone())).collect::<Vec<_>>()
    };
    let (work, measured) = ((json!("work"), json!(false)), (json!("measured"), json!(true)));
    let first = check(&server).await.ticket();
    server.clock.advance(Duration::from_secs(5));
    let both = send(&server, "/v1/extend", &first, "").await;
    assert_eq!(names(&both), [work.clone(), measured]);
    server.clock.advance(Duration::from_secs(20));
    let one = send(&server, "/v1/extend", &both.ticket(), "").await;
    assert_eq!(names(&one), [work]);
    let lapses = one.json()["places"][0]["lapses_after_ms"].as_u64().unwrap();
    assert!((30_000..30_100).contains(&lapses), "{lapses}");
}

/// Twenty copies of one request: one is answered with a ticket, and one place is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_extensions_of_one_ticket_one_succeeds() {
    let server = start(WORK).await;
    let ticket = check(&server).await.ticket();
    let answers = join_all((0..20).map(|_| send(&server, "/v1/extend", &ticket, ""))).await;
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 409)), "{statuses:?}");
    check(&server).await.ticket();
    assert_eq!(check(&server).await.status, StatusCode::SERVICE_UNAVAILABLE, "two are in use, and not three");
}
