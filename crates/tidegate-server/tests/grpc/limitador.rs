//! Limitador's own service: check, report, and reservations that are committed or expire.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use prost::Message;
use tidegate::gate::ticket::TicketKeys;
use tidegate_server::OpenStore;

use super::client::{Client, call, framed};
use super::running::engine;
use super::{started, started_with};

const SERVICE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/";
pub(super) const POLICIES: &str = "
version: 1
policies:
  - name: tokens
    match: { attributes: { rls.domain: shop } }
    by: [user]
    limit: { rate: 100/day }
";

/// `ReserveRequest` and `CommitRequest` in the fields of their callers.
#[derive(Clone, PartialEq, Message)]
struct Reserve {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint64, tag = "3")]
    amount: u64,
    #[prost(message, optional, tag = "4")]
    ttl: Option<prost_types::Duration>,
}

#[derive(Clone, PartialEq, Message)]
struct Commit {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(string, tag = "3")]
    reservation_id: String,
    #[prost(uint64, tag = "4")]
    actual_amount: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Reserved {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    reservation_id: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Committed {
    #[prost(bool, tag = "1")]
    reservation_released: bool,
}

async fn ask<A: Message + Default>(client: &mut Client, method: &str, message: &impl Message) -> A {
    let path = format!("{SERVICE}{method}");
    let reply = client.call(&path, &[], framed(&message.encode_to_vec())).await.unwrap();
    assert_eq!(reply.code, Some(0), "{reply:?}");
    A::decode(&reply.body[5..]).unwrap()
}

/// Returns what is left of a user's limit, and whether one more would pass.
async fn left(client: &mut Client, user: &str) -> (u32, i32) {
    let looked: RateLimitResponse = ask(client, "CheckRateLimit", &call(&[&[("user", user)]])).await;
    (looked.statuses[0].limit_remaining, looked.overall_code)
}

fn reserve(user: &str, amount: u64) -> Reserve {
    let call = call(&[&[("user", user)]]);
    Reserve { domain: call.domain, descriptors: call.descriptors, amount, ttl: None }
}

fn commit(user: &str, id: &str, actual_amount: u64) -> Commit {
    let call = call(&[&[("user", user)]]);
    let reservation_id = id.to_owned();
    Commit { domain: call.domain, descriptors: call.descriptors, reservation_id, actual_amount }
}

#[tokio::test]
async fn a_check_spends_nothing_and_a_report_counts_beyond_the_limit() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    assert_eq!(left(&mut client, "ann").await, (100, 1));
    assert_eq!(left(&mut client, "ann").await, (100, 1));
    let mut report = call(&[&[("user", "ann")]]);
    report.hits_addend = 70;
    for _ in 0..2 {
        let told: RateLimitResponse = ask(&mut client, "Report", &report).await;
        assert_eq!(told.overall_code, 1, "a report is never refused");
    }
    assert_eq!(left(&mut client, "ann").await, (0, 2));
    assert_eq!(left(&mut client, "bob").await, (100, 1));
    report.hits_addend = u32::MAX;
    let told: RateLimitResponse = ask(&mut client, "Report", &report).await;
    assert_eq!(told.overall_code, 1);
}

#[tokio::test]
async fn a_reservation_is_settled_by_what_was_spent() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let held: Reserved = ask(&mut client, "Reserve", &reserve("ann", 80)).await;
    assert_eq!((held.code, left(&mut client, "ann").await), (1, (20, 1)));
    let refused: Reserved = ask(&mut client, "Reserve", &reserve("ann", 30)).await;
    assert_eq!(refused, Reserved { code: 2, reservation_id: String::new() });
    let settled: Committed = ask(&mut client, "Commit", &commit("ann", &held.reservation_id, 30)).await;
    assert!(settled.reservation_released);
    assert_eq!(left(&mut client, "ann").await, (70, 1));
    let again: Committed = ask(&mut client, "Commit", &commit("ann", &held.reservation_id, 30)).await;
    assert!(!again.reservation_released);
    assert_eq!(left(&mut client, "ann").await, (70, 1), "a repeated commit counts once");
    // Spending more than was reserved is a debt; spending nothing charges nothing.
    let held: Reserved = ask(&mut client, "Reserve", &reserve("bob", 10)).await;
    let _: Committed = ask(&mut client, "Commit", &commit("bob", &held.reservation_id, 150)).await;
    assert_eq!(left(&mut client, "bob").await, (0, 2));
    let held: Reserved = ask(&mut client, "Reserve", &reserve("eve", 10)).await;
    let _: Committed = ask(&mut client, "Commit", &commit("eve", &held.reservation_id, 0)).await;
    assert_eq!(left(&mut client, "eve").await, (100, 1));
    // Without a reservation, or with an id from elsewhere, a commit is a report.
    for id in ["", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"] {
        let settled: Committed = ask(&mut client, "Commit", &commit("eve", id, 5)).await;
        assert!(!settled.reservation_released);
    }
    assert_eq!(left(&mut client, "eve").await, (90, 1));
}

