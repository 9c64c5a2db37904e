//! The attack suite in its long form. `cargo xtask test` runs the same attacks in their short form.

use anyhow::Result;

use crate::packages;

/// Runs all attacks, or those whose names contain one of the words.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let complete = packages::install()?;
    let servers = if complete { "1" } else { "0" };
    let form = [("TIDEGATE_ATTACK", "long"), ("TIDEGATE_REQUIRE_SERVERS", servers)];
    let attack = ["test", "--package", "tidegate-cli", "--test", "attack", "--", "--nocapture"];
    crate::run("cargo", &[&attack[..], words].concat(), &form)
}
