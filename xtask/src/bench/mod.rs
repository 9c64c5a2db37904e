//! Measures what the documentation states, and writes it to `docs/performance.md`.

mod checks;
mod machine;
pub(crate) mod replay;
mod start;

use std::fmt::Write as _;

use anyhow::{Context, Result};

use crate::{root, run as run_program};

pub(crate) fn run() -> Result<()> {
    if cfg!(debug_assertions) {
        // What is measured here must be compiled like what users get.
        return run_program(
            "cargo",
            &["run", "--quiet", "--release", "--package", "xtask", "--", "bench"],
            &[],
        );
    }
    run_program("cargo", &["build", "--release"], &[])?;
    let binary = root().join("target/release/tidegate");
    let binary = std::env::var_os("CARGO_TARGET_DIR")
        .map_or(binary, |target| std::path::Path::new(&target).join("release/tidegate"));
    let mut page = String::from(
        "# Performance\n\nMeasured by `cargo xtask bench`, which writes this page; nothing here is typed. Figures of a shared machine\nvary by a tenth from run to run.\n\n",
    );
    writeln!(page, "{}", machine::describe()?)?;
    let machine = machine::name();
    let (checks, replay, started) =
        (checks::measure(&machine)?, replay::measure(&binary, &machine)?, start::measure(&binary, &machine)?);
    for part in [&checks, &replay, &started] {
        writeln!(page, "{}", part.page)?;
    }
    let path = root().join("docs/performance.md");
    std::fs::write(&path, &page).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{page}");
    let readme = root().join("README.md");
    let text = std::fs::read_to_string(&readme)?;
    let (before, rest) = text.split_once(START).context("the README has no place for figures")?;
    let (_, after) = rest.split_once(END).context("the README's place for figures has no end")?;
    let rows = format!("{}\n{}", checks.row, replay.row);
    let table = format!("\n| what | measured | on |\n|---|---|---|\n{rows}\n{}\n", started.row);
    std::fs::write(&readme, format!("{before}{START}{table}{END}{after}"))?;
    Ok(())
}

const START: &str = "<!-- bench -->";
const END: &str = "<!-- /bench -->";

/// One part of the page, and the row of it that the README shows.
pub(crate) struct Measured {
    pub(crate) page: String,
    pub(crate) row: String,
}
