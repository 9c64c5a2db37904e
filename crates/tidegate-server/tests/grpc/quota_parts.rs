//! The parts that proxies are told: what costs, conditions, demand and outages make of them.

use std::time::Duration;

use envoy_types::pb::envoy::r#type::v3::TokenBucket;
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};

use super::client::{Client, call};
use super::quota::{FREE, Proxy, bucket, per_fill};
use super::started;

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
    // 1000 units a day, but for a sixteenth, are so many requests of ten units.
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
