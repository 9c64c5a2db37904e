//! Compares the project's targets ("bars") with the measured figures.

use std::fmt::Write as _;

use anyhow::Result;

use super::found::{Found, Role};

/// A target for one figure.
#[derive(Debug)]
pub(crate) struct Bar {
    what: String,
    wanted: f64,
    sense: Sense,
    measured: Option<f64>,
    unit: &'static str,
    /// The rival, if it is only known after the measurement.
    rival: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Sense {
    AtLeast,
    AtMost,
}

impl Bar {
    pub(crate) fn at_least(
        what: impl Into<String>,
        wanted: f64,
        measured: Option<f64>,
        unit: &'static str,
    ) -> Self {
        Self { what: what.into(), wanted, sense: Sense::AtLeast, measured, unit, rival: None }
    }

    pub(crate) fn at_most(
        what: impl Into<String>,
        wanted: f64,
        measured: Option<f64>,
        unit: &'static str,
    ) -> Self {
        Self { sense: Sense::AtMost, ..Self::at_least(what, wanted, measured, unit) }
    }

    fn cells(&self) -> String {
        let Self { what, wanted, sense, measured, unit, rival } = self;
        let sense = match sense {
            Sense::AtLeast => "at least",
            Sense::AtMost => "at most",
        };
        let found = measured.map_or_else(|| "–".to_owned(), |found| format!("{found:.2} {unit}"));
        let rival = rival.as_ref().map(|rival| format!(" ({rival})")).unwrap_or_default();
        format!("| {what} | {sense} {wanted} {unit} | {found}{rival} |")
    }

    /// Returns whether it is met; `None` if it was not measured.
    fn met(&self) -> Option<bool> {
        let found = self.measured?;
        Some(match self.sense {
            Sense::AtLeast => found >= self.wanted,
            Sense::AtMost => found <= self.wanted,
        })
    }
}

pub(crate) fn table(bars: &[Bar]) -> Result<String> {
    let mut page = String::from("## Bars\n\n| bar | wanted | measured | |\n|---|---|---|---|\n");
    for bar in bars {
        let met = match bar.met() {
            Some(true) => "met",
            Some(false) => "**not met**",
            None => "not measured",
        };
        writeln!(page, "{} {met} |", bar.cells())?;
    }
    Ok(page)
}

pub(crate) fn missed(bars: &[Bar]) -> Result<String> {
    let all = bars.iter().filter(|bar| bar.met().is_some()).count();
    let missed: Vec<&Bar> = bars.iter().filter(|bar| bar.met() == Some(false)).collect();
    let mut page = format!(
        "## Bars not met\n\nThe project sets itself bars; these {} of {all} are not met.\n\n| bar | wanted | measured |\n|---|---|---|\n",
        missed.len()
    );
    for bar in missed {
        writeln!(page, "{}", bar.cells())?;
    }
    Ok(page)
}

pub(crate) fn all(found: &Found, ran: impl Fn(&str) -> bool) -> Vec<Bar> {
    let mut bars = Vec::new();
    for workload in
        ["one", "keyed", "protection", "flood", "expire", "gate"].into_iter().filter(|workload| ran(workload))
    {
        bars.extend(match workload {
            "one" => one(found),
            "keyed" => keyed(found),
            "protection" => protection(found),
            "flood" => flood(found),
            "expire" => stalls(found, workload).into(),
            _ => gate(found),
        });
    }
    bars
}

const DEFAULT: &str = "tidegate";
const EXACT: &str = "tidegate-exact";
const LEASED: &str = "tidegate-leased";
const FULL_KEYS: &str = "tidegate-full-keys";

/// The rival that most readers know.
const GOVERNOR: &str = "governor";

const AS_IT_COMES: &[Role] = &[Role::Peer];
const AT_BEST: &[Role] = &[Role::Peer, Role::Tuned];

/// No peer is faster: 5 % are allowed, the difference between two runs of the same program.
const LEVEL: f64 = 0.95;

fn one(found: &Found) -> Vec<Bar> {
    let against = |what: &str, wanted, figure, contender| {
        Bar::at_least(what, wanted, found.speed("one", figure, contender, GOVERNOR), "x")
    };
    let floor =
        |what: &str, figure| Bar::at_most(what, 1.1, found.speed("one", figure, "floor-clock", EXACT), "x");
    let best = |what: &str, wanted, figure, contender| {
        against_best(found, "one", what, wanted, figure, contender, AS_IT_COMES)
    };
    vec![
        against("one limiter, permitted, against governor", 1.8, "permitted", DEFAULT),
        against("leased, against governor", 10.0, "permitted", LEASED),
        floor("the floor, against a fresh clock, permitted", "permitted"),
        best("fresh clock, permitted, against the best peer", LEVEL, "permitted", EXACT),
        floor("the floor, against a fresh clock, denied", "denied"),
        best("fresh clock, denied, against the best peer", LEVEL, "denied", EXACT),
        best("one limiter, two threads, permitted, against the best peer", 1.7, "permitted.pair", DEFAULT),
        best("leased, two threads, against the best peer", 15.0, "permitted.pair", LEASED),
    ]
}

fn keyed(found: &Found) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (traffic, default, best, fresh, batch, pair) in
        [("zipf", 4.5, 1.8, 2.2, 9.0, 5.8), ("uniform", 6.5, 2.0, 2.2, 16.0, 7.7)]
    {
        let against = |words: &str, wanted, figure: &str, contender| {
            let what = format!("a million keys, {traffic}{words}, against governor");
            Bar::at_least(what, wanted, found.speed("keyed", figure, contender, GOVERNOR), "x")
        };
        let tuned = format!("a million keys, {traffic}, against the best tuned peer");
        bars.extend([
            against("", default, traffic, DEFAULT),
            against_best(found, "keyed", &tuned, best, traffic, DEFAULT, AT_BEST),
            against(", fresh clock", fresh, traffic, EXACT),
            against(", batches", batch, &format!("{traffic}.batch"), DEFAULT),
            against(", two threads", pair, &format!("{traffic}.pair"), DEFAULT),
        ]);
    }
    let bytes = |contender| found.median("keyed", contender, "bytes");
    bars.push(Bar::at_most("memory of a live key", 24.0, bytes(DEFAULT), "bytes"));
    bars.push(Bar::at_most("memory of a live key, full keys", 48.0, bytes(FULL_KEYS), "bytes"));
    bars
}

