//! Writes a commented policy file to start from.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};

use anyhow::{Context as _, Result};
use serde_json::json;
use tidegate::policy;

use crate::args::{Init, Preset};
use crate::exit::{Exit, Mistake};
use crate::output::Printer;

pub(crate) fn run(init: &Init, printer: &Printer) -> Result<Exit> {
    let text = match init.preset {
        Preset::Api => policy::Preset::Api,
        Preset::Login => policy::Preset::Login,
        Preset::Outbound => policy::Preset::Outbound,
        Preset::All => policy::Preset::All,
    }
    .text();
    let path = init.file.display();
    if init.file.as_os_str() == "-" {
        printer.value(&json!({ "file": "-", "text": text }), |_| Ok(text.clone()))?;
        return Ok(Exit::Done);
    }
    let mut options = OpenOptions::new();
    options.write(true).truncate(true).create(init.force).create_new(!init.force);
    let mut file = match options.open(&init.file) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(Mistake(format!(
                "{path} is already there; name another file, or overwrite it with --force"
            ))
            .into());
        }
        opened => opened.with_context(|| format!("cannot write {path}"))?,
    };
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {path}"))?;
    printer.programs(&json!({ "file": init.file }))?;
    printer.remark(&format!("wrote {path}\n  tidegate config check {path}\n  tidegate serve -c {path}"));
    Ok(Exit::Done)
}
