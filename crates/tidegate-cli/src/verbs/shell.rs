//! Generates completion scripts and man pages from the definition of the command line.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use serde_json::json;

use crate::args::Cli;
use crate::exit::Exit;
use crate::output::Printer;

pub(crate) fn completions(shell: clap_complete::Shell, printer: &Printer) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    printer.value(&json!({ "shell": shell.to_string(), "script": script }), |_| Ok(script.clone()))?;
    Ok(Exit::Done)
}

pub(crate) fn man(dir: &Path, printer: &Printer) -> Result<Exit> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    clap_mangen::generate_to(Cli::command(), dir)
        .with_context(|| format!("cannot write to {}", dir.display()))?;
    printer.programs(&json!({ "folder": dir }))?;
    printer.remark(&format!("wrote man pages to {}", dir.display()));
    Ok(Exit::Done)
}
