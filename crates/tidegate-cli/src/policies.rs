//! Reads policy files, with patience and with the mistakes shown.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::Result;
use tidegate::config::{Config, Diagnostic, Format, Imported, MAX_BYTES, Peer, read_text, report};
use tidegate::visible;

use crate::args::{Imports, PolicyFile};
use crate::diagnostics::{self, Source};
use crate::exit::Told;
use crate::output::Printer;

/// The file looked for when none is named.
pub(crate) const DEFAULT_FILE: &str = "tidegate.yaml";

/// Returns the file that was named, or the usual one if it is there.
pub(crate) fn file(named: &PolicyFile) -> Option<PathBuf> {
    named.config.clone().or_else(|| {
        let usual = PathBuf::from(DEFAULT_FILE);
        usual.exists().then_some(usual)
    })
}

/// The longest wait for a file that is read whole: far longer than a disk takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads a file by a function that may never return, as on a file system that does not answer: on a thread of its own, which
/// is left behind then.
///
/// # Errors
/// When it takes longer than 10 s.
pub(crate) fn patiently<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce(&Path) -> T + Send + 'static,
) -> Result<T> {
    let (tell, told) = sync_channel(1);
    let own = path.to_owned();
    std::thread::Builder::new().spawn(move || drop(tell.send(read(&own))))?;
    told.recv_timeout(PATIENCE).map_err(|error| {
        let (name, most) = (path.display(), PATIENCE.as_secs());
        match error {
            RecvTimeoutError::Timeout => {
                anyhow::anyhow!("{name}: reading it takes longer than {most} s and was given up")
            }
            RecvTimeoutError::Disconnected => anyhow::anyhow!("{name}: reading it failed by a panic"),
        }
    })
}

/// What reading a policy file comes to: the configuration with its warnings, or its mistakes.
type Outcome = Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>>;

/// A policy file that was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) outcome: Outcome,
    /// The text, to show the lines that mistakes are in.
    pub(crate) source: Source,
}

/// Reads a policy file. The wait is for the file alone: what it takes to understand a text is bounded by the text's own bounds, and a busy
/// machine may take its time.
///
/// # Errors
/// When reading it takes longer than 10 s.
pub(crate) fn load(path: &Path) -> Result<Loaded> {
    let name = path.display().to_string();
    // Of a file that cannot be read, why; or what is in it by now.
    let text =
        patiently(path, |path| read_text(path, MAX_BYTES as u64).map_err(|_| Box::new(Config::read(path))))?;
    Ok(match text {
        Ok(text) => {
            let outcome = Config::parse(&text, &name, Format::of(path));
            Loaded { outcome, source: (name, Some(text)) }
        }
        Err(outcome) => Loaded { outcome: *outcome, source: (name, None) },
    })
}

/// Reads a policy file; warnings are remarks, mistakes are printed and end the verb.
pub(crate) fn read(path: &Path, printer: &Printer) -> Result<Config> {
    accept(load(path)?, printer)
}

/// Reads files of other rate limiters, at least one; notes are remarks, mistakes are printed and end the verb.
///
/// # Errors
/// [`Told`], or when reading takes longer than 10 s.
pub(crate) fn import(imports: &Imports, printer: &Printer) -> Result<Imported> {
    let files = imports.files();
    let first = files.first().map(|(_, file)| file.clone()).unwrap_or_default();
    match patiently(&first, move |_| imported(&files))? {
        Ok(imported) => {
            imported.notes.iter().for_each(|note| printer.remark(&note.to_string()));
            Ok(imported)
        }
        Err(mistakes) => {
            printer.say(&visible::lines(&report(&mistakes)));
            Err(Told.into())
        }
    }
}

/// Reads files of other rate limiters.
///
/// # Errors
/// Their mistakes.
pub(crate) fn imported(files: &[(Peer, PathBuf)]) -> Result<Imported, Vec<Diagnostic>> {
    let files: Vec<_> = files.iter().map(|(peer, file)| (*peer, file.as_path())).collect();
    Imported::read(&files)
}

/// Reads a policy file from text, in the words of YAML.
pub(crate) fn parse(text: &str, name: &str, printer: &Printer) -> Result<Config> {
    let source = (name.to_owned(), Some(text.to_owned()));
    accept(Loaded { outcome: Config::parse(text, name, Format::Yaml), source }, printer)
}

/// Takes a file that is right; prints the mistakes of another.
///
/// # Errors
/// [`Told`].
pub(crate) fn accept(loaded: Loaded, printer: &Printer) -> Result<Config> {
    match loaded.outcome {
        Ok((config, warnings)) => {
            let is_shown = printer.remarks() && !warnings.is_empty();
            if is_shown && printer.shows_lines(&std::io::stderr()) {
                printer.say(&diagnostics::with_lines(&warnings, &[loaded.source]));
            } else {
                warnings.iter().for_each(|warning| printer.remark(&warning.to_string()));
            }
            Ok(config)
        }
        Err(mistakes) => {
            let lines = report(&mistakes);
            if printer.shows_lines(&std::io::stderr()) {
                let shown = diagnostics::with_lines(&mistakes, &[loaded.source]);
                printer.say(&format!("{shown}{}", lines.lines().last().unwrap_or_default()));
            } else {
                printer.say(&visible::lines(&lines));
            }
            Err(Told.into())
        }
    }
}
