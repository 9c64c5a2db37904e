//! Shows what policies would have done to recorded traffic.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;
use tidegate::policy::{Descriptor, Match, Mode, OnCostError, PolicySet, Relevance};
use tidegate::store::CapacityError;
use tidegate::visible;
use tidegate_sim::grouped;
use tidegate_sim::log::{Format, Log, Record, Tally};
use tidegate_sim::replay::{Doubt, Outcome, Replay, ReplayOptions, Threshold, Trust, shadow_limit_name};
use tidegate_sim::report::{self, Ladders, Report};

use crate::args::{self, Order, Reading, Speed, Typed};
use crate::exit::{Exit, Mistake, no_room};
use crate::keys_hit::{self, HitList};
use crate::limit_spec::LimitSpec;
use crate::output::Printer;
use crate::styled::{Look, Styled};
use crate::writing::{self, Plot};
use crate::{outcome, policies, reading};

/// Places are held and the log does not have the durations of requests.
const NO_HOLD: &str = "a concurrency limit counts requests in flight, and the log does not say how long requests took: \
     name the column with --column request.duration=COLUMN, or say with --hold how long they take, such as --hold 200ms";

/// How many of the keys hit the report lists for each policy, unless `--hit` is given.
const LISTED: usize = 50;

pub(crate) fn run(replay: &args::Replay, typed: Typed, printer: &Printer) -> Result<Exit> {
    let thresholds = thresholds(&replay.fail_if)?;
    let is_spelled = LimitSpec::of(&replay.limit)?.is_some();
    let sets = sets(replay, typed, printer)?;
    let plot = replay.plot.as_deref().map(|path| Plot::prepare(path, replay.png)).transpose()?;
    for threshold in &thresholds {
        known(threshold, &sets[0].1)?;
    }
    let options = ReplayOptions {
        store_keys: replay.keys,
        hold: replay.hold,
        details: replay.hit.is_some() || plot.is_some_and(Plot::has_report),
        ..ReplayOptions::default()
    };
    let policies = Arc::clone(&sets[0].1);
    let mut ladders = match plot {
        Some(plot) if plot.has_report() => {
            Ladders::new(&policies, &options).of_requests(&reading::options(&replay.reading)?.matching)
        }
        _ => Ladders::default(),
    };
    let tables = sets.len();
    let mut runs = Replay::new(sets, options).map_err(|error| match error {
        CapacityError::NoMemory { keys } => no_room("--keys", keys, tables),
        error => error.into(),
    })?;
    outcome::turn_off(&mut runs, &replay.switch_off)?;
    let mut log = reading::open(&replay.reading, printer)?;
    let (mut is_first, mut misfit) = (true, None);
    let took = feed(&mut log, replay.speed, printer, |records| {
        if is_first && let Some(first) = records.first() {
            is_first = false;
            misfit = first_misfit(&policies, &first.describe());
        }
        runs.feed_all(records);
        records.iter().for_each(|record| ladders.feed(record));
    })?;
    let tally = log.tally();
    parsed(tally, &replay.reading, "replay")?;
    let is_untimed = runs.unheld() > 0 && runs.unheld() == tally.records;
    if is_untimed && runs.holds() {
        return Err(Mistake(NO_HOLD.to_owned()).into());
    }
    runs.finish();
    let outcomes = runs.outcomes();
    columns(&log, printer)?;
    let remarks = outcome::unknown_remarks(&runs.unknown_numbers(), &runs.assumed_on(), true);
    remarks.iter().for_each(|remark| printer.remark(remark));
    matched(&runs, &outcomes, is_spelled.then_some(&replay.by[..]), misfit.as_deref())?;
    let doubts = Trust { max_malformed: replay.max_malformed, max_late: replay.max_late }.doubts(tally);
    let verdicts = outcome::verdicts(&thresholds, &outcomes[0], tally, !doubts.is_empty())?;
    let unknown = unknown_costs(&policies);
    costs(&unknown, &outcomes[0], &runs)?;

    let hit = replay.hit.map(|most| keys_hit::lists(&runs, &outcomes, most));
    let mut value = json!({
        "log": reading::describe(tally),
        "costs_unknown": unknown.iter().map(|one| (one.policy, one.requests)).collect::<BTreeMap<_, _>>(),
        "runs": outcomes,
        "no_verdict": doubts.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "thresholds": verdicts.iter().map(outcome::VerdictLine::json).collect::<Vec<_>>(),
        "remarks": remarks,
    });
    if let Some(lists) = &hit {
        value["hit"] = lists.iter().map(HitList::json).collect();
    }
    printer.value(&value, |printer| {
        let mut text = Styled::from(headline(tally, took));
        text.push(outcome::text(&runs, &outcomes, printer));
        for list in hit.iter().flatten() {
            text.push(list.text(runs.is_recorded(), outcomes.len() > 1));
        }
        for doubt in &doubts {
            text.push_as(Look::Bad, "NO VERDICT");
            text.push(format!("  {doubt}\n"));
        }
        for verdict in &verdicts {
            text.push(verdict.line());
        }
        Ok(text)
    })?;
    reading::remark(tally, printer);
    if runs.unheld() > 0 && !is_untimed {
        printer.remark(&format!(
            "the log does not say how long {} requests took: they count as ended at once; give their duration with --hold",
            grouped(runs.unheld())
        ));
    }
    if runs.judges() && runs.without_status() > 0 {
        printer.remark(&format!(
            "the log does not say how {} requests ended: breakers and adaptive limits learnt nothing from them; name the column of the status with --column",
            grouped(runs.without_status())
        ));
    }
    for UnknownCosts { policy, requests, on_error, why } in &unknown {
        let did = match on_error {
            OnCostError::WholeLimit => "took its whole limit",
            _ => "were denied by it",
        };
        let requests = grouped(*requests);
        printer
            .remark(&format!("{requests} requests have no cost that {policy} can compute and {did}: {why}"));
    }
    remark_unseen(&runs, printer);
    remark_unmet(&outcomes[0], &thresholds, printer);
    if let Some((path, plot)) = replay.plot.as_deref().zip(plot) {
        let report = Report {
            title: &reading::title(tally),
            replay: &runs,
            log: Some(tally),
            doubts: &doubts,
            ladders: &ladders,
            keys: replay.hit.unwrap_or(LISTED),
        };
        draw(&report, path, plot, printer)?;
    }
    trusted(&doubts, tally, replay.reading.order)?;
    Ok(if verdicts.iter().any(|verdict| verdict.failed == Some(true)) { Exit::Threshold } else { Exit::Done })
}

