//! Measures the figures in the documentation, and writes them: all to `lab/results/bench.tsv`, in short to
//! `docs/figures.md` and the README.

mod bars;
mod found;
pub(crate) mod publish;
pub(crate) mod replay;
mod start;
mod tables;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::step;
use crate::step::{built, root};
use found::{Contender, Found};
use publish::Measured;

/// The workloads of the contenders, each with the largest useful number of rounds: a flood takes seconds, and its
/// figures differ little between rounds.
const WORKLOADS: [(&str, usize); 11] = [
    ("clock", usize::MAX),
    ("one", usize::MAX),
    ("keyed", usize::MAX),
    ("refused", usize::MAX),
    ("protection", usize::MAX),
    ("flood", 3),
    ("expire", 3),
    ("disk", 3),
    ("store", usize::MAX),
    ("gate", usize::MAX),
    ("growth", 3),
];

/// The part that starts a Redis server of its own. Only measured on request, and only printed: its figures are written
/// into docs/figures.md by hand.
const REDIS: &str = "redis";

/// The part that drives all protocols of the server from a core of its own, beside other servers. Only measured on
/// request, and only printed, as with Redis.
const DOORS: &str = "doors";

/// Runs a bench of engines with the profile of the program that it measures; its manifest follows.
const BESIDE: [&str; 5] = ["run", "--quiet", "--profile", "program", "--manifest-path"];

/// The parts that run the program itself.
const PROGRAM: [&str; 2] = ["replay", "start"];

/// The time limit of the whole bench; it usually takes an hour, and several with `--huge`.
const WHOLE: Duration = Duration::from_secs(12 * 3600);

/// The rounds of each contender; `TIDEGATE_BENCH_ROUNDS` overrides it.
const ROUNDS: usize = 5;

pub(crate) fn run(words: &[&str]) -> Result<()> {
    if cfg!(debug_assertions) {
        // The measuring code must be compiled like the program that users get.
        let mut command = vec!["run", "--quiet", "--release", "--package", "xtask", "--", "bench"];
        command.extend(words);
        return step::within(WHOLE, "cargo", &command, &[]);
    }
    let (options, parts): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with("--"));
    if parts == [REDIS] {
        println!("{}", publish::describe_machine()?);
        return step::within(WHOLE, "cargo", &[&BESIDE[..], &["benches/redis/Cargo.toml"]].concat(), &[]);
    }
    if parts.first() == Some(&DOORS) {
        let program = program()?;
        let program = program.to_str().context("the path of the program is no text")?;
        println!("{}", publish::describe_machine()?);
        let mut command = [&BESIDE[..], &["benches/doors/Cargo.toml", "--", program]].concat();
        command.extend(&parts[1..]);
        return step::within(WHOLE, "cargo", &command, &[]);
    }
    let known = |part: &str| PROGRAM.contains(&part) || WORKLOADS.iter().any(|(name, _)| *name == part);
    if let Some(part) = parts.iter().find(|part| !known(part)) {
        bail!("there is nothing to measure called `{part}` here; `redis` and `doors` are measured alone");
    }
    if let Some(option) = options.iter().find(|option| **option != "--huge") {
        bail!("there is no option `{option}`");
    }
    let asked = |part: &str| parts.is_empty() || parts.contains(&part);
    let (mut page, mut short, mut rows, mut bars) = (String::new(), String::new(), Vec::new(), Vec::new());
    let mut take = |part: Measured| {
        for (text, of_part) in [(&mut page, part.page), (&mut short, part.short)] {
            *text += of_part.trim_end();
            *text += "\n\n";
        }
        rows.extend(part.row);
        bars.extend(part.bars);
    };
    if WORKLOADS.iter().any(|(workload, _)| asked(workload)) {
        take(contenders(asked, options.contains(&"--huge"))?);
    }
    let machine = publish::machine_name();
    if PROGRAM.into_iter().any(asked) {
        let binary = program()?;
        if asked("replay") {
            take(replay::measure(&binary, &machine)?);
        }
        if asked("start") {
            take(start::measure(&binary, &machine)?);
        }
    }
    let (table, machine) = (bars::table(&bars)?, publish::describe_machine()?);
    let page = format!("{METHOD}{machine}\n{table}\n{}", page.trim_end());
    println!("{page}");
    if parts.is_empty() {
        let short = format!("{machine}\n{short}{}", bars::missed(&bars)?);
        publish::publish(&page, &short, &rows)
    } else {
        Ok(())
    }
}

const METHOD: &str = "\
## How it was measured

