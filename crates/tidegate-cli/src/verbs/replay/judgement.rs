//! Refuses replays without meaning: a run that read or matched nothing would pass every threshold.

use anyhow::Result;
use tidegate::policy::{Descriptor, Match, OnCostError, PolicySet, Relevance};
use tidegate::visible;
use tidegate_sim::log::{Format, Log, Tally};
use tidegate_sim::replay::{Doubt, Outcome, Replay, Threshold};
use tidegate_sim::thousands::grouped;

use crate::args::{Order, Reading};
use crate::exit::Mistake;
use crate::output::Printer;

/// Refuses a log without requests, or without any that match.
pub(super) fn parsed(tally: &Tally, reading: &Reading) -> Result<()> {
    if tally.records > 0 {
        return Ok(());
    }
    if tally.unmatched > 0 {
        let asked: Vec<String> =
            reading.matching.iter().map(|(name, value)| format!("--match {name}={value}")).collect();
        let mut what = format!(
            "nothing to replay: none of the {} requests matches {}",
            grouped(tally.unmatched),
            asked.join(" ")
        );
        if !tally.unmet.is_empty() {
            what.push_str(&format!("; no request has {}", tally.unmet.join(", ")));
        }
        return Err(Mistake(what).into());
    }
    let files: Vec<&str> = tally.files.iter().map(|(name, _)| name.as_str()).collect();
    let mut what = format!("nothing to replay: no request in {}", files.join(", "));
    match (tally.malformed, tally.first_malformed.first()) {
        (_, None) if tally.lines == 0 => what.push_str(", which is empty"),
        (_, None) => what.push_str(", which has only blank lines, comments or a header"),
        (malformed, Some(first)) => what.push_str(&format!(
            ": malformed lines {}, the first is {first}; name the format with --format or --log-format, and columns with --column",
            grouped(malformed)
        )),
    }
    Err(Mistake(what).into())
}

/// Refuses `--column` with a column that the log does not have. A JSON field may be missing for a whole day, so that
/// is only a remark.
pub(super) fn columns(log: &Log, printer: &Printer) -> Result<()> {
    let Some((attribute, column)) = log.unmet_columns().next() else { return Ok(()) };
    let what = format!("--column {attribute}={column}: no line has a column {column}");
    if log.tally().files.iter().any(|(_, format)| *format == Format::Json) {
        printer.remark(&what);
        return Ok(());
    }
    Err(Mistake(what).into())
}

/// Returns why the match of the first policy that has one does not fit the first request of a log.
pub(super) fn misfit(policies: &PolicySet, first: &Descriptor<'_>) -> Option<String> {
    policies.policies().iter().zip(policies.relevance(first)).find_map(|(policy, relevance)| {
        let Relevance::NoMatch { part, .. } = relevance else { return None };
        let name = match part {
            "method" => "request.method",
            "host" => "request.host",
            "path" => "request.path",
            "attributes" => {
                let mut demands = policy.matching.attributes().iter();
                let unmet =
                    demands.find(|(name, want)| !Match::any().attribute(name, want.clone()).matches(first));
                unmet.map(|(name, _)| &**name)?
            }
            _ => {
                return Some(format!("match.not of policy \"{}\" leaves out the first request", policy.name));
            }
        };
        let has = match first.value(name) {
            Some(value) => format!("has {name} \"{}\"", visible::excerpt(value)),
            None => format!("has no {name}"),
        };
        Some(format!("match of policy \"{}\" does not fit the first request, which {has}", policy.name))
    })
}

/// Refuses policies that matched no request of the log; `misfit` says why the first request does not fit.
pub(super) fn matched(
    runs: &Replay,
    outcomes: &[Outcome],
    by: Option<&[String]>,
    misfit: Option<&str>,
) -> Result<()> {
    let met =
        |run: &Outcome| run.errors + run.denied_by_list > 0 || run.policies.iter().any(|row| row.matched > 0);
    if outcomes.iter().any(met) {
        return Ok(());
    }
    let requests = outcomes.first().map_or(0, |run| run.requests);
    let mut what = format!("nothing matched: no policy matches any of the {} requests", grouped(requests));
    if let (true, Some(misfit)) = (runs.unseen().is_empty(), misfit) {
        what.push_str(&format!("; {misfit}"));
    } else if runs.unseen().is_empty() {
        what.push_str("; look at match, when, direction, mode and the allow-lists");
    } else {
        what.push_str(&format!("; {}", unseen(runs)));
    }
    if let Some(by) = by.filter(|by| runs.unseen().iter().any(|name| by.contains(name))) {
        what.insert_str(0, &format!("--by {}: ", by.join(",")));
        what.push_str("; write --by with one of these, or --by '' for one key of all requests");
    }
    Err(Mistake(what).into())
}

