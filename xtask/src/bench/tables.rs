//! Writes one table per question.

use std::fmt::Write as _;

use anyhow::Result;

use super::bars;
use super::found::{Figure, Found, Role, is_rate};

struct Question {
    workload: &'static str,
    figure: &'static str,
    asks: &'static str,
    /// The floor that does the same work, with which the others are compared.
    floor: &'static str,
}

const fn question(
    workload: &'static str,
    figure: &'static str,
    floor: &'static str,
    asks: &'static str,
) -> Question {
    Question { workload, figure, asks, floor }
}

const QUESTIONS: &[Question] = &[
    question("clock", "read", "empty", "What does it cost to read the time?"),
    question("one", "permitted", "floor-clock", "One limiter, one thread, permitted"),
    question("one", "denied", "floor-clock", "One limiter, one thread, denied"),
    question("one", "permitted.pair", "floor-clock", "One limiter, two threads, permitted"),
    question("one", "denied.pair", "floor-clock", "One limiter, two threads, denied"),
    question("keyed", "zipf", "floor-table-clock", "A million keys, zipf, one thread"),
    question("keyed", "uniform", "floor-table-clock", "A million keys, uniform, one thread"),
    question("keyed", "zipf.batch", "floor-table-clock", "The same, zipf, in batches of 16 keys"),
    question("keyed", "uniform.batch", "floor-table-clock", "The same, uniform, in batches of 16 keys"),
    question("keyed", "zipf.pair", "floor-table-clock", "A million keys, zipf, two threads"),
    question("keyed", "uniform.pair", "floor-table-clock", "A million keys, uniform, two threads"),
    question("keyed", "zipf.batch.pair", "floor-table-clock", "Zipf, in batches, two threads"),
    question("keyed", "uniform.batch.pair", "floor-table-clock", "Uniform, in batches, two threads"),
    question("keyed", "insert", "floor-table-clock", "Inserting a million new keys"),
    question("protection", "permit", "floor", "A place taken and returned while nobody waits, one thread"),
    question("protection", "permit.pair", "floor", "The same, two threads at one guard"),
    question("protection", "breaker", "floor", "A call through a breaker that is closed, one thread"),
    question("protection", "breaker.pair", "floor", "The same, two threads at one breaker"),
    question("protection", "layers", "bare", "A request through layers that have nothing to do, one thread"),
];

pub(crate) fn of(workload: &str, found: &Found) -> Result<String> {
    let mut page = String::new();
    for question in QUESTIONS.iter().filter(|question| question.workload == workload) {
        page += &compared(question, found)?;
    }
    match workload {
        "keyed" => page += &memory(found)?,
        "refused" => page += &refused(found)?,
        "flood" => page += &stalls(found, workload, FLOOD, &["quarter MiB", "peak MiB", "after MiB"])?,
        "expire" => page += &stalls(found, workload, EXPIRY, &["first MiB", "second MiB"])?,
        "disk" => page += &bars::disk_table(found)?,
        "store" => page += &steps(found)?,
        "gate" => page += &gate(found)?,
        "growth" => page += &growth(found)?,
        _ => {}
    }
    Ok(page)
}

/// Writes the tables of the manual: the medians of the contenders, with all figures of one in a row.
pub(crate) fn short(found: &Found) -> Result<String> {
    let mut page = beside(found, "One limiter", "one", ONE)?;
    page += &beside(found, "A million keys", "keyed", KEYED)?;
    page += &refused(found)?;
    page += &tails(found)?;
    page += &gate(found)?;
    Ok(page)
}

/// Columns of a table of the manual: a title, and the figures of its cells.
type Columns = &'static [(&'static str, &'static [&'static str])];

const ONE: Columns = &[
    ("permitted, denied, ns", &["permitted", "denied"]),
    ("two threads: permitted, denied, M/s", &["permitted.pair", "denied.pair"]),
];

const KEYED: Columns = &[
    ("zipf, uniform, ns", &["zipf", "uniform"]),
    ("in batches of 16", &["zipf.batch", "uniform.batch"]),
    ("two threads, M/s", &["zipf.pair", "uniform.pair"]),
    ("a new key, ns", &["insert"]),
    ("bytes a key", &["bytes"]),
];