/// Returns the policy sets to run side by side: those of the file or of the given limit, then the limits to compare
/// with.
fn sets(replay: &args::Replay, typed: Typed, printer: &Printer) -> Result<Vec<(String, Arc<PolicySet>)>> {
    let words = LimitSpec::of(&replay.limit)?;
    let mut sets = Vec::new();
    match (&words, policies::file(&replay.policies)) {
        (Some(words), _) => {
            policies::remark_unused(&replay.policies, printer);
            for (name, words) in words.runs(&replay.compare)? {
                sets.push((name, single(&words, replay)?));
            }
        }
        (None, Some(file)) => {
            // They have keys and costs of their own.
            let unused = [("--by", "by", typed.by), ("--cost", "cost", replay.cost.is_some())];
            if let Some((flag, key, _)) = unused.into_iter().find(|(.., given)| *given) {
                let what = format!(
                    "{flag} needs a limit given by flags, such as --rate 10/s; the policies of {} have their own `{key}`",
                    file.display()
                );
                return Err(Mistake(what).into());
            }
            sets.push((file.display().to_string(), policies::read(&file, printer)?.policies));
        }
        (None, None) => {
            let what = "no policies to replay: name a file with -c, or spell a limit out, such as \
                        --algorithm gcra --rate 10/s --burst 20 --by client.ip";
            return Err(Mistake(what.to_owned()).into());
        }
    }
    if words.is_none() && !replay.compare.is_empty() {
        return Err(Mistake("--compare needs a limit spelled out, such as --rate 10/s".to_owned()).into());
    }
    Ok(sets)
}