What a decision costs in time and memory, beside the peers in the same run. \"x\" says how many times as fast one contender is as another: above 1 is
faster.

* Each contender has its own process, and the processes take turns. Figures are medians of the rounds, with the smallest and the largest in brackets.
* One thread is measured by its CPU time; two threads, each on its own core, by elapsed time.
* Figures marked with \\* were never measured with both cores undisturbed: another process was running, or the limiter itself puts threads to sleep.
* In the tables, the best peer is the fastest one that does the whole job, including tuned peers. In the bars, tuned peers count only where that is
  said. Peers that are not tuned have the settings that their documentation shows first.

";

/// Runs the contenders in turn.
fn contenders(asked: impl Fn(&str) -> bool, huge: bool) -> Result<Measured> {
    let rounds = match std::env::var("TIDEGATE_BENCH_ROUNDS") {
        Ok(rounds) => rounds.parse().context("TIDEGATE_BENCH_ROUNDS is not a number")?,
        Err(_) => ROUNDS,
    };
    let ring = Ring::build()?;
    let mut found = Found::new(ring.contenders.clone());
    let mut page = String::new();
    for (workload, most) in WORKLOADS.into_iter().filter(|(workload, _)| asked(workload)) {
        ring.run(workload, rounds.min(most), huge && workload == "growth", &mut found)?;
        page += &tables::of(workload, &found)?;
    }
    if !found.failed.is_empty() {
        page += "## Failures\n\nRounds in which a contender did not decide as its limit says; the tables above leave them out:\n\n";
        for reason in &found.failed {
            writeln!(page, "* {reason}")?;
        }
        page += "\n";
    }
    let mut bars = bars::all(&found, &asked);
    if asked("disk") {
        bars.extend(bars::disk_bars(&found));
    }
    Ok(Measured { page, short: tables::short(&found)?, row: row(&found), bars })
}

/// Returns the row of the README: the cost of a check.
fn row(found: &Found) -> Option<String> {
    let ours = |workload, figure| found.median(workload, found.ours(workload)?, figure);
    Some(format!(
        "| a check: one limiter; one of a million keys (zipf; uniform); a gate with one matching policy of 1,000 | {:.0} ns; {:.0} ns; {:.0} ns; {:.0} ns | {} |",
        ours("one", "permitted")?,
        ours("keyed", "zipf")?,
        ours("keyed", "uniform")?,
        ours("gate", "policies 1000")?,
        publish::machine_name(),
    ))
}

/// Builds the program and returns its path.
fn program() -> Result<PathBuf> {
    step::run("cargo", &["build", "--release"], &[])?;
    Ok(built("release/tidegate"))
}

// Runs the contenders of `benches/`, each run in a process of its own, one after the other and round after round.
//
// They take turns, so that a machine that is slower for a minute slows every contender.

/// The program that runs the contenders, and the contenders that it has.
#[derive(Debug)]
pub(crate) struct Ring {
    program: PathBuf,
    pub(crate) contenders: Vec<Contender>,
}

impl Ring {
    /// Builds the contenders with the profile that users use.
    pub(crate) fn build() -> Result<Self> {
        let manifest = root().join("benches/Cargo.toml");
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root().join("benches/target"), |target| PathBuf::from(target).join("benches"));
        let (manifest, folder) = (manifest.to_string_lossy(), target.to_string_lossy());
        step::run(
            "cargo",
            &["build", "--release", "--manifest-path", &manifest, "--target-dir", &folder],
            &[],
        )?;
        let program = target.join("release/contender");
        let list = Command::new(&program).arg("list").output()?;
        let list = String::from_utf8(list.stdout)?;
        let contenders = list.lines().map(Contender::read).collect::<Result<_>>()?;
        Ok(Self { program, contenders })
    }

    /// Runs every contender of a workload, `rounds` times in turn.
    ///
    /// A contender that fails is left out of that round and named in the results; the others stay comparable.
    pub(crate) fn run(&self, workload: &str, rounds: usize, huge: bool, found: &mut Found) -> Result<()> {
        for round in 1..=rounds {
            for contender in self.contenders.iter().filter(|contender| contender.workload == workload) {
                eprintln!("{workload} {round}/{rounds}: {}", contender.title);
                let mut command = Command::new(&self.program);
                command.args([workload, &contender.name]).args(huge.then_some("--huge"));
                let output = command.output()?;
                if output.status.success() {
                    found.add(&serde_json::from_slice(&output.stdout)?)?;
                } else {
                    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    eprintln!("{reason}");
                    found.failed(reason);
                }
            }
        }
        Ok(())
    }
}
