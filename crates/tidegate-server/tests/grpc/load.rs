//! Many connections, each with the most calls that it may have: every call is answered and counted once.

use std::process::Command;

use prost::Message as _;

use super::client::{Client, RATE_LIMIT, call, framed};
use super::started;

const POLICIES: &str = "version: 1\npolicies: [{ name: all, limit: { rate: 1000000/day } }]\n";
const CALLS: u32 = 10_000;

/// Uses h2load from the Debian package `nghttp2-client`. If it is missing, the test says so and skips, unless
/// `TIDEGATE_REQUIRE_SERVERS=1`: then it fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_calls_as_connections_may_have_are_all_answered() {
    let Some(h2load) = tidegate_testkit::program("h2load", "nghttp2-client") else { return };
    let (_server, grpc) = started(POLICIES).await;
    let request = call(&[&[("a", "b")]]);
    let dir = tempfile::tempdir().unwrap();
    let body = dir.path().join("body");
    std::fs::write(&body, framed(&request.encode_to_vec())).unwrap();
    let mut load = Command::new(h2load);
    load.args([
        "-n",
        &CALLS.to_string(),
        "-c",
        "20",
        "-m",
        "256",
        "-H",
        "content-type: application/grpc",
        "-d",
    ]);
    load.arg(&body).arg(format!("http://{grpc}{RATE_LIMIT}"));
    let said = tokio::task::spawn_blocking(move || load.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    let all = format!("{CALLS} done, {CALLS} succeeded, 0 failed, 0 errored, 0 timeout");
    assert!(said.contains(&all), "{said}");
    let next = Client::connect(grpc).await.ask(&request).await;
    assert_eq!(next.statuses[0].limit_remaining, 1_000_000 - CALLS - 1);
}
