//! The tasks of an operator, done in a real browser against a server under traffic: how many steps and seconds each
//! takes, and whether the page's answer is true.
//!
//! Needs Chromium, and the program built before:
//!
//! ```text
//! cargo build -p tidegate-cli
//! cargo run -p tidegate-lab --example browser_tasks -- --seconds 180
//! ```
//!
//! * `--seconds N`: how long the traffic runs before the tasks, 120 or more (180). With 900 the effect of a change is known
//! * `--program FILE`: another `tidegate`
//! * `--axe FILE`: axe-core (`npm pack axe-core`, package/axe.min.js), which judges each page in both themes
//! * `--pictures FOLDER`: where a picture of each page in both themes is written
//!
//! Everything is done by keys, and found by visible text. A step is a page with the keys that lead to it.
//! The server needs tokens; the logins are not counted. A crash of the server comes in the end. Writes
//! lab/results/sight.tsv, and exits with 1 if a number is not reached.

#![allow(clippy::unwrap_used, reason = "an example that cannot go on has failed")]

mod browser;
mod looks;
mod stand;
mod tasks;
mod traffic;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use browser::Browser;
use looks::Pages;
use stand::Stand;
use tasks::Rows;
use tidegate_testkit::{built, program};
use traffic::Traffic;

/// The least length of the traffic: the pages say the share of a minute, and the scraper comes after a sixth.
const LEAST: u64 = 120;

/// What a crash may lose of the past, with some seconds more.
const LOST: Duration = Duration::from_secs(65);

/// What the words after the command say.
struct Wishes {
    seconds: u64,
    program: Option<PathBuf>,
    axe: Option<String>,
    pictures: Option<PathBuf>,
}

impl Wishes {
    fn of(mut words: impl Iterator<Item = String>) -> Self {
        let mut wishes = Self { seconds: 180, program: None, axe: None, pictures: None };
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_else(|| panic!("{word} needs a value"));
            match word.as_str() {
                "--seconds" => wishes.seconds = value.parse().expect("--seconds is a whole number"),
                "--program" => wishes.program = Some(std::path::absolute(value).unwrap()),
                "--axe" => wishes.axe = Some(std::fs::read_to_string(value).expect("--axe is a file")),
                "--pictures" => wishes.pictures = Some(value.into()),
                _ => panic!("{word} is not possible; use --seconds, --program, --axe or --pictures"),
            }
        }
        wishes.seconds = wishes.seconds.max(LEAST);
        wishes
    }
}

fn main() -> ExitCode {
    let wishes = Wishes::of(std::env::args().skip(1));
    let Some(chromium) = program("chromium", "chromium") else {
        eprintln!("nothing was measured");
        return ExitCode::FAILURE;
    };
    let rows = run(&wishes, &chromium);
    let missed = rows.0.iter().filter(|row| !row.met).count();
    write(&rows, wishes.seconds);
    if missed > 0 {
        eprintln!("{missed} of {} are not met", rows.0.len());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs the traffic, then the tasks while it goes on, then those after a crash.
fn run(wishes: &Wishes, chromium: &Path) -> Rows {
    let program = wishes.program.clone().unwrap_or_else(|| built("tidegate"));
    let mut stand = Stand::start(&program);
    let mut traffic = Traffic::start(stand.http());
    let at = |part: f64| Duration::from_secs_f64(wishes.seconds as f64 * part);
    traffic.wait_until(at(1.0 / 6.0));
    stand.change();
    traffic.scrape();
    // The breaker opens after ten calls, and stays known as open while the bank fails.
    traffic.wait_until(at(1.0).saturating_sub(Duration::from_secs(25)));
    traffic.let_bank_fail(true);

    let mut rows = Rows::default();
    let mut browser = Browser::start(chromium);
    tasks::log_in(&mut browser, &stand);
    traffic.wait_until(at(1.0));
    tasks::read_all(&mut browser, &stand, &traffic, &mut rows);
    tasks::lab(&mut browser, &stand, &traffic, &mut rows);
    browser.set_scripts(false);
    tasks::read_all(&mut browser, &stand, &traffic, &mut rows);
    browser.set_scripts(true);

    let refusals = traffic.refusals();
    // Not the latest, which may not be recorded yet.
    let refusal = refusals.get(refusals.len() / 2).expect("something was refused");
    let pages = Pages::new(&refusal.id);
    pages.double(&mut browser, &stand, &mut rows);
    if let Some(axe) = &wishes.axe {
        pages.judge(&mut browser, &stand, axe, &mut rows);
    }
    if let Some(folder) = &wishes.pictures {
        pages.draw(&mut browser, &stand, folder);
    }
    traffic.let_bank_fail(false);
    let most = traffic.most_refused(Duration::from_secs(300));
    tasks::block(&mut browser, &stand, &traffic, &mut rows);

    // What is asked for after the crash is older than what a crash may lose.
    traffic.stop();
    stand.reload();
    let last = traffic.now().saturating_sub(LOST);
    let mut refusals = traffic.refusals();
    refusals.retain(|refusal| refusal.at <= last);
    stand.crash();
    tasks::log_in(&mut browser, &stand);
    tasks::last_night(&mut browser, &stand, &most, &mut rows);
    tasks::ids(&mut browser, &stand, &refusals, &mut rows);
    // By construction: a way that keys do not lead ends the run.
    rows.add("11 by keys alone", "tasks 1 to 9", "no other event was sent".to_owned(), true);
    rows
}

/// Writes the table.
fn write(rows: &Rows, seconds: u64) {
    let command = format!("cargo run -p tidegate-lab --example browser_tasks -- --seconds {seconds}");
    let mut table =
        format!("# {command}\n\n# Tasks of an operator in a browser\ntask\twanted\tmeasured\tmet\n");
    for row in &rows.0 {
        table += &format!("{row}\n");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/sight.tsv");
    std::fs::write(path, table).unwrap();
}
