//! Prints one line after the other about a running server: what passes, what is refused, and how long that takes.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use serde_json::{Value, json};
use tidegate::policy::span;

use crate::args::Stat;
use crate::exit::{Exit, Mistake};
use crate::online::{self, ServerUrl};
use crate::output::Printer;
use crate::overview::{Overview, brief, clock, or_dash, percent, rate};
use crate::styled::{Look, Styled};

/// Only what the answer says of now is printed, so the shortest window will do.
const PATH: &str = "/v1/overview?w=1m";

/// After so many lines the names of the columns are printed again on a terminal.
const PAGE: u64 = 20;

pub(crate) fn run(stat: &Stat, printer: &Printer) -> Result<Exit> {
    let conditions: Vec<Condition> =
        stat.fail_if.iter().map(|text| text.parse::<Condition>()).collect::<Result<_, Mistake>>()?;
    if !printer.has_lines() {
        return Err(Mistake("stat prints a document a line; write -o jsonl or -o table".to_owned()).into());
    }
    let server = ServerUrl::of(&stat.server)?;
    let (mut printed, mut holds) = (0_u64, false);
    online::again(&server, PATH, stat.every, stat.count, printer, |answer| {
        let now = Overview::of(answer);
        holds = conditions.iter().any(|condition| condition.holds(&now));
        let has_heading = printed == 0 || printer.is_read() && printed.is_multiple_of(PAGE);
        printed += 1;
        printer.line(&value(&now, holds), |printer| {
            let mut text = Styled::default();
            if has_heading {
                text.push_as(Look::Heading, HEADING);
                text.push("\n");
            }
            text.push(line(&now, printer.wide()));
            Ok(text)
        })
    })?;
    Ok(if holds { Exit::Threshold } else { Exit::Done })
}

const HEADING: &str = "TIME       ALLOWED/s  DELAYED/s   DENIED/s       %       P50       P99   NOW";

fn line(now: &Overview, is_wide: bool) -> Styled {
    let rates = now.rates;
    let mut line = Styled::from(format!(
        "{:8}  {:>10} {:>10} {:>10} {:>7} {:>9} {:>9}   ",
        clock(&now.at),
        rate(rates.passed()),
        rate(rates.delayed),
        rate(rates.denied),
        or_dash(now.refused_share, percent),
        or_dash(now.p50_ms, brief),
        or_dash(now.p99_ms, brief),
    ));
    match now.level.look() {
        Some(look) => line.push_as(look, now.level.word()),
        None => line.push(now.level.word()),
    }
    if is_wide {
        line.push(format!(": {}", tidegate::visible::line(&now.says)));
    }
    line
}

