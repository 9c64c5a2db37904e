//! Calls that no policy is about, and calls that reach the wrong door, pass in silence at a proxy that fails open. Here
//! they are counted, and told with what was probably meant.

use std::net::SocketAddr;

use prost::Message as _;
use tidegate::config::{Imported, Peer};
use tidegate_testkit::python_program;

use super::client::{Client, RATE_LIMIT, call, framed};
use super::connections::{PREFACE, until_closed};
use super::real::{Envoy, block, status};
use super::running::wire::exchange;
use super::running::{Running, send, until};
use super::{started, started_with};

const THEIRS: &str = "
domain: shop-ratelimit
descriptors:
  - key: PATH
    value: /productpage
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: PATH
    rate_limit: { unit: minute, requests_per_unit: 100 }
";

const OURS: &str = "
version: 1
policies:
  - name: per-key
    by: [api.key]
    limit: { rate: 100/min }
  - name: spare
    match: { path: /nowhere }
    limit: { rate: 1/h }
";

/// The number in a line of the metrics.
async fn counted(server: &Running, series: &str) -> u64 {
    let text = server.get("/metrics").await.text;
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is missing in {text}")).parse().unwrap()
}

async fn requests(server: &Running, transport: &str, outcome: &str) -> u64 {
    let series = format!("tidegate_requests_total{{transport=\"{transport}\",outcome=\"{outcome}\"}}");
    counted(server, &series).await
}

async fn verbose(server: &Running) -> String {
    server.get("/readyz?verbose").await.text
}

#[tokio::test]
async fn a_wrong_domain_a_wrong_case_and_one_entry_more_are_seen() {
    let file = Imported::of(&[(Peer::Envoy, "theirs.yaml", THEIRS)]).unwrap().text;
    let (server, grpc) = started_with(&file, |options| options.metrics_names = Some(Peer::Envoy)).await;
    let mut client = Client::connect(grpc).await;
    let page: &[&[(&str, &str)]] = &[&[("PATH", "/productpage")]];
    assert_eq!(client.ask(&call_in("shop-ratelimit", page)).await.overall_code, 1);
    assert_eq!(client.ask(&call_in("shop-ratelimit", page)).await.overall_code, 2);
    assert!(!verbose(&server).await.contains("limited by no policy"));
    for (domain, entries, advice) in [
        ("shop_ratelimit", page, "the domain \"shop_ratelimit\"; did you mean \"shop-ratelimit\"?"),
        ("edge", page, "the domain \"edge\"; they read shop-ratelimit"),
        (
            "shop-ratelimit",
            &[&[("path", "/productpage")][..]][..],
            "the keys \"path\"; did you mean \"PATH\"?",
        ),
        (
            "shop-ratelimit",
            &[&[("PATH", "/productpage"), ("method", "GET")][..]][..],
            "the keys \"PATH,method\"; they read PATH",
        ),
    ] {
        for _ in 0..3 {
            assert_eq!(client.ask(&call_in(domain, entries)).await.overall_code, 1);
        }
        let told = verbose(&server).await;
        assert!(told.contains(advice), "{told}");
    }
    assert_eq!(requests(&server, "grpc", "unmatched").await, 12);
    assert_eq!(requests(&server, "grpc", "allowed").await, 1);
    assert_eq!(requests(&server, "grpc", "denied").await, 1);
    assert!(verbose(&server).await.contains("[!] 12 requests were limited by no policy since 20"));
    let not_found = |domain| format!("ratelimit_service_rate_limit_domain_not_found{{domain=\"{domain}\"}}");
    assert_eq!(counted(&server, &not_found("edge")).await, 3);
    assert!(!server.get("/metrics").await.text.contains(&not_found("shop-ratelimit")));
    // A call is one request, however many descriptors it has; it is limited if one of them is.
    let both: &[&[(&str, &str)]] = &[&[("PATH", "/other")], &[("method", "GET")]];
    assert_eq!(client.ask(&call_in("shop-ratelimit", both)).await.overall_code, 1);
    assert_eq!(requests(&server, "grpc", "unmatched").await, 12);
    assert_eq!(requests(&server, "grpc", "allowed").await, 2);
}

