//! The verbs. Those that only write a text are here: `init` a commented policy file to start from, or one converted
//! from the files of another rate limiter; `completions` and `man` what describes the command line.

pub(crate) mod bench;
pub(crate) mod changes;
pub(crate) mod config;
pub(crate) mod explain;
pub(crate) mod key;
pub(crate) mod operate;
pub(crate) mod policies;
pub(crate) mod replay;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod stat;
pub(crate) mod suggest;
pub(crate) mod tail;
pub(crate) mod top;

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use serde_json::json;
use tidegate::config::{Format, Preset as PolicyPreset};

use crate::args::{Cli, Init, Preset};
use crate::exit::{Exit, Mistake};
use crate::output::Printer;
use crate::writing;

pub(crate) fn init(init: &Init, printer: &Printer) -> Result<Exit> {
    let format = Format::of(&init.file);
    let text = if init.imports.files().is_empty() {
        let preset = match init.preset {
            Preset::Api => PolicyPreset::Api,
            Preset::Login => PolicyPreset::Login,
            Preset::Outbound => PolicyPreset::Outbound,
            Preset::All => PolicyPreset::All,
        };
        preset.text(format)
    } else if format == Format::Toml {
        return Err(Mistake("a converted file is YAML; let its name end in .yaml".to_owned()).into());
    } else {
        crate::policies::import(&init.imports, printer)?.text
    };
    let path = init.file.display();
    if init.file.as_os_str() == "-" {
        printer.value(&json!({ "file": "-", "text": text }), |_| Ok(text.clone()))?;
        return Ok(Exit::Done);
    }
    if init.force && init.file.symlink_metadata().is_ok() {
        writing::replace(&init.file, &text)?;
    } else {
        writing::create(&init.file, &text).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => anyhow::Error::from(Mistake(format!(
                "{path} is already there; name another file, or overwrite it with --force"
            ))),
            _ => anyhow::Error::from(error).context(format!("cannot write {path}")),
        })?;
    }
    printer.programs(&json!({ "file": init.file }))?;
    printer.remark(&format!("wrote {path}\n  tidegate config check {path}\n  tidegate serve -c {path}"));
    Ok(Exit::Done)
}

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
