//! What `deploy/` holds: the rules and the dashboard before a real Prometheus that scrapes a real server, the units before systemd, and a restart
//! behind a real nginx and a real Envoy that keeps the socket.
//!
//! Needs Envoy, which `cargo xtask test` installs, `prometheus`, which brings `promtool`, `systemd-analyze` and `nginx`. Where one is missing its tests say so and skip, unless
//! `TIDEGATE_REQUIRE_SERVERS=1`: then they fail. With the feature `etcd`, and etcd installed, the server shares an engine, so that every series of the dashboard is there.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod envoy;
mod expressions;
mod handover;
mod live;
#[allow(dead_code, reason = "the attacks start proxies in more ways")]
#[path = "../attack/proxy.rs"]
mod proxy;
#[allow(dead_code, reason = "the attacks send what no test here does")]
#[path = "../attack/raw.rs"]
mod raw;
mod rules;
mod scraper;
#[allow(dead_code, reason = "the attacks ask more of a server")]
#[path = "../attack/serving.rs"]
mod serving;
mod unit;
#[allow(dead_code, reason = "the attacks wait for more")]
#[path = "../attack/waiting.rs"]
mod waiting;

use std::path::{Path, PathBuf};

/// Returns a file of the repository's `deploy/`.
pub(crate) fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}