/// A policy that could not compute the cost of some requests.
pub(super) struct UnknownCosts<'p> {
    pub(super) policy: &'p str,
    pub(super) requests: u64,
    pub(super) on_error: OnCostError,
    pub(super) why: String,
}

/// Returns the policies that could not compute the cost of some requests. Without this, a misspelt column would show a
/// limit that refuses everything.
pub(super) fn unknown_costs(policies: &PolicySet) -> Vec<UnknownCosts<'_>> {
    let named = policies.policies().iter().enumerate();
    let unknown = named.map(|(at, policy)| {
        let errors = policies.cost_errors(at);
        UnknownCosts {
            policy: &policy.name,
            requests: errors.at_check,
            on_error: policy.on_cost_error,
            why: errors.last.map(|why| why.to_string()).unwrap_or_default(),
        }
    });
    unknown.filter(|one| one.requests > 0).collect()
}

/// Refuses a policy that could compute the cost of no request: whatever it did with them says nothing of its limit.
pub(super) fn costs(unknown: &[UnknownCosts<'_>], run: &Outcome, runs: &Replay) -> Result<()> {
    let matched = |name: &str| run.policies.iter().find(|row| row.name == name).map_or(0, |row| row.matched);
    let Some(one) = unknown.iter().find(|one| one.requests >= matched(one.policy)) else { return Ok(()) };
    let requests = grouped(one.requests);
    let has = visible::line(&runs.attributes().join(", ")).into_owned();
    let what = format!(
        "no verdict: {} has no cost for any of its {requests} requests: {}; the first request of the log has {has}",
        one.policy, one.why
    );
    Err(Mistake(what).into())
}

/// Remarks on policies that matched nothing, if thresholds judge all policies together.
pub(super) fn remark_unmet(run: &Outcome, thresholds: &[Threshold], printer: &Printer) {
    if thresholds.iter().all(|threshold| threshold.policy().is_some()) {
        return;
    }
    let unmet = run.policies.iter().filter(|row| row.matched == 0 && row.denied == 0);
    let names: Vec<&str> = unmet.map(|row| row.name.as_str()).collect();
    if !names.is_empty() {
        let what = format!(
            "no request of the log matches {}: --fail-if without a policy says nothing of them",
            names.join(", ")
        );
        printer.say(&format!("warning: {}", visible::line(&what)));
    }
}

/// Remarks on attributes of keys that no request has.
pub(super) fn remark_unseen(runs: &Replay, printer: &Printer) {
    if !runs.unseen().is_empty() {
        printer.remark(&unseen(runs));
    }
}

fn unseen(runs: &Replay) -> String {
    // Escape the names of fields: they are untrusted text, and the message must be one line.
    let has = runs.attributes().join(", ");
    let has = if has.is_empty() { "nothing but its time" } else { &has };
    let mut what =
        format!("no request has {}; the first one has {}", runs.unseen().join(", "), visible::line(has));
    if runs.unseen().iter().any(|name| name == "client.ip") {
        what.push_str("; name the field of the client with --column client.ip=NAME");
    }
    what
}

/// Refuses to judge by a log that was not read well enough; the message tells what would help.
pub(crate) fn trusted(doubts: &[Doubt], tally: &Tally, order: Order) -> Result<()> {
    if doubts.is_empty() {
        return Ok(());
    }
    let advice = |doubt: &Doubt| {
        let most = (doubt.share() * 100.0).ceil().min(100.0);
        match doubt {
            Doubt::Late { .. } => {
                let sort = if order == Order::Clamp { "--order sort " } else { "" };
                let window = tally.order.window_advised().filter(|_| tally.order.early == 0);
                let remedy = window.map_or_else(String::new, |window| {
                    format!("; {sort}--reorder {window} puts them in order")
                });
                format!("{doubt}{remedy}; --max-late {most}% gives a verdict nevertheless")
            }
            _ => format!(
                "{doubt}; --format and --column say how to read them, --max-malformed {most}% gives a verdict nevertheless"
            ),
        }
    };
    let why: Vec<String> = doubts.iter().map(advice).collect();
    Err(Mistake(format!("no verdict: {}", why.join("; "))).into())
}
