//! `when: in-flight`: the server counts the tickets that it has handed out and that are not settled.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::{Running, send, start, start_with};
use http::{Method, StatusCode};

/// Work that is in flight, by its tickets, and a policy that limits reads while there is much of it.
const FILE: &str = "
version: 1
policies:
  - name: writes
    match: { attributes: { resource: write } }
    limit: { rate: 1000/s }
  - name: reads give way
    match: { attributes: { resource: read } }
    when: in-flight above 3, until 1
    limit: { algorithm: fixed-window, rate: 1/s }
";

/// Longer than the time between two readings by the server.
const A_SECOND: Duration = Duration::from_secs(1);

async fn write(server: &Running) -> String {
    let answer =
        server.post("/v1/check", r#"{"attributes": {"resource": "write"}, "ticket": true}"#).await.json();
    answer["ticket"].as_str().unwrap().to_owned()
}

/// Returns how many of five reads pass, one second later.
async fn reads(server: &Running) -> usize {
    server.clock.advance(A_SECOND);
    let mut passed = 0;
    for _ in 0..5 {
        let answer = server.post("/v1/check", r#"{"attributes": {"resource": "read"}}"#).await;
        passed += usize::from(answer.status == StatusCode::OK);
    }
    passed
}

async fn settle(server: &Running, ticket: &str) -> StatusCode {
    server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "status": 200}}"#)).await.status
}

async fn in_flight(server: &Running) -> Option<f64> {
    let listed = server.get("/v1/signals").await.json();
    assert_eq!(listed["signals"][0]["name"], "in-flight");
    listed["signals"][0]["value"].as_f64()
}

#[tokio::test]
async fn reads_give_way_while_much_is_under_way() {
    let server = start(FILE).await;
    assert_eq!((reads(&server).await, in_flight(&server).await), (5, None), "nobody has asked for a ticket");
    let mut tickets = Vec::new();
    for _ in 0..4 {
        tickets.push(write(&server).await);
    }
    assert_eq!((reads(&server).await, in_flight(&server).await), (1, Some(4.0)));
    for ticket in tickets.drain(..2) {
        assert_eq!(settle(&server, &ticket).await, StatusCode::OK);
        assert_eq!(settle(&server, &ticket).await, StatusCode::CONFLICT, "and it is not counted twice");
    }
    assert_eq!((reads(&server).await, in_flight(&server).await), (1, Some(2.0)), "above where it ends");
    settle(&server, &tickets[0]).await;
    assert_eq!((reads(&server).await, in_flight(&server).await), (5, Some(1.0)));
}

/// A ticket without places can be settled twice, by what was spent and by how the work ended. If each of the two took
/// one from the number in flight, a caller could drive it to zero by reporting all its work twice, and so switch off
/// the policy that limits reads while much is under way.
#[tokio::test]
async fn a_ticket_ends_once_in_whatever_order_its_halves_are_settled() {
    let server = start(FILE).await;
    let calls = [
        &[r#""cost": 1"#, r#""status": 200"#, r#""refund": 1"#][..],
        &[r#""status": 200"#, r#""cost": 1"#, r#""status": 200"#],
        &[r#""refund": 1"#, r#""status": 500"#, r#""cost": 1, "status": 200"#],
        &[r#""cost": 1, "status": 200"#, r#""status": 200"#, r#""refund": 1"#],
        &[r#""outcome": "undone""#, r#""outcome": "ignored""#],
    ];
    let mut tickets = Vec::new();
    for _ in 0..calls.len() + 4 {
        tickets.push(write(&server).await);
    }
    for (at, calls) in calls.iter().enumerate() {
        for _ in 0..2 {
            for field in *calls {
                server.post("/v1/settle", &format!(r#"{{"ticket": "{}", {field}}}"#, tickets[at])).await;
            }
        }
    }
    assert_eq!((reads(&server).await, in_flight(&server).await), (1, Some(4.0)));
}

/// Calls of several clients about one ticket arrive at once.
#[tokio::test]
async fn a_ticket_ends_once_when_many_settle_it_at_once() {
    let server = start(FILE).await;
    let ticket = write(&server).await;
    for _ in 0..4 {
        write(&server).await;
    }
    let addr = server.addr;
    let fields = [r#""cost": 1"#, r#""status": 200"#, r#""refund": 1"#];
    let calls = fields.into_iter().cycle().take(30).map(|field| {
        let body = format!(r#"{{"ticket": "{ticket}", {field}}}"#);
        tokio::spawn(async move { send(addr, Method::POST, "/v1/settle", &[], &body).await.status })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!((reads(&server).await, in_flight(&server).await), (1, Some(4.0)));
}

/// A caller that dies holds reads back only as long as its ticket lives.
#[tokio::test]
async fn tickets_that_nobody_settles_count_until_they_expire() {
    let server = start_with(FILE, |mut options| {
        options.tickets.ttl = Duration::from_secs(60);
        options
    })
    .await;
    for _ in 0..4 {
        write(&server).await;
    }
    assert_eq!(reads(&server).await, 1);
    server.clock.advance(Duration::from_secs(57));
    assert_eq!(reads(&server).await, 1);
    server.clock.advance(Duration::from_secs(6));
    assert_eq!((reads(&server).await, in_flight(&server).await), (5, Some(0.0)));
}

/// A caller that hangs up while it is delayed gets no ticket, so it cannot hold others back by one.
#[tokio::test]
async fn who_hangs_up_while_held_back_is_not_in_flight() {
    let server = start(
        "
version: 1
forward_auth: { proxy: caddy }
policies:
  - name: slowly
    match: { path: /slow }
    limit: { algorithm: leaky-bucket, rate: 1/min, queue: 9, max_wait: 1h }
  - name: at once
    match: { path: /slow }
    limit: { algorithm: concurrency, max: 100 }
  - name: reads give way
    match: { attributes: { resource: read } }
    when: in-flight above 1, until 0
    limit: { algorithm: fixed-window, rate: 1/s }
",
    )
    .await;
    let addr = server.addr;
    let ask = move || async move {
        let headers = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/slow"),
            ("x-forwarded-host", "example.org"),
        ];
        send(addr, Method::GET, "/v1/forward-auth", &headers, "").await.status
    };
    let becomes = async |number: f64| {
        crate::running::until("as many are in flight", async || {
            reads(&server).await;
            in_flight(&server).await == Some(number)
        })
        .await;
    };
    assert_eq!(ask().await, StatusCode::OK);
    for _ in 0..3 {
        let held_back = tokio::spawn(ask());
        becomes(2.0).await;
        held_back.abort();
        becomes(1.0).await;
    }
}
