//! Every check CI runs, cheapest first.

use anyhow::Result;

use crate::places::built;
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
    // Checked by clippy, neither linked nor run: so the benches keep in step with the library they measure. They share a folder, for much of
    // what they depend on is the same.
    let benches_built = built("benches");
    let benches_built = [("CARGO_TARGET_DIR", &*benches_built.to_string_lossy())];
    for benches in BENCHES {
        let arguments =
            ["clippy", "--manifest-path", benches, "--locked", "--all-targets", "--", "-D", "warnings"];
        cargo(&arguments, &benches_built)?;
    }
    deny::run()?;
    // The library alone, without the features that the rest of the workspace switches on for it.
    cargo(
        &["check", "--profile", "test", "-p", "tidegate-core", "-p", "tidegate", "--no-default-features"],
        &[],
    )?;
    counts::run(&[])?;
    cargo(&["test", "--workspace", "--all-features"], &servers)?;
    // Loom explores all interleavings of the shared cells. This is another build of the library, whose atomics are loom's.
    let models = built("loom");
    let models = models.to_string_lossy();
    let loom = [("RUSTFLAGS", "--cfg tidegate_loom"), ("CARGO_TARGET_DIR", &*models)];
    cargo(&["test", "-p", "tidegate", "--lib", "--release", "loom"], &loom)?;
    // With the profile that clippy had, so that dependencies are not checked once more.
    let arguments = ["doc", "--profile", "test", "--workspace", "--all-features", "--no-deps"];
    cargo(&arguments, &[("RUSTDOCFLAGS", "-D warnings")])
}
