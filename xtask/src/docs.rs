//! Files made from the program, so that they cannot drift from it.

use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    crate::step::run("cargo", &["run", "--quiet", "--release", "--", "man", "docs/man"], &[])
}
