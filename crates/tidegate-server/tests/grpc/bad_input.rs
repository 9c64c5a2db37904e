//! Invalid input is an error of its call alone; the next call on the same connection is answered.

use bytes::Bytes;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message;

use super::client::{Client, RATE_LIMIT, Reply, call, framed, reply};
use super::{started, started_with};

const POLICIES: &str = "
version: 1
policies:
  - name: per-address
    by: [remote_address]
    absent: skip
    limit: { rate: 3/min }
";

async fn bytes(client: &mut Client, body: impl Into<Bytes>) -> Reply {
    client.call(RATE_LIMIT, &[], body).await.unwrap()
}

async fn asked(client: &mut Client, request: &RateLimitRequest) -> Reply {
    bytes(client, framed(&request.encode_to_vec())).await
}

#[tokio::test]
async fn what_is_wrong_is_told_in_a_code_and_a_sentence() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let good = call(&[&[("a", "b")]]);
    for (request, said) in [
        (RateLimitRequest { domain: String::new(), ..good.clone() }, "the domain is empty"),
        (RateLimitRequest { domain: "d".repeat(9000), ..good.clone() }, "the domain has 9000 bytes"),
        (RateLimitRequest { descriptors: vec![], ..good.clone() }, "there are no descriptors"),
        (call(&[&[("a", "b")][..]; 33]), "there are 33 descriptors; send at most 32"),
        (call(&[&[("a", "b"); 63]]), "a descriptor has 63 entries; send at most 62"),
        (call(&[&[("", "b")]]), "the key \"\" of an entry has 0 bytes"),
        (call(&[&[(&"k".repeat(257), "b")]]), "of an entry has 257 bytes; use 1 to 256"),
    ] {
        let reply = asked(&mut client, &request).await;
        assert_eq!(reply.code, Some(3), "{reply:?}");
        assert!(reply.message.contains(said), "{said}: {reply:?}");
    }
    let whole = framed(&good.encode_to_vec());
    for (body, code) in [
        (vec![], 13),
        (vec![0, 0, 0], 13),
        (framed(b"\xff\xff\xff"), 13),
        (whole[..whole.len() - 1].to_vec(), 13),
        ([whole.clone(), whole.clone()].concat(), 13),
        ([&[1], &whole[1..]].concat(), 12),
        ([&[7], &whole[1..]].concat(), 13),
    ] {
        let reply = bytes(&mut client, body.clone()).await;
        assert_eq!(reply.code, Some(code), "{body:?}: {reply:?}");
        assert!(!reply.message.is_empty());
    }
    for (path, kind, http, code) in [
        ("/envoy.service.ratelimit.v3.RateLimitService/Should", "application/grpc", 200, Some(12)),
        ("/", "application/grpc", 200, Some(12)),
        (RATE_LIMIT, "application/json", 415, None),
        (RATE_LIMIT, "application/grpc+proto", 200, Some(0)),
    ] {
        let reply = client.call(path, &[("content-type", kind)], whole.clone()).await.unwrap();
        assert_eq!((reply.http.as_u16(), reply.code), (http, code), "{path} {kind}");
    }
    assert_eq!(asked(&mut client, &good).await.code, Some(0));
}

/// By default a proxy lets a request pass when it gets an error. So a client that could cause an error by a long header
/// would have no limits.
#[tokio::test]
async fn what_clients_of_a_proxy_can_make_long_is_refused_and_no_error() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let long = "x".repeat(60_000);
    let request = call(&[&[("remote_address", "a")], &[("path", &long)], &[("agent", &long)]]);
    let answer = asked(&mut client, &request).await.answer();
    assert_eq!(answer.overall_code, 2);
    assert_eq!(answer.statuses.iter().map(|status| status.code).collect::<Vec<_>>(), [1, 2, 2]);
    // Nothing was charged.
    let request = call(&[&[("remote_address", "a")]]);
    assert_eq!(asked(&mut client, &request).await.answer().statuses[0].limit_remaining, 2);
    // Too long to be read at all. Formerly an error: twenty descriptors with one header of 60 KB were enough.
    let many: Vec<[(&str, &str); 1]> = vec![[("path", &long)]; 20];
    let many: Vec<&[(&str, &str)]> = many.iter().map(|one| &one[..]).collect();
    for request in [call(&many), call(&[&[("remote_address", &"x".repeat(5 << 20))]])] {
        let answer = asked(&mut client, &request).await.answer();
        assert_eq!((answer.overall_code, answer.statuses.len()), (2, 0));
    }
    assert_eq!(asked(&mut client, &call(&[&[("a", "b")]])).await.code, Some(0));
}

#[tokio::test]
async fn a_message_may_come_in_pieces() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let (response, mut stream) = client.begin(RATE_LIMIT, &[]).await.unwrap();
    for byte in framed(&call(&[&[("remote_address", "a")]]).encode_to_vec()) {
        stream.send_data(Bytes::from(vec![byte]), false).unwrap();
    }
    stream.send_data(Bytes::new(), true).unwrap();
    assert_eq!(reply(response).await.unwrap().answer().overall_code, 1);
}

#[tokio::test]
async fn a_deadline_is_obeyed() {
    let (_server, grpc) = started_with(POLICIES, |options| {
        options.timeouts.body = std::time::Duration::from_millis(50);
    })
    .await;
    let mut client = Client::connect(grpc).await;
    let body = framed(&call(&[&[("remote_address", "a")]]).encode_to_vec());
    for (timeout, code) in [("20S", 0), ("99999999H", 0), ("1s", 3), ("", 3), ("-1m", 3)] {
        let reply = client.call(RATE_LIMIT, &[("grpc-timeout", timeout)], body.clone()).await.unwrap();
        assert_eq!(reply.code, Some(code), "{timeout}: {reply:?}");
    }
    // The message does not come. The deadline ends the call, or the server's own timeout if there is none.
    for headers in [&[("grpc-timeout", "1m")][..], &[]] {
        let (response, stream) = client.begin(RATE_LIMIT, headers).await.unwrap();
        assert_eq!(reply(response).await.unwrap().code, Some(4));
        drop(stream);
    }
}

#[tokio::test]
async fn without_the_token_only_health_is_told() {
    let (server, grpc) = started_with(POLICIES, |options| {
        options.token = Some(tidegate_server::Token::new("a-token-of-many-letters").unwrap());
    })
    .await;
    let mut client = Client::connect(grpc).await;
    let body = framed(&call(&[&[("a", "b")]]).encode_to_vec());
    for (header, code) in [
        (("x", "y"), 16),
        (("authorization", "Bearer wrong"), 16),
        (("authorization", "Bearer a-token-of-many-letters"), 0),
        (("x-tidegate-token", "a-token-of-many-letters"), 0),
    ] {
        let reply = client.call(RATE_LIMIT, &[header], body.clone()).await.unwrap();
        assert_eq!(reply.code, Some(code), "{header:?}: {reply:?}");
    }
    let health = client.call("/grpc.health.v1.Health/Check", &[], framed(b"")).await.unwrap();
    assert_eq!((health.code, &health.body[5..]), (Some(0), &[8, 1][..]), "serving");
    let unknown = client.call("/grpc.health.v1.Health/Check", &[], framed(b"\x0a\x01x")).await.unwrap();
    assert_eq!(unknown.code, Some(5));
    let token = [("x-tidegate-token", "a-token-of-many-letters")];
    let metrics = super::running::send(server.addr, http::Method::GET, "/metrics", &token, "").await.text;
    assert!(metrics.contains("tidegate_auth_failures_total{transport=\"grpc\"} 2"), "{metrics}");
}
