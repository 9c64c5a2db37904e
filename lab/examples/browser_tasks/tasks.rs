//! The tasks of an operator, by keys and visible text alone, and whether the answers are those of the traffic.

use std::fmt;
use std::time::Duration;

use super::browser::{Browser, Spent};
use super::stand::{OPERATOR, OPERATORS_TOKEN, Stand};
use super::traffic::{Refusal, RefusedKey, Traffic};

/// How far a shown share may lie from the true one, in points.
pub(crate) const POINTS: f64 = 0.5;

/// The limit that the lab tries: `per-ip` with this rate a second and burst.
const TRIED: (f64, f64) = (1.0, 2.0);

/// The most ids that are asked for after the crash.
const IDS: usize = 200;

/// After so long, effects of changes are known.
pub(crate) const EFFECT_AFTER: Duration = Duration::from_secs(8 * 60);

/// A line of the result.
pub(crate) struct Row {
    pub(crate) task: String,
    pub(crate) wanted: String,
    pub(crate) measured: String,
    pub(crate) met: bool,
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let met = if self.met { "yes" } else { "no" };
        write!(out, "{}\t{}\t{}\t{met}", self.task, self.wanted, self.measured)
    }
}

/// What a task may take.
#[derive(Clone, Copy)]
pub(crate) struct Most {
    pub(crate) steps: u32,
    pub(crate) seconds: u64,
}

/// What is to be seen without a step.
pub(crate) const AT_ONCE: Most = Most { steps: 0, seconds: 3 };

/// The rows so far.
#[derive(Default)]
pub(crate) struct Rows(pub(crate) Vec<Row>);

impl Rows {
    /// Adds what was found without steps.
    pub(crate) fn add(&mut self, task: &str, wanted: &str, measured: String, met: bool) {
        let row = Row { task: task.to_owned(), wanted: wanted.to_owned(), measured, met };
        println!("{row}");
        self.0.push(row);
    }

    /// Adds a task.
    pub(crate) fn task(&mut self, task: &str, most: Most, spent: Spent, answer: &str, is_right: bool) {
        let wanted = format!("at most {} steps, {} s, right", most.steps, most.seconds);
        let took = spent.took.as_secs_f64();
        let (loads, groups) = (spent.loads, spent.groups);
        let right = if is_right { "right" } else { "WRONG" };
        let steps = spent.steps();
        let measured =
            format!("{steps} steps ({loads} pages, {groups} groups of keys), {took:.1} s, {right}: {answer}");
        let met = is_right && steps <= most.steps && spent.took <= Duration::from_secs(most.seconds);
        self.add(task, &wanted, measured, met);
    }
}

/// Logs in at the page Now.
pub(crate) fn log_in(browser: &mut Browser, stand: &Stand) {
    browser.open(&stand.page("/ui/"));
    browser.walk("the token", |focus| focus.tag == "INPUT" && focus.label == "Token");
    browser.write(OPERATORS_TOKEN);
    browser.enter("Now");
}

/// Does the tasks that only read, with scripts or without.
pub(crate) fn read_all(browser: &mut Browser, stand: &Stand, traffic: &Traffic, rows: &mut Rows) {
    let how = if browser.scripts { "" } else { ", no scripts" };
    now(browser, stand, traffic, rows, how);
    why(browser, stand, traffic, rows, how);
    changed(browser, stand, traffic, rows, how);
    bank(browser, stand, rows, how);
}

/// Opens the page Now, from which tasks begin.
fn begin(browser: &mut Browser, stand: &Stand) {
    browser.begin();
    browser.open(&stand.page("/ui/"));
}

fn now(browser: &mut Browser, stand: &Stand, traffic: &Traffic, rows: &mut Rows, how: &str) {
    const LEVELS: [&str; 4] = ["UNUSUAL: ", "TROUBLE: ", "Usual: ", "Not known yet: "];
    begin(browser, stand);
    let text = browser.text();
    let spent = browser.spent();

    let truth = traffic.refused_percent();
    let shown = below(&text, "Refused share").and_then(number);
    let verdict = text.lines().find(|line| LEVELS.iter().any(|level| line.contains(level)));
    let is_right = verdict.is_some() && shown.is_some_and(|shown| (shown - truth).abs() <= POINTS);
    let answer = format!(
        "{} % shown, {truth:.1} % true; {}",
        shown.unwrap_or(f64::NAN),
        verdict.unwrap_or("no verdict")
    );
    rows.task(&format!("1 refused, usual{how}"), AT_ONCE, spent, &answer, is_right);

    let RefusedKey { policy, key } = traffic.most_refused(Duration::from_secs(300));
    let row = row_of(&text, &policy).unwrap_or_default();
    let answer = format!("{key} under {policy}");
    rows.task(&format!("2 who{how}"), AT_ONCE, spent, &answer, row.contains(&key));

    let (p99, store) = (below(&text, "Deciding, p99"), below(&text, "Store"));
    let is_right =
        p99.and_then(number).is_some_and(|p99| p99 > 0.0) && store.is_some_and(|store| store.ends_with("ok"));
    let answer = format!("p99 {}; {}", p99.unwrap_or("unknown"), store.unwrap_or("no store"));
    rows.task(&format!("4 p99, store{how}"), AT_ONCE, spent, &answer, is_right);
}

