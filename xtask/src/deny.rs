//! Checks the dependencies with cargo-deny and `deny.toml`: licences, sources, bans and known vulnerabilities.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::step;
use crate::step::built;

/// The version that `deny.toml` is written for. Building it takes about a minute.
const VERSION: &str = "0.20.2";
const WORKSPACES: [&str; 3] = ["Cargo.toml", "benches/Cargo.toml", "fuzz/Cargo.toml"];
/// The time limit for fetching the database of vulnerabilities, a clone of a few megabytes.
const FETCH: Duration = Duration::from_secs(120);

pub(crate) fn run() -> Result<()> {
    let program = install()?;
    let program = program.to_string_lossy();
    let fetched = step::within(FETCH, &program, &["fetch", "db"], &[]);
    for workspace in WORKSPACES {
        let manifest = ["--manifest-path", workspace, "--config", "deny.toml", "--locked", "check"];
        // If a crate is used in two versions, only the numbers are printed, because each dependency tree fills a page.
        let what = ["--hide-inclusion-graph", "licenses", "sources", "bans"];
        step::run(&program, &[&manifest[..], &what].concat(), &[])?;
        if fetched.is_ok() {
            let known = ["--disable-fetch", "--hide-inclusion-graph", "advisories"];
            step::run(&program, &[&manifest[..], &known].concat(), &[])?;
        }
    }
    if let Err(error) = fetched {
        eprintln!("NOT CHECKED: advisories; their database on GitHub cannot be fetched ({error:#})");
    }
    Ok(())
}

fn install() -> Result<PathBuf> {
    let version = |program: &Path| {
        let asked = Command::new(program).arg("--version").output();
        asked.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).trim().ends_with(VERSION))
    };
    let everybodys = PathBuf::from("cargo-deny");
    if version(&everybodys) {
        return Ok(everybodys);
    }
    let tools = built("tools");
    let own = tools.join("bin/cargo-deny");
    if !version(&own) {
        let tools = tools.to_string_lossy();
        let how = ["--version", VERSION, "--locked", "--debug", "--force", "--root", &tools];
        let no_debug_info = [("CARGO_PROFILE_DEV_DEBUG", "0")];
        step::run("cargo", &[&["install", "cargo-deny"][..], &how].concat(), &no_debug_info)?;
    }
    Ok(own)
}
