//! The requests that `simulate` generates, and how the policies of a file are applied to them.
//!
//! A generated request has a key and the attributes that its segment names (`with request.path=/login`). A policy whose
//! match needs attributes is matched as in a real check if the traffic names any of them. If it names none, the policy
//! is applied to all requests, and a remark says so: matched as it is, it would limit nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use tidegate::policy::{Descriptor, Direction, Match, Mode, Policy, PolicySet, Source, Trigger};
use tidegate_sim::replay::Outcome;
use tidegate_sim::traffic::{Arrival, Traffic};

use crate::exit::Mistake;
use crate::output::Printer;
use crate::policies;

/// Enough to recognise them, and one line.
const NAMED: usize = 5;

#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) set: Arc<PolicySet>,
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
    pub(crate) fn of(
        file: &Path,
        only: Option<&str>,
        named: &BTreeSet<&str>,
        printer: &Printer,
    ) -> Result<Self> {
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
    pub(crate) fn remark_unmatched(&self, printer: &Printer) {
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
    pub(crate) fn remark_unfitted(&self, outcome: &Outcome, printer: &Printer) {
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

pub(crate) fn named(traffic: &Traffic) -> BTreeSet<&str> {
    traffic.attributes().collect()
}

/// Describes a generated request: its key under `key` and under each of `keys` that its segment does not name, then the
/// attributes of the segment.
pub(crate) fn describe<'a>(arrival: &'a Arrival, key: &'a str, keys: &'a [String]) -> Descriptor<'a> {
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
