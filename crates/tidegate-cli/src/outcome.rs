//! Prints the outcomes of replays and simulations as tables, charts and verdicts.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tidegate::{Tick, visible};
use tidegate_sim::chart::{Bars, Curve, TimeAxis};
use tidegate_sim::grouped;
use tidegate_sim::log::Tally;
use tidegate_sim::replay::{AssumedOn, Outcome, PolicyOutcome, Replay, Series, Threshold, UnknownNumber};

use crate::exit::Mistake;
use crate::guards;
use crate::output::Printer;
use crate::styled::{Cell, Look, Styled, table};

const OFFERED: usize = 0;
const ADMITTED: usize = 1;
/// The lane with those of them that policies in shadow mode would have denied.
const WOULD_DENY: usize = 3;

#[derive(Debug)]
pub(crate) struct VerdictLine {
    condition: String,
    /// Whether the threshold was exceeded; `None` if the log is not good enough to tell.
    pub(crate) failed: Option<bool>,
    measured: f64,
    percent: bool,
}

impl VerdictLine {
    pub(crate) fn json(&self) -> Value {
        let mut value = json!({ "condition": self.condition, "holds": self.failed });
        if self.percent {
            value["measured_share"] = json!(self.measured / 100.0);
        } else {
            value["measured"] = json!(self.measured as u64);
        }
        value
    }

    pub(crate) fn line(&self) -> Styled {
        let unit = if self.percent { " %" } else { "" };
        let digits = if self.percent { 3 } else { 0 };
        let (look, word) = match self.failed {
            Some(true) => (Look::Bad, "FAILED"),
            Some(false) => (Look::Good, "passed"),
            None => (Look::Doubtful, "no verdict"),
        };
        let mut line = Styled::default();
        line.push_as(look, word);
        line.push(format!("  fail if {}: measured {:.digits$}{unit}\n", self.condition, self.measured));
        line
    }
}

/// Measures every threshold. With a log in doubt, none is decided.
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

/// Numbers that policies use and that a run did not know, and switches that it took as on. `can_turn`: whether the verb
/// can turn them off.
pub(crate) fn unknown_remarks(
    numbers: &[UnknownNumber],
    switches: &[AssumedOn],
    can_turn: bool,
) -> Vec<String> {
    let numbers = numbers.iter().map(|unknown| {
        let advice = if unknown.is_of_durations() { "; --hold says how long" } else { "" };
        format!("{unknown}{advice}")
    });
    let switches = switches.iter().map(|assumed| match can_turn {
        true => format!("{assumed}; --switch-off {} shows the traffic with it off", assumed.switch),
        false => assumed.to_string(),
    });
    numbers.chain(switches).collect()
}

/// Turns switches off for a whole run.
///
/// # Errors
/// A [`Mistake`] if the policies have no switch of a name.
pub(crate) fn turn_off(replay: &mut Replay, switches: &[String]) -> Result<()> {
    for name in switches {
        replay.turn_off(name).map_err(|known| {
            let shown = visible::excerpt(name);
            Mistake(match &known[..] {
                [] => format!("--switch-off: there is no switch \"{shown}\": the policies have no switches"),
                known => {
                    format!("--switch-off: there is no switch \"{shown}\"; there are {}", known.join(", "))
                }
            })
        })?;
    }
    Ok(())
}

