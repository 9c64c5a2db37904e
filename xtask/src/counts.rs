//! Counts the instructions of each hot path with valgrind, and compares them with the recorded counts.
//!
//! Times on a shared machine prove nothing; a count of instructions is the same on every run and machine, so CI can
//! refuse a change that makes a check longer. It shows neither cache misses nor contention: `cargo xtask bench` does.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::step;
use crate::step::{built, root};

/// The tolerance, up or down: a share, plus some instructions for the shortest paths. A new seed on each run moves a
/// mean by half a percent. A gain beyond it has to be recorded, or it could hide a later loss.
const SHARE: f64 = 0.05;
const INSTRUCTIONS: f64 = 2.0;

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let record = match words {
        [] => false,
        ["--record"] => true,
        _ => bail!("counts has no option but --record"),
    };
    if Command::new("valgrind").arg("--version").output().is_err() {
        ensure!(!record, "valgrind is not installed: nothing to record");
        eprintln!("\nvalgrind is not installed: instructions are NOT counted");
        return Ok(());
    }
    let counted = Counts { compiler: compiler()?, paths: count()? };
    if record {
        std::fs::write(file(), counted.to_string())?;
        print!("{counted}");
        return Ok(());
    }
    let text =
        std::fs::read_to_string(file()).with_context(|| format!("cannot read {}", file().display()))?;
    let recorded = Counts::parse(&text)?;
    let (table, same) = compare(&recorded, &counted);
    print!("{table}");
    if recorded.compiler != counted.compiler {
        eprintln!(
            "recorded with {}, counted with {}: not comparable, so nothing fails",
            recorded.compiler, counted.compiler
        );
        return Ok(());
    }
    ensure!(
        same,
        "the instruction counts differ from the record; if that is intended, give the reason in the commit and run \
         `cargo xtask counts --record`"
    );
    Ok(())
}

fn file() -> PathBuf {
    root().join("benches/counts/recorded.txt")
}

/// Returns the compiler and the target; valgrind simulates the same processor everywhere.
pub(crate) fn compiler() -> Result<String> {
    let output =
        Command::new("rustc").arg("-vV").current_dir(root()).output().context("cannot start rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let name = text.lines().next().context("rustc says nothing")?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    Ok(format!("{name}, {host}"))
}

fn count() -> Result<Vec<(String, f64)>> {
    let build = ["build", "--quiet", "--profile", "counts", "--package", "tidegate-counts"];
    step::run("cargo", &build, &[("RUSTFLAGS", "")])?;
    let folder = tempfile::tempdir()?;
    let profile = folder.path().join("profile");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--toggle-collect=tidegate_counts::counted::collected*"])
        .arg("--dump-after=tidegate_counts::counted::profiled*")
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(built("counts/tidegate-counts"));
    let output = step::output(command)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout)?;
    let path = |(at, line): (usize, &str)| {
        let (checks, name) = line.split_once(' ').context("a path without a name")?;
        // Profiles are numbered from 1. Each path has two: one of a number of checks, and one of twice as many.
        let [once, twice] = [2 * at + 1, 2 * at + 2].map(|number| total(&profile, number));
        let checks: f64 = checks.parse()?;
        Ok((name.to_owned(), (twice? - once?) / checks))
    };
    lines.lines().enumerate().map(path).collect()
}

fn total(profile: &Path, number: usize) -> Result<f64> {
    let profile = profile.with_extension(number.to_string());
    let text =
        std::fs::read_to_string(&profile).context("callgrind wrote fewer profiles than there were runs")?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("totals: ")).context("a profile without totals")?;
    let total: f64 = total.trim().parse()?;
    ensure!(total > 0.0, "callgrind collected nothing: was a function inlined that must not be?");
    Ok(total)
}

#[derive(Debug, PartialEq)]
struct Counts {
    compiler: String,
    paths: Vec<(String, f64)>,
}

impl Counts {
    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let compiler = lines.next().context("the record is empty")?.to_owned();
        let path = |line: &str| -> Result<(String, f64)> {
            let (name, count) = line.rsplit_once(' ').context("a line without a count")?;
            Ok((name.trim_end().to_owned(), count.parse()?))
        };
        let paths =
            lines.map(|line| path(line).with_context(|| format!("`{line}`"))).collect::<Result<_>>()?;
        Ok(Self { compiler, paths })
    }

    fn of(&self, path: &str) -> Option<f64> {
        self.paths.iter().find_map(|(name, count)| (name == path).then_some(*count))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Instructions of one check. Written by `cargo xtask counts --record`.")?;
        writeln!(f, "{}", self.compiler)?;
        self.paths.iter().try_for_each(|(name, count)| writeln!(f, "{name:<36} {count:>9.1}"))
    }
}

/// Returns a table of recorded and new counts, and whether all agree within the tolerance.
fn compare(recorded: &Counts, counted: &Counts) -> (String, bool) {
    let (mut table, mut same) =
        (format!("{:<36} {:>9} {:>9}\n", "instructions of a check", "recorded", "now"), true);
    for (name, now) in &counted.paths {
        let verdict = match recorded.of(name) {
            Some(before) if (now - before).abs() <= before * SHARE + INSTRUCTIONS => None,
            Some(before) if *now > before => Some("more"),
            Some(_) => Some("less"),
            None => Some("not recorded"),
        };
        same &= verdict.is_none();
        let before = recorded.of(name).map_or_else(|| "-".to_owned(), |before| format!("{before:.1}"));
        table += format!("{name:<36} {before:>9} {now:>9.1}  {}", verdict.unwrap_or("")).trim_end();
        table += "\n";
    }
    for (name, before) in recorded.paths.iter().filter(|(name, _)| counted.of(name).is_none()) {
        same = false;
        table += &format!("{name:<36} {before:>9.1} {:>9}  not counted any more\n", "-");
    }
    (table, same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(paths: &[(&str, f64)]) -> Counts {
        let paths = paths.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Counts { compiler: "rustc 1.95.0, here".to_owned(), paths }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let written = counts(&[("one shared permitted", 121.0), ("gate 16 matching of 1000", 77_049.6)]);
        assert_eq!(Counts::parse(&written.to_string()).unwrap(), written);
    }

    #[test]
    fn a_gain_a_loss_and_a_path_without_its_pair_all_differ() {
        let recorded = counts(&[("a", 100.0)]);
        for (now, same) in [(93.0, true), (92.9, false), (107.0, true), (107.1, false)] {
            assert_eq!(compare(&recorded, &counts(&[("a", now)])).1, same, "{now}");
        }
        assert!(!compare(&recorded, &counts(&[("a", 100.0), ("b", 1.0)])).1);
        assert!(!compare(&recorded, &counts(&[])).1);
    }
}
