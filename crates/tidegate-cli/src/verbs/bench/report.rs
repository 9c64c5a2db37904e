//! Prints the results of a run, for people and programs.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tidegate::visible;
use tidegate_sim::{grouped, millis};

use super::judge::{Judge, WrongAnswers};
use super::tally::{Latencies, Second, Tally, took};
use crate::args::{Bench, Most};
use crate::exit::Exit;
use crate::output::Printer;
use crate::styled::{Look, Styled};

/// About the lines of a terminal, after which the header is repeated.
const ROWS_A_HEADER: u64 = 20;

/// One row per second.
#[derive(Debug, Default)]
pub(super) struct Rows {
    printed: u64,
}

impl Rows {
    /// Prints a row, unless remarks are off.
    pub(super) fn print(&mut self, second: &Second, printer: &Printer) -> Result<()> {
        if !printer.remarks() {
            return Ok(());
        }
        let mut text = Styled::default();
        let again = printer.is_read() && self.printed.is_multiple_of(ROWS_A_HEADER);
        if again || self.printed == 0 {
            let head =
                row("SECOND", &["ASKED", "ALLOWED", "DENIED", "FAILED", "P50", "P99"].map(str::to_owned));
            text.push_as(Look::Heading, &head);
            text.push("\n");
        }
        let counts = second.counts;
        let numbers = [counts.asked, counts.allowed, counts.denied, counts.failed].map(grouped);
        let [asked, allowed, denied, failed] = numbers;
        let number = second.number.to_string();
        let line = row(&number, &[asked, allowed, denied, failed, took(second.p50), took(second.p99)]);
        if counts.failed > 0 {
            text.push_as(Look::Bad, &line);
        } else {
            text.push(line);
        }
        self.printed += 1;
        printer.people(text)
    }
}

/// Formats a row with columns of fixed width, since later rows are unknown.
fn row(first: &str, others: &[String; 6]) -> String {
    let others: String = others.iter().map(|text| format!("{text:>11}")).collect();
    format!("{first:>6}{others}")
}

pub(super) fn print(report: &Report<'_>, printer: &Printer) -> Result<Exit> {
    let thresholds = thresholds(report);
    printer.value(&json(report, &thresholds), |_| Ok(text(report, &thresholds)))?;
    if let Some(why) = &report.done.tally.first_failure {
        printer.remark(&format!("the first failure: {why}"));
    }
    let tally = &report.done.tally;
    if tally.counts.denied == 0 && tally.unlimited > 0 && tally.unlimited == tally.counts.allowed {
        let by = visible::line(&report.by.join(", ")).into_owned();
        printer.remark(&format!(
            "no policy of the server limits any of these requests, which have {by}; give what its policies ask for, with --by or --attr"
        ));
    }
    Ok(if thresholds.iter().any(|one| one.broken) { Exit::Threshold } else { Exit::Done })
}

fn json(report: &Report<'_>, thresholds: &[Threshold]) -> Value {
    let Report { bench, seed, by, done } = *report;
    let tally = &done.tally;
    let codes: Map<String, Value> =
        tally.codes.iter().map(|(code, count)| (code.to_string(), (*count).into())).collect();
    let second = |second: &Second| {
        let counts = second.counts;
        json!({
            "second": second.number, "asked": counts.asked, "allowed": counts.allowed, "denied": counts.denied,
            "failed": counts.failed, "p50_ms": millis(second.p50), "p99_ms": millis(second.p99),
        })
    };
    let judged = done.judge.as_ref().map(|judge| {
        let mut judged = judge.found().json();
        judged["slack_ms"] = millis(bench.judging.slack).into();
        judged
    });
    json!({
        "url": bench.url,
        "loop": if bench.rate.is_some() { "open" } else { "closed" },
        "rate_per_second": bench.rate.map(crate::args::PerSecond::per_second),
        "connections": bench.connections,
        "by": by,
        "keys": bench.asks.keys.count(),
        "seed": seed,
        "took_ms": millis(done.took),
        "interrupted": done.interrupted,
        "asked": tally.counts.asked,
        "allowed": tally.counts.allowed,
        "denied": tally.counts.denied,
        "failed": tally.counts.failed,
        "unanswered": tally.unanswered(),
        "unsent": done.unsent,
        "codes": codes,
        "latency": tally.latencies.json(),
        "latency_from_sending": tally.from_sending.json(),
        "judged": judged,
        "thresholds": thresholds.iter().map(Threshold::json).collect::<Vec<_>>(),
        "each_second": tally.seconds.iter().map(second).collect::<Vec<_>>(),
    })
}

fn text(report: &Report<'_>, thresholds: &[Threshold]) -> Styled {
    let Report { bench, done, .. } = *report;
    let (tally, counts) = (&done.tally, done.tally.counts);
    let seconds = done.took.as_secs_f64().max(1e-9);
    let how = match bench.rate {
        Some(rate) => format!("open loop of {}", rate.text()),
        None => "closed loop".to_owned(),
    };
    let connections = if bench.connections == 1 {
        "1 connection".to_owned()
    } else {
        format!("{} connections", bench.connections)
    };
    let mut text = Styled::from(format!(
        "{} asked in {seconds:.2} s, {} a second: {how}, {connections}\n",
        grouped(counts.asked),
        grouped((counts.asked as f64 / seconds).round() as u64)
    ));
    if done.interrupted {
        text.push_as(Look::Doubtful, "interrupted");
        text.push(": these are the figures so far\n");
    }
    let codes: Vec<String> =
        tally.codes.iter().map(|(code, count)| format!("{code} {}", grouped(*count))).collect();
    let [allowed, denied, failed] = [counts.allowed, counts.denied, counts.failed].map(grouped);
    text.push(format!("allowed {allowed}, denied {denied}, failed {failed}"));
    for (what, count) in [("unanswered", tally.unanswered()), ("due and never sent", done.unsent)] {
        if count > 0 {
            text.push(", ");
            text.push_as(Look::Bad, &format!("{what} {}", grouped(count)));
        }
    }
    text.push(format!("; answers: {}\n", codes.join(", ")));
    text.push(latencies("latency", &tally.latencies));
    if bench.rate.is_some() {
        text.push(latencies("from sending", &tally.from_sending));
    }
    if let Some(judge) = &done.judge {
        text.push(judged(judge.found(), bench.judging.slack));
    }
    for threshold in thresholds {
        text.push(threshold.line());
    }
    text
}

