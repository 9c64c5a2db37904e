//! Outcomes of replays and simulations as tables, charts and verdicts: one form for both verbs.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tidegate::Tick;
use tidegate_sim::chart::{Bars, Curve, TimeAxis};
use tidegate_sim::log::Tally;
use tidegate_sim::replay::{Outcome, PolicyOutcome, Replay, Threshold};

use crate::exit::Mistake;
use crate::output::{Printer, table, thousands};

/// Lanes of a run's curves.
const OFFERED: usize = 0;
const ADMITTED: usize = 1;

/// A threshold and what it found.
#[derive(Debug)]
pub(crate) struct VerdictLine {
    condition: String,
    /// `None`: the log is not good enough to tell.
    pub(crate) failed: Option<bool>,
    measured: f64,
    percent: bool,
}

impl VerdictLine {
    pub(crate) fn json(&self) -> Value {
        json!({
            "condition": self.condition, "holds": self.failed, "measured": self.measured,
            "unit": if self.percent { "percent" } else { "count" },
        })
    }
}

impl fmt::Display for VerdictLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.percent { " %" } else { "" };
        let digits = if self.percent { 3 } else { 0 };
        let word = match self.failed {
            Some(true) => "FAILED",
            Some(false) => "passed",
            None => "no verdict",
        };
        write!(f, "{word}  fail if {}: measured {:.digits$}{unit}", self.condition, self.measured)
    }
}

/// Measures every threshold. A log that is in doubt decides none.
pub(crate) fn verdicts(
    thresholds: &[Threshold],
    outcome: &Outcome,
    log: &Tally,
    in_doubt: bool,
) -> Result<Vec<VerdictLine>> {
    let measure = |threshold: &Threshold| {
        let verdict = threshold.measure(outcome, log).map_err(Mistake)?;
        let (measured, percent) = (verdict.measured, verdict.percent);
        let failed = (!in_doubt).then_some(verdict.failed);
        Ok(VerdictLine { condition: threshold.to_string(), failed, measured, percent })
    };
    thresholds.iter().map(measure).collect()
}

/// Tables of all runs, with a chart of the first where there is room.
pub(crate) fn text(replay: &Replay, outcomes: &[Outcome], printer: &Printer) -> String {
    let mut text = String::new();
    if outcomes.len() == 1 {
        text.push_str(&policies(&outcomes[0], replay.is_recorded(), printer.wide()));
        text.push_str(&remarks(&outcomes[0]));
    } else {
        text.push_str(&side_by_side(outcomes));
    }
    if let (Some(series), Some(outcome)) = (replay.series(0), outcomes.first())
        && outcome.requests > 0
    {
        let (offered, admitted) =
            (Curve::averages("offered", series, OFFERED), Curve::averages("admitted", series, ADMITTED));
        let axis = axis(replay);
        let bars = Bars {
            title: "offered ░ and admitted █",
            unit: "requests per second",
            axis,
            offered: &offered,
            admitted: &admitted,
            limit: None,
        };
        text.push('\n');
        text.push_str(&bars.draw(width(), 8));
    }
    text
}

fn policies(outcome: &Outcome, recorded: bool, wide: bool) -> String {
    let mut header = vec![
        "POLICY",
        "MODE",
        "MATCHED",
        "DENIED",
        "%",
        "KEYS",
        "KEYS HIT",
        "WORST KEY",
        "PEAK RATE",
        "FIRST DENY",
    ];
    let guarded = outcome.policies.iter().any(|policy| policy.most_in_use.is_some());
    if guarded {
        header.push("MOST IN USE");
    }
    if wide {
        header.extend(["DELAYED", "SHADOW DENIED", "BY", "LIMITS"]);
    }
    let row = |policy: &PolicyOutcome| {
        let refused = policy.denied + policy.shadow_denied;
        let share = if policy.matched == 0 { 0.0 } else { 100.0 * refused as f64 / policy.matched as f64 };
        let denied = if policy.mode == "shadow" {
            format!("({})", thousands(policy.shadow_denied))
        } else {
            thousands(policy.denied)
        };
        let keyed = !policy.by.is_empty();
        let mut row = vec![
            policy.name.clone(),
            policy.mode.to_owned(),
            thousands(policy.matched),
            denied,
            format!("{share:.2}"),
            if keyed { policy.keys.to_string() } else { "(all)".to_owned() },
            thousands(policy.keys_hit),
            policy.worst.as_ref().filter(|_| keyed).map_or_else(|| "-".to_owned(), |worst| worst.key.clone()),
            policy.peak.map_or_else(|| "-".to_owned(), |peak| peak.to_string()),
            policy.first_denied.map_or_else(|| "-".to_owned(), |at| when(at, recorded)),
        ];
        if guarded {
            row.push(policy.most_in_use.map_or_else(|| "-".to_owned(), thousands));
        }
        if wide {
            row.extend([
                thousands(policy.delayed),
                thousands(policy.shadow_denied),
                policy.by.join(" "),
                policy.limits.join("; "),
            ]);
        }
        row
    };
    table(&header, &[2, 3, 4, 5, 6], outcome.policies.iter().map(row)) + "\n"
}

