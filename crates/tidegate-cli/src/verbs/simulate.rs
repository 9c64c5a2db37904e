//! Runs synthetic traffic, or a trace, against limits on a virtual clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use serde_json::json;
use tidegate::Tick;
use tidegate::policy::{Descriptor, Direction, Match, Mode, Policy, PolicySet, Source, Trigger};
use tidegate_sim::replay::{Outcome, Replay, ReplayOptions};
use tidegate_sim::trace::Trace;
use tidegate_sim::traffic::{Arrival, Traffic};
use tidegate_sim::{grouped, report};

use crate::args::Simulate;
use crate::exit::{Exit, Mistake};
use crate::limit_spec::LimitSpec;
use crate::output::Printer;
use crate::styled::Styled;
use crate::{outcome, policies, reading, writing};

pub(crate) fn run(simulate: &Simulate, printer: &Printer) -> Result<Exit> {
    if let Some(trace) = &simulate.trace {
        return run_trace(simulate, trace, printer);
    }
    let Some(traffic) = &simulate.traffic else {
        let what =
            "no traffic: describe some with --traffic 'steady 80/s 1min, burst 500', or name a --trace";
        return Err(Mistake(what.to_owned()).into());
    };
    let form = simulate.plot.as_deref().map(writing::prepare_picture).transpose()?;
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
        replay.feed_arrival(&arrival, &describe(&arrival, &key, &names));
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
    let named = attribute_names(traffic);
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

// The requests that synthetic traffic generates, and how the policies of a file are applied to them.
//
// A generated request has a key and the attributes that its segment names (`with request.path=/login`). A policy whose
// match needs attributes is matched as in a real check if the traffic names any of them. If it names none, the policy
// is applied to all requests, and a remark says so: matched as it is, it would limit nothing.

/// Enough to recognise them, and one line.
const NAMED: usize = 5;

#[derive(Debug)]
struct Applied {
    set: Arc<PolicySet>,
    /// What the matches of policies need, for those that are applied to all requests: the policies by their needs.
    unmatched: BTreeMap<BTreeSet<String>, Vec<String>>,
    /// What the match of a policy needs and the traffic does not name, for those that are matched.
    lacking: BTreeMap<String, BTreeSet<String>>,
}

impl Applied {
    /// All policies of a file, or the one called `only`. `named` has the attributes of the requests.
    ///
    /// # Errors
    /// A [`Mistake`] if the file cannot be read, or has no such policy.
    fn of(file: &Path, only: Option<&str>, named: &BTreeSet<&str>, printer: &Printer) -> Result<Self> {
        let config = policies::read(file, printer)?;
        let (mut chosen, mut unmatched, mut lacking) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for policy in config.policies.policies() {
            if only.is_some_and(|name| name != policy.name) {
                continue;
            }
            let mut policy = policy.clone();
            let needs = needs(&policy);
            let missing: BTreeSet<String> =
                needs.iter().filter(|name| !named.contains(name.as_str())).cloned().collect();
            if missing.len() < needs.len() {
                lacking.insert(policy.name.clone(), missing);
            } else if !needs.is_empty() {
                policy.matching = Match::any();
                policy.direction = Direction::Inbound;
                if policy.mode != Mode::Off {
                    unmatched.entry(needs).or_insert_with(Vec::new).push(policy.name.clone());
                }
            }
            chosen.push(policy);
        }
        if chosen.is_empty() {
            let names: Vec<&str> =
                config.policies.policies().iter().map(|policy| policy.name.as_str()).collect();
            return Err(Mistake(match only {
                Some(wanted) if !names.is_empty() => {
                    format!("there is no policy \"{wanted}\"; there are {}", names.join(", "))
                }
                _ => format!("{} has no policies", file.display()),
            })
            .into());
        }
        let access = config.policies.shared_access().clone();
        let is_chosen = |name: &str| chosen.iter().any(|policy| policy.name == name);
        let is_left = |trigger: &&Trigger| match trigger.off_when().source() {
            Source::Policy(name) => is_chosen(name),
            _ => true,
        };
        let triggers = config.policies.triggers().iter().filter(is_left).cloned().collect();
        let set = PolicySet::with(chosen, access, config.client_ip.ipv6_prefix);
        let set = set.and_then(|set| set.with_triggers(triggers));
        let set = Arc::new(set.map_err(|error| Mistake(error.to_string()))?);
        Ok(Self { set, unmatched, lacking })
    }

    /// Remarks on the policies that are applied to all requests, whatever their match says.
    fn remark_unmatched(&self, printer: &Printer) {
        for (needs, policies) in &self.unmatched {
            let (verb, all) = if policies.len() == 1 { ("was", "it") } else { ("were", "them") };
            printer.remark(&format!(
                "the traffic names no {}, so {} {verb} applied to all of them; to match {all}, name it in the traffic, \
                 as in burst 5 with {}",
                needs.iter().map(String::as_str).collect::<Vec<_>>().join(" and no "),
                listed(policies),
                example(needs.iter().next().map_or("", String::as_str)),
            ));
        }
    }

    /// Remarks on the policies that no request fitted although the traffic names a part of what their match needs.
    fn remark_unfitted(&self, outcome: &Outcome, printer: &Printer) {
        for one in &outcome.policies {
            let lacking = self.lacking.get(&one.name).filter(|missing| !missing.is_empty());
            if let Some(missing) = lacking.filter(|_| one.matched == 0) {
                let missing = missing.iter().map(String::as_str).collect::<Vec<_>>().join(" and ");
                printer.remark(&format!(
                    "no request fits {}; its match reads {missing}, and the traffic names none",
                    one.name
                ));
            }
        }
    }
}

fn attribute_names(traffic: &Traffic) -> BTreeSet<&str> {
    traffic.attributes().collect()
}

/// Describes a generated request: its key under `key` and under each of `keys` that its segment does not name, then the
/// attributes of the segment.
fn describe<'a>(arrival: &'a Arrival, key: &'a str, keys: &'a [String]) -> Descriptor<'a> {
    let mut request = Descriptor::new().with("key", key);
    let is_named = |name: &str| arrival.attributes.iter().any(|(other, _)| **other == *name);
    for name in keys.iter().filter(|name| !is_named(name)) {
        request.push(name.as_str(), key);
    }
    for (name, value) in &*arrival.attributes {
        request.push(&**name, &**value);
    }
    request
}