/// Returns tables of all runs, and a chart of the first if there is room.
pub(crate) fn text(replay: &Replay, outcomes: &[Outcome], printer: &Printer) -> Styled {
    let mut text = Styled::default();
    if outcomes.len() == 1 {
        text.push(policies(&outcomes[0], replay.is_recorded(), printer.wide()));
        text.push(remarks(&outcomes[0]));
    } else {
        text.push(side_by_side(outcomes));
    }
    text.push(guards::text(outcomes, |at| when(at, replay.is_recorded())));
    if let (Some(series), Some(outcome)) = (replay.series(0), outcomes.first())
        && outcome.requests > 0
    {
        let (offered, admitted) =
            (Curve::averages("offered", series, OFFERED), Curve::averages("admitted", series, ADMITTED));
        let step = step(series, outcome);
        let unit = unit(series, step);
        let highest = (step > series.resolution()).then(|| {
            let within = span(series.resolution());
            Curve::peaks(format!("offered in the highest {within} of each {}", span(step)), series, OFFERED)
        });
        let title = match outcomes {
            [_] => "offered ░ and admitted █".to_owned(),
            // They are file names or names of algorithms.
            _ => format!("offered ░ and admitted █ of the first run, {}", visible::name(&outcome.name)),
        };
        let would_deny =
            (outcome.shadow_denied > 0).then(|| Curve::averages("would be denied", series, WOULD_DENY));
        let bars = Bars {
            title: &title,
            unit: &unit,
            axis: axis(replay),
            offered: &offered,
            admitted: &admitted,
            would_deny: would_deny.as_ref(),
            highest: highest.as_ref(),
            limit: None,
        };
        text.push("\n");
        text.push(bars.draw(width(), 8));
    }
    text
}

fn step(series: &Series, outcome: &Outcome) -> Duration {
    let whole = outcome.last.unwrap_or_default().since(outcome.first.unwrap_or_default());
    series.width().max(whole / Bars::columns(width()) as u32)
}

/// Averages hide peaks, so it includes the highest second.
fn unit(series: &Series, step: Duration) -> String {
    let highest = series.points(OFFERED).map(|point| point.peak_per_second).fold(0.0, f64::max);
    let resolution = series.resolution();
    let most = grouped((highest * resolution.as_secs_f64()).round() as u64);
    format!("requests per second, averages of {}; most within {}: {most}", span(step), span(resolution))
}

fn policies(outcome: &Outcome, recorded: bool, wide: bool) -> Styled {
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
    // For policies that let requests over their limits pass.
    let told =
        [("MARKED", outcome.marked), ("DEMOTED", outcome.demoted)].map(|(name, all)| all.map(|_| name));
    header.extend(told.iter().flatten());
    if wide {
        header.extend(["DELAYED", "SHADOW DENIED", "BY", "LIMITS"]);
    }
    let row = |policy: &PolicyOutcome| {
        let refused = policy.denied + policy.shadow_denied;
        let share = if policy.matched == 0 { 0.0 } else { 100.0 * refused as f64 / policy.matched as f64 };
        let denied = if policy.mode == "shadow" {
            format!("({})", grouped(policy.shadow_denied))
        } else {
            grouped(policy.denied)
        };
        let look = match (policy.denied, refused) {
            (0, 0) => None,
            (0, _) => Some(Look::Doubtful),
            _ => Some(Look::Bad),
        };
        let keyed = !policy.by.is_empty();
        let mut row = vec![
            policy.name.clone(),
            policy.mode.to_owned(),
            grouped(policy.matched),
            denied,
            format!("{share:.2}"),
            if keyed { policy.keys.to_string() } else { "(all)".to_owned() },
            grouped(policy.keys_hit),
            policy
                .worst
                .as_ref()
                .filter(|_| keyed)
                .map_or_else(|| "-".to_owned(), |worst| visible::name(&worst.key).into_owned()),
            policy.peak.map_or_else(|| "-".to_owned(), |peak| peak.grouped()),
            policy.first_denied.map_or_else(|| "-".to_owned(), |at| when(at, recorded)),
        ];
        if guarded {
            row.push(policy.most_in_use.map_or_else(|| "-".to_owned(), grouped));
        }
        let counts = told.iter().zip([policy.marked, policy.demoted]).filter(|(name, _)| name.is_some());
        row.extend(counts.map(|(_, count)| count.map_or_else(|| "-".to_owned(), grouped)));
        if wide {
            row.extend([
                grouped(policy.delayed),
                grouped(policy.shadow_denied),
                policy.by.join(" "),
                policy.limits.join("; "),
            ]);
        }
        cells(row, DENIED, look)
    };
    table(&header, &[2, 3, 4, 5, 6], outcome.policies.iter().map(row)) + "\n"
}

