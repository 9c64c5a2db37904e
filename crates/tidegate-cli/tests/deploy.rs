//! Tests the files of `deploy/`: the rules and the dashboard with a real Prometheus that scrapes a real server, the
//! units with systemd, and restarts behind a real nginx and a real Envoy with the socket kept open.
//!
//! Needs Envoy, which `cargo xtask test` installs, `prometheus` with `promtool`, `systemd-analyze` and `nginx`. If
//! one is missing, its tests print a message and are skipped; with `TIDEGATE_REQUIRE_SERVERS=1` they fail. With the
//! feature `etcd`, and etcd installed, the server uses an engine, so that all series of the dashboard exist.

#![cfg(unix)]

mod envoy;
mod expressions;
mod handover;
mod kubernetes;
mod live;
mod rules;
mod scraper;
mod unit;
use crate::attack::{proxy, raw, serving, waiting};
use std::path::{Path, PathBuf};

/// Returns a file of the repository's `deploy/`.
pub(crate) fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

/// The image has the program of a release, with all engines.
#[test]
fn the_image_is_built_by_the_command_of_a_release() {
    let file = std::fs::read_to_string(deployed("Dockerfile")).unwrap();
    let after = |start: &str| file.lines().find_map(|line| line.strip_prefix(start)).unwrap();
    let features = after("ARG FEATURES=");
    assert!(features.split(',').any(|feature| feature == "engines"), "{features}");
    let rest = after("RUN cargo build ").trim_end_matches(" \\").replace("\"$FEATURES\"", features);
    let command = format!("$ cargo build {rest}");
    let page = std::fs::read_to_string(deployed("../docs/running.md")).unwrap();
    assert!(page.lines().any(|line| line == command), "{command}");
}