/// Writes the medians of a workload. Peers that do less than the others are left out, and so are all floors but the one
/// that does the same work.
fn beside(found: &Found, title: &str, workload: &str, columns: Columns) -> Result<String> {
    let titles = columns.iter().map(|(title, _)| *title).collect::<Vec<_>>().join(" | ");
    let rule = "---:|".repeat(columns.len());
    let mut page = format!("## {title}\n\n| | {titles} |\n|---|{rule}\n");
    let mut questions = QUESTIONS.iter().filter(|question| question.workload == workload);
    let floor = questions.next().map(|question| question.floor);
    for contender in found.of(workload) {
        let title = match contender.role {
            Role::Tidegate => format!("**{}**", contender.title),
            Role::Peer | Role::Tuned => contender.title.clone(),
            Role::Floor if Some(contender.name.as_str()) == floor => format!("*floor: {}*", contender.title),
            Role::Floor | Role::Less => continue,
        };
        write!(page, "| {title} |")?;
        for (_, figures) in columns {
            let cell = figures.iter().filter_map(|figure| found.figure(workload, &contender.name, figure));
            write!(page, " {} |", cell.map(median).collect::<Vec<_>>().join(", "))?;
        }
        page += "\n";
    }
    Ok(page + "\n")
}

/// Columns of permits and refusals.
const REFUSED: Columns = &[
    ("zipf, uniform, ns", &["zipf", "uniform"]),
    ("in batches of 16", &["zipf.batch", "uniform.batch"]),
    ("two threads, M/s", &["zipf.pair", "uniform.pair"]),
    ("in batches, two threads", &["zipf.batch.pair", "uniform.batch.pair"]),
];

/// Columns of permits and refusals of one limiter: what is permitted, and what is denied.
const REFUSED_ONE: [(&str, [&str; 2]); 2] =
    [("one limiter, ns", ["permitted", "denied"]), ("two threads, M/s", ["permitted.pair", "denied.pair"])];

/// Writes what a refusal costs beside a permit, in a row each. All checks of a row are answered alike.
fn refused(found: &Found) -> Result<String> {
    let titles = REFUSED.iter().map(|(title, _)| *title).chain(REFUSED_ONE.iter().map(|(title, _)| *title));
    let titles: Vec<&str> = titles.collect();
    let mut page = format!(
        "## Refusals beside permits\n\nA million keys, and one limiter on a memory page of its own; permits, then refusals, in one process.\n\n| | {} |\n|---|{}\n",
        titles.join(" | "),
        "---:|".repeat(titles.len())
    );
    // The floors, of which one cannot know that its refusals are right, are in `lab/results/bench.tsv` alone.
    for contender in found.of("refused").filter(|contender| contender.role != Role::Floor) {
        let cell = |figure: &str| found.figure("refused", &contender.name, figure).map(median);
        for (at, (answer, prefix)) in [("permitted", ""), ("refused", "denied ")].into_iter().enumerate() {
            write!(page, "| {}, {answer} |", contender.title)?;
            for (_, figures) in REFUSED {
                let cells: Vec<String> =
                    figures.iter().filter_map(|figure| cell(&format!("{prefix}{figure}"))).collect();
                write!(page, " {} |", cells.join(", "))?;
            }
            for (_, figures) in REFUSED_ONE {
                write!(page, " {} |", cell(figures[at]).unwrap_or_default())?;
            }
            page += "\n";
        }
    }
    Ok(page + "\n")
}

fn tails(found: &Found) -> Result<String> {
    let mut page = String::from(
        "## Floods and keys that expire\n\n\
         | | most MiB | p50, p99.9, p99.99, ns | p99.99 caused | stalls above 100 µs, of idle turns |\n\
         |---|---:|---:|---:|---:|\n",
    );
    for (workload, load, memory) in [("flood", "flood", "peak MiB"), ("expire", "expiry", "second MiB")] {
        for contender in found.of(workload) {
            let of = |figure: &str| {
                let median = found.median(workload, &contender.name, figure);
                median.map_or_else(String::new, |median| format!("{median:.0}"))
            };
            let [p50, late, latest] = ["p50", "p99.9", "p99.99"].map(of);
            if p50.is_empty() {
                continue;
            }
            let [memory, caused, stalls, idle] = [memory, "caused p99.99", "stalls", "idle stalls"].map(of);
            let title = &contender.title;
            writeln!(
                page,
                "| {load}: {title} | {memory} | {p50}, {late}, {latest} | {caused} | {stalls}, {idle} |"
            )?;
        }
    }
    Ok(page + "\n")
}

const FLOOD: &str = "\
## A flood of 20 million keys that come once each

