//! Generates the files, and the tables of the manual, that are made from the program, so that they cannot become
//! outdated.

use anyhow::Result;

use crate::step;

/// The beginning of the names of the tests that compare the manual's tables with the program.
const TABLES: &str = "the_manual_has";

pub(crate) fn run() -> Result<()> {
    step::run("cargo", &["run", "--quiet", "--release", "--", "man", "docs/man"], &[])?;
    // The tests with which CI finds an outdated table write it too.
    let packages =
        ["test", "-p", "tidegate", "-p", "tidegate-server", "-p", "tidegate-cli", "--all-features"];
    step::run("cargo", &[&packages[..], &["--lib", "--bins", TABLES]].concat(), &[("TABLES", "overwrite")])
}
