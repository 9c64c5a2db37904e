//! Every check CI runs, cheapest first.

use anyhow::Result;

use crate::places::root;
use crate::{counts, deny, packages, step, tidy};

/// The benches with peers and with engines: workspaces of their own.
const BENCHES: [&str; 3] = ["benches/Cargo.toml", "benches/redis/Cargo.toml", "benches/doors/Cargo.toml"];

pub(crate) fn run() -> Result<()> {
    tidy::run(&[])?;
    let complete = packages::install()?;
    let servers = [("TIDEGATE_REQUIRE_SERVERS", if complete { "1" } else { "0" })];
    let cargo = |arguments: &[&str], environment: &[(&str, &str)]| step::run("cargo", arguments, environment);
    cargo(&["fmt", "--all", "--check"], &[])?;
    for benches in BENCHES {
        cargo(&["fmt", "--manifest-path", benches, "--check"], &[])?;
    }
    // With the profile of the tests, which come next: so macros are built once.
    let arguments = [
        ["clippy", "--profile", "test", "--workspace", "--all-targets"].as_slice(),
        &["--all-features", "--", "-D", "warnings"],
    ];
    cargo(&arguments.concat(), &[])?;
    // Checked by clippy, neither linked nor run: half a minute keeps the benches in step with the library they measure.
    for benches in BENCHES {
        let arguments =
            ["clippy", "--manifest-path", benches, "--locked", "--all-targets", "--", "-D", "warnings"];
        cargo(&arguments, &[])?;
    }
    deny::run()?;
    // The library alone, without the features that the rest of the workspace switches on for it.
    cargo(&["check", "-p", "tidegate-core", "-p", "tidegate", "--no-default-features"], &[])?;
    counts::run(&[])?;
    cargo(&["test", "--workspace", "--all-features"], &servers)?;
    // Loom explores all interleavings of the shared cells. This is another build of the library, whose atomics are loom's.
    let models = root().join("target/loom");
    let models = models.to_string_lossy();
    let loom = [("RUSTFLAGS", "--cfg tidegate_loom"), ("CARGO_TARGET_DIR", &*models)];
    cargo(&["test", "-p", "tidegate", "--lib", "--release", "loom"], &loom)?;
    cargo(&["doc", "--workspace", "--all-features", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])
}
