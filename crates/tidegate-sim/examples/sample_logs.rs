//! Writes the sample logs of `examples/`: `cargo run -p tidegate-sim --example sample_logs -- examples`
//!
//! All contents are generated from a seed, with the traffic generator of `tidegate simulate`.

use std::fmt::Write as _;
use std::path::PathBuf;

use tidegate::Tick;
use tidegate_sim::traffic::Traffic;

/// 2026-03-02 09:00:00 UTC, a Monday.
const START: u64 = 1_772_442_000;
const SEED: u64 = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: sample_logs FOLDER")?);
    std::fs::write(folder.join("access.log"), access_log()?)?;
    std::fs::write(folder.join("llm-calls.csv"), llm_calls()?)?;
    Ok(())
}

/// Returns pseudo-random numbers for paths and sizes, separate from the generator's, so that they do not affect the
/// arrivals.
fn mix(number: u64) -> u64 {
    let mixed = (number ^ SEED).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

/// Returns an hour of a small site: 120 visitors, one client that scrapes at up to 25 a second, one that guesses
/// passwords, and a minute in which all visitors come at once.
fn access_log() -> Result<String, Box<dyn std::error::Error>> {
    let visitors: Traffic = "poisson 45/min 30min keys zipf:0.8:120, poisson 12/s 1min keys uniform:120, \
        poisson 45/min 29min keys zipf:0.8:120"
        .parse()?;
    let scraper: Traffic =
        "idle 14min, ramp 1/s 25/s 1min key scraper, idle 20min, poisson 3/s 1min key scraper".parse()?;
    let guesser: Traffic = "idle 40min, poisson 20/min 10min key guesser".parse()?;
    let start = Tick::from_secs(START);
    let mut all: Vec<(u64, String)> = Vec::new();
    for (seed, traffic) in [visitors, scraper, guesser].iter().enumerate() {
        all.extend(
            traffic.arrivals(start, SEED + seed as u64).map(|a| (a.at.as_nanos(), a.key.text().into_owned())),
        );
    }
    // Servers write a line when the answer is sent, so a slow request is written late and goes back in time.
    let written = |number: usize, at: u64| at + if number.is_multiple_of(41) { 3_000_000_000 } else { 0 };
    all.sort();
    let mut lines: Vec<(u64, String)> = Vec::new();
    for (number, (at, key)) in all.iter().enumerate() {
        lines.push((written(number, *at), line(number as u64, *at / 1_000_000_000, key)));
    }
    lines.sort();
    Ok(lines.into_iter().map(|(_, line)| line).collect())
}

fn line(number: u64, second: u64, key: &str) -> String {
    const PATHS: [&str; 10] = [
        "/",
        "/about",
        "/news",
        "/static/site.css",
        "/static/site.js",
        "/api/items?page=2",
        "/api/search?q=tide+tables",
        "/api/items/17",
        "/login",
        "/missing",
    ];
    const AGENTS: [&str; 3] = [
        "Mozilla/5.0 (X11; Linux x86_64; rv:148.0) Gecko/20100101 Firefox/148.0",
        "Mozilla/5.0 (iPhone; CPU iPhone OS 19_2 like Mac OS X)",
        "curl/8.19.0",
    ];
    let chance = mix(number);
    let visitor = key.strip_prefix("key-").and_then(|number| number.parse::<u64>().ok());
    let client = match (key, visitor) {
        ("scraper", _) => "203.0.113.9".to_owned(),
        ("guesser", _) => "198.51.100.77".to_owned(),
        (_, Some(visitor)) if visitor % 6 == 0 => format!("2001:db8:0:{visitor:x}::{:x}", 1 + chance % 3),
        (_, visitor) => format!("192.0.2.{}", visitor.unwrap_or(0)),
    };
    let (method, path, status, agent) = match key {
        "scraper" => {
            ("GET", format!("/api/items?page={number}"), 200, "example-scraper/1.0 (\\\"no contact\\\")")
        }
        "guesser" => ("POST", "/login".to_owned(), 401, AGENTS[2]),
        _ => {
            let path = PATHS[(chance % 10) as usize];
            let (method, status) = match path {
                "/login" => ("POST", if chance.is_multiple_of(7) { 401 } else { 302 }),
                "/missing" => ("GET", 404),
                path if path.starts_with("/static") && chance.is_multiple_of(3) => ("GET", 304),
                _ => ("GET", 200),
            };
            (method, path.to_owned(), status, AGENTS[(chance / 16 % 3) as usize])
        }
    };
    let user = match visitor {
        Some(visitor) if visitor % 4 == 0 && status < 400 => format!("user{visitor}"),
        _ => "-".to_owned(),
    };
    let bytes = if status == 304 { "-".to_owned() } else { (200 + chance / 64 % 40_000).to_string() };
    let clock = second - START + 9 * 3_600;
    format!(
        "{client} - {user} [02/Mar/2026:{:02}:{:02}:{:02} +0000] \"{method} {path} HTTP/1.1\" {status} {bytes} \"-\" \"{agent}\"\n",
        clock / 3_600,
        clock / 60 % 60,
        clock % 60,
    )
}

/// Returns forty minutes of calls to a language model by five tenants. The cost of a call is its tokens.
fn llm_calls() -> Result<String, Box<dyn std::error::Error>> {
    let traffic: Traffic = "poisson 30/min 15min keys zipf:1.2:5, poisson 90/min 5min keys zipf:1.6:5, \
        poisson 30/min 20min keys zipf:1.2:5"
        .parse()?;
    let mut out = "timestamp,tenant,context_tokens,generated_tokens,total_tokens\n".to_owned();
    for (number, arrival) in traffic.arrivals(Tick::from_secs(START), SEED).enumerate() {
        let (chance, after) = (mix(number as u64), arrival.at.as_nanos() / 1_000_000 - START * 1_000);
        let tenant = ["harbour", "lighthouse", "ferry", "pilot", "dock"]
            [arrival.key.text().trim_start_matches("key-").parse::<usize>()?.clamp(1, 5) - 1];
        // Many short calls, and some with a long context.
        let context = 40 + chance % 900 + if chance % 11 == 0 { chance / 1_024 % 7_000 } else { 0 };
        let generated = 5 + chance / 4_096 % 400;
        let (minute, second, milli) = (after / 60_000, after / 1_000 % 60, after % 1_000);
        writeln!(
            out,
            "2026-03-02T09:{minute:02}:{second:02}.{milli:03}Z,{tenant},{context},{generated},{}",
            context + generated
        )?;
    }
    Ok(out)
}