fn latencies(what: &str, latencies: &Latencies) -> String {
    let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(|share| took(latencies.at(share)));
    let longest = took(latencies.longest());
    format!("{what:<13} p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, max {longest}\n")
}

fn judged(found: WrongAnswers, slack: Duration) -> Styled {
    let mut text = Styled::default();
    if found.gave_up {
        text.push_as(Look::Bad, "NOT JUDGED");
        text.push("  too many requests waited at once for slower ones; of those before: ");
    }
    for (what, wrong, of) in [
        ("wrongly refused", found.wrongly_refused, found.refused),
        ("wrongly let through", found.wrongly_let_through, found.let_through),
    ] {
        let look = if wrong > 0 { Look::Bad } else { Look::Good };
        text.push_as(look, &format!("{what} {}", grouped(wrong)));
        text.push(format!(" of {}, ", grouped(of)));
    }
    text.push(format!("with a slack of {} ms\n", slack.as_secs_f64() * 1e3));
    text
}

#[derive(Debug)]
pub(super) struct Done {
    pub(super) tally: Tally,
    pub(super) judge: Option<Judge>,
    pub(super) took: Duration,
    /// Due but never sent.
    pub(super) unsent: u64,
    pub(super) interrupted: bool,
}

#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) bench: &'a Bench,
    pub(super) seed: u64,
    /// The attributes that hold the key.
    pub(super) by: &'a [String],
    pub(super) done: &'a Done,
}

#[derive(Debug)]
struct Threshold {
    /// The threshold as typed.
    said: String,
    measured: String,
    value: Value,
    broken: bool,
}

fn thresholds(report: &Report<'_>) -> Vec<Threshold> {
    let (flags, done) = (&report.bench.judging, report.done);
    let mut all = Vec::new();
    if let (Some(most), Some(judge)) = (flags.max_wrong, &done.judge) {
        all.push(wrong(most, judge.found()));
    }
    if let Some(most) = flags.max_p99 {
        let p99 = done.tally.latencies.at(0.99);
        all.push(Threshold {
            said: format!("--max-p99 {}", took(most)),
            measured: took(p99),
            value: millis(p99).into(),
            broken: p99 > most,
        });
    }
    if let Some(most) = flags.max_failed {
        let failed = done.tally.counts.failed + done.tally.unanswered() + done.unsent;
        all.push(Threshold::counted("--max-failed", most, failed, done.tally.counts.asked + done.unsent));
    }
    all
}

/// Returns the threshold for wrong answers. As a number, both kinds count together. As a share, each kind counts on its
/// own, since a server under load may deny far more than it allows, or far less.
fn wrong(most: Most, found: WrongAnswers) -> Threshold {
    let WrongAnswers { let_through, wrongly_let_through, refused, wrongly_refused, gave_up } = found;
    let all =
        Threshold::counted("--max-wrong", most, wrongly_let_through + wrongly_refused, let_through + refused);
    let of_each = [(wrongly_let_through, let_through), (wrongly_refused, refused)]
        .map(|(count, of)| Threshold::counted("--max-wrong", most, count, of).broken);
    Threshold {
        // A judge that gave up counts as broken.
        broken: gave_up || all.broken || of_each.contains(&true),
        ..all
    }
}

impl Threshold {
    fn counted(flag: &str, most: Most, count: u64, of: u64) -> Self {
        let (said, broken) = match most {
            Most::Count(most) => (format!("{flag} {most}"), count > most),
            Most::Share(most) => (format!("{flag} {}%", most * 100.0), count as f64 > most * of as f64),
        };
        Self { said, measured: format!("{} of {}", grouped(count), grouped(of)), value: count.into(), broken }
    }

    fn json(&self) -> Value {
        json!({ "threshold": self.said, "measured": self.value, "broken": self.broken })
    }

    fn line(&self) -> Styled {
        let mut line = Styled::default();
        let (look, word) = if self.broken { (Look::Bad, "FAILED") } else { (Look::Good, "passed") };
        line.push_as(look, word);
        line.push(format!("  {}: measured {}\n", self.said, self.measured));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_all_and_a_number_is_a_number() {
        let broken = |most, count, of| Threshold::counted("--max-failed", most, count, of).broken;
        assert!(!broken(Most::Count(5), 5, 6) && broken(Most::Count(5), 6, 6_000));
        assert!(!broken(Most::Share(0.01), 10, 1_000) && broken(Most::Share(0.01), 11, 1_000));
        let found = WrongAnswers {
            let_through: 300,
            wrongly_let_through: 150,
            refused: 99_700,
            ..WrongAnswers::default()
        };
        assert!(wrong(Most::Share(0.4), found).broken && !wrong(Most::Share(0.5), found).broken);
        assert!(wrong(Most::Count(149), found).broken && !wrong(Most::Count(150), found).broken);
        assert!(wrong(Most::Count(150), WrongAnswers { gave_up: true, ..found }).broken);
        assert!(!broken(Most::Share(0.0), 0, 0) && broken(Most::Share(0.0), 1, 1_000_000));
    }
}