fn remarks(outcome: &Outcome) -> String {
    let mut text = String::new();
    for policy in &outcome.policies {
        if policy.keys_hit_signed_in > 0 {
            text.push_str(&format!(
                "{} of {} keys hit by {} also signed in and were served: look at them before enforcing\n",
                grouped(policy.keys_hit_signed_in),
                grouped(policy.keys_hit),
                policy.name
            ));
        }
    }
    if outcome.left_early > 0 {
        text.push_str(&format!(
            "{} requests were taken out of their places early, because a million others were in flight: the number of denials may be too low\n",
            grouped(outcome.left_early)
        ));
    }
    if outcome.evicted > 0 {
        let evicted = grouped(outcome.evicted);
        text.push_str(&format!(
            "{evicted} live keys were evicted because the table was full: raise --keys, or the number of denials is too low\n"
        ));
    }
    text
}

fn side_by_side(outcomes: &[Outcome]) -> Styled {
    let header = ["RUN", "REQUESTS", "ALLOWED", "DENIED", "%", "DELAYED", "KEYS HIT", "WORST KEY"];
    // Only where a run has policies or limits in shadow mode.
    let measures = outcomes.iter().any(|outcome| outcome.shadow_denied > 0);
    let header: Vec<&str> = header.into_iter().chain(measures.then_some("SHADOW DENIED")).collect();
    let row = |outcome: &Outcome| {
        let share = 100.0 * outcome.denied as f64 / outcome.requests.max(1) as f64;
        let hit = outcome.keys_hit();
        let worst = outcome.policies.iter().filter(|policy| policy.denied > 0 && !policy.by.is_empty());
        let worst = worst.max_by_key(|policy| policy.denied).and_then(|policy| policy.worst.as_ref());
        let mut row = vec![
            outcome.name.clone(),
            grouped(outcome.requests),
            grouped(outcome.allowed),
            grouped(outcome.denied),
            format!("{share:.2}"),
            grouped(outcome.delayed),
            grouped(hit),
            worst.map_or_else(|| "-".to_owned(), |worst| visible::name(&worst.key).into_owned()),
        ];
        row.extend(measures.then(|| format!("({})", grouped(outcome.shadow_denied))));
        cells(row, DENIED, (outcome.denied > 0).then_some(Look::Bad))
    };
    table(&header, &[1, 2, 3, 4, 5, 6], outcomes.iter().map(row)) + "\n"
}

/// The column DENIED in both tables is highlighted if anything was denied.
const DENIED: usize = 3;

fn cells(row: Vec<String>, place: usize, look: Option<Look>) -> Vec<Cell> {
    let one = |(at, text)| Cell::looking(text, look.filter(|_| at == place));
    row.into_iter().enumerate().map(one).collect()
}

fn axis(replay: &Replay) -> TimeAxis {
    if replay.is_recorded() { TimeAxis::Utc } else { TimeAxis::Elapsed }
}

fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns.unwrap_or(100).clamp(40, 200)
}

/// Formats a time in UTC.
pub(crate) fn time(at: Tick) -> String {
    let nanos = i128::from(at.as_nanos());
    jiff::Timestamp::from_nanosecond(nanos)
        .map_or_else(|_| format!("{nanos} ns"), |time| time.strftime("%F %T").to_string())
}

/// A date for recorded traffic, for generated traffic a span since the beginning.
pub(crate) fn when(at: Tick, recorded: bool) -> String {
    let since = at.since(Tick::EPOCH);
    match (recorded, since < Duration::from_secs(60)) {
        (true, _) => time(at),
        (false, true) => format!("{:.3} s", since.as_secs_f64()),
        (false, false) => span(since),
    }
}

/// Formats a span in its two largest units: `6 h 12 min`, `850 ms`.
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
