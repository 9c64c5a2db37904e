//! Counts the packages that the default program is built of.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::step::root;

/// Asks cargo, which resolves features for this machine: macros and build scripts count, tests and optional features do
/// not.
pub(crate) fn count() -> Result<usize> {
    let arguments = ["tree", "--locked", "-p", "tidegate-cli", "-e", "normal,build", "--prefix", "none"];
    let mut cargo = Command::new("cargo");
    let tree = cargo.args(arguments).arg("--no-dedupe").current_dir(root()).output();
    let tree = tree.context("cannot start cargo")?;
    ensure!(tree.status.success(), "cargo tree: {}", String::from_utf8_lossy(&tree.stderr).trim());
    let tree = String::from_utf8(tree.stdout)?;
    let packages = tree.lines().map(|line| line.trim_end_matches(" (proc-macro)"));
    Ok(packages.filter(|line| !line.is_empty()).collect::<BTreeSet<_>>().len())
}
