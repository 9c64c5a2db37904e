//! Runs synthetic traffic, or a trace, against limits on a virtual clock.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use serde_json::json;
use tidegate::Tick;
use tidegate::policy::{Descriptor, Match, PolicySet};
use tidegate_sim::replay::{Replay, ReplayOptions};
use tidegate_sim::report;
use tidegate_sim::thousands::grouped;
use tidegate_sim::trace::Trace;
use tidegate_sim::traffic::Traffic;

use crate::args::Simulate;
use crate::exit::{Exit, Mistake};
use crate::limit_spec::LimitSpec;
use crate::outcome;
use crate::output::Printer;
use crate::styled::Styled;
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
    let sets = sets(simulate, printer)?;
    let names: Vec<String> = sets[0].1.policies().iter().flat_map(|policy| policy.by.clone()).collect();
    let mut replay =
        Replay::try_new(sets, ReplayOptions { hold: simulate.hold, ..ReplayOptions::default() })?;
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
    for arrival in traffic.arrivals(Tick::EPOCH, simulate.seed) {
        let key = arrival.key.text();
        let mut request = Descriptor::new().with("key", &*key);
        for name in &names {
            request.push(name.as_str(), &*key);
        }
        replay.feed_arrival(&arrival, &request);
    }
    replay.finish();
    let outcomes = replay.outcomes();
    outcome::remark_unknown(&replay.unknown_numbers(), printer);
    printer.value(&json!({ "seed": simulate.seed, "runs": outcomes }), |printer| {
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

/// Returns the given limit and those compared with it, or the policies of a file, applied to all requests.
fn sets(simulate: &Simulate, printer: &Printer) -> Result<Vec<(String, Arc<PolicySet>)>> {
    let by = ["key".to_owned()];
    let single = |words: &LimitSpec| {
        let read = words.file(&by, None).read();
        read.map(|config| config.policies).map_err(|why| anyhow::Error::from(Mistake(why)))
    };
    if let Some(words) = LimitSpec::of(&simulate.limit)? {
        policies::remark_unused(&simulate.policies, printer);
        let runs = words.runs(&simulate.compare)?.into_iter();
        return runs.map(|(name, words)| Ok((name, single(&words)?))).collect();
    }
    let Some(file) = policies::file(&simulate.policies) else {
        let what = "no limit: spell one out, such as --rate 100/s --burst 200, or name a file with -c";
        return Err(Mistake(what.to_owned()).into());
    };
    if !simulate.compare.is_empty() {
        return Err(Mistake("--compare needs a limit spelled out, such as --rate 100/s".to_owned()).into());
    }
    let name = file.display().to_string();
    Ok(vec![(name, chosen(simulate, &file, printer)?)])
}

/// Returns the policies of a file, or the named one, changed to match every request: generated requests have no path
/// and no host. Settings for all policies of the file apply to these too.
fn chosen(simulate: &Simulate, file: &Path, printer: &Printer) -> Result<Arc<PolicySet>> {
    let config = policies::read(file, printer)?;
    let mut chosen = Vec::new();
    for policy in config.policies.policies() {
        if simulate.policy.as_ref().is_none_or(|name| *name == policy.name) {
            let mut policy = policy.clone();
            policy.matching = Match::any();
            policy.direction = tidegate::policy::Direction::Inbound;
            chosen.push(policy);
        }
    }
    if chosen.is_empty() {
        let names: Vec<&str> = config.policies.policies().iter().map(|policy| policy.name.as_str()).collect();
        return Err(Mistake(match simulate.policy.as_deref() {
            Some(wanted) if !names.is_empty() => {
                format!("there is no policy \"{wanted}\"; there are {}", names.join(", "))
            }
            _ => format!("{} has no policies", file.display()),
        })
        .into());
    }
    let access = config.policies.shared_access().clone();
    let set = PolicySet::with(chosen, access, config.client_ip.ipv6_prefix);
    Ok(Arc::new(set.map_err(|error| Mistake(error.to_string()))?))
}

/// Runs a trace: operations in, decisions out, both as JSON lines whatever `-o` is.
fn run_trace(simulate: &Simulate, path: &Path, printer: &Printer) -> Result<Exit> {
    let words = LimitSpec::of(&simulate.limit)?;
    let trace = match (words, policies::file(&simulate.policies)) {
        (Some(words), _) => {
            policies::remark_unused(&simulate.policies, printer);
            Trace::of_limit(move |rate, burst| words.changed(rate, burst).quota().map(Arc::unwrap_or_clone))
        }
        (None, Some(file)) => Trace::of_policies(chosen(simulate, &file, printer)?),
        (None, None) => Err("a trace needs a limit, such as --rate 10/s --burst 5".to_owned()),
    };
    let mut trace = trace.map_err(Mistake)?;
    outcome::remark_unknown(&trace.unknown_numbers(), printer);
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
