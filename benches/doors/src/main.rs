//! Measures the cost of the server's protocols ("doors"): processor time per call and calls per second, with the server
//! on one core and its callers on another, compared with servers that decide nothing and with Redis and nginx. Rows with
//! `refused` in their names compare refusals with permits at the same door. Contenders take turns; each cell is the
//! round with the median processor time.
//!
//! Arguments: the program to measure, then the rows to run (all if none is named).

#![allow(clippy::disallowed_methods, reason = "real servers take real time, and are waited for")]

mod floors;
mod load;
mod rows;
mod servers;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rows::{Contender, Rounds, Row};
use servers::{Kind, Server};

/// The core of the callers.
const CORE: usize = 1;

/// How long a contender is asked per round: first uncounted, then counted.
const SPANS: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(1200));

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [floor, which, port] = words.as_slice()
        && floor == "floor"
    {
        return floors::serve(which, port.parse().context("a port is wanted")?);
    }
    let (program, asked) = words.split_first().context("name the program to measure")?;
    let program = PathBuf::from(program);
    let rounds = match std::env::var("TIDEGATE_BENCH_ROUNDS") {
        Ok(rounds) => rounds.parse().context("TIDEGATE_BENCH_ROUNDS is not a number")?,
        Err(_) => 3,
    };
    let rows: Vec<Row> = rows::all();
    for name in asked {
        ensure!(rows.iter().any(|row| row.name.contains(name.as_str())), "no row has `{name}` in its name");
    }
    let rows: Vec<Row> = rows
        .into_iter()
        .filter(|row| asked.is_empty() || asked.iter().any(|name| row.name.contains(name.as_str())))
        .collect();
    let mut mine = CpuSet::new();
    mine.set(CORE)?;
    sched_setaffinity(Pid::from_raw(0), &mine).context("two cores are needed")?;

    let mut servers: Vec<(Kind, Server)> = Vec::new();
    for contender in rows.iter().flat_map(|row| &row.contenders) {
        if !servers.iter().any(|(kind, _)| *kind == contender.kind) {
            servers.push((contender.kind, Server::start(contender.kind, &program)?));
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut found: Vec<Rounds> =
        rows.iter().map(|row| row.contenders.iter().map(|_| Vec::new()).collect()).collect();
    for round in 0..rounds {
        for (row, found) in rows.iter().zip(&mut found) {
            eprintln!("round {} of {rounds}: {}", round + 1, row.name);
            // Every other round runs in reverse order.
            let mut turns: Vec<_> = row.contenders.iter().zip(found).collect();
            if round % 2 == 1 {
                turns.reverse();
            }
            for (contender, found) in turns {
                let server = server_of(&servers, contender.kind)?;
                let Contender { door, traffic, wire, name, .. } = contender;
                let (port, process) = (door.port(server), server.process());
                let one = load::run(port, process, row.shape, *traffic, wire, SPANS);
                found.push(runtime.block_on(one).with_context(|| format!("{}: {name}", row.name))?);
            }
        }
    }
    let mut told = Vec::new();
    for (row, found) in rows.iter().zip(&found) {
        // The last contender of such a row is a refused one.
        if let Some(last) = row.contenders.last() {
            let server = server_of(&servers, last.kind)?;
            told.extend(rows::verify_told(row, found, server).with_context(|| row.name.clone())?);
        }
    }
    rows::print(&rows, found);
    told.iter().for_each(|told| println!("\n{told}"));
    Ok(())
}

fn server_of(servers: &[(Kind, Server)], kind: Kind) -> Result<&Server> {
    let server = servers.iter().find(|(started, _)| *started == kind);
    server.map(|(_, server)| server).context("every contender's server was started")
}
