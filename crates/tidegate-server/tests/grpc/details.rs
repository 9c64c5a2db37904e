//! The optional details beside the statuses of an answer.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::google::protobuf::value::Kind;

use super::client::{Client, RATE_LIMIT, call, framed};
use super::started;

const POLICIES: &str = "
version: 1
policies:
  - name: logins
    by: [remote_address]
    limit: { rate: 1/min }
  - name: soft
    match: { attributes: { kind: soft } }
    limit: { rate: 1/h }
    over: mark
";

fn said<'h>(headers: &'h [HeaderValue], key: &str) -> Option<&'h str> {
    headers.iter().find(|header| header.key == key).map(|header| &*header.value)
}

#[tokio::test]
async fn a_call_that_asks_is_told_which_policy_decided_and_under_which_name() {
    let (server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let body = framed(&prost::Message::encode_to_vec(&call(&[&[("remote_address", "192.0.2.1")]])));
    let wanted = [("x-tidegate-details", "headers, decision")];
    let allowed = client.call(RATE_LIMIT, &wanted, body.clone()).await.unwrap().answer();
    assert_eq!(said(&allowed.response_headers_to_add, "ratelimit"), Some("\"logins\";r=0;t=60"));
    let id = said(&allowed.request_headers_to_add, "x-tidegate-decision-id").unwrap();
    assert_eq!(id.len(), 26);

    let refused = client.call(RATE_LIMIT, &wanted, body).await.unwrap().answer();
    assert_eq!(said(&refused.response_headers_to_add, "retry-after"), Some("60"));
    assert_eq!(said(&refused.response_headers_to_add, "content-type"), Some("application/problem+json"));
    assert!(String::from_utf8(refused.raw_body).unwrap().contains("\"violated-policies\":[\"logins\"]"));
    let fields = refused.dynamic_metadata.unwrap().fields;
    let text = |name: &str| match fields[name].kind.clone().unwrap() {
        Kind::StringValue(text) => text,
        other => panic!("{other:?}"),
    };
    assert_eq!((&*text("policy"), &*text("mode")), ("logins", "enforce"));
    let id = text("decision_id");
    assert_eq!(said(&refused.response_headers_to_add, "x-tidegate-decision-id"), Some(&*id));
    // Operators find the refusal by its id.
    let explained = server.get(&format!("/v1/explain?id={id}")).await;
    assert_eq!(explained.status, 200, "{explained:?}");
    assert!(explained.text.contains("DENIED by logins"), "{}", explained.text);
}

/// A sliding log gives nothing back, so the limit stays full. Regression: the answer, `OK`, told the client to come back
/// later.
#[tokio::test]
async fn an_answer_that_lets_the_client_pass_tells_it_no_wait() {
    let file = "version: 1\npolicies: [{ name: log, limit: { algorithm: sliding-log, rate: 1/min } }]\n";
    let (_server, grpc) = started(file).await;
    let mut client = Client::connect(grpc).await;
    let mut back = call(&[&[("remote_address", "192.0.2.1")]]);
    client.ask(&back).await;
    back.descriptors[0].is_negative_hits = true;
    let wanted = [("x-tidegate-details", "headers")];
    let body = framed(&prost::Message::encode_to_vec(&back));
    let answer = client.call(RATE_LIMIT, &wanted, body).await.unwrap().answer();
    assert_eq!(answer.overall_code, 1);
    assert_eq!(said(&answer.response_headers_to_add, "ratelimit"), Some("\"log\";r=0;t=60"));
    assert_eq!(said(&answer.response_headers_to_add, "retry-after"), None);
}

/// Regression: such a refusal had no reason in any detail, and that of a policy with a status of its own had this status
/// in the body of an answer that is 429.
#[tokio::test]
async fn every_refusal_says_why_with_the_status_that_the_client_gets() {
    let file = "
version: 1
access: { deny: [198.51.100.7] }
policies:
  - { name: busy, by: [remote_address], limit: { rate: 1/min }, deny: { status: 503 } }
";
    let (_server, grpc) = started(file).await;
    let mut client = Client::connect(grpc).await;
    let of = |address: &str| call(&[&[("remote_address", address)]]);
    let mut nothing = of("192.0.2.3");
    nothing.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 0, unit: 1 });
    client.ask(&of("192.0.2.1")).await;
    let long = of(&"x".repeat(8193));
    for (call, detail) in [
        (of("192.0.2.1"), "policy \\\"busy\\\" refuses this request; try again in "),
        (of("198.51.100.7"), "a deny-list refuses this request"),
        (long, "the value of the entry \\\"remote_address\\\" has 8193 bytes, and at most 8192 are judged"),
        (nothing, "the limit of the call grants 0 requests; nothing was charged"),
    ] {
        let body = framed(&prost::Message::encode_to_vec(&call));
        let wanted = [("x-tidegate-details", "headers")];
        let refused = client.call(RATE_LIMIT, &wanted, body).await.unwrap().answer();
        assert_eq!(refused.overall_code, 2, "{detail}");
        assert_eq!(said(&refused.response_headers_to_add, "content-type"), Some("application/problem+json"));
        let body = String::from_utf8(refused.raw_body).unwrap();
        assert!(body.contains(detail) && body.contains("\"status\":429"), "{detail}: {body}");
    }
}

