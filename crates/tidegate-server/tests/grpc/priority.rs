//! The priority of Envoy's calls, read from the entry that the file names.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

use super::client::{Client, call};
use super::started;

/// Ten units a day: two of them for `critical` and above, one of those for `critical-plus` alone.
const POLICIES: &str = "
version: 1
envoy: { priority_entry: priority }
policies:
  - name: backend
    match: { attributes: { path: true } }
    limit: { rate: 10/day, keep_for: { critical: 2, critical-plus: 1 } }
";

fn passes(answer: &RateLimitResponse) -> bool {
    answer.overall_code == Code::Ok as i32
}

async fn asked(client: &mut Client, priority: &str) -> bool {
    passes(&client.ask(&call(&[&[("path", "/"), ("priority", priority)]])).await)
}

#[tokio::test]
async fn an_entry_that_the_file_names_says_how_important_a_request_is() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    for at in 0..8 {
        assert!(asked(&mut client, "sheddable").await, "request {at}");
    }
    // A text that is no level counts as the lowest, so nobody gains by sending one.
    for word in ["sheddable", "sheddable-plus", "vip", "critical/128"] {
        assert!(!asked(&mut client, word).await, "{word}");
    }
    // An empty value counts as none, and requests without one are critical.
    assert!(asked(&mut client, "").await);
    for word in ["critical", "critical/3", ""] {
        assert!(!asked(&mut client, word).await, "{word}");
    }
    assert!(asked(&mut client, "critical-plus").await);
    assert!(!asked(&mut client, "critical-plus").await, "the limit is spent");
}

#[tokio::test]
async fn the_priority_is_one_for_all_descriptors_of_a_call_and_the_lowest_counts() {
    let file = "
version: 1
envoy: { priority_entry: priority, default_priority: sheddable }
policies:
  - { name: by-path, match: { attributes: { path: true } }, limit: { rate: 1/day, keep_for: { critical: 100% } } }
";
    let (_server, grpc) = started(file).await;
    let mut client = Client::connect(grpc).await;
    let path: &[_] = &[("path", "/")];
    let (user, plus): (&[_], &[_]) = (&[("priority", "critical")], &[("priority", "critical-plus")]);
    let low: &[_] = &[("user", "u"), ("priority", "sheddable-plus")];
    for (descriptors, expected) in [
        (&[path][..], false),
        (&[path, user, low], false),
        (&[path, low, plus], false),
        (&[path, plus, user], true),
    ] {
        assert_eq!(passes(&client.ask(&call(descriptors)).await), expected, "{descriptors:?}");
    }
}

/// Without the setting nothing changes for files that have an entry `priority` for purposes of their own.
#[tokio::test]
async fn no_entry_is_a_priority_unless_the_file_says_so() {
    let (_server, grpc) = started(&POLICIES.replace("envoy: { priority_entry: priority }\n", "")).await;
    let mut client = Client::connect(grpc).await;
    for at in 0..9 {
        assert!(asked(&mut client, "sheddable").await, "request {at} is critical");
    }
    assert!(!asked(&mut client, "critical-plus").await, "critical too");
}
