//! Compares the size of the released program, and the processor seconds of its build, with their record.
//!
//! Both are what a feature or a library costs everybody. They may not rise without a reason beside the figure, in
//! `xtask/program.toml`. The packages of the program are counted by `cargo xtask tidy`, without a build.
//!
//! The program that tests run is not measured: it has all features, and its libraries are optimised little or not at all
//! so that it is built soon. It shrinks and grows with those settings, whatever users get.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use crate::bench::publish::machine_name;
use crate::counts::compiler;
use crate::step::{self, built, root};
use crate::tidy::ratchets::Record;

const FILE: &str = "xtask/program.toml";

/// A figure and its tolerance, a share up or down. The same source makes a program of nearly the same size; the seconds
/// depend on what else the machine does.
const FIGURES: [(&str, f64); 2] = [(SIZE, 0.01), (SECONDS, 0.15)];
const SIZE: &str = "size";
const SECONDS: &str = "seconds";

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let is_recording = match words {
        [] => false,
        ["--record"] => true,
        _ => bail!("program has no option but --record"),
    };
    let file = root().join(FILE);
    let text = if file.exists() { std::fs::read_to_string(&file)? } else { String::new() };
    ensure!(is_recording || !text.is_empty(), "there is no {FILE}: `cargo xtask program --record` writes it");
    let now = Measured::now()?;
    if is_recording && !now.is_of_the_same_place(&text) {
        std::fs::write(&file, now.record())?;
        print!("{}", now.record());
        return Ok(());
    }
    let compared = now.compare(&text)?;
    print!("{}", compared.table);
    if is_recording && !compared.fell.is_empty() {
        let record = read(&text)?;
        std::fs::write(&file, record.lowered(&compared.fell).0)?;
    }
    ensure!(
        !compared.rose,
        "the program costs more than its record; make it smaller elsewhere, or write the figure into {FILE} with its \
         reason: `size = 12  # reason`"
    );
    Ok(())
}

fn read(text: &str) -> Result<Record<'_>> {
    Record::read(text).map_err(|(line, what)| anyhow!("{FILE}:{line}: {what}"))
}

/// Returns what a comment of the record says: `# Compiler: rustc 1.95.0`.
fn said<'t>(text: &'t str, of: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix("# ")?.strip_prefix(of)?.strip_prefix(": "))
}

#[derive(Debug)]
struct Measured {
    compiler: String,
    machine: String,
    figures: BTreeMap<String, usize>,
}

/// A table for people, whether a figure rose, and those that fell.
#[derive(Debug, Default)]
struct Compared {
    table: String,
    rose: bool,
    fell: BTreeMap<String, usize>,
}

impl Measured {
    /// Builds the program from nothing, in a folder of its own: what a build finds there costs no seconds.
    fn now() -> Result<Self> {
        let folder = built("program");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let before = milliseconds_of_children()?;
        let target = folder.to_string_lossy();
        let environment = [("CARGO_TARGET_DIR", &*target), ("RUSTFLAGS", ""), ("RUSTC_WRAPPER", "")];
        step::run("cargo", &["build", "--release", "--locked", "-p", "tidegate-cli"], &environment)?;
        let took = milliseconds_of_children()? - before;
        let size =
            std::fs::metadata(folder.join("release/tidegate")).context("cargo built no program")?.len();
        let figures = [(SIZE, usize::try_from(size)?), (SECONDS, usize::try_from(took / 1_000)?)];
        Ok(Self {
            compiler: compiler()?,
            machine: machine_name(),
            figures: figures.map(|(name, figure)| (name.to_owned(), figure)).into(),
        })
    }

    fn record(&self) -> String {
        let mut text = format!(
            "# What the released program costs: its size in bytes, and the processor seconds of its build from nothing. \
             `cargo xtask program`\n# compares, and with `--record` lowers what fell. To raise one, change it by hand, with \
             the reason: `size = 12  # reason`.\n# Compiler: {}\n# Machine: {}\n\n",
            self.compiler, self.machine
        );
        for (name, figure) in &self.figures {
            text += &format!("{name} = {figure}\n");
        }
        text
    }

    fn is_of_the_same_place(&self, text: &str) -> bool {
        [SIZE, SECONDS].iter().all(|name| self.is_comparable(text, name))
    }

    /// The size depends on the compiler and the target, the seconds on the machine too.
    fn is_comparable(&self, text: &str, name: &str) -> bool {
        let is_of_compiler = said(text, "Compiler") == Some(self.compiler.as_str());
        is_of_compiler && (name == SIZE || said(text, "Machine") == Some(self.machine.as_str()))
    }

    fn compare(&self, text: &str) -> Result<Compared> {
        let record = read(text)?;
        let mut compared = Compared {
            table: format!("{:<10} {:>12} {:>12}\n", "program", "recorded", "now"),
            ..Compared::default()
        };
        for (name, tolerance) in FIGURES {
            let now = *self.figures.get(name).with_context(|| format!("`{name}` was not measured"))?;
            let (_, most) = record.of(name).with_context(|| format!("{FILE} has no line `{name} = ...`"))?;
            let verdict = if !self.is_comparable(text, name) {
                "recorded with another compiler or on another machine: not comparable"
            } else if now as f64 > most as f64 * (1.0 + tolerance) {
                compared.rose = true;
                "more"
            } else if (now as f64) < most as f64 * (1.0 - tolerance) {
                compared.fell.insert(name.to_owned(), now);
                "less; `cargo xtask program --record` keeps the gain"
            } else {
                ""
            };
            compared.table += format!("{name:<10} {most:>12} {now:>12}  {verdict}").trim_end();
            compared.table += "\n";
        }
        Ok(compared)
    }
}

/// Returns the user and system time of all children that have ended, and of theirs.
fn milliseconds_of_children() -> Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok(usage.user_time().num_milliseconds() + usage.system_time().num_milliseconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(machine: &str, size: usize, seconds: usize) -> Measured {
        let figures = [(SIZE.to_owned(), size), (SECONDS.to_owned(), seconds)].into();
        Measured { compiler: "rustc 1.95.0, here".to_owned(), machine: machine.to_owned(), figures }
    }

    #[test]
    fn a_figure_may_not_rise_beyond_its_tolerance() {
        let record = measured("one", 1_000_000, 300).record();
        for (size, seconds, rose) in
            [(1_009_999, 344, false), (1_010_001, 300, true), (1_000_000, 346, true), (1, 1, false)]
        {
            let compared = measured("one", size, seconds).compare(&record).unwrap();
            assert_eq!(compared.rose, rose, "{}", compared.table);
        }
    }

    #[test]
    fn seconds_of_another_machine_are_not_compared_and_sizes_are() {
        let record = measured("one", 1_000_000, 300).record();
        assert!(!measured("two", 1_000_000, 9_000).compare(&record).unwrap().rose);
        assert!(measured("two", 1_100_000, 300).compare(&record).unwrap().rose);
        assert!(!measured("two", 1_000_000, 300).is_of_the_same_place(&record));
    }

    #[test]
    fn what_fell_is_written_and_keeps_its_reason() {
        let record = measured("one", 1_000_000, 300).record().replace("300", "300  # the new door");
        let compared = measured("one", 900_000, 299).compare(&record).unwrap();
        assert_eq!(compared.fell, BTreeMap::from([(SIZE.to_owned(), 900_000)]));
        let lowered = read(&record).unwrap().lowered(&compared.fell).0;
        assert!(
            lowered.contains("size = 900000\n") && lowered.contains("seconds = 300  # the new door\n"),
            "{lowered}"
        );
    }
}
