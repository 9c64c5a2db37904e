//! The parts that proxies are assigned, and how costs, conditions, demand and outages change them.

use std::time::Duration;

use envoy_types::pb::envoy::r#type::v3::TokenBucket;
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};
use http::Method;
use tidegate_server::OpenStore;

use super::client::{Client, call};
use super::connections::{PREFACE, until_closed};
use super::quota::{FREE, Proxy, bucket, per_fill};
use super::running::engine::{ANSWERS, ERRS, Engine, HANGS};
use super::running::send;
use super::{started, started_with};

/// Far less than any timeout of a store.
const SOON: Duration = Duration::from_millis(500);

const ALLOW: Strategy = Strategy::BlanketRule(BlanketRule::AllowAll as i32);
const DENY: Strategy = Strategy::BlanketRule(BlanketRule::DenyAll as i32);

fn per_second(told: &TokenBucket) -> f64 {
    f64::from(per_fill(told)) / told.fill_interval.unwrap().seconds as f64
}

#[tokio::test]
async fn a_policys_own_cost_divides_what_is_told_and_multiplies_what_is_booked() {
    let (_server, grpc) = started(
        "
version: 1
policies:
  - { name: dear, cost: 10, match: { attributes: { plan: true } }, limit: { rate: 1000/day } }
  - { name: never, cost: int(tiny), match: { attributes: { tiny: true } }, limit: { rate: 9/day } }
  - name: kept
    match: { attributes: { kept: true } }
    limit: { rate: 1000/day, keep_for: { critical-plus: 60% } }
",
    )
    .await;
    let mut proxy = Proxy::open(grpc, &[]).await;
    let told = bucket(proxy.report("shop", &[(FREE, 0, 0)]).await[0]);
    // 1000 units a day, less a sixteenth, are this many requests of ten units.
    assert_eq!(told.max_tokens, 93);
    let per_day = per_second(&told) * 86_400.0;
    assert!((93.7..=93.76).contains(&per_day), "{per_day}");
    proxy.report("shop", &[(FREE, 30, 0)]).await;
    let left = Client::connect(grpc).await.ask(&call(&[&[("plan", "free")]])).await;
    assert_eq!(left.statuses[0].limit_remaining, 690, "thirty requests, and this one");
    let told = proxy.report("shop", &[(&[("tiny", "10")], 0, 0), (&[("kept", "a")], 0, 0)]).await;
    assert_eq!(told[0], DENY, "no request ever fits");
    assert_eq!(bucket(told[1]).max_tokens, 375, "of what is not kept for others");
}

#[tokio::test]
async fn many_proxies_have_a_request_each_where_the_burst_is_one_request() {
    let (_server, grpc) = started(
        "
version: 1
policies:
  - { name: dear, cost: 10, match: { attributes: { plan: true } }, limit: { rate: 100/s, burst: 15 } }
",
    )
    .await;
    let mut all = Vec::new();
    for _ in 0..5 {
        let mut proxy = Proxy::open(grpc, &[]).await;
        assert_eq!(bucket(proxy.report("shop", &[(FREE, 1, 0)]).await[0]).max_tokens, 1);
        all.push(proxy);
    }
}

