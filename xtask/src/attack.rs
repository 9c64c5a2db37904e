//! The attack suite in its long form. `cargo xtask test` runs the same attacks in their short form.

use std::time::Duration;

use anyhow::Result;

use crate::{packages, step};

/// The time limit of all attacks together in their long form.
const LONG: Duration = Duration::from_secs(2 * 3600);

/// Runs all attacks, or those whose names contain one of `words`.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let complete = packages::install()?;
    let servers = if complete { "1" } else { "0" };
    let form = [("TIDEGATE_ATTACK", "long"), ("TIDEGATE_REQUIRE_SERVERS", servers)];
    let attack = ["test", "--package", "tidegate-cli", "--test", "all", "--", "--nocapture"];
    let words = if words.is_empty() { &["attack::"] } else { words };
    step::within(LONG, "cargo", &[&attack[..], words].concat(), &form)
}