#[tokio::test]
async fn what_no_policy_limits_is_reserved_and_what_is_no_message_is_an_error() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let elsewhere = Reserve { domain: "pub".to_owned(), ..reserve("ann", u64::MAX) };
    let held: Reserved = ask(&mut client, "Reserve", &elsewhere).await;
    assert_eq!((held.code, held.reservation_id.is_empty()), (1, false));
    let settled: Committed = ask(&mut client, "Commit", &commit("ann", &held.reservation_id, 0)).await;
    assert!(!settled.reservation_released);
    let refused: Reserved = ask(&mut client, "Reserve", &reserve("ann", u64::MAX)).await;
    assert_eq!(refused.code, 2);
    for method in ["CheckRateLimit", "Report", "Reserve", "Commit"] {
        let path = format!("{SERVICE}{method}");
        let reply = client.call(&path, &[], framed(b"\xff\xff")).await.unwrap();
        assert_eq!(reply.code, Some(13), "{method}: {reply:?}");
    }
    for (method, message) in [("CheckRateLimit", call(&[])), ("Report", call(&[]))] {
        let path = format!("{SERVICE}{method}");
        let reply = client.call(&path, &[], framed(&message.encode_to_vec())).await.unwrap();
        assert_eq!(reply.code, Some(3), "{method}: {reply:?}");
    }
}

fn reserve_for(user: &str, amount: u64, seconds: i64) -> Reserve {
    Reserve { ttl: Some(prost_types::Duration { seconds, nanos: 0 }), ..reserve(user, amount) }
}

/// Waits until this much of a user's limit is left.
async fn until_left(client: &mut Client, user: &str, units: u32) {
    let looks = async { while left(client, user).await.0 != units {} };
    tokio::time::timeout(Duration::from_secs(20), looks).await.expect("it is given back");
}