#[tokio::test]
async fn a_word_that_there_is_not_is_named() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let body = framed(&prost::Message::encode_to_vec(&call(&[&[("a", "b")]])));
    let wrong = client.call(RATE_LIMIT, &[("x-tidegate-details", "heders")], body).await.unwrap();
    assert_eq!(wrong.code, Some(3));
    assert_eq!(wrong.message, "x-tidegate-details: \"heders\" is none; use headers, decision or both");
}

#[tokio::test]
async fn the_next_hop_is_told_that_a_request_is_over_a_limit_that_only_marks() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let soft = |address| call(&[&[("remote_address", address), ("kind", "soft")]]);
    assert!(client.ask(&soft("a")).await.request_headers_to_add.is_empty());
    let marked = client.ask(&soft("b")).await;
    assert_eq!(said(&marked.request_headers_to_add, "x-tidegate-marked"), Some("soft"));
    assert_eq!((marked.overall_code, marked.statuses[0].code), (1, 1));
}

const MARKING_AND_DEMOTING: &str = "
version: 1
policies:
  - { name: per-address, by: [remote_address], absent: skip, limit: { rate: 1/h }, over: mark }
  - { name: per-key, by: [api_key], absent: skip, limit: { algorithm: fixed-window, rate: 50/h } }
  - { name: per-plan, by: [plan], absent: skip, limit: { rate: 1/h }, over: demote to sheddable }
  - { name: per-path, by: [path], absent: skip, limit: { rate: 1/h }, over: demote }
";

#[tokio::test]
async fn a_call_has_the_marks_of_all_its_descriptors() {
    let (_server, grpc) = started(MARKING_AND_DEMOTING).await;
    let mut client = Client::connect(grpc).await;
    let by_address: &[_] = &[("remote_address", "192.0.2.1")];
    client.ask(&call(&[by_address])).await;
    let marked = client.ask(&call(&[by_address])).await;
    assert_eq!(said(&marked.request_headers_to_add, "x-tidegate-marked"), Some("per-address"));
    // The other descriptor has less of its limit left than the one that is marked.
    for more in [&[("api_key", "k")], &[("other", "o")]] {
        for descriptors in [[by_address, more], [more, by_address]] {
            let still = client.ask(&call(&descriptors)).await;
            assert_eq!(
                said(&still.request_headers_to_add, "x-tidegate-marked"),
                Some("per-address"),
                "{more:?}"
            );
        }
    }

    let all: [&[_]; 4] =
        [&[("path", "/")], &[("plan", "free")], by_address, &[("path", "/"), ("api_key", "k")]];
    client.ask(&call(&all[..2])).await;
    let lowered = client.ask(&call(&all)).await.request_headers_to_add;
    let told =
        ["x-tidegate-marked", "x-tidegate-demoted", "x-tidegate-priority"].map(|name| said(&lowered, name));
    assert_eq!(told, [Some("per-address"), Some("per-path, per-plan"), Some("sheddable")]);
    assert_eq!(lowered.len(), 3, "{lowered:?}");
}

#[tokio::test]
async fn decisions_are_counted_by_their_door() {
    let (server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let ask = call(&[&[("remote_address", "192.0.2.1")]]);
    for _ in 0..3 {
        client.ask(&ask).await;
    }
    let metrics = server.get("/metrics").await.text;
    for line in [
        "tidegate_decision_duration_seconds_count{transport=\"grpc\"} 3",
        "tidegate_decisions_total{policy=\"logins\",decision=\"allowed\",mode=\"enforce\"} 1",
        "tidegate_decisions_total{policy=\"logins\",decision=\"denied\",mode=\"enforce\"} 2",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line} is missing in\n{metrics}");
    }
}
