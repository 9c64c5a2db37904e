//! Measures what the documentation states.

use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    crate::run("cargo", &["build", "--release"], &[])
}
