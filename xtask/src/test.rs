//! Every check CI runs, cheapest first.

use anyhow::Result;

use crate::{counts, packages};

pub(crate) fn run() -> Result<()> {
    let complete = packages::install()?;
    let servers = [("TIDEGATE_REQUIRE_SERVERS", if complete { "1" } else { "0" })];
    let cargo =
        |arguments: &[&str], environment: &[(&str, &str)]| crate::run("cargo", arguments, environment);
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"], &[])?;
    // The library alone, without the features that the rest of the workspace switches on for it.
    cargo(&["check", "-p", "tidegate", "--no-default-features"], &[])?;
    counts::run(&[])?;
    cargo(&["test", "--workspace", "--all-features"], &servers)?;
    cargo(&["doc", "--workspace", "--all-features", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])
}
