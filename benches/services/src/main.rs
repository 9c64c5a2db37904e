//! Judges the default protection on real axum services over HTTP, in real time, beside tower's own layers.
//!
//! ```text
//! cargo run --release --manifest-path benches/Cargo.toml -p tidegate-bench-services
//! cargo run --release --manifest-path benches/Cargo.toml -p tidegate-bench-services -- hang permits
//! ```
//!
//! Takes seven minutes, and writes `lab/results/real-services.tsv`. With words it runs only the rows with one of them in
//! their names, and prints only: hang hang-later below-pool below-blocking pool-double pool-tenfold computing
//! client permits.
//!
//! Callers arrive at random times (a Poisson process, the same for all contenders of a round) at a rate that does not
//! depend on the service. Time counts from the arrival that was planned. A caller waits for one second, then it closes its
//! connection, and the request is lost. Where requests hang and callers do not say how long they wait, they wait for six
//! seconds, so that no caller ends a hang; an answer is in time within one second there too.
//!
//! Each server has two threads of its own, each contender's callers one, all in this process. The contenders of a row
//! take turns; those that need little of the processors run at the same time, each with its own service.

#![allow(clippy::disallowed_methods, reason = "real servers take real time, and are waited for")]

mod figures;
mod load;
mod permits;
mod rows;
mod service;

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, ensure};
use figures::Run;
use load::{Arrival, Manners};
use rows::{Contender, Row};
use service::{Protection, Server};

const ROUNDS: usize = 3;

const COMMAND: &str = "cargo run --release --manifest-path benches/Cargo.toml -p tidegate-bench-services";

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/results/real-services.tsv");

/// The name of the part that counts places.
const PERMITS: &str = "permits";

const ABOUT: &str = "\
# In time: the share of what the capacity allows that was answered within 1 s of its arrival; requests that hang do not count.
# The capacity follows from how long work took in the same run, without waits. Worst second: of those after the first two. P99: of all that were answered.
# Lost: callers who gave up after 1 s, or after 6 s where some hang and no deadline is told. Means of three rounds, and the least.
# none: no protection. tower: LoadShed around a ConcurrencyLimit that all connections share. Tidegate: ServerStack::self_tuning
# without any setting; in a client, ConcurrencyLayer::self_tuning in a ClientStack.
";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let mut rows = rows::all();
    for word in &words {
        let known =
            rows.iter().any(|row| row.name.contains(word.as_str())) || PERMITS.contains(word.as_str());
        ensure!(known, "no row has `{word}` in its name; write one of {}, {PERMITS}", names(&rows));
    }
    rows.retain(|row| wanted(row.name));
    let load = load_average()?;
    let runs = measure(&rows)?;
    let mut text = format!("# {COMMAND}\n# {}\n{ABOUT}", machine(load)?);
    text += &figures::table(&rows, &runs);
    if wanted(PERMITS) {
        eprintln!("{PERMITS}");
        text += "\n# All places come back, after good requests, errors, callers that hang up, deadlines and panics\n";
        text += &permits::whole()?;
    }
    print!("{text}");
    if words.is_empty() {
        fs::write(RESULTS, text).context(RESULTS)?;
    }
    Ok(())
}

/// Runs all rounds, and returns the runs of each row and contender.
fn measure(rows: &[Row]) -> Result<Vec<Vec<Vec<Run>>>> {
    let empty = |row: &Row| row.contenders.iter().map(|_| Vec::new()).collect();
    let mut runs: Vec<Vec<Vec<Run>>> = rows.iter().map(empty).collect();
    for round in 0..ROUNDS {
        let mut at = 0;
        while let Some(row) = rows.get(at) {
            let alike = rows[at..].iter().take_while(|other| other.name == row.name).count();
            eprintln!("round {} of {ROUNDS}: {}", round + 1, row.name);
            let mut scene: Vec<(usize, usize)> = (at..at + alike)
                .flat_map(|row| (0..rows[row].contenders.len()).map(move |contender| (row, contender)))
                .collect();
            if round % 2 == 1 {
                scene.reverse();
            }
            let together = if row.in_turns { 1 } else { scene.len() };
            for scene in scene.chunks(together) {
                for ((row, contender), run) in scene.iter().zip(play(rows, scene, round as u64)?) {
                    runs[*row][*contender].push(run);
                }
            }
            at += alike;
        }
    }
    Ok(runs)
}

/// Runs some contenders at the same time.
fn play(rows: &[Row], scene: &[(usize, usize)], round: u64) -> Result<Vec<Run>> {
    std::thread::scope(|scope| {
        let running: Vec<_> = scene
            .iter()
            .map(|(row, contender)| {
                let row = &rows[*row];
                let contender = &row.contenders[*contender];
                scope.spawn(move || run(row, contender, round))
            })
            .collect();
        running
            .into_iter()
            .map(|one| one.join().map_err(|_| anyhow!("a contender's callers panicked"))?)
            .collect()
    })
}

fn run(row: &Row, contender: &Contender, round: u64) -> Result<Run> {
    let before_server = if row.in_client { Protection::None } else { contender.protection };
    let server = Server::start(row.work, before_server)?;
    let manners = Manners { told: row.manners.told || contender.told, ..row.manners };
    let arrivals: Vec<Arrival> = load::arrivals(row, round);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let caller = match row.in_client {
            true => load::protected(contender.protection, manners.patience)?,
            false => load::plain(),
        };
        anyhow::Ok(load::drive(&caller, server.address, &arrivals, manners).await)
    })?;
    Ok(Run { ended: arrivals.into_iter().zip(ended).collect(), held: server.held.mean() })
}

/// The processor, its cores, the day, and whether other programs are running.
fn machine(before: f64) -> Result<String> {
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let name = processors.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let name = name.trim_start_matches([' ', '\t', ':']);
    let cores = std::thread::available_parallelism()?;
    let after = load_average()?;
    let others = if before.max(after) < 1.0 {
        "nothing else running".to_owned()
    } else {
        format!("beside other work (load average {before} at the start, {after} at the end)")
    };
    let day = String::from_utf8(Command::new("date").args(["-u", "+%F"]).output()?.stdout)?;
    Ok(format!("{name}, {cores} cores, {others}, {}.", day.trim()))
}

fn load_average() -> Result<f64> {
    let averages = fs::read_to_string("/proc/loadavg")?;
    Ok(averages.split(' ').next().unwrap_or_default().parse()?)
}

/// The names of the rows, each once.
fn names(rows: &[Row]) -> String {
    let mut names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    names.dedup();
    names.join(", ")
}
