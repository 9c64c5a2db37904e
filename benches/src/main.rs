//! Runs one workload over one contender, and prints the figures as one line of JSON.
//!
//! There is one contender per process, so that each has its own caches, allocator and page tables, unaffected by
//! another contender. `cargo xtask bench` starts these processes in turn and compares them; `contender list` prints
//! which ones to start.

mod contenders;
mod measure;
mod pair;
mod stalls;
mod traffic;
mod workloads;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use contenders::{AskBoth, KEYED, ONE, PERMITS, READS, REFUSED};
use measure::Want;
use pair::Figures;
use workloads::permits::Permits;
use workloads::{Keyed, One, Question, disk, gate, growth, store};

const USAGE: &str = "usage: contender list | WORKLOAD CONTENDER [--huge]";

/// The number of keys in the workload that gives each contender equally many.
const KEYS: usize = 1_000_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["list"] => {
            contenders::list().iter().for_each(|line| println!("{line}"));
            Ok(())
        }
        [workload, contender] => run(workload, contender, false),
        [workload, contender, "--huge"] => run(workload, contender, true),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("contender: {}: {error:#}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn run(workload: &str, contender: &str, huge: bool) -> Result<()> {
    let mut figures = Figures::default();
    match workload {
        "clock" => figures.set("read", (contenders::find(READS, contender)?.run)()?),
        "one" => {
            let contender = contenders::find(ONE, contender)?;
            for want in [Want::Permitted, Want::Denied] {
                (contender.run)(&mut One { want, apart: false, figures: &mut figures })
                    .context(format!("{want:?}"))?;
            }
        }
        "keyed" => keyed(contender, Question::Keys(KEYS), &mut figures)?,
        "refused" => refused(contenders::find(REFUSED, contender)?.run, &mut figures)?,
        "protection" => {
            (contenders::find(PERMITS, contender)?.run)(&mut Permits { figures: &mut figures })?;
        }
        "flood" => keyed(contender, Question::Flood, &mut figures)?,
        "expire" => keyed(contender, Question::Expiry, &mut figures)?,
        "disk" => disk::run(contender, &mut figures)?,
        "store" => store::run(contender, &mut figures)?,
        "gate" => gate::run(&mut figures)?,
        "growth" => growth::run(huge, &mut figures)?,
        _ => bail!("there is no workload `{workload}`"),
    }
    println!("{}", figures.line(workload, contender));
    Ok(())
}

fn keyed(contender: &str, question: Question, figures: &mut Figures) -> Result<()> {
    let contender = contenders::find(KEYED, contender)?;
    (contender.run)(&mut Keyed::new(question, figures)?)
}

/// Measures permits and refusals in one process, of a million keys and of one limiter.
fn refused(contender: AskBoth, figures: &mut Figures) -> Result<()> {
    let mut run = Keyed::new(Question::Keys(KEYS), figures)?;
    (contender.keyed)(&mut run).context("keys, permitted")?;
    run.ask(Question::Spent(KEYS))?;
    (contender.keyed)(&mut run).context("keys, denied")?;
    drop(run);
    for want in [Want::Permitted, Want::Denied] {
        let mut run = One { want, apart: true, figures: &mut *figures };
        (contender.one)(&mut run).context(format!("one, {want:?}"))?;
    }
    Ok(())
}