/// Returns the attributes that decide whether a policy applies to a request.
fn needs(policy: &Policy) -> BTreeSet<String> {
    let mut needs = BTreeSet::new();
    policy.matching.names(&mut |name| _ = needs.insert(name.to_owned()));
    places(&policy.matching, &mut needs);
    if policy.direction == Direction::Outbound {
        needs.insert("request.direction".to_owned());
    }
    needs
}

/// Adds the attributes that a match reads under words of its own.
fn places(matching: &Match, needs: &mut BTreeSet<String>) {
    for (name, is_read) in [
        ("request.method", !matching.methods().is_empty()),
        ("request.host", !matching.hosts().is_empty()),
        ("request.path", !matching.paths().is_empty()),
    ] {
        if is_read {
            needs.insert(name.to_owned());
        }
    }
    matching.left_out().iter().for_each(|not| places(not, needs));
}

fn listed(names: &[String]) -> String {
    let first = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMED) {
        None | Some(0) => first,
        Some(more) => format!("{first} and {more} more"),
    }
}

/// Returns an attribute as a segment of traffic writes it.
fn example(name: &str) -> String {
    let value = match name {
        "request.path" => "/login",
        "request.method" => "POST",
        "request.host" => "api.example.com",
        "request.direction" => "outbound",
        "client.ip" => "203.0.113.9",
        _ => "VALUE",
    };
    format!("{name}={value}")
}
