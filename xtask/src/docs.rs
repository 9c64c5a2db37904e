//! Generates the files that are made from the program, so that they cannot become outdated.

use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    crate::step::run("cargo", &["run", "--quiet", "--release", "--", "man", "docs/man"], &[])
}