fn call_in(
    domain: &str,
    descriptors: &[&[(&str, &str)]],
) -> envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest {
    let mut call = call(descriptors);
    call.domain = domain.to_owned();
    call
}

#[tokio::test]
async fn every_door_counts_what_no_policy_is_about() {
    let resp = tidegate_testkit::free_address();
    let (server, grpc) = started_with(OURS, |options| {
        options.resp = Some(resp.into());
    })
    .await;
    let typo = r#"{"attributes": {"api_key": "k"}}"#;
    let told = server.post("/v1/explain", typo).await.text;
    assert!(told.contains("no policy uses the attribute api_key (did you mean api.key?)"), "{told}");
    assert_eq!(requests(&server, "http", "unmatched").await, 0, "to explain is no request");
    assert_eq!(server.post("/v1/check", typo).await.status, 200);
    let batch = format!("[{typo}, {{\"attributes\": {{\"api.key\": \"k\"}}}}]");
    assert_eq!(server.post("/v1/check/batch", &batch).await.status, 200);
    assert_eq!(requests(&server, "http", "unmatched").await, 2);
    assert_eq!(requests(&server, "http", "allowed").await, 1);
    let words = ["TG.CHECK", "*", "api_key", "k"];
    let command: String = std::iter::once(format!("*{}\r\n", words.len()))
        .chain(words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())))
        .chain(["*1\r\n$4\r\nQUIT\r\n".to_owned()])
        .collect();
    exchange(resp, command.as_bytes()).await;
    assert_eq!(requests(&server, "resp", "unmatched").await, 1);
    // Kuadrant's filter only looks, and reports later.
    let mut client = Client::connect(grpc).await;
    let typo = call(&[&[("api_key", "k")]]);
    client.ask(&typo).await;
    let check = "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit";
    client.call(check, &[], framed(&typo.encode_to_vec())).await.unwrap().answer();
    assert_eq!(requests(&server, "grpc", "unmatched").await, 2);
    let told = verbose(&server).await;
    assert!(told.contains("[!] 5 requests were limited by no policy since"), "{told}");
    assert!(told.contains("2 x no policy is about HTTP requests with the attributes api_key;"), "{told}");
    assert!(told.contains("[!] no request has reached spare since"), "{told}");
    let listed = server.get("/v1/policies").await.json();
    assert!(listed["policies"][0].get("unreached_since").is_none(), "{listed}");
    assert_eq!(listed["policies"][1]["unreached_since"], "2027-01-15T12:00:00.000Z");
}

#[tokio::test]
async fn calls_that_cannot_be_read_are_seen() {
    let (server, grpc) = started(OURS).await;
    let mut client = Client::connect(grpc).await;
    let reply = client.call(RATE_LIMIT, &[], framed(&call_in("", &[&[("a", "b")]]).encode_to_vec())).await;
    assert_eq!(reply.unwrap().code, Some(3));
    assert_eq!(requests(&server, "grpc", "invalid").await, 1);
    let told = verbose(&server).await;
    assert!(told.contains("calls over gRPC are answered INVALID_ARGUMENT"), "{told}");
    assert!(told.contains("the domain is empty"), "{told}");
}