A limiter for a million keys, if its size can be set; every key stays live throughout. Each check is timed on its own. The machine
interrupts every program, so between the checks there are as many idle turns, which read the clock for as long as a check takes. The
caused p99.99 is the time such that at most one check in ten thousand exceeds it, not counting as many as there are idle turns that do. Stalls
are times above 100 µs. Memory is the growth of the process since its start: after a quarter of the flood, at the peak, and after the flood.
";

const EXPIRY: &str = "\
## A million keys when a million others have run out

Measured as above. The limits of the first million keys are full again when the second million comes. Memory: after the first million, after
the second.
";

/// Writes a table of all contenders, compared with the best known peer, the best, and the floor.
fn compared(question: &Question, found: &Found) -> Result<String> {
    let Question { workload, figure, asks, floor } = question;
    let rows: Vec<_> = found
        .of(workload)
        .filter_map(|contender| Some((contender, found.figure(workload, &contender.name, figure)?)))
        .collect();
    if rows.is_empty() {
        return Ok(String::new());
    }
    let unit = if is_rate(figure) { "million a second" } else { "ns" };
    let mut page = format!("## {asks}\n\n");
    if *workload == "clock" {
        page += "| clock | ns |\n|---|---|\n";
        for (contender, figure) in rows {
            writeln!(page, "| {} | {} |", contender.title, spread(figure))?;
        }
        return Ok(page + "\n");
    }
    let best = found.best(workload, figure, &[Role::Peer, Role::Tuned]);
    let known = match *figure {
        "permit" | "permit.pair" => "tokio",
        "breaker" | "breaker.pair" => "failsafe",
        "layers" => "tower-stack",
        _ => "governor",
    };
    writeln!(page, "| | {unit} | x {known} | x best peer | x floor |\n|---|---|---|---|---|")?;
    for (contender, measured) in rows {
        let title = match contender.role {
            Role::Tidegate => format!("**{}**", contender.title),
            Role::Floor => format!("*{}*", contender.title),
            Role::Peer | Role::Tuned | Role::Less => contender.title.clone(),
        };
        let speed = |rival: Option<&str>| {
            let speed = found.speed(workload, figure, &contender.name, rival?)?;
            Some(format!("{speed:.2}"))
        };
        let speed = |rival| speed(rival).unwrap_or_default();
        let (known, floor) = (speed(Some(known)), speed(Some(floor)));
        let best = speed(best.map(|best| best.name.as_str()));
        writeln!(page, "| {title} | {} | {known} | {best} | {floor} |", spread(measured))?;
    }
    Ok(page + "\n")
}

fn spread(Figure { median, least, most, clean }: Figure) -> String {
    let digits = digits(median);
    format!("{median:.digits$} [{least:.digits$}-{most:.digits$}]{}", mark(clean))
}

fn median(Figure { median, clean, .. }: Figure) -> String {
    let digits = digits(median);
    format!("{median:.digits$}{}", mark(clean))
}

fn digits(median: f64) -> usize {
    if median < 10.0 { 1 } else { 0 }
}

/// Marks a figure that was never measured undisturbed.
fn mark(clean: bool) -> &'static str {
    if clean { "" } else { " \\*" }
}

fn memory(found: &Found) -> Result<String> {
    let mut page = String::from("## Memory of a live key, with a million keys\n\n| | bytes |\n|---|---|\n");
    for contender in found.of("keyed") {
        if let Some(bytes) = found.figure("keyed", &contender.name, "bytes") {
            writeln!(page, "| {} | {} |", contender.title, spread(bytes))?;
        }
    }
    Ok(page + "\n")
}

fn stalls(found: &Found, workload: &str, opening: &str, memory: &[&str]) -> Result<String> {
    let mut page = format!("{opening}\n| |");
    for name in memory {
        write!(page, " {name} |")?;
    }
    page += " p50 ns | p99 | p99.9 | p99.99 | caused p99.99 | idle p99.99 | longest µs | stalls | idle stalls |\n|---|";
    page += &"---|".repeat(memory.len() + 9);
    page += "\n";
    for contender in found.of(workload) {
        let of = |figure: &str| found.median(workload, &contender.name, figure);
        if of("p50").is_none() {
            continue;
        }
        let cell = |figure: &str, by: f64| {
            of(figure).map_or_else(String::new, |value| format!(" {:.0} |", value / by))
        };
        write!(page, "| {} |", contender.title)?;
        for name in memory.iter().chain(&["p50", "p99", "p99.9", "p99.99", "caused p99.99", "idle p99.99"]) {
            page += &cell(name, 1.0);
        }
        page += &cell("max", 1e3);
        page += &cell("stalls", 1.0);
        page += &cell("idle stalls", 1.0);
        page += "\n";
    }
    Ok(page + "\n")
}

