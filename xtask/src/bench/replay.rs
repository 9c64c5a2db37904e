//! Measures the speed and the memory of replaying a log, including parsing.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use super::publish::Measured;
use anyhow::{Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// The lines of the shortest log; the others are four and sixteen times as long.
const LINES: u64 = 500_000;

/// The lines of a quiet site's log, whose days are concatenated from many servers' files.
const QUIET: u64 = 2_000_000;

/// Rounds per log; the table shows the median.
const ROUNDS: usize = 5;

pub(crate) fn measure(binary: &Path, machine: &str) -> Result<Measured> {
    let mut best_known = String::new();
    let folder = tempfile::tempdir()?;
    let mut page = String::from(
        "## Replay\n\n`tidegate replay LOG --algorithm gcra --rate 10/s --burst 20 -o json` on generated combined logs of 50,000 clients (zipf), one\nthread; user and system time, peak memory. Bar: a million lines a second and core. Busy logs have a thousand lines a second; the quiet one has one line\nin 15 seconds, with 28 files of each day one after another, put in order by `--reorder 24h`.\n\n| log | lines | MB | lines per CPU second | wall s | peak memory |\n|---|---|---|---|---|---|\n",
    );
    let logs = [("busy", LINES), ("busy", LINES * 4), ("quiet", QUIET), ("busy", LINES * 16)];
    for (kind, lines) in logs {
        let log = folder.path().join(format!("{kind}-{lines}.log"));
        let (moments, window): (fn(u64) -> u64, _) =
            if kind == "busy" { (busy, "5m") } else { (quiet, "24h") };
        let bytes = write_log(&log, lines, moments)?;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(replay_once(binary, &log, window)?);
        }
        std::fs::remove_file(&log)?;
        rounds.sort_by(|a, b| a.cpu.total_cmp(&b.cpu));
        let Round { cpu, wall, .. } = rounds[ROUNDS / 2];
        let peak = rounds.iter().map(|round| round.peak_kib).max().unwrap_or(0);
        writeln!(
            page,
            "| {kind} | {lines} | {:.0} | {:.2} M | {wall:.2} | {} MiB |",
            bytes as f64 / 1e6,
            lines as f64 / cpu / 1e6,
            peak / 1024
        )?;
        best_known = format!(
            "{:.2} M lines per CPU second, {} MiB peak memory",
            lines as f64 / cpu / 1e6,
            peak / 1024
        );
    }
    let row = format!(
        "| `replay` of {} combined lines, including parsing | {best_known} | {machine} |",
        LINES * 16
    );
    Ok(Measured { short: page.clone(), page, row: Some(row), bars: Vec::new() })
}

struct Round {
    cpu: f64,
    wall: f64,
    peak_kib: i64,
}

/// Replays in a process of its own: the system reports the peak memory of the largest child that a process ever had.
fn replay_once(binary: &Path, log: &Path, window: &str) -> Result<Round> {
    let output =
        Command::new(std::env::current_exe()?).arg("replay-once").args([binary, log]).arg(window).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<&str> = text.split_whitespace().collect();
    let [cpu, wall, peak] = numbers[..] else {
        bail!("replay failed: {}", String::from_utf8_lossy(&output.stderr));
    };
    Ok(Round { cpu: cpu.parse()?, wall: wall.parse()?, peak_kib: peak.parse()? })
}

/// The process of [`replay_once`]: prints CPU seconds, wall seconds and the peak of memory in KiB.
#[allow(clippy::disallowed_methods, reason = "a bench reads the time")]
pub(crate) fn once(binary: &str, log: &str, window: &str) -> Result<()> {
    let start = std::time::Instant::now();
    let status = Command::new(binary)
        .args(["replay", "--algorithm", "gcra", "--rate", "10/s", "--burst", "20", "-q", "-o", "json"])
        .args(["--reorder", window, log])
        .stdout(Stdio::null())
        .status()?;
    ensure!(status.success(), "{status}");
    let wall = start.elapsed().as_secs_f64();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let cpu = (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6;
    println!("{cpu} {wall} {}", usage.max_rss());
    Ok(())
}

/// Returns the second of a line: a thousand lines per second.
fn busy(line: u64) -> u64 {
    line / 1000
}

/// Returns the second of a line: one in 15 seconds, each day in 28 files of every 28th line.
fn quiet(line: u64) -> u64 {
    const DAY: u64 = 28 * 206;
    let (day, at) = (line / DAY, line % DAY);
    let (file, place) = (at / 206, at % 206);
    day * 86_400 + (place * 28 + file) * 86_400 / DAY
}

/// Writes a log in the combined format: clients by a power law, lines at the seconds that `moment` returns.
fn write_log(path: &Path, lines: u64, moment: fn(u64) -> u64) -> Result<u64> {
    const PATHS: [&str; 6] =
        ["/", "/index.html", "/api/search?q=tide", "/api/items/42", "/login", "/static/app.js"];
    const CLIENTS: f64 = 50_000.0;
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for line in 0..lines {
        // A client's frequency falls as 1/x with its rank: this inverts the cumulative distribution.
        let unit = (next() >> 11) as f64 / (1u64 << 53) as f64;
        let client = CLIENTS.powf(unit) as u64;
        let second = moment(line);
        // Every month has 28 days, so that every day is valid.
        let days = second / 86_400;
        let (day, month, year) = (1 + days % 28, MONTHS[(days / 28 % 12) as usize], 2025 + days / 336);
        let (hour, minute) = (second / 3600 % 24, second / 60 % 60);
        let path = PATHS[(next() % 6) as usize];
        writeln!(
            out,
            "10.{}.{}.{} - - [{day:02}/{month}/{year}:{hour:02}:{minute:02}:{:02} +0000] \"GET {path} HTTP/1.1\" 200 {} \"-\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\"",
            client >> 16 & 255,
            client >> 8 & 255,
            client & 255,
            second % 60,
            next() % 100_000,
        )?;
    }
    out.flush()?;
    Ok(out.get_ref().metadata()?.len())
}