fn single(words: &LimitSpec, replay: &args::Replay) -> Result<Arc<PolicySet>> {
    let read = words.file(&replay.by, replay.cost.as_deref()).read();
    read.map(|config| config.policies).map_err(|why| Mistake(why).into())
}

fn thresholds(texts: &[String]) -> Result<Vec<Threshold>> {
    let read = |text: &String| text.parse::<Threshold>().map_err(|error| Mistake(error.to_string()).into());
    texts.iter().map(read).collect()
}

/// A threshold about a policy that does not exist could never fail.
fn known(threshold: &Threshold, policies: &PolicySet) -> Result<()> {
    let Some(name) = threshold.policy() else { return Ok(()) };
    let mut names = Vec::new();
    for policy in policies.policies().iter().filter(|policy| policy.mode != Mode::Off) {
        names.push(policy.name.clone());
        names.extend(policy.shadow_limit.is_some().then(|| shadow_limit_name(&policy.name)));
    }
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    if policies.policies().iter().any(|policy| policy.name == name && policy.mode == Mode::Off) {
        let what = format!(
            "--fail-if {threshold}: policy \"{name}\" is off (mode: off), so nothing of it is measured"
        );
        return Err(Mistake(what).into());
    }
    Err(Mistake(format!("--fail-if: there is no policy \"{name}\"; there are {}", names.join(", "))).into())
}

