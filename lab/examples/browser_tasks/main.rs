//! The tasks of an operator, done in a real browser and in a real terminal against a server under traffic: how many
//! steps and seconds each takes, and whether the answer is true.
//!
//! Needs Chromium, tmux, and the program built before:
//!
//! ```text
//! cargo build -p tidegate-cli --features tui
//! cargo run -p tidegate-lab --example browser_tasks -- --seconds 180
//! ```
//!
//! * `--in browser` or `--in terminal`: only that part
//! * `--seconds N`: how long the traffic runs before the tasks, 120 or more (180). With 900 the effect of a change is known
//! * `--program FILE`: another `tidegate`
//! * `--axe FILE`: axe-core (`npm pack axe-core`, package/axe.min.js), which judges each page in both themes
//! * `--pictures FOLDER`: where a picture of each page in both themes is written, and each screen of the terminal
//!
//! Everything is done by keys, and found by visible text. A step is a page, or a screen, with the keys that lead to it.
//! The server needs tokens; the logins are not counted. A crash of the server comes in the end. Writes its tables
//! into lab/results/sight.tsv, and exits with 1 if a number is not reached.

#![allow(clippy::unwrap_used, reason = "an example that cannot go on has failed")]

mod browser;
mod looks;
mod stand;
mod tasks;
mod terminal;
mod traffic;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use browser::Browser;
use looks::Pages;
use stand::Stand;
use tasks::{Row, Rows};
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
    in_browser: bool,
    in_terminal: bool,
}

impl Wishes {
    fn of(mut words: impl Iterator<Item = String>) -> Self {
        let mut wishes = Self {
            seconds: 180,
            program: None,
            axe: None,
            pictures: None,
            in_browser: true,
            in_terminal: true,
        };
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_else(|| panic!("{word} needs a value"));
            match word.as_str() {
                "--seconds" => wishes.seconds = value.parse().expect("--seconds is a whole number"),
                "--program" => wishes.program = Some(std::path::absolute(value).unwrap()),
                "--axe" => wishes.axe = Some(std::fs::read_to_string(value).expect("--axe is a file")),
                "--pictures" => wishes.pictures = Some(value.into()),
                "--in" => match value.as_str() {
                    "browser" => wishes.in_terminal = false,
                    "terminal" => wishes.in_browser = false,
                    _ => panic!("--in is browser or terminal"),
                },
                _ => panic!("{word} is not possible; use --seconds, --program, --axe, --pictures or --in"),
            }
        }
        wishes.seconds = wishes.seconds.max(LEAST);
        wishes
    }
}

/// The title of each part's table.
const BROWSER: &str = "# Tasks of an operator in a browser";
const TERMINAL: &str = "# Tasks of an operator in a terminal of 80 columns and 24 lines";

fn main() -> ExitCode {
    let wishes = Wishes::of(std::env::args().skip(1));
    let chromium = wishes.in_browser.then(|| program("chromium", "chromium"));
    let tmux = wishes.in_terminal.then(|| program("tmux", "tmux"));
    if [&chromium, &tmux].contains(&&Some(None)) {
        eprintln!("nothing was measured");
        return ExitCode::FAILURE;
    }
    let tables = run(&wishes, chromium.flatten().as_deref(), tmux.flatten().as_deref());
    let (mut all, mut missed) = (0, 0);
    for (title, rows) in &tables {
        write(title, rows, wishes.seconds);
        all += rows.0.len();
        missed += rows.0.iter().filter(|row| !row.met).count();
    }
    if missed > 0 {
        eprintln!("{missed} of {all} are not met");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs the traffic, then the tasks while it goes on, then those after a crash. Returns the rows of each part.
fn run(wishes: &Wishes, chromium: Option<&Path>, tmux: Option<&Path>) -> Vec<(&'static str, Rows)> {
    let program = wishes.program.clone().unwrap_or_else(|| built("tidegate"));
    let stand = Stand::start(&program);
    let traffic = Traffic::start(stand.http());
    let at = |part: f64| Duration::from_secs_f64(wishes.seconds as f64 * part);
    traffic.wait_until(at(1.0 / 6.0));
    stand.change();
    traffic.scrape();
    // The breaker opens after ten calls, and stays known as open while the bank fails.
    traffic.wait_until(at(1.0).saturating_sub(Duration::from_secs(25)));
    traffic.let_bank_fail(true);

    let browser = chromium.map(|chromium| {
        let mut browser = Browser::start(chromium);
        tasks::log_in(&mut browser, &stand);
        browser
    });
    traffic.wait_until(at(1.0));
    let mut tables = Vec::new();
    if let Some(tmux) = tmux {
        let pictures = wishes.pictures.as_deref();
        tables.push((TERMINAL, terminal::read_all(tmux, &program, &stand, &traffic, pictures)));
    }
    if let Some(browser) = browser {
        tables.push((BROWSER, in_browser(wishes, browser, stand, traffic)));
    }
    tables
}

/// Does the tasks in the browser, those after a crash in the end.
fn in_browser(wishes: &Wishes, mut browser: Browser, mut stand: Stand, mut traffic: Traffic) -> Rows {
    let mut rows = Rows::default();
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

/// Writes a table in the place of the one with the same title.
fn write(title: &str, rows: &Rows, seconds: u64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/sight.tsv");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let command = format!("# cargo run -p tidegate-lab --example browser_tasks -- --seconds {seconds}");
    let lines: Vec<String> = rows.0.iter().map(Row::to_string).collect();
    let table = format!("{title}\ntask\twanted\tmeasured\tmet\n{}", lines.join("\n"));
    let others = before.trim_end().split("\n\n").skip(1).filter(|table| !table.starts_with(title));
    let mut tables: Vec<&str> = others.chain([table.as_str()]).collect();
    // That of the browser is the first.
    tables.sort_unstable();
    tables.insert(0, &command);
    std::fs::write(path, tables.join("\n\n") + "\n").unwrap();
}