fn steps(found: &Found) -> Result<String> {
    let mut page = String::from(
        "## A step over a store\n\nThrough the trait, with a clock that is read before a refusal; 10,000 callers, each with its own keys. Of four charges, the last refuses.\n\n| store | charges | permitted, refused, ns | two threads: permitted, refused, M/s |\n|---|---|---:|---:|\n",
    );
    for contender in found.of("store") {
        let cell = |figure: String| found.figure("store", &contender.name, &figure).map(median);
        for charges in [1, 4] {
            let cells = |end: &str| {
                let both = ["permitted", "denied"].map(|answer| cell(format!("{charges} {answer}{end}")));
                both.into_iter().flatten().collect::<Vec<_>>().join(", ")
            };
            writeln!(page, "| {} | {charges} | {} | {} |", contender.title, cells(""), cells(".pair"))?;
        }
    }
    Ok(page + "\n")
}

fn gate(found: &Found) -> Result<String> {
    let of = |figure: &str| found.median("gate", "tidegate", figure);
    let micros = |figure: &str| of(figure).map_or_else(String::new, |nanos| format!("{:.2}", nanos / 1e3));
    let mut page = String::from(
        "## One check over many policies\n\nIncluding the construction of a descriptor of four attributes; limits by client, of 10,000 clients (zipf). Refused: by the limit of the last\npolicy that matches.\n\n| policies | matching policies | permitted, µs | refused, µs |\n|---|---|---|---|\n",
    );
    for policies in [10, 100, 1000, 10_000] {
        let cell = micros(&format!("policies {policies}"));
        let refused = if policies == 1000 { micros("matching 1 refused") } else { String::new() };
        writeln!(page, "| {policies} | 1 | {cell} | {refused} |")?;
    }
    for matching in [4, 16] {
        let cells = ["", " refused"].map(|end| micros(&format!("matching {matching}{end}")));
        writeln!(page, "| 1000 | {matching} | {} |", cells.join(" | "))?;
    }
    page += "\n## What a policy costs that does not match\n\nA thousand policies beside one that matches; the added time, divided by their number.\n\n| policy | ns |\n|---|---:|\n";
    for (figure, title) in OTHERS {
        if let Some(nanos) = of(figure) {
            writeln!(page, "| {title} | {nanos:.2} |")?;
        }
    }
    Ok(page + "\n")
}

/// The figures about single policies, with their titles.
const OTHERS: [(&str, &str); 7] = [
    ("other path", "another path"),
    ("other glob", "a glob, `/api/other/**`"),
    ("other wide glob", "a glob whose beginning fits, `/api/*/other`"),
    ("other when", "a `when` condition that does not hold, and no other `match`"),
    ("other CEL", "a cost in CEL, another path"),
    ("added by when", "*matches*: added by a `when` condition that holds"),
    ("added by CEL", "*matches*: added by a cost in CEL"),
];

fn growth(found: &Found) -> Result<String> {
    let of = |figure: &str| found.median("growth", "tidegate", figure);
    let cell = |figure: &str| of(figure).map_or_else(|| "–".to_owned(), |value| format!("{value:.0}"));
    let mut page = String::from(
        "## How Tidegate grows\n\n| keys | insert ns | bytes a key | zipf ns | uniform ns | uniform, two threads, million a second |\n|---|---|---|---|---|---|\n",
    );
    for exponent in 3..=8 {
        let of_keys = |figure: &str| cell(&format!("keys 1e{exponent} {figure}"));
        if of(&format!("keys 1e{exponent} zipf")).is_some() {
            let cells = ["insert", "bytes", "zipf", "uniform", "uniform.pair"].map(of_keys).join(" | ");
            writeln!(page, "| 10^{exponent} | {cells} |")?;
        }
    }
    page += "\n| sliding log of | ns |\n|---|---|\n";
    for entries in [10, 100, 1000, 10_000, 16_384] {
        writeln!(page, "| {entries} | {} |", cell(&format!("log {entries}")))?;
    }
    page += "\n| sliding window of buckets | ns |\n|---|---|\n";
    for buckets in [1, 4, 16, 64] {
        writeln!(page, "| {buckets} | {} |", cell(&format!("buckets {buckets}")))?;
    }
    Ok(page + "\n")
}