fn why(browser: &mut Browser, stand: &Stand, traffic: &Traffic, rows: &mut Rows, how: &str) {
    let refusal = traffic.recorded_refusal();
    begin(browser, stand);
    browser.go("Why");
    browser.walk("the box for ids", |focus| focus.tag == "TEXTAREA");
    browser.write(&refusal.id);
    browser.walk("Explain", |focus| focus.tag == "BUTTON" && focus.text == "Explain");
    browser.enter("Why");
    let text = browser.text();
    let spent = browser.spent();
    let most = Most { steps: 2, seconds: 15 };
    let verdict = verdict_then(&text).unwrap_or("no verdict");
    rows.task(&format!("3 why{how}"), most, spent, verdict, explains(&text, &refusal));
}

/// What a page says of a refusal, as it was then. Lines about now and of tables begin otherwise.
pub(crate) fn verdict_then(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| line.trim_start_matches("■ ").starts_with("DENIED "))
}

/// Whether a page says what really refused.
pub(crate) fn explains(text: &str, refusal: &Refusal) -> bool {
    text.contains(&refusal.id) && verdict_then(text).is_some_and(|line| line.contains(&refusal.policy))
}

fn changed(browser: &mut Browser, stand: &Stand, traffic: &Traffic, rows: &mut Rows, how: &str) {
    begin(browser, stand);
    browser.go("Changes");
    let text = browser.text();
    let spent = browser.spent();
    let line = text.lines().find(|line| line.contains("gcra 20/s burst 40")).unwrap_or_default();
    let cells: Vec<&str> = line.split('\t').map(str::trim).collect();
    let cell = |place: usize| cells.get(place).copied().unwrap_or("nothing");
    let (who, effect) = (cell(2), cell(5));
    let is_early = traffic.now() < EFFECT_AFTER && effect.contains("too early");
    let is_right =
        who == OPERATOR && line.contains("gcra 10/s burst 20") && (is_early || effect.contains("refused"));
    let answer = format!("by {who} at {}: {}; effect: {effect}", cell(1), cell(4));
    rows.task(&format!("5 changed{how}"), Most { steps: 1, seconds: 15 }, spent, &answer, is_right);
}

/// Tries another limit on what was asked so far.
pub(crate) fn lab(browser: &mut Browser, stand: &Stand, traffic: &Traffic, rows: &mut Rows) {
    let (rate, burst) = TRIED;
    let title = "per-ip · Lab";
    begin(browser, stand);
    if row_of(&browser.text(), "per-ip").is_none_or(|row| !row.contains("lab")) {
        return rows.add("6 what if", "a page that tries limits", "there is none".to_owned(), false);
    }
    browser.walk("the lab", |focus| focus.text == "lab" && focus.row.starts_with("per-ip\t"));
    browser.enter(title);
    browser.walk("the rate", |focus| focus.tag == "INPUT" && focus.label.contains("rate"));
    browser.write(&format!("{rate}/s"));
    browser.walk("the burst", |focus| focus.tag == "INPUT" && focus.label.contains("burst"));
    browser.write(&burst.to_string());
    browser.walk("Try", |focus| focus.tag == "BUTTON" && focus.text == "Try");
    browser.enter(title);
    let text = browser.text();
    let spent = browser.spent();
    let shown = row_of(&text, "Keys newly refused").and_then(|row| row.rsplit('\t').next()).and_then(number);
    let truth = traffic.newly_refused(rate, burst) as f64;
    // Times of the server and of this program differ by the way of an answer, and requests go on.
    let is_right = shown.is_some_and(|shown| (shown - truth).abs() <= 2.0 + truth * 0.03);
    let answer = format!("{} keys newly refused, {truth} by a plain computation", shown.unwrap_or(f64::NAN));
    rows.task("6 what if", Most { steps: 3, seconds: 20 }, spent, &answer, is_right);
}