#[tokio::test]
async fn a_reservation_that_nobody_commits_is_given_back_once_when_its_time_is_over() {
    let (server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let mut ids = Vec::new();
    for (user, seconds) in [("ann", 30), ("bob", 30), ("eve", 60)] {
        let held: Reserved = ask(&mut client, "Reserve", &reserve_for(user, 80, seconds)).await;
        assert_eq!((held.code, left(&mut client, user).await), (1, (20, 1)));
        ids.push(held.reservation_id);
    }
    let settled: Committed = ask(&mut client, "Commit", &commit("bob", &ids[1], 75)).await;
    assert!(settled.reservation_released);
    server.clock.advance(Duration::from_secs(29));
    assert_eq!(left(&mut client, "ann").await, (20, 1));
    server.clock.advance(Duration::from_secs(1));
    until_left(&mut client, "ann", 100).await;
    // Committed units stay charged, and longer reservations still hold.
    assert_eq!((left(&mut client, "bob").await, left(&mut client, "eve").await), ((25, 1), (20, 1)));
    // A commit after the end is a report.
    let late: Committed = ask(&mut client, "Commit", &commit("ann", &ids[0], 30)).await;
    assert!(!late.reservation_released);
    assert_eq!(left(&mut client, "ann").await, (70, 1));
    server.clock.advance(Duration::from_secs(30));
    until_left(&mut client, "eve", 100).await;
    assert_eq!((left(&mut client, "ann").await, left(&mut client, "bob").await), ((70, 1), (25, 1)));
    let metrics = server.get("/metrics").await.text;
    assert!(metrics.contains("tidegate_settlements_total{result=\"lapsed\"} 2\n"), "{metrics}");
}

/// Whoever is first settles the reservation. Whatever a commit finds, the spent units are booked once and the estimate
/// comes back once.
#[tokio::test]
async fn a_commit_at_the_moment_of_the_end_books_what_was_spent_once() {
    let (server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    for at in 0..20 {
        let user = format!("user{at}");
        let held: Reserved = ask(&mut client, "Reserve", &reserve_for(&user, 80, 1)).await;
        server.clock.advance(Duration::from_secs(1));
        let settled: Committed = ask(&mut client, "Commit", &commit(&user, &held.reservation_id, 30)).await;
        // Either the commit settled it, or its units were returned before and the commit was a report.
        assert_eq!(left(&mut client, &user).await, (70, 1), "{settled:?}");
    }
}

#[tokio::test]
async fn a_reservation_without_a_time_or_with_a_longer_one_holds_as_long_as_a_ticket() {
    let (server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let unset = reserve("unset", 80);
    for asked in [&unset, &reserve_for("longer", 80, i64::MAX), &reserve_for("negative", 80, -5)] {
        let held: Reserved = ask(&mut client, "Reserve", asked).await;
        assert_eq!(held.code, 1, "{asked:?}");
    }
    server.clock.advance(Duration::from_secs(600));
    for user in ["unset", "longer", "negative"] {
        until_left(&mut client, user, 100).await;
    }
    // A reservation for no time holds nothing.
    let _: Reserved = ask(&mut client, "Reserve", &reserve_for("zero", 80, 0)).await;
    until_left(&mut client, "zero", 100).await;
}

#[tokio::test]
async fn nodes_of_one_engine_give_a_reservation_back_once_and_wait_for_an_engine_that_is_away() {
    let shared = engine::Engine::default();
    let keys = TicketKeys::random().unwrap();
    let node = async || {
        started_with(POLICIES, |options| {
            options.store = Some(OpenStore::new(Arc::new(shared.clone()), "engine"));
            options.tickets.keys = Some(keys.clone());
        })
        .await
    };
    let ((first, grpc), (second, other)) = (node().await, node().await);
    let (mut client, mut others) = (Client::connect(grpc).await, Client::connect(other).await);
    let advance = |by| [&first, &second].map(|node| node.clock.advance(by));
    let mut ids = Vec::new();
    for user in ["ann", "bob"] {
        let held: Reserved = ask(&mut client, "Reserve", &reserve_for(user, 6, 30)).await;
        assert_eq!(held.code, 1);
        ids.push(held.reservation_id);
    }
    let settled: Committed = ask(&mut others, "Commit", &commit("bob", &ids[1], 2)).await;
    assert!(settled.reservation_released, "another node settles it");
    shared.be(engine::ERRS);
    let asked = shared.exchanges();
    advance(Duration::from_secs(31));
    let tried = async {
        while shared.exchanges() < asked + 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), tried).await.expect("it is tried");
    shared.be(engine::ANSWERS);
    until_left(&mut client, "ann", 100).await;
    assert_eq!(left(&mut others, "bob").await, (98, 1), "it is not given back once more");
}

/// Regression: the answer said that the request passes, and not that it is over a limit that marks it.
#[tokio::test]
async fn a_check_tells_the_marks_of_a_request_and_when_a_refused_one_may_return() {
    let file = "
version: 1
policies:
  - { name: soft, by: [user], limit: { rate: 1/day }, over: mark }
  - { name: softer, by: [user], limit: { rate: 2/day }, over: demote }
  - { name: hard, by: [user], limit: { rate: 3/day } }
";
    let (_server, grpc) = started(file).await;
    let mut client = Client::connect(grpc).await;
    let check = call(&[&[("user", "ann")]]);
    let headers = |answer: RateLimitResponse| {
        let all = answer.request_headers_to_add.into_iter().chain(answer.response_headers_to_add);
        all.map(|header| (header.key, header.value)).collect::<Vec<_>>()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let marked = pair("x-tidegate-marked", "soft");
    let lowered = [pair("x-tidegate-demoted", "softer"), pair("x-tidegate-priority", "sheddable-plus")];
    for expected in [vec![], vec![marked.clone()], [vec![marked], lowered.to_vec()].concat()] {
        let mut told = headers(ask(&mut client, "CheckRateLimit", &check).await);
        told.sort();
        let mut expected = expected;
        expected.sort();
        assert_eq!(told, expected);
        let _: RateLimitResponse = ask(&mut client, "Report", &check).await;
    }
    let refused = headers(ask(&mut client, "CheckRateLimit", &check).await);
    assert_eq!(refused, [pair("retry-after", "28800")]);
}