#[tokio::test]
async fn a_condition_that_no_longer_holds_is_seen_after_ten_seconds() {
    let (server, grpc) = started(
        "
version: 1
policies:
  - name: spare
    when: signal strain above 10
    match: { attributes: { plan: true } }
    limit: { rate: 1000/day }
",
    )
    .await;
    let mut proxy = Proxy::open(grpc, &[]).await;
    let signal = async |value: u32| {
        let body = format!(r#"{{"value": {value}}}"#);
        assert!(send(server.addr, Method::POST, "/v1/signals/strain", &[], &body).await.status.is_success());
    };
    assert_eq!(proxy.report("shop", &[(FREE, 1, 0)]).await, [ALLOW]);
    signal(99).await;
    server.clock.advance(Duration::from_secs(10));
    signal(99).await;
    let told = proxy.report("shop", &[(FREE, 1, 0)]).await;
    assert!(matches!(told[0], Strategy::TokenBucket(_)), "{told:?}");
    server.clock.advance(Duration::from_secs(9));
    signal(1).await;
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(proxy.report("shop", &[(FREE, 1, 0)]).await, [ALLOW]);
}

#[tokio::test]
async fn a_flood_that_a_limit_of_its_own_stops_takes_nothing_of_a_shared_one() {
    let (server, grpc) = started(
        "
version: 1
policies:
  - { name: all, match: { attributes: { plan: true } }, limit: { rate: 1000/s } }
  - { name: mine, match: { attributes: { user: true } }, by: [user], limit: { rate: 10/s } }
",
    )
    .await;
    let (mut one, mut two) = (Proxy::open(grpc, &[]).await, Proxy::open(grpc, &[]).await);
    let both: &[(&str, &str)] = &[("plan", "free"), ("user", "ann")];
    let mut told = 0.0;
    for _ in 0..12 {
        one.report("shop", &[(both, 50, 1_000_000)]).await;
        told = per_second(&bucket(two.report("shop", &[(FREE, 2500, 0)]).await[0]));
        server.clock.advance(Duration::from_secs(5));
    }
    assert!(told >= 600.0, "{told} a second, and 500 are asked for");
}

#[tokio::test]
async fn an_assignment_whose_time_ended_is_made_anew_at_once() {
    let (server, grpc) = started(
        "
version: 1
policies:
  - { name: all, match: { attributes: { plan: true } }, limit: { rate: 100/s } }
",
    )
    .await;
    let mut proxy = Proxy::open(grpc, &[]).await;
    for _ in 0..4 {
        let told = proxy.report("shop", &[(FREE, 1, 0)]).await;
        assert!(matches!(told[0], Strategy::TokenBucket(_)), "{told:?}");
        server.clock.advance(Duration::from_secs(30));
    }
}

/// Starts a server with a test engine.
async fn over_engine(policies: &str) -> (super::running::Running, std::net::SocketAddr, Engine) {
    let engine = Engine::default();
    let store = engine.clone();
    let (server, grpc) = started_with(policies, |options| {
        options.store = Some(OpenStore::new(std::sync::Arc::new(store), "engine"));
    })
    .await;
    (server, grpc, engine)
}

#[tokio::test]
async fn an_answer_does_not_wait_for_what_is_booked() {
    let (_server, grpc, engine) = over_engine(super::quota::POLICIES).await;
    let mut proxy = Proxy::open(grpc, &[]).await;
    proxy.report("shop", &[(FREE, 0, 0), (&[("user", "ann")], 0, 0)]).await;
    engine.be(HANGS);
    let usages = [(FREE, 1, 0), (&[("user", "ann")][..], 1, 0)];
    let answered = tokio::time::timeout(SOON, proxy.report("shop", &usages)).await;
    assert!(answered.is_ok(), "the engine hangs, and the parts are known");
}

#[tokio::test]
async fn a_limit_that_a_fallback_decided_is_looked_up_by_the_next_report() {
    let (_server, grpc, engine) = over_engine(super::quota::POLICIES).await;
    let mut proxy = Proxy::open(grpc, &[]).await;
    engine.be(ERRS);
    let first = proxy.report("shop", &[(FREE, 0, 0)]).await;
    engine.be(ANSWERS);
    let asked = engine.exchanges();
    for _ in 0..3 {
        assert_eq!(proxy.report("shop", &[(FREE, 0, 0)]).await, first);
    }
    assert!(engine.exchanges() > asked, "the engine is asked again");
    let asked = engine.exchanges();
    proxy.report("shop", &[(FREE, 0, 0)]).await;
    assert_eq!(engine.exchanges(), asked, "and then not for ten seconds");
}

#[tokio::test]
async fn an_engine_that_is_away_takes_no_part_from_a_proxy() {
    let (server, grpc, engine) = over_engine(
        "
version: 1
policies:
  - { name: all, on_store_error: allow, match: { attributes: { plan: true } }, limit: { rate: 1000/day } }
",
    )
    .await;
    let mut proxy = Proxy::open(grpc, &[]).await;
    let first = proxy.report("shop", &[(FREE, 0, 0)]).await;
    assert!(matches!(first[0], Strategy::TokenBucket(_)), "{first:?}");
    engine.be(ERRS);
    for _ in 0..3 {
        server.clock.advance(Duration::from_secs(10));
        assert_eq!(proxy.report("shop", &[(FREE, 0, 0)]).await, first);
    }
}

#[tokio::test]
async fn buckets_of_too_many_pairs_are_denied_and_not_kept() {
    let (server, grpc) = started(super::quota::POLICIES).await;
    let mut proxy = Proxy::open(grpc, &[]).await;
    let names: Vec<String> = (0..63).map(|at| format!("k{at}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v")).collect();
    let (long, value) = ("n".repeat(257), "v".repeat(8193));
    let told = proxy
        .report(
            "shop",
            &[(&many, 1, 0), (&[(&long, "v")], 1, 0), (&[("k", &value)], 1, 0), (&[("", "v")], 1, 0)],
        )
        .await;
    assert_eq!(told, [DENY; 4]);
    let metrics = server.get("/metrics").await.text;
    assert!(metrics.contains("tidegate_quota_buckets 0"), "{metrics}");
}

#[tokio::test]
async fn a_token_that_is_taken_back_ends_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    let tokens = "proxy check for-check-0123456\n";
    for (then, code) in [("other check for-check-0123457\n", "16"), ("proxy read for-check-0123456\n", "7")] {
        std::fs::write(&file, tokens).unwrap();
        let (server, grpc) =
            started_with(super::quota::POLICIES, |options| options.tokens_file = Some(file.clone())).await;
        let mut proxy = Proxy::open(grpc, &[("authorization", "Bearer for-check-0123456")]).await;
        proxy.report("shop", &[(FREE, 1, 0)]).await;
        std::fs::write(&file, then).unwrap();
        server.handle.reload().await.unwrap();
        proxy.send_report("shop", &[(FREE, 1, 0)]);
        assert_eq!(proxy.ended().await.0, code);
    }
}

#[tokio::test]
async fn connections_whose_proxies_are_silent_make_room() {
    let (_server, grpc) = started_with(super::quota::POLICIES, |options| {
        options.connections = 4;
        options.timeouts.idle = Duration::from_millis(50);
    })
    .await;
    let mut first = Proxy::open(grpc, &[]).await;
    first.report("shop", &[(FREE, 1, 0)]).await;
    // A connection without a call, which began later, is told to go away.
    until_closed(grpc, PREFACE).await;
    first.report("shop", &[(FREE, 1, 0)]).await;
    let mut all = vec![first];
    for _ in 0..20 {
        let mut next = Proxy::open(grpc, &[]).await;
        next.report("shop", &[(FREE, 1, 0)]).await;
        all.push(next);
    }
    let (code, message) = all[0].ended().await;
    assert_eq!(code, "0", "its place was needed, so it comes again: {message}");
}
