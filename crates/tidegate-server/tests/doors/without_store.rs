//! The behaviour of each policy while the store cannot decide.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::running::{send, start_with};
use http::{Method, StatusCode};
use serde_json::json;
use tidegate::store::{Executed, Execution, Occupancy, Step, Store, StoreError};

const PER_IP: &str = "
version: 1
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 1/s, burst: 2 }
";

/// A store that is away.
#[derive(Debug)]
struct Gone;

impl Store for Gone {
    fn execute_into(&self, _: &Step<'_>, _: &mut Executed) -> Execution {
        Execution::Done(Err(StoreError::Unavailable { reason: "connection refused".to_owned() }))
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy::default()
    }
}

#[tokio::test]
async fn without_its_store_each_policy_goes_its_own_way() {
    for (way, statuses) in [("allow", [200, 200, 200]), ("deny", [503, 503, 503]), ("local", [200, 200, 429])]
    {
        let server = start_with(&format!("{PER_IP}    on_store_error: {way}\n"), |mut options| {
            options.store = Some(tidegate_server::OpenStore::new(std::sync::Arc::new(Gone), "memory"));
            options
        })
        .await;
        for expected in statuses {
            let answer = server.check("192.0.2.1").await;
            assert_eq!(answer.status, expected, "{way}: {answer:?}");
            if expected == 503 {
                assert_eq!(answer.header("retry-after"), "1");
                assert_eq!(answer.json()["violated-policies"], json!(["per-ip"]));
            }
        }
        let text = server.get("/metrics").await.text;
        assert!(text.contains("tidegate_store_errors_total{store=\"memory\"} 3"), "{text}");
        assert!(
            text.contains(
                "tidegate_decisions_total{policy=\"per-ip\",decision=\"error\",mode=\"enforce\"} 3"
            )
        );
    }
}

#[tokio::test]
async fn a_refund_goes_to_the_store_that_was_charged() {
    let server = start_with(PER_IP, |mut options| {
        options.store = Some(tidegate_server::OpenStore::new(std::sync::Arc::new(Gone), "memory"));
        options
    })
    .await;
    for _ in 0..5 {
        let answer =
            server.post("/v1/check", r#"{"attributes": {"client.ip": "192.0.2.1"}, "ticket": true}"#).await;
        assert_eq!(answer.status, StatusCode::OK);
        let ticket = answer.json()["ticket"].as_str().unwrap().to_owned();
        let refunded =
            server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "refund": "all"}}"#)).await;
        let returned = refunded.json()["policies"][0]["returned"].clone();
        assert_eq!((refunded.status, returned), (StatusCode::OK, json!(1)));
    }
}

/// The error text of the store, which contains an address, is only for operators.
#[tokio::test]
async fn strangers_are_not_told_what_is_wrong_with_the_store() {
    let file = PER_IP.replacen("version: 1\n", "version: 1\nforward_auth: { proxy: caddy }\n", 1);
    let server = start_with(&format!("{file}    on_store_error: deny\n"), |mut options| {
        options.store = Some(tidegate_server::OpenStore::new(std::sync::Arc::new(Gone), "memory"));
        options
    })
    .await;
    let original =
        [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), ("x-forwarded-host", "example.org")];
    let answer = send(server.addr, Method::GET, "/v1/forward-auth", &original, "").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.json()["violated-policies"], json!(["per-ip"]));
    assert_eq!(answer.json()["retry"], "unknown");
    assert!(!answer.text.contains("connection refused"), "{answer:?}");
}
