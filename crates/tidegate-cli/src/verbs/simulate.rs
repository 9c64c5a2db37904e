//! Runs synthetic traffic, or a trace, against limits on a virtual clock.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use serde_json::json;
use tidegate::Tick;
use tidegate::policy::PolicySet;
use tidegate_sim::grouped;
use tidegate_sim::replay::{Replay, ReplayOptions};
use tidegate_sim::report;
use tidegate_sim::trace::Trace;
use tidegate_sim::traffic::Traffic;

use crate::args::Simulate;
use crate::exit::{Exit, Mistake};
use crate::limit_spec::LimitSpec;
use crate::outcome;
use crate::output::Printer;
use crate::styled::Styled;
use crate::synthetic::{self, Applied};
use crate::{pictures, policies, reading, writing};

pub(crate) fn run(simulate: &Simulate, printer: &Printer) -> Result<Exit> {
    if let Some(trace) = &simulate.trace {
        return run_trace(simulate, trace, printer);
    }
    let Some(traffic) = &simulate.traffic else {
        let what =
            "no traffic: describe some with --traffic 'steady 80/s 1min, burst 500', or name a --trace";
        return Err(Mistake(what.to_owned()).into());
    };
    let form = simulate.plot.as_deref().map(pictures::prepare).transpose()?;
    let traffic: Traffic = traffic.parse().map_err(|error| Mistake(format!("--{error}")))?;
    let (sets, applied) = sets(simulate, &traffic, printer)?;
    if let Some(applied) = &applied {
        applied.remark_unmatched(printer);
    }
    let names: Vec<String> = sets[0].1.policies().iter().flat_map(|policy| policy.by.clone()).collect();
    let mut replay = Replay::new(sets, ReplayOptions { hold: simulate.hold, ..ReplayOptions::default() })?;
    if replay.holds()
        && simulate.hold.is_none()
        && let Some(segment) = traffic.untimed()
    {
        return Err(Mistake(format!(
            "concurrency limits and breakers need the duration of requests: say in segment {segment} of the traffic how long a \
             request takes, such as `taking 20ms`, or with --hold for all segments that do not, such as --hold 200ms"
        ))
        .into());
    }
    outcome::turn_off(&mut replay, &simulate.switch_off)?;
    for arrival in traffic.arrivals(Tick::EPOCH, simulate.seed) {
        let key = arrival.key.text();
        replay.feed_arrival(&arrival, &synthetic::describe(&arrival, &key, &names));
    }
    replay.finish();
    let outcomes = replay.outcomes();
    let remarks = outcome::unknown_remarks(&replay.unknown_numbers(), &replay.assumed_on(), true);
    remarks.iter().for_each(|remark| printer.remark(remark));
    if let (Some(applied), Some(outcome)) = (&applied, outcomes.first()) {
        applied.remark_unfitted(outcome, printer);
    }
    let value = json!({ "seed": simulate.seed, "runs": outcomes, "remarks": remarks });
    printer.value(&value, |printer| {
        let requests = outcomes.first().map_or(0, |outcome| outcome.requests);
        let head = format!(
            "{} requests over {}, seed {}\n",
            grouped(requests),
            outcome::span(traffic.span()),
            simulate.seed
        );
        let mut text = Styled::from(head);
        text.push(outcome::text(&replay, &outcomes, printer));
        Ok(text)
    })?;
    if let (Some(path), Some(form)) = (&simulate.plot, form) {
        writing::put(path, &report::first_picture(&replay, form)?.bytes).context("--plot")?;
        printer.remark(&format!("wrote {}", path.display()));
    }
    Ok(Exit::Done)
}

/// Side by side, each with its name.
type Sets = Vec<(String, Arc<PolicySet>)>;

/// The given limit and those compared with it, or the policies of a file, with how they are applied.
fn sets(simulate: &Simulate, traffic: &Traffic, printer: &Printer) -> Result<(Sets, Option<Applied>)> {
    let by = ["key".to_owned()];
    let single = |words: &LimitSpec| {
        let read = words.file(&by, None).read();
        read.map(|config| config.policies).map_err(|why| anyhow::Error::from(Mistake(why)))
    };
    if let Some(words) = LimitSpec::of(&simulate.limit)? {
        policies::remark_unused(&simulate.policies, printer);
        let runs = words.runs(&simulate.compare)?.into_iter();
        let sets: Result<Sets> = runs.map(|(name, words)| Ok((name, single(&words)?))).collect();
        return Ok((sets?, None));
    }
    let Some(file) = policies::file(&simulate.policies) else {
        let what = "no limit: spell one out, such as --rate 100/s --burst 200, or name a file with -c";
        return Err(Mistake(what.to_owned()).into());
    };
    if !simulate.compare.is_empty() {
        return Err(Mistake("--compare needs a limit spelled out, such as --rate 100/s".to_owned()).into());
    }
    let name = file.display().to_string();
    let named = synthetic::named(traffic);
    let applied = Applied::of(&file, simulate.policy.as_deref(), &named, printer)?;
    Ok((vec![(name, Arc::clone(&applied.set))], Some(applied)))
}

/// Operations in, decisions out, both as JSON lines whatever `-o` is.
fn run_trace(simulate: &Simulate, path: &Path, printer: &Printer) -> Result<Exit> {
    let words = LimitSpec::of(&simulate.limit)?;
    let trace = match (words, policies::file(&simulate.policies)) {
        (Some(words), _) => {
            policies::remark_unused(&simulate.policies, printer);
            Trace::of_limit(move |rate, burst| words.changed(rate, burst).quota().map(Arc::unwrap_or_clone))
        }
        // A trace leaves `match` and `direction` out: every policy applies to all of its lines.
        (None, Some(file)) => {
            let only = simulate.policy.as_deref();
            Trace::of_policies(Applied::of(&file, only, &BTreeSet::new(), printer)?.set)
        }
        (None, None) => Err("a trace needs a limit, such as --rate 10/s --burst 5".to_owned()),
    };
    let mut trace = trace.map_err(Mistake)?;
    let remarks = outcome::unknown_remarks(&trace.unknown_numbers(), &trace.assumed_on(), false);
    remarks.iter().for_each(|remark| printer.remark(remark));
    if simulate.state {
        trace = trace.with_states();
    }
    let input: Box<dyn BufRead> = if path.as_os_str() == "-" {
        reading::remark_terminal("tidegate simulate --trace trace.jsonl", printer);
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(
            File::open(path).with_context(|| format!("--trace: cannot open {}", path.display()))?,
        ))
    };
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let outcome = trace.run(input, &mut out);
    out.flush()?;
    let tally = outcome.map_err(|error| match error {
        tidegate_sim::trace::TraceError::Line { .. } => {
            Mistake(format!("{}: {error}", path.display())).into()
        }
        error => anyhow::Error::from(error),
    })?;
    printer.remark(&format!(
        "{} operations, {} allowed, {} denied",
        grouped(tally.lines),
        grouped(tally.allowed),
        grouped(tally.denied)
    ));
    Ok(Exit::Done)
}