fn protection(found: &Found) -> Vec<Bar> {
    let cost = |contender| found.speed("protection", "permit", "floor", contender);
    let layers = |contender| found.median("protection", contender, "layers");
    let added = |stack| Some(layers(stack)? - layers("bare")?);
    vec![
        Bar::at_most("a pair of atomic operations, against a permit", 2.0, cost(DEFAULT), "x"),
        Bar::at_most("time added by idle layers around a server", 1000.0, added("server-stack"), "ns"),
        Bar::at_most("time added by idle layers around a client", 1000.0, added("client-stack"), "ns"),
        against_best(
            found,
            "protection",
            "a place taken and returned, against the best peer",
            LEVEL,
            "permit",
            DEFAULT,
            AS_IT_COMES,
        ),
    ]
}

fn flood(found: &Found) -> Vec<Bar> {
    let of = |figure| found.median("flood", found.ours("flood")?, figure);
    let growth = of("peak MiB").zip(of("quarter MiB")).map(|(peak, quarter)| peak / quarter);
    let mut bars = vec![
        Bar::at_most("flood of a limiter for a million keys: peak memory", 32.0, of("peak MiB"), "MiB"),
        Bar::at_most("flood: peak memory, divided by the memory after a quarter", 1.05, growth, "x"),
    ];
    bars.extend(stalls(found, "flood"));
    bars
}