fn bank(browser: &mut Browser, stand: &Stand, rows: &mut Rows, how: &str) {
    const MOST: Most = Most { steps: 1, seconds: 15 };
    begin(browser, stand);
    browser.go("Guards");
    let text = browser.text();
    let spent = browser.spent();
    let lines = || text.lines().map(str::trim);
    let state = lines().find(|line| ["OPEN", "half-open"].iter().any(|state| line.contains(state)));
    let cause = lines().find(|line| line.starts_with("Cause: "));
    let is_right = state.is_some() && cause.is_some() && lines().any(|line| line == "bank");
    let answer = format!("{}; {}", state.unwrap_or("not open"), cause.unwrap_or("no cause"));
    rows.task(&format!("7 why bank refuses{how}"), MOST, spent, &answer, is_right);
    let trips = lines().find(|line| ["trip", "Trip", "pened"].iter().any(|word| line.contains(word)));
    rows.task(
        &format!("7 trips of bank{how}"),
        MOST,
        spent,
        trips.unwrap_or("not shown"),
        trips.is_some_and(|line| line.chars().any(|char| char.is_ascii_digit())),
    );
}

/// Blocks the key that is refused most, and looks who did that.
pub(crate) fn block(browser: &mut Browser, stand: &Stand, traffic: &Traffic, rows: &mut Rows) {
    let RefusedKey { policy, key } = traffic.most_refused(Duration::from_secs(300));
    let title = format!("A key of {policy}");
    begin(browser, stand);
    browser.go("Keys");
    browser.walk("the key", |focus| focus.text == key && focus.row.starts_with(&format!("{policy}\t")));
    browser.enter(&title);
    browser.walk("the reason", |focus| focus.tag == "INPUT" && focus.label.starts_with("because"));
    browser.write("a scraper of prices");
    browser.enter(&title);
    let is_blocked = browser.text().contains("BLOCKED");
    browser.go("Changes");
    let text = browser.text();
    let spent = browser.spent();
    let line = text.lines().find(|line| line.contains("is blocked for 3600 s")).unwrap_or("no such change");
    let is_right = is_blocked && line.contains(OPERATOR) && text.contains("a scraper of prices");
    let answer = line.replace('\t', " ");
    rows.task("9 block, Changes names me", Most { steps: 4, seconds: 60 }, spent, &answer, is_right);
}

/// Looks after a crash for what happened before it.
pub(crate) fn last_night(browser: &mut Browser, stand: &Stand, most: &RefusedKey, rows: &mut Rows) {
    const MOST: Most = Most { steps: 2, seconds: 30 };
    let RefusedKey { policy, key } = most;
    begin(browser, stand);
    browser.go("Keys");
    browser.walk("the window", |focus| focus.tag == "SELECT" && focus.label.starts_with("in the last"));
    browser.write("24");
    browser.walk("Show", |focus| focus.tag == "BUTTON" && focus.text == "Show");
    browser.enter("Keys");
    let text = browser.text();
    let spent = browser.spent();
    let is_there =
        text.lines().any(|line| line.starts_with(&format!("{policy}\t")) && line.contains(key.as_str()));
    let answer =
        if is_there { format!("{key} under {policy}") } else { "not among the keys of 24 h".to_owned() };
    rows.task("8 after a crash: who", MOST, spent, &answer, is_there);

    begin(browser, stand);
    browser.go("Policies");
    browser.walk("the policy", |focus| focus.tag == "A" && focus.text == *policy);
    browser.enter(policy);
    let text = browser.text();
    let spent = browser.spent();
    let of_the_day = text.lines().find(|line| line.starts_with("Requests a second in the last 24 hours"));
    let begun = of_the_day.and_then(|line| line.split_once("refused something "));
    let answer = begun.map_or_else(|| "no time with refusals".to_owned(), |(_, when)| when.trim().to_owned());
    rows.task("8 after a crash: when", MOST, spent, &answer, begun.is_some());
}

/// Asks for refusals of before the crash by their ids.
pub(crate) fn ids(browser: &mut Browser, stand: &Stand, refusals: &[Refusal], rows: &mut Rows) {
    let every = refusals.len().div_ceil(IDS).max(1);
    let asked: Vec<&Refusal> = refusals.iter().step_by(every).collect();
    let mut right = 0;
    for refusal in &asked {
        browser.open(&stand.page(&format!("/ui/why?id={}", refusal.id)));
        right += usize::from(explains(&browser.text(), refusal));
    }
    let measured = format!("{right} of {}", asked.len());
    let met = right == asked.len() && !asked.is_empty();
    rows.add("3 ids after a reload and a crash", "all of up to 200 right", measured, met);
}

/// The line below a heading.
fn below<'t>(text: &'t str, heading: &str) -> Option<&'t str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.find(|line| *line == heading)?;
    lines.next()
}

/// The row of a table whose first cell has these words.
fn row_of<'t>(text: &'t str, first: &str) -> Option<&'t str> {
    text.lines().map(str::trim).find(|line| line.split('\t').next() == Some(first))
}

/// The number that a text begins with.
pub(crate) fn number(text: &str) -> Option<f64> {
    let text = text.trim().trim_start_matches("< ").replace(',', "");
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    text[..end].parse().ok()
}
