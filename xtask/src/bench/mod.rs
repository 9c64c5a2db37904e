//! Measures what the documentation states, and writes it to `docs/performance.md`.

mod machine;
mod replay;
mod start;

use std::fmt::Write as _;

use anyhow::{Context, Result};

use crate::{root, run as run_program};

pub(crate) fn run() -> Result<()> {
    run_program("cargo", &["build", "--release"], &[])?;
    let binary = root().join("target/release/tidegate");
    let binary = std::env::var_os("CARGO_TARGET_DIR")
        .map_or(binary, |target| std::path::Path::new(&target).join("release/tidegate"));
    let mut page = String::from(
        "# Performance\n\nMeasured by `cargo xtask bench`, which writes this page; nothing here is typed. Figures of a shared machine\nvary by a tenth from run to run.\n\n",
    );
    writeln!(page, "{}", machine::describe()?)?;
    writeln!(page, "{}", replay::measure(&binary)?)?;
    writeln!(page, "{}", start::measure(&binary)?)?;
    let path = root().join("docs/performance.md");
    std::fs::write(&path, &page).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{page}");
    Ok(())
}
