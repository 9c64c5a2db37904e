//! Files imported from other rate limiters: the answers that their callers get.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use tidegate::config::{Imported, Peer};

use super::client::{Client, call};
use super::started;
use tidegate::clock::Clock as _;

const OK: i32 = 1;
const OVER: i32 = 2;

const TREE: &str = "
domain: shop
descriptors:
  - key: plan
    value: free
    descriptors:
      - key: user
        rate_limit: { unit: second, requests_per_unit: 2 }
  - key: plan
    descriptors:
      - key: user
        rate_limit: { unit: week, requests_per_unit: 3 }
      - key: user
        value: vip
        rate_limit: { unlimited: true }
  - key: client_ip
    value: 192.0.2.*
    share_threshold: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: client_ip
    value: 198.51.100.1
    rate_limit: { unit: minute, requests_per_unit: 0 }
";

const LIMITS: &str = "
- namespace: shop
  name: reads
  max_value: 2
  seconds: 60
  conditions: [\"descriptors[0].method == 'GET'\"]
  variables: [\"descriptors[0].user\"]
- namespace: shop
  name: second
  max_value: 1
  seconds: 60
  conditions: [\"descriptors[1].user != 'root'\"]
";

fn converted(peer: Peer, text: &str) -> String {
    Imported::of(&[(peer, "theirs.yaml", text)]).unwrap().text
}

/// The overall code, and for each descriptor the code, the limit, its unit and what is left.
fn told(answer: &RateLimitResponse) -> (i32, Vec<(i32, u32, i32, u32)>) {
    let each = answer.statuses.iter().map(|status| {
        let limit = status.current_limit.clone().unwrap_or_default();
        (status.code, limit.requests_per_unit, limit.unit, status.limit_remaining)
    });
    (answer.overall_code, each.collect())
}

#[tokio::test]
async fn a_tree_of_descriptors_runs_as_it_is() {
    let (server, grpc) = started(&converted(Peer::Envoy, TREE)).await;
    let mut client = Client::connect(grpc).await;
    let free = call(&[&[("plan", "free"), ("user", "ann")]]);
    for left in [1, 0] {
        assert_eq!(told(&client.ask(&free).await), (OK, vec![(OK, 2, 1, left)]));
    }
    assert_eq!(told(&client.ask(&free).await), (OVER, vec![(OVER, 2, 1, 0)]));
    // Another user, and another plan, which has a weekly limit whose week ends on a Thursday.
    let bob = call(&[&[("plan", "free"), ("user", "bob")], &[("plan", "pro"), ("user", "bob")]]);
    let answer = client.ask(&bob).await;
    assert_eq!(told(&answer), (OK, vec![(OK, 2, 1, 1), (OK, 3, 7, 2)]));
    let now = i64::try_from(server.clock.now().as_nanos() / 1_000_000_000).unwrap();
    let ends = answer.statuses[1].duration_until_reset.unwrap().seconds + now;
    assert_eq!(ends % 604_800, 0);
    // Descriptors that the tree does not contain pass: another order, more entries, fewer, an unlimited value.
    for entries in [
        &[("user", "ann"), ("plan", "free")][..],
        &[("plan", "free"), ("user", "ann"), ("path", "/")],
        &[("plan", "free")],
        &[("plan", "pro"), ("user", "vip")],
    ] {
        assert_eq!(told(&client.ask(&call(&[entries])).await), (OK, vec![(OK, 0, 0, 0)]), "{entries:?}");
    }
    // A key whose name means something else in Tidegate; one counter for all values that match; and a value that is
    // refused.
    assert_eq!(client.ask(&call(&[&[("client_ip", "192.0.2.1")]])).await.overall_code, OK);
    assert_eq!(client.ask(&call(&[&[("client_ip", "192.0.2.2")]])).await.overall_code, OVER);
    assert_eq!(client.ask(&call(&[&[("client_ip", "198.51.100.1")]])).await.overall_code, OVER);
    // A new second.
    server.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(told(&client.ask(&free).await), (OK, vec![(OK, 2, 1, 1)]));
}

#[tokio::test]
async fn limits_of_limitador_run_as_they_are() {
    let (server, grpc) = started(&converted(Peer::Limitador, LIMITS)).await;
    let mut client = Client::connect(grpc).await;
    server.clock.advance(std::time::Duration::from_secs(50));
    let get = call(&[&[("method", "GET"), ("user", "ann")]]);
    assert_eq!(told(&client.ask(&get).await), (OK, vec![(OK, 2, 2, 1)]));
    // The window opens with the first request, not on the minute.
    server.clock.advance(std::time::Duration::from_secs(59));
    assert_eq!(client.ask(&get).await.overall_code, OK);
    assert_eq!(client.ask(&get).await.overall_code, OVER);
    server.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(client.ask(&get).await.overall_code, OK);
    // The second descriptor of a call has its own limits. If the call is refused, nothing is charged.
    let both = call(&[&[("method", "GET"), ("user", "bob")], &[("user", "bob")]]);
    assert_eq!(client.ask(&both).await.overall_code, OK);
    assert_eq!(
        told(&client.ask(&both).await).1.iter().map(|status| status.0).collect::<Vec<_>>(),
        [OK, OVER]
    );
    let alone = call(&[&[("method", "GET"), ("user", "bob")]]);
    assert_eq!(told(&client.ask(&alone).await), (OK, vec![(OK, 2, 2, 0)]));
}

/// Entries with these names do not replace the door's own attributes.
#[tokio::test]
async fn what_the_door_says_of_a_descriptor_is_not_taken_from_its_entries() {
    let (_server, grpc) = started(&converted(Peer::Envoy, TREE)).await;
    let mut client = Client::connect(grpc).await;
    let forged = call(&[&[("plan", "free"), ("user", "ann"), ("rls.keys", "plan,user")]]);
    for _ in 0..4 {
        assert_eq!(client.ask(&forged).await.overall_code, OK);
    }
    let plain = call(&[&[("plan", "free"), ("user", "ann")]]);
    assert_eq!(told(&client.ask(&plain).await), (OK, vec![(OK, 2, 1, 1)]), "nothing was charged");
}

const REPLACING: &str = "
domain: shop
descriptors:
  - { key: kind, rate_limit: { name: kinds, unit: minute, requests_per_unit: 1 } }
  - { key: path, value: '/a,b=|%', rate_limit: { replaces: [{ name: kinds }], unit: minute, requests_per_unit: 3 } }
";

#[tokio::test]
async fn a_limit_that_another_descriptor_replaces_is_not_charged() {
    let (_server, grpc) = started(&converted(Peer::Envoy, REPLACING)).await;
    let mut client = Client::connect(grpc).await;
    let both = call(&[&[("kind", "x")], &[("path", "/a,b=|%")]]);
    for left in [2, 1, 0] {
        assert_eq!(told(&client.ask(&both).await), (OK, vec![(OK, 0, 0, 0), (OK, 3, 2, left)]));
    }
    // A value that looks like another descriptor does not count as one.
    let forged = call(&[&[("kind", "x")], &[("user", "|path=/a%2Cb%3D%7C%25|")]]);
    assert_eq!(told(&client.ask(&forged).await), (OK, vec![(OK, 1, 2, 0), (OK, 0, 0, 0)]));
    assert_eq!(client.ask(&forged).await.overall_code, OVER);
}