/// The stalls that the limiter caused. Idle turns between its checks show the stalls of the machine.
fn stalls(found: &Found, workload: &str) -> [Bar; 2] {
    let of = |figure| found.median(workload, found.ours(workload)?, figure);
    let micros = |figure| of(figure).map(|nanos| nanos / 1e3);
    let tail = Bar::at_most(
        format!("{workload}: p99.99 caused by the limiter, beyond that of idle turns"),
        5.0,
        micros("caused p99.99"),
        "µs",
    );
    let raw = micros("p99.99").zip(micros("idle p99.99"));
    let idle = of("idle stalls").unwrap_or(0.0);
    // Each count varies by about its square root; twice the root of their sum is attributed to chance.
    let chance = 2.0 * (2.0 * idle).sqrt();
    [
        Bar {
            rival: raw.map(|(checks, idle)| format!("checks {checks:.0} µs; idle turns {idle:.0} µs")),
            ..tail
        },
        Bar::at_most(
            format!("{workload}: stalls above 100 µs; idle turns had {idle:.0}, and chance is allowed for"),
            (idle + chance).ceil(),
            of("stalls"),
            "stalls",
        ),
    ]
}

fn gate(found: &Found) -> Vec<Bar> {
    let bar = |matching: u32, refused: bool, wanted: f64| {
        let (figure, told) = if refused { (" refused", ", refused") } else { ("", "") };
        let nanos = found.median("gate", "tidegate", &format!("matching {matching}{figure}"));
        let what = format!("gate, {matching} of 1,000 policies match{told}");
        Bar::at_most(what, wanted, nanos.map(|nanos| nanos / 1e3), "µs")
    };
    [(1, 0.16), (4, 0.4), (16, 1.2)]
        .into_iter()
        .flat_map(|(matching, wanted)| [bar(matching, false, wanted), bar(matching, true, wanted)])
        .collect()
}

fn against_best(
    found: &Found,
    workload: &str,
    what: &str,
    wanted: f64,
    figure: &str,
    contender: &str,
    roles: &[Role],
) -> Bar {
    let best = found.best(workload, figure, roles);
    let speed = best.and_then(|best| found.speed(workload, figure, contender, &best.name));
    let rival = best.map(|best| best.title.clone());
    Bar { rival, ..Bar::at_least(what, wanted, speed, "x") }
}

const CHECKS: [(&str, &str); 4] = [
    ("passing 1", "limits that are full again at the next check"),
    ("passing 2", "the same, two threads"),
    ("lasting 1", "limits that stay spent: every check is written"),
    ("lasting 2", "the same, two threads, while a third thread writes"),
];

pub(crate) fn disk_table(found: &Found) -> Result<String> {
    let of = |contender: &str, figure: &str| found.median("disk", contender, figure);
    let mut page = String::from(
        "## A million keys on disk\n\nRandom keys, uniform; CPU time of the checking threads in ns.\n\n| | in memory | on disk | speed, as a share of that in memory |\n|---|---|---|---|\n",
    );
    for (figure, title) in CHECKS {
        if let Some((memory, disk)) = of("memory", figure).zip(of("disk", figure)) {
            writeln!(page, "| {title} | {memory:.2} | {disk:.2} | {:.2} |", memory / disk)?;
        }
    }
    page += "\n| on disk | measured |\n|---|---|\n";
    let rows = [
        ("checks of one thread while every check is written, million a second", "checks M/s"),
        ("use of a core by the writing thread meanwhile, percent", "writer core %"),
        ("written to the device while every check is written, MB a second", "written MB/s"),
        ("part of that: pieces, MB a second", "pieces MB/s"),
        ("duration of the last write meanwhile, ms", "last write ms"),
        ("strict checks by 64 threads, a second", "strict"),
        ("size of the file, MB", "file MB"),
        ("start with a million keys, ms", "open ms"),
        ("CPU time of that start, ms", "open cpu ms"),
        ("read during that start, MB", "read MB"),
    ];
    for (title, figure) in rows {
        if let Some(measured) = of("disk", figure) {
            writeln!(page, "| {title} | {measured:.0} |")?;
        }
    }
    Ok(page + "\n")
}

pub(crate) fn disk_bars(found: &Found) -> Vec<Bar> {
    let of = |contender: &str, figure: &str| found.median("disk", contender, figure);
    let ratio = |figure| Some(of("memory", figure)? / of("disk", figure)?);
    vec![
        Bar::at_least("on disk, full again at once, against in memory", 0.9, ratio("passing 1"), "x"),
        Bar::at_least("on disk, every check written, against in memory", 0.9, ratio("lasting 1"), "x"),
        Bar::at_most("on disk: start with a million keys", 1000.0, of("disk", "open ms"), "ms"),
    ]
}
