//! Numbers that people read: what passes and what is refused, how full limits are, whose limit is which.

use std::time::Duration;

use tidegate::gate::ticket::TicketKeys;

use super::running::{Running, start, start_with};

fn has(page: &str, line: &str) {
    assert!(page.lines().any(|have| have == line), "{line} is missing in {page}");
}

async fn metrics(server: &Running) -> String {
    server.get("/metrics").await.text
}

/// Three policies count each request, and one in six is refused.
#[tokio::test]
async fn a_request_counts_once_however_many_policies_it_meets() {
    let server = start(
        "version: 1
policies:
  - { name: a, limit: { rate: 1000/min } }
  - { name: b, limit: { rate: 1000/min } }
  - { name: c, limit: { rate: 5/min } }
",
    )
    .await;
    for _ in 0..6 {
        server.check("203.0.113.9").await;
    }
    let page = metrics(&server).await;
    has(&page, "tidegate_requests_total{transport=\"http\",outcome=\"allowed\"} 5");
    has(&page, "tidegate_requests_total{transport=\"http\",outcome=\"denied\"} 1");
    has(&page, "tidegate_requests_total{transport=\"http\",outcome=\"unmatched\"} 0");
    has(&page, "tidegate_decisions_total{policy=\"a\",decision=\"allowed\",mode=\"enforce\"} 6");
}

const PLANS: &str = "version: 1
policies:
  - name: per-key
    by: [api.key]
    limit: { rate: { by: user.plan, values: { free: 10/min, gold: 500/min, house: unlimited }, otherwise: 3/min } }
";

#[tokio::test]
async fn each_plan_has_its_own_limit() {
    let server = start(PLANS).await;
    let page = metrics(&server).await;
    has(&page, "tidegate_policy_limit{policy=\"per-key\"} 3.0");
    has(&page, "tidegate_policy_limit{policy=\"per-key\",plan=\"free\"} 10.0");
    has(&page, "tidegate_policy_limit{policy=\"per-key\",plan=\"gold\"} 500.0");
    assert!(!page.contains("house"), "{page}");
    server.write(&PLANS.replace("gold: 500/min, ", "").replace("free: 10", "free: 20"));
    assert_eq!(server.post("/v1/reload", "").await.status, 200);
    let page = metrics(&server).await;
    has(&page, "tidegate_policy_limit{policy=\"per-key\",plan=\"free\"} 20.0");
    assert!(!page.contains("gold"), "{page}");
}

#[tokio::test]
async fn the_standing_of_a_key_is_that_of_its_plan() {
    let server = start(PLANS).await;
    let gold = r#"{"attributes": {"api.key": "k", "user.plan": "gold"}, "cost": 30}"#;
    assert_eq!(server.post("/v1/check", gold).await.status, 200);
    let key = server.get("/v1/keys/per-key?api.key=k&user.plan=gold").await.json();
    assert_eq!((&key["standing"][0]["remaining"], &key["standing"][0]["most"]), (&470.into(), &500.into()));
    let key = server.get("/v1/keys/per-key?api.key=k").await.json();
    assert_eq!(key["standing"][0]["depends_on"][0], "user.plan", "{key}");
    let wrong = server.get("/v1/keys/per-key?api.key=k&user.name=x").await;
    assert_eq!(wrong.status, 400, "{wrong:?}");
    // A plan that is part of the key is always known.
    let server = start(&PLANS.replace("[api.key]", "[api.key, user.plan]")).await;
    assert_eq!(server.post("/v1/check", gold).await.status, 200);
    let key = server.get("/v1/keys/per-key?api.key=k&user.plan=gold").await.json();
    assert_eq!(key["standing"][0]["remaining"], 470, "{key}");
}

/// 95 of 100 requests a second, where the burst is a second: between two requests the limit looks empty.
#[tokio::test]
async fn a_rate_close_to_its_limit_is_seen_though_the_burst_returns_in_a_second() {
    let server = start(
        "version: 1
policies:
  - { name: busy, by: [client.ip], limit: { rate: 100/s } }
  - { name: calm, by: [client.ip], limit: { rate: 1000/s } }
",
    )
    .await;
    let check = r#"{"attributes": {"client.ip": "203.0.113.9"}}"#;
    let batch = format!("[{}]", vec![check; 19].join(","));
    for _ in 0..125 {
        assert_eq!(server.post("/v1/check/batch", &batch).await.status, 200);
        server.clock.advance(Duration::from_millis(200));
    }
    let page = metrics(&server).await;
    let value = |name: &str, policy: &str| -> f64 {
        let start = format!("{name}{{policy=\"{policy}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
    };
    let used = value("tidegate_policy_utilization_ratio", "busy");
    assert!((0.9..=1.0).contains(&used), "{used}");
    assert!(value("tidegate_near_limit_total", "busy") > 1000.0, "{page}");
    assert!(value("tidegate_policy_utilization_ratio", "calm") < 0.12, "{page}");
    assert_eq!(value("tidegate_near_limit_total", "calm"), 0.0);
}

#[tokio::test]
async fn nodes_with_one_ticket_key_show_the_same_digests() {
    let policies = "version: 1\npolicies: [{ name: one, by: [client.ip], limit: { rate: 1/h } }]\n";
    let digest = async |key: Option<u8>| {
        let server = start_with(policies, |mut options| {
            options.tickets.keys = key.map(|key| TicketKeys::new([key; 32]));
            options
        })
        .await;
        server.check("203.0.113.9").await;
        server.check("203.0.113.9").await;
        server.get("/v1/keys/top").await.json()["keys"][0]["key"].as_str().unwrap().to_owned()
    };
    assert_eq!(digest(Some(7)).await, digest(Some(7)).await);
    assert_ne!(digest(Some(7)).await, digest(Some(8)).await);
    assert_ne!(digest(None).await, digest(None).await, "a key that nobody shares");
}
