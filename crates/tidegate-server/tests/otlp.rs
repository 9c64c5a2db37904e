//! Spans of decisions, received by a collector from a server over real sockets.

#[allow(dead_code, reason = "the tests of the gRPC door make more of it")]
use crate::grpc::client;
mod collector;
use crate::running;

use std::net::SocketAddr;

use client::{Client, RATE_LIMIT, call, framed};
use collector::{Collector, attribute};
use http::Method;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use running::wire::exchange;
use running::{Running, send, start_with};
use tidegate::config::OtlpSettings;
use tidegate_server::Stopped;

const POLICIES: &str = "
version: 1
policies:
  - name: per-user
    by: [user.id]
    limit: { rate: 1/min }
";
const ANN: &str = r#"{"attributes": {"user.id": "ann"}}"#;

/// The caller's trace id and span id.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

/// Starts a server that sends spans to this collector.
async fn started(
    to: SocketAddr,
    change: impl FnOnce(&mut OtlpSettings),
) -> (Running, SocketAddr, SocketAddr) {
    let (grpc, resp) = (tidegate_testkit::free_address(), tidegate_testkit::free_address());
    let mut settings = OtlpSettings::default();
    settings.endpoint = Some(format!("http://{to}"));
    change(&mut settings);
    let server = start_with(POLICIES, |mut options| {
        (options.grpc, options.resp, options.otlp) = (Some(grpc.into()), Some(resp.into()), Some(settings));
        options
    })
    .await;
    (server, grpc, resp)
}

/// Stops the server, which sends the last spans, and returns all spans.
async fn all_of(server: Running, collector: &Collector) -> Vec<Span> {
    server.handle.stop();
    assert_eq!(server.stopped().await, Stopped::Drained);
    collector.spans()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_each_door_is_a_span_of_its_callers_trace() {
    let (collector, to) = Collector::start().await;
    let (server, grpc, resp) = started(to, |_| {}).await;
    let sampled = traceparent("01");
    let headers = [("traceparent", &*sampled), ("content-type", "application/json")];
    let check = || send(server.addr, Method::POST, "/v1/check", &headers, ANN);
    check().await;
    let denied = check().await.json()["decision_id"].as_str().unwrap().to_owned();
    let mut client = Client::connect(grpc).await;
    let body = framed(&call(&[&[("user.id", "bob")]]).encode_to_vec());
    client.call(RATE_LIMIT, &[("traceparent", &sampled)], body.clone()).await.unwrap().answer();
    client.call(RATE_LIMIT, &[("traceparent", &sampled)], body).await.unwrap().answer();
    exchange(resp, b"TG.CHECK per-user user.id eve\r\nQUIT\r\n").await;
    let spans = all_of(server, &collector).await;
    let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
    let rls = &RATE_LIMIT[1..];
    assert_eq!(names, ["POST /v1/check", "POST /v1/check", rls, rls, "TG.CHECK"]);
    for span in &spans {
        assert_eq!(span.kind, SpanKind::Server as i32);
        assert!(span.end_time_unix_nano > span.start_time_unix_nano);
        assert_eq!(attribute(span, "tidegate.policy"), "per-user");
        assert!(!attribute(span, "tidegate.decision_id").is_empty(), "{span:?}");
        assert!(attribute(span, "tidegate.decision.duration").parse::<f64>().unwrap() > 0.0);
        assert_eq!(span.status.as_ref().map_or(0, |status| status.code), StatusCode::Unset as i32);
        let key = attribute(span, "tidegate.key");
        assert!(key.starts_with('#'), "{key}");
        let everything = format!("{span:?}");
        for user in ["ann", "bob", "eve"] {
            assert!(!everything.contains(&format!("\"{user}\"")), "{everything}");
        }
    }
    for span in &spans[..4] {
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), CALLER.to_owned()));
    }
    assert!(spans[4].parent_span_id.is_empty(), "RESP tells of no caller");
    let of = |key: &str| -> Vec<String> { spans.iter().map(|span| attribute(span, key)).collect() };
    assert_eq!(of("tidegate.door"), ["http", "http", "grpc", "grpc", "resp"]);
    assert_eq!(of("tidegate.outcome"), ["allowed", "denied", "allowed", "denied", "allowed"]);
    assert_eq!(of("http.response.status_code"), ["200", "429", "", "", ""]);
    assert_eq!(of("rpc.response.status_code"), ["", "", "OK", "OK", ""]);
    assert_eq!(of("tidegate.decision_id")[1], denied);
    assert_eq!(collector.resource("service.name"), "tidegate");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_caller_says_what_is_sampled_and_everything_is_where_he_does_not() {
    let (collector, to) = Collector::start().await;
    let (server, ..) = started(to, |_| {}).await;
    for (flags, count) in [("00", 3), ("01", 2)] {
        let caller = traceparent(flags);
        for _ in 0..count {
            send(server.addr, Method::POST, "/v1/check", &[("traceparent", &caller)], ANN).await;
        }
    }
    for nothing in ["", "00-00000000000000000000000000000000-0000000000000000-01", "nonsense", "00-x-y-01"] {
        send(server.addr, Method::POST, "/v1/check", &[("traceparent", nothing)], ANN).await;
    }
    send(server.addr, Method::GET, "/v1/policies", &[("traceparent", &traceparent("01"))], "").await;
    let spans = all_of(server, &collector).await;
    let of_caller = |span: &&Span| hex(&span.parent_span_id) == CALLER;
    assert_eq!(spans.iter().filter(of_caller).count(), 2, "{spans:?}");
    assert_eq!(spans.len(), 2 + 4, "what decides nothing has no span: {spans:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_sent_where_the_file_says_so() {
    let (collector, to) = Collector::start().await;
    let (server, ..) = started(to, |settings| settings.reveal_keys = true).await;
    server.post("/v1/check", ANN).await;
    server.post("/v1/check", "{}").await;
    server.post("/v1/check", "{").await;
    let spans = all_of(server, &collector).await;
    assert!(attribute(&spans[0], "tidegate.key").contains("ann"), "{spans:?}");
    assert_eq!(attribute(&spans[2], "http.response.status_code"), "400");
    assert_eq!(attribute(&spans[2], "tidegate.outcome"), "", "nothing was decided");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_collector_that_does_not_answer() {
    // It accepts connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (server, _, resp) = started(silent.local_addr().unwrap(), |_| {}).await;
    let many = 5000;
    let commands = "TG.CHECK per-user user.id ann\r\n".repeat(many) + "QUIT\r\n";
    let replies = exchange(resp, commands.as_bytes()).await;
    assert_eq!(replies.matches("*8\r\n").count(), many);
    let metrics = server.get("/metrics").await.text;
    let of = |fate: &str| -> u64 {
        let series = format!("tidegate_otlp_spans_total{{fate=\"{fate}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&series)).unwrap();
        line.parse().unwrap()
    };
    assert_eq!(of("dropped"), many as u64 - 4096);
    assert_eq!(of("sent"), 0);
    // Neither does an immediate stop.
    server.handle.stop();
    server.handle.stop();
    server.stopped().await;
}