fn value(now: &Overview, holds: bool) -> Value {
    let rates = now.rates;
    json!({
        "seen_at": now.at,
        "per_second": {
            "allowed": rates.allowed,
            "delayed": rates.delayed,
            "denied": rates.denied,
            "unmatched": rates.unmatched,
            "failed": rates.failed,
        },
        "denied_share": now.refused_share,
        "p50_ms": now.p50_ms,
        "p99_ms": now.p99_ms,
        "in_flight": now.in_flight,
        "now": now.level.word(),
        "says": now.says,
        "holds": holds,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Requests,
    Allowed,
    Delayed,
    Denied,
    Failed,
    P50,
    P99,
}

const MEASURES: [(&str, Measure); 7] = [
    ("requests", Measure::Requests),
    ("allowed", Measure::Allowed),
    ("delayed", Measure::Delayed),
    ("denied", Measure::Denied),
    ("failed", Measure::Failed),
    ("p50", Measure::P50),
    ("p99", Measure::P99),
];

impl Measure {
    fn is_time(self) -> bool {
        matches!(self, Self::P50 | Self::P99)
    }
}

type Relation = fn(f64, f64) -> bool;

/// Longer signs first, so that `>=` is not read as `>`.
const RELATIONS: [(&str, Relation); 4] = [
    ("<=", |measured, number| measured <= number),
    (">=", |measured, number| measured >= number),
    ("<", |measured, number| measured < number),
    (">", |measured, number| measured > number),
];

/// A condition on a line: `MEASURE RELATION NUMBER[%]`. A number is of requests a second, a percentage of all requests,
/// and that of `p50` and `p99` a time.
#[derive(Clone, Debug)]
struct Condition {
    measure: Measure,
    relation: Relation,
    /// A rate, a share from 0 to 1, or milliseconds.
    number: f64,
    is_share: bool,
}

impl Condition {
    /// What is not known does not hold.
    fn holds(&self, now: &Overview) -> bool {
        let all = now.rates.all();
        let of_all = |rate: f64| {
            let share = if all > 0.0 { rate / all } else { 0.0 };
            Some(if self.is_share { share } else { rate })
        };
        let measured = match self.measure {
            Measure::Requests => of_all(all),
            Measure::Allowed => of_all(now.rates.allowed),
            Measure::Delayed => of_all(now.rates.delayed),
            Measure::Denied if self.is_share => now.refused_share,
            Measure::Denied => of_all(now.rates.denied),
            Measure::Failed => of_all(now.rates.failed),
            Measure::P50 => now.p50_ms,
            Measure::P99 => now.p99_ms,
        };
        measured.is_some_and(|measured| (self.relation)(measured, self.number))
    }
}

impl FromStr for Condition {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Self, Mistake> {
        let wrong = |what: &dyn fmt::Display| Mistake(format!("--fail-if `{text}`: {what}"));
        let found = RELATIONS.iter().find_map(|(sign, relation)| {
            let (word, number) = text.split_once(sign)?;
            Some((word.trim(), *relation, number.trim()))
        });
        let Some((word, relation, number)) = found else {
            return Err(wrong(&"a relation is missing; write one as 'denied > 5%', with <, <=, > or >="));
        };
        let Some((_, measure)) = MEASURES.iter().find(|(name, _)| *name == word) else {
            let names = MEASURES.map(|(name, _)| name).join(", ");
            return Err(wrong(&format!("`{word}` is not a measure; there are {names}")));
        };
        if measure.is_time() {
            let span = span(number).map_err(|error| wrong(&error))?;
            let number = span.as_secs_f64() * 1e3;
            return Ok(Self { measure: *measure, relation, number, is_share: false });
        }
        let (digits, is_share) = match number.strip_suffix('%') {
            Some(digits) => (digits.trim(), true),
            None => (number, false),
        };
        let read = digits.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        let Some(read) = read.filter(|number| !is_share || *number <= 100.0) else {
            return Err(wrong(&format!(
                "`{number}` is no number of requests a second and no share; write 20 or 5%"
            )));
        };
        if is_share && *measure == Measure::Requests {
            return Err(wrong(&"requests are always 100% of themselves; give a number"));
        }
        let number = if is_share { read / 100.0 } else { read };
        Ok(Self { measure: *measure, relation, number, is_share })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overview::tests::answer;

    #[test]
    fn a_line_fits_a_narrow_terminal_below_its_heading() {
        let now = Overview::of(&answer());
        let shown = line(&now, false);
        assert_eq!(
            &*shown,
            "02:51:07        73.0          0       15.0    17.1      2 µs      9 µs   unusual"
        );
        assert!(HEADING.len() <= 80 && shown.chars().count() <= 80);
        let ends = |text: &str, word: &str| {
            text.find(word).map(|at| text[..at].chars().count() + word.chars().count())
        };
        for (name, value) in [("ALLOWED/s", "73.0"), ("DENIED/s", "15.0"), ("%", "17.1"), ("P99", "9 µs")] {
            assert_eq!(ends(HEADING, name), ends(&shown, value), "{name}");
        }
        assert!(
            line(&now, true)
                .ends_with("unusual: 17.1 % of requests refused; usual at this hour 0.4 to 1.2 %")
        );
    }

    #[test]
    fn conditions_hold_for_what_is_known() {
        let now = Overview::of(&answer());
        for (text, holds) in [
            ("denied > 5%", true),
            ("denied>17.1%", false),
            ("denied >= 15", true),
            ("requests < 88", false),
            ("failed > 0", false),
            ("p99 > 5us", true),
            ("p99 > 1ms", false),
        ] {
            assert_eq!(text.parse::<Condition>().unwrap().holds(&now), holds, "{text}");
        }
        let unknown = Overview::default();
        assert!(!"denied >= 0%".parse::<Condition>().unwrap().holds(&unknown));
        for (text, says) in [
            ("denied", "a relation is missing"),
            ("dnied > 1", "`dnied` is not a measure; there are requests, allowed"),
            ("denied > many", "`many` is no number"),
            ("denied > 101%", "`101%` is no number"),
            ("requests > 5%", "always 100% of themselves"),
            ("p99 > 5", "has no unit"),
        ] {
            let told = text.parse::<Condition>().unwrap_err().to_string();
            assert!(told.starts_with("--fail-if `") && told.contains(says), "{told}");
        }
    }
}