/// Reads the log through the gates, at the requested speed.
#[allow(
    clippy::disallowed_methods,
    reason = "a person waits: the time it took, and the pace of --speed, are the machine's"
)]
fn feed(
    log: &mut Log,
    speed: Speed,
    printer: &Printer,
    mut each: impl FnMut(&[Record<'_>]),
) -> Result<Duration> {
    let start = Instant::now();
    let progress = reading::Progress::start(log.watch(), printer);
    let outcome = match speed {
        Speed::Times(times) => {
            let mut first = None;
            log.read(|record| {
                progress.tick();
                let due = slowed(record.time.since(*first.get_or_insert(record.time)), times);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
                each(slice::from_ref(record));
                ControlFlow::Continue(())
            })
        }
        Speed::Max => log.read_together(|records| {
            records.iter().for_each(|_| progress.tick());
            each(records);
            ControlFlow::Continue(())
        }),
    };
    progress.finish();
    outcome.map(drop)?;
    Ok(start.elapsed())
}

/// Returns how long a span of log takes at `times` its speed; `Duration::MAX` if that overflows for a speed near 0.
fn slowed(span: Duration, times: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() / times).unwrap_or(Duration::MAX)
}

fn headline(tally: &Tally, took: Duration) -> String {
    let span = match (tally.first, tally.last) {
        (Some(first), Some(last)) => outcome::span(last.since(first)),
        _ => "no time".to_owned(),
    };
    let rate = tally.records as f64 / took.as_secs_f64().max(1e-9);
    format!(
        "{} requests over {span}, read in {:.2} s ({} a second)\n",
        grouped(tally.records),
        took.as_secs_f64(),
        grouped(rate as u64)
    )
}

fn draw(report: &Report<'_>, path: &Path, plot: Plot, printer: &Printer) -> Result<()> {
    let files = match plot {
        Plot::File(form) => vec![(path.to_owned(), report::first_picture(report.replay, form)?.bytes)],
        Plot::Folder(form) => {
            let pictures = report::pictures(report.replay, form)?.into_iter();
            let pictures = pictures.map(|picture| (path.join(picture.name), picture.bytes));
            let page = (path.join("report.html"), report::page(report)?.into_bytes());
            std::iter::once(page).chain(pictures).collect()
        }
    };
    for (path, bytes) in files {
        writing::put(&path, &bytes).context("--plot")?;
        printer.remark(&format!("wrote {}", path.display()));
    }
    Ok(())
}

/// A run that read or matched nothing would pass every threshold. `verb` says what there is nothing to do with.
pub(crate) fn parsed(tally: &Tally, reading: &Reading, verb: &str) -> Result<()> {
    if tally.records > 0 {
        return Ok(());
    }
    if tally.unmatched > 0 {
        let asked: Vec<String> =
            reading.matching.iter().map(|(name, value)| format!("--match {name}={value}")).collect();
        let mut what = format!(
            "nothing to {verb}: none of the {} requests matches {}",
            grouped(tally.unmatched),
            asked.join(" ")
        );
        if !tally.unmet.is_empty() {
            what.push_str(&format!("; no request has {}", tally.unmet.join(", ")));
        }
        return Err(Mistake(what).into());
    }
    let files: Vec<&str> = tally.files.iter().map(|(name, _)| name.as_str()).collect();
    let mut what = format!("nothing to {verb}: no request in {}", files.join(", "));
    match (tally.malformed, tally.first_malformed.first()) {
        (_, None) if tally.lines == 0 => what.push_str(", which is empty"),
        (_, None) => what.push_str(", which has only blank lines, comments or a header"),
        (malformed, Some(first)) => {
            what.push_str(&format!(": malformed lines {}, the first is {first}; ", grouped(malformed)));
            match reading::recognised(reading) {
                Some((option, format)) => {
                    what.push_str(&format!("leave {option} out: the lines are read as {format}"));
                }
                None => {
                    what.push_str("name the format with --format or --log-format, and columns with --column");
                }
            }
        }
    }
    Err(Mistake(what).into())
}

/// A column that the log does not have. A JSON field may be missing for a whole day, so that is only a remark.
pub(crate) fn columns(log: &Log, printer: &Printer) -> Result<()> {
    let Some((attribute, column)) = log.unmet_columns().next() else { return Ok(()) };
    let what = format!("--column {attribute}={column}: no line has a column {column}");
    if log.tally().files.iter().any(|(_, format)| *format == Format::Json) {
        printer.remark(&what);
        return Ok(());
    }
    Err(Mistake(what).into())
}

/// Returns why the match of the first policy that has one does not fit the first request of a log.
fn first_misfit(policies: &PolicySet, first: &Descriptor<'_>) -> Option<String> {
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
fn matched(runs: &Replay, outcomes: &[Outcome], by: Option<&[String]>, misfit: Option<&str>) -> Result<()> {
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
struct UnknownCosts<'p> {
    policy: &'p str,
    requests: u64,
    on_error: OnCostError,
    why: String,
}

/// Returns the policies that could not compute the cost of some requests. Without this, a misspelt column would show a
/// limit that refuses everything.
fn unknown_costs(policies: &PolicySet) -> Vec<UnknownCosts<'_>> {
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
fn costs(unknown: &[UnknownCosts<'_>], run: &Outcome, runs: &Replay) -> Result<()> {
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
fn remark_unmet(run: &Outcome, thresholds: &[Threshold], printer: &Printer) {
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

fn remark_unseen(runs: &Replay, printer: &Printer) {
    if !runs.unseen().is_empty() {
        printer.remark(&unseen(runs));
    }
}

fn unseen(runs: &Replay) -> String {
    // The names of fields are untrusted text, and the message must be one line.
    let names: Vec<&str> = runs.attributes().iter().map(String::as_str).collect();
    let has = names.join(", ");
    let has = if has.is_empty() { "times and nothing else" } else { &has };
    let missing = |name: &String| match reading::meant(name, &names) {
        Some(meant) => format!("{name} (did you mean {meant}?)"),
        None => name.clone(),
    };
    let missing: Vec<String> = runs.unseen().iter().map(missing).collect();
    let mut what =
        visible::line(&format!("no request has {}; the log has {has}", missing.join(", "))).into_owned();
    if runs.unseen().iter().any(|name| name == "client.ip") {
        what.push_str("; name the field of the client with --column client.ip=NAME");
    }
    what
}

/// The message tells what would help.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_near_zero_stretches_without_end() {
        assert_eq!(slowed(Duration::from_secs(60), 60.0), Duration::from_secs(1));
        assert_eq!(slowed(Duration::from_secs(1), 1e-300), Duration::MAX);
        assert_eq!(slowed(Duration::ZERO, 1e-300), Duration::ZERO);
        assert_eq!(slowed(Duration::from_secs(1), f64::MAX), Duration::ZERO);
    }
}