#[tokio::test]
async fn grpc_at_the_http_address_and_http1_at_the_grpc_address_are_answered_in_their_own_words() {
    let (server, grpc) = started(OURS).await;
    let mut client = Client::connect(server.addr).await;
    let reply = client.call(RATE_LIMIT, &[], framed(&call(&[&[("a", "b")]]).encode_to_vec())).await.unwrap();
    assert_eq!(reply.code, Some(12), "{reply:?}");
    assert!(reply.message.contains("gRPC is served on server.grpc"), "{reply:?}");
    let reply = client.call("/livez", &[("content-type", "text/plain")], "").await.unwrap();
    assert_eq!(reply.http, 505, "{reply:?}");
    // A preface alone, and one before nonsense, are answered and closed.
    for begins in [&PREFACE[..24], &[PREFACE, b" and nonsense"].concat()] {
        until_closed(server.addr, begins).await;
    }
    let headers = [("content-type", "application/grpc"), ("te", "trailers")];
    let over_http1 = send(server.addr, http::Method::POST, RATE_LIMIT, &headers, "").await;
    assert_eq!(over_http1.header("grpc-status"), "12", "{over_http1:?}");
    assert_eq!(requests(&server, "http", "invalid").await, 3);
    let told = verbose(&server).await;
    assert!(
        told.contains(&format!("gRPC is served on {grpc}: give the proxy's cluster that address")),
        "{told}"
    );
    let post = format!("POST {RATE_LIMIT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\n\r\n");
    let answer = exchange(grpc, post.as_bytes()).await;
    assert!(answer.contains("grpc-status: 12\r\n") && answer.contains("http2_protocol_options"), "{answer}");
    let answer = exchange(grpc, b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(answer.ends_with("HTTP/1.1 is served on server.http\n"), "{answer}");
    assert_eq!(requests(&server, "grpc", "invalid").await, 2);
    let told = verbose(&server).await;
    assert!(told.contains("2 x HTTP/1 reaches the gRPC address"), "{told}");
    exchange(grpc, b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03").await;
    assert!(verbose(&server).await.contains("TLS reaches the gRPC address"));
}

const WITH_ALL: &str = "
version: 1
access: { deny: [203.0.113.66] }
policies:
  - { name: everyone, limit: { rate: 5000/s } }
  - { name: per-ip, match: { attributes: { rls.domain: shop } }, by: [client.ip], limit: { rate: 9/min } }
  - { name: api, match: { path: '/api/**' }, by: [client.ip], limit: { rate: 9/min } }
";

/// A policy about everybody hid that the domain of another was misspelt.
#[tokio::test]
async fn a_policy_about_everybody_hides_neither_a_wrong_domain_nor_a_double_charge() {
    let (server, grpc) = started(WITH_ALL).await;
    let mut client = Client::connect(grpc).await;
    client.ask(&call_in("shop", &[&[("remote_address", "203.0.113.9")]])).await;
    let told = verbose(&server).await;
    assert!(!told.contains("meant otherwise"), "{told}");
    client.ask(&call_in("Shop", &[&[("remote_address", "203.0.113.9")]])).await;
    let told = verbose(&server).await;
    assert!(
        told.contains("1 x other policies alone are about gRPC requests with the attributes client.ip, remote_address, in the domain \"Shop\"; no policy reads the domain \"Shop\"; did you mean \"shop\"?"),
        "{told}"
    );
    assert!(
        told.contains("api needs request.path, which no request was seen to have; requests had client.ip"),
        "{told}"
    );
    client.ask(&call_in("shop", &[&[("remote_address", "203.0.113.9")], &[("generic_key", "a")]])).await;
    let told = verbose(&server).await;
    assert!(told.contains("policy everyone is charged 2 times by one call over gRPC"), "{told}");
}

#[tokio::test]
async fn what_the_nearest_policy_lacks_is_told_and_not_the_name_that_is_there() {
    let (server, grpc) =
        started(&WITH_ALL.replace("  - { name: everyone, limit: { rate: 5000/s } }\n", "")).await;
    let mut client = Client::connect(grpc).await;
    client.ask(&call_in("edge", &[&[("remote_address", "203.0.113.9")]])).await;
    let told = verbose(&server).await;
    assert!(!told.contains("did you mean client.ip"), "{told}");
    let (server, grpc) = started(
        &OURS
            .replace("match: { path: /nowhere }", "match: { path: /nowhere }, by: [client.ip]")
            .replace("\n    limit: { rate: 1/h }", ", limit: { rate: 1/h } }")
            .replace("- name: spare\n    match", "- { name: spare, match"),
    )
    .await;
    let mut client = Client::connect(grpc).await;
    client.ask(&call_in("edge", &[&[("remote_address", "203.0.113.9")]])).await;
    let told = verbose(&server).await;
    assert!(!told.contains("did you mean client.ip"), "{told}");
    assert!(told.contains("; policy spare needs request.path; add a descriptor_key: request.path"), "{told}");
}

/// An error would let the request pass at a proxy that fails open, so such a call is over the limit.
#[tokio::test]
async fn an_entry_that_is_no_address_is_refused_and_told() {
    let (server, grpc) = started(WITH_ALL).await;
    let mut client = Client::connect(grpc).await;
    for value in ["9.9.9.9, 10.0.0.1", "203.0.113.66, 10.0.0.1", "for=203.0.113.66", "203.0.113.066", ""] {
        assert_eq!(client.ask(&call_in("shop", &[&[("client.ip", value)]])).await.overall_code, 2, "{value}");
    }
    assert_eq!(client.ask(&call_in("shop", &[&[("client.ip", "203.0.113.9")]])).await.overall_code, 1);
    let told = verbose(&server).await;
    assert!(told.contains("      5 x calls over gRPC are answered OVER_LIMIT; client.ip is not an address: \"9.9.9.9, 10.0.0.1\"; send the last address alone"), "{told}");
    client.ask(&call_in("shop", &[&[("remote_address", "a pipe")]])).await;
    client.ask(&call_in("shop", &[&[("request.path", "http://a.example/api/x")]])).await;
    let told = verbose(&server).await;
    assert!(told.contains("client.ip is not an address: \"a pipe\""), "{told}");
    assert!(told.contains("request.path is a URL: \"http://a.example/api/x\"; send /api/x"), "{told}");
}

/// The manual's Envoy, with the cluster at another address or without HTTP/2.
async fn behind_envoy(
    at: impl FnOnce(&Running, SocketAddr) -> SocketAddr,
    http2: bool,
    series: (&str, &str),
) {
    let Some(program) = python_program("envoy") else { return };
    let policies = block("# policies.yaml").replace("server: { grpc: 127.0.0.1:8081 }\n", "");
    let (server, grpc) = started(&policies).await;
    let envoy = Envoy::start(program, at(&server, grpc), |text| {
        if http2 { text } else { text.replace("http2_protocol_options: {}", "http_protocol_options: {}") }
    })
    .await;
    for _ in 0..3 {
        let answer = envoy.get("").await;
        assert_eq!(status(&answer), "200", "it fails open: {answer}");
    }
    until("the calls are counted", async || requests(&server, series.0, "invalid").await >= 3).await;
    let told = verbose(&server).await;
    assert!(told.contains(series.1), "{told}");
}

#[tokio::test]
async fn envoy_at_the_http_address_is_seen() {
    behind_envoy(|server, _| server.addr, true, ("http", "gRPC calls (HTTP/2) reach the HTTP address")).await;
}

#[tokio::test]
async fn envoy_without_http2_at_the_http_address_is_seen() {
    behind_envoy(|server, _| server.addr, false, ("http", "gRPC calls (HTTP/2) reach the HTTP address"))
        .await;
}

#[tokio::test]
async fn envoy_with_a_cluster_without_http2_is_seen() {
    behind_envoy(|_, grpc| grpc, false, ("grpc", "HTTP/1 reaches the gRPC address")).await;
}

#[tokio::test]
async fn envoy_with_a_wrong_domain_is_seen() {
    let Some(program) = python_program("envoy") else { return };
    let policies = block("# policies.yaml").replace("server: { grpc: 127.0.0.1:8081 }\n", "");
    let (server, grpc) = started(&policies).await;
    let envoy = Envoy::start(program, grpc, |text| text.replace("domain: shop\n", "domain: Shop\n")).await;
    assert_eq!(status(&envoy.get("").await), "200");
    assert_eq!(requests(&server, "grpc", "unmatched").await, 1);
    let told = verbose(&server).await;
    assert!(told.contains("no policy reads the domain \"Shop\"; did you mean \"shop\"?"), "{told}");
}
