//! Runs every check of CI, cheapest first; and those that need not run at every change.

use std::time::Duration;

use anyhow::Result;

use crate::programs::{LINTED, Programs};
use crate::step::{self, built};
use crate::{counts, deny, packages, program, tidy};

const BENCHES: &str = "benches/Cargo.toml";

pub(crate) fn run() -> Result<()> {
    tidy::run(&[])?;
    let complete = packages::install()?;
    let cargo = |arguments: &[&str], environment: &[(&str, &str)]| step::run("cargo", arguments, environment);
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["fmt", "--all", "--manifest-path", BENCHES, "--check"], &[])?;
    // One pass of the compiler for the lints and for the programs.
    let programs = Programs::build()?;
    // The library alone, without the features that the rest of the workspace enables, and the program of the README.
    let alone =
        ["check", "--profile", "test", "-p", "tidegate-core", "-p", "tidegate", "--no-default-features"];
    cargo(&[&alone[..], &["--lib", "--examples"]].concat(), &[])?;
    let servers = ("TIDEGATE_REQUIRE_SERVERS", if complete { "1" } else { "0" });
    programs.run(&[servers])?;
    clients()?;
    cargo(&["test", "--workspace", "--all-features", "--no-fail-fast", "--doc"], &[servers, LINTED])?;
    loom(&[])
}

/// Tests the clients of other languages with the program that the tests were built with.
fn clients() -> Result<()> {
    let program = built("debug/tidegate");
    let tools = packages::environment().unwrap_or_default().join("bin");
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    let environment = [("TIDEGATE", &*program.to_string_lossy()), ("PATH", &path)];
    ["clients/python/test", "clients/typescript/test"].iter().try_for_each(|test| {
        // Without Node, or beyond the reach of a registry, they cannot run: `packages::install` has said so.
        match tools.join("npm").exists() {
            true => step::run(&format!("./{test}"), &[], &environment),
            false => {
                eprintln!("{test} is skipped");
                Ok(())
            }
        }
    })
}

/// Runs the checks that CI leaves out because few changes can break them: each needs a build of its own.
pub(crate) fn nightly() -> Result<()> {
    packages::install()?;
    // Clippy checks the benches, without linking or running them, so that they stay compatible with the library.
    let benches_built = built("benches");
    let benches_built = [("CARGO_TARGET_DIR", &*benches_built.to_string_lossy())];
    let arguments = [
        ["clippy", "--manifest-path", BENCHES, "--locked", "--workspace"].as_slice(),
        &["--all-targets", "--", "-D", "warnings"],
    ];
    step::run("cargo", &arguments.concat(), &benches_built)?;
    let arguments = ["doc", "--workspace", "--all-features", "--no-deps"];
    step::run("cargo", &arguments, &[("RUSTDOCFLAGS", "-D warnings")])?;
    // Each feature by itself: the workspace's other crates enable what one of them may have forgotten to ask for.
    for feature in ["cel", "config", "http", "ticket", "tokio", "tz"] {
        let alone = ["check", "-p", "tidegate", "--lib", "--no-default-features", "--features", feature];
        step::run("cargo", &alone, &[])?;
    }
    deny::run()?;
    counts::run(&[])?;
    program::run(&[])?;
    loom(&[("TIDEGATE_LOOM", "long")])
}

/// Explores all interleavings of the shared cells. This needs another build of the library, with loom's atomics.
fn loom(form: &[(&str, &str)]) -> Result<()> {
    let models = built("loom");
    let models = models.to_string_lossy();
    // Optimised less than a release: the models run half a minute either way, and are built much sooner.
    let loom = [
        ("RUSTFLAGS", "--cfg tidegate_loom"),
        ("CARGO_TARGET_DIR", &*models),
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ];
    step::run(
        "cargo",
        &["test", "-p", "tidegate-limits", "-p", "tidegate-gate", "--lib", "--release", "loom"],
        &[&loom[..], form].concat(),
    )
}

// The attack suite in its long form. `cargo xtask test` runs the same attacks in their short form.

/// The time limit of all attacks together in their long form.
const LONG: Duration = Duration::from_secs(2 * 3600);

/// Runs all attacks, or those whose names contain one of `words`.
pub(crate) fn attack(words: &[&str]) -> Result<()> {
    let complete = packages::install()?;
    let servers = if complete { "1" } else { "0" };
    let form = [("TIDEGATE_ATTACK", "long"), ("TIDEGATE_REQUIRE_SERVERS", servers)];
    let attack = ["test", "--package", "tidegate-cli", "--test", "all", "--", "--nocapture"];
    let words = if words.is_empty() { &["attack::"] } else { words };
    step::within(LONG, "cargo", &[&attack[..], words].concat(), &form)
}

// Generates the files, and the tables of the manual, that are made from the program, so that they cannot become
// outdated.

const TABLES: &str = "the_manual_has";

pub(crate) fn docs() -> Result<()> {
    step::run("cargo", &["run", "--quiet", "--release", "--", "man", "docs/man"], &[])?;
    // The tests with which CI finds an outdated table write it too.
    let packages =
        ["test", "-p", "tidegate-config", "-p", "tidegate-server", "-p", "tidegate-cli", "--all-features"];
    step::run("cargo", &[&packages[..], &["--lib", "--bins", TABLES]].concat(), &[("TABLES", "overwrite")])
}