fn remarks(outcome: &Outcome) -> String {
    let mut text = String::new();
    for policy in &outcome.policies {
        if policy.keys_hit_signed_in > 0 {
            text.push_str(&format!(
                "{} of {} keys hit by {} also signed in and were served: look at them before enforcing\n",
                thousands(policy.keys_hit_signed_in),
                thousands(policy.keys_hit),
                policy.name
            ));
        }
    }
    if outcome.left_early > 0 {
        text.push_str(&format!(
            "{} requests left their places early, because a million others were inside: denials are too few\n",
            thousands(outcome.left_early)
        ));
    }
    if outcome.evicted > 0 {
        let evicted = thousands(outcome.evicted);
        text.push_str(&format!(
            "{evicted} live keys were given up for lack of room: raise --keys, or denials are too few\n"
        ));
    }
    text
}

fn side_by_side(outcomes: &[Outcome]) -> String {
    let header = ["RUN", "REQUESTS", "ALLOWED", "DENIED", "%", "DELAYED", "KEYS HIT", "WORST KEY"];
    let row = |outcome: &Outcome| {
        let share = 100.0 * outcome.denied as f64 / outcome.requests.max(1) as f64;
        let hit = outcome.keys_hit();
        let worst = outcome.policies.iter().filter(|policy| policy.denied > 0 && !policy.by.is_empty());
        let worst = worst.max_by_key(|policy| policy.denied).and_then(|policy| policy.worst.as_ref());
        vec![
            outcome.name.clone(),
            thousands(outcome.requests),
            thousands(outcome.allowed),
            thousands(outcome.denied),
            format!("{share:.2}"),
            thousands(outcome.delayed),
            thousands(hit),
            worst.map_or_else(|| "-".to_owned(), |worst| worst.key.clone()),
        ]
    };
    table(&header, &[1, 2, 3, 4, 5, 6], outcomes.iter().map(row)) + "\n"
}

fn axis(replay: &Replay) -> TimeAxis {
    if replay.is_recorded() { TimeAxis::Utc } else { TimeAxis::Elapsed }
}

/// Columns of the terminal, or as many as a page has.
fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns.unwrap_or(100).clamp(40, 200)
}

/// A time as people write it, in UTC.
pub(crate) fn time(at: Tick) -> String {
    let nanos = i128::from(at.as_nanos());
    jiff::Timestamp::from_nanosecond(nanos)
        .map_or_else(|_| format!("{nanos} ns"), |time| time.strftime("%F %T").to_string())
}

fn when(at: Tick, recorded: bool) -> String {
    let since = at.since(Tick::EPOCH);
    match (recorded, since < Duration::from_secs(60)) {
        (true, _) => time(at),
        (false, true) => format!("{:.3} s", since.as_secs_f64()),
        (false, false) => span(since),
    }
}

/// A span in its two largest units: `6 h 12 min`, `850 ms`.
pub(crate) fn span(span: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let secs = span.as_secs();
    let Some(first) = UNITS.iter().position(|(unit, _)| secs >= *unit) else {
        return format!("{} ms", span.as_millis());
    };
    let (unit, name) = UNITS[first];
    let mut text = format!("{} {name}", secs / unit);
    if let Some((next, next_name)) = UNITS.get(first + 1).filter(|(next, _)| secs % unit / next > 0) {
        text.push_str(&format!(" {} {next_name}", secs % unit / next));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_for_people() {
        let spans = [0, 59, 60, 3661, 22_320, 90_000].map(|secs| span(Duration::from_secs(secs)));
        assert_eq!(spans, ["0 ms", "59 s", "1 min", "1 h 1 min", "6 h 12 min", "1 d 1 h"]);
    }
}
