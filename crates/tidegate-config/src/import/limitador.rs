//! Converts the limits file of Limitador: a list of limits, each with conditions in CEL and the variables that it
//! counts by.
//!
//! Two rules are the same in both systems: a window opens with the first request and lasts its seconds, and a call that
//! any limit refuses is charged nowhere.

use std::collections::BTreeSet;

use tidegate_core::Rate;

use super::super::diagnostic::Findings;
use super::super::node::{Node, Spot, Value};
use super::condition::{Conditions, DescriptorPlace};
use super::draft::{AttributeMatch, Draft, Granted, PolicyFileText};
use super::keys;

/// The attribute with the index of the descriptor in its call, as the gRPC door sets it.
const INDEX: &str = "rls.index";

const KEYS: [&str; 7] = ["namespace", "max_value", "seconds", "name", "id", "conditions", "variables"];

/// Reads a file and writes its limits as policies.
pub(super) fn convert(file: usize, node: &Node, file_text: &mut PolicyFileText, findings: &mut Findings) {
    if node.entry("domain").is_some() {
        findings.error(node.spot, "this is a file of envoyproxy/ratelimit; read it with --from-envoy");
        return;
    }
    let Value::List(limits) = &node.value else {
        findings.error(node.spot, format_args!("the file is a list of limits, found {}", node.kind()));
        return;
    };
    for (at, node) in limits.iter().enumerate() {
        if let Some(draft) = limit(file, at, node, findings) {
            file_text.add(&draft, findings);
        }
    }
}

fn limit(file: usize, at: usize, node: &Node, findings: &mut Findings) -> Option<Draft> {
    if !keys::is_map(node, "a limit", findings) {
        return None;
    }
    keys::check(node, "a limit", &KEYS, &[], findings);
    let mut needed = |key: &str| {
        if node.get(key).is_none() {
            findings.error(node.spot, format_args!("a limit has no {key}"));
        }
    };
    ["namespace", "max_value", "seconds"].into_iter().for_each(&mut needed);
    let namespace = keys::text(node, "namespace", findings);
    if namespace.is_some_and(str::is_empty) {
        findings.error(node.spot, "the namespace is empty; write the domain of Envoy's filter");
    }
    let count = keys::whole(node, "max_value", Rate::MAX_COUNT, findings);
    let seconds = keys::whole(node, "seconds", LONGEST, findings);
    if let (Some(0), Some(node)) = (seconds, node.get("seconds")) {
        findings.error(node.spot, "a window of 0 seconds limits nothing; write 1 or more");
    }
    let name = keys::text(node, "name", findings).or(keys::text(node, "id", findings));
    let mut conditions = Conditions::default();
    for one in keys::list(node.get("conditions"), "conditions", findings) {
        match one.text() {
            Some(text) => conditions.add(text, one.spot, findings),
            None => findings.error(one.spot, format_args!("a condition is a text, found {}", one.kind())),
        }
    }
    let mut by = BTreeSet::new();
    for one in keys::list(node.get("variables"), "variables", findings) {
        match one.text() {
            Some(text) => by.extend(conditions.variable(text, one.spot, findings)),
            None => findings.error(one.spot, format_args!("a variable is a text, found {}", one.kind())),
        }
    }
    let place = place(&conditions, node.spot, findings);
    let (namespace, count, seconds) = (namespace?, count?, seconds.filter(|seconds| *seconds > 0)?);
    let (mut matches, left_out) = conditions.finish();
    if let Some(index) = place {
        matches.push((INDEX.to_owned(), AttributeMatch::OneOf(vec![index.to_string()])));
    }
    let called = name.map_or_else(|| format!("limit-{}", at + 1), str::to_owned);
    Some(Draft {
        name: format!("{namespace}.{called}"),
        domain: namespace.to_owned(),
        matches,
        left_out,
        by: by.into_iter().collect(),
        granted: match count {
            0 => Granted::Nothing,
            count => Granted::Window { count, length: format!("{seconds}s"), since_epoch: false },
        },
        charges_always: false,
        lenient: None,
        file,
        spot: node.spot,
    })
}

/// The longest window, in seconds: a hundred years.
const LONGEST: u64 = 3_153_600_000;

/// Returns the index of the descriptor that a limit applies to; `None`: any descriptor.
fn place(conditions: &Conditions, spot: Spot, findings: &mut Findings) -> Option<u64> {
    let mut places = conditions.places().iter();
    match (places.next(), places.next()) {
        // A limit that names no descriptor is charged once per call.
        (None, _) => Some(0),
        (Some(DescriptorPlace::Any), None) => {
            findings.warn(
                spot,
                "a bare name is the key of an entry, as until version 1 of Limitador; in newer ones such a limit never applies: write \
                 descriptors[0].name",
            );
            None
        }
        (Some(DescriptorPlace::At(index)), None) => Some(*index),
        (Some(_), Some(_)) => {
            findings.error(
                spot,
                "a limit over several descriptors of a call cannot be a policy, which sees one at a time; have Envoy put the entries into one \
                 descriptor, and write descriptors[0] for all",
            );
            None
        }
    }
}
