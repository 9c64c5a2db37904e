//! The configuration of envoyproxy/ratelimit: a domain, and under it a tree of descriptors.
//!
//! There a descriptor walks down the tree, one entry a level. At each level the rule of its key and value is taken if there is one, else
//! the first pattern of that key that fits the value, else the rule of the key alone; never two. The limit where the last entry ends is
//! the one that holds, and each value that no rule spells out is counted by itself. So a rule becomes a policy for descriptors of these keys
//! in this order (`rls.keys`), that leaves out what other rules of the same level take first.

use std::collections::{BTreeMap, HashMap};

use super::super::budget;
use super::super::diagnostic::Findings;
use super::super::node::{Node, Spot};
use super::super::suggest::instead;
use super::draft::{Draft, Granted, Sheet, Wanted};
use super::keys::{self, attribute};
use crate::policy::Glob;
use crate::visible::excerpt;

/// The keys of all entries in their order, as the gRPC door has them.
const KEYS: &str = "rls.keys";

const RULE: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// The units of limits, as they are called there and here.
const UNITS: [(&str, &str); 7] = [
    ("second", "s"),
    ("minute", "min"),
    ("hour", "h"),
    ("day", "day"),
    ("week", "week"),
    ("month", "month"),
    ("year", "year"),
];

/// One entry of the tree.
#[derive(Debug)]
struct Rule {
    key: String,
    /// What the value must be, perhaps with stars; `None` for any.
    value: Option<String>,
    granted: Option<Granted>,
    lenient: Option<&'static str>,
    shared: bool,
    rules: Vec<Rule>,
    file: usize,
    spot: Spot,
}

impl Rule {
    fn is_pattern(&self) -> bool {
        self.value.as_deref().is_some_and(|value| value.contains('*'))
    }
}

/// The trees of all files by their domains.
#[derive(Debug, Default)]
pub(super) struct Domains {
    trees: BTreeMap<String, Vec<Rule>>,
}

impl Domains {
    /// Reads a file.
    pub(super) fn add(&mut self, file: usize, node: &Node, findings: &mut Findings) {
        if !keys::is_map(node, "the file", findings) {
            return;
        }
        if node.entry("namespace").is_some() {
            findings.error(node.spot, "this is a file of Limitador; read it with --from-limitador");
            return;
        }
        keys::check(node, "the file", &["domain", "descriptors"], &[], findings);
        let Some(domain) = keys::text(node, "domain", findings).filter(|domain| !domain.is_empty()) else {
            findings.error(node.spot, "the file has no domain; write the domain of Envoy's filter");
            return;
        };
        findings.warn(
            node.get("domain").map_or(node.spot, |node| node.spot),
            "a refused call is charged nowhere; there each of its descriptors is counted by itself, also when refused",
        );
        let rules = keys::list(node.get("descriptors"), "descriptors", findings);
        let read = rules.iter().filter_map(|node| rule(file, node, findings)).collect::<Vec<_>>();
        self.trees.entry(domain.to_owned()).or_default().extend(read);
    }

    /// Writes all rules as policies.
    pub(super) fn write(&self, sheet: &mut Sheet, all: &mut [Findings]) {
        for (domain, rules) in &self.trees {
            let mut writing = Writing { domain, sheet, all, steps: Vec::new() };
            writing.level(rules);
        }
    }
}

fn rule(file: usize, node: &Node, findings: &mut Findings) -> Option<Rule> {
    if !keys::is_map(node, "a descriptor", findings) {
        return None;
    }
    let elsewhere = LIMIT.map(|word| (word, "in rate_limit"));
    keys::check(node, "a descriptor", &RULE, &elsewhere, findings);
    let key = keys::text(node, "key", findings).filter(|key| !key.is_empty());
    if key.is_none() {
        findings.error(node.spot, "a descriptor has no key; write the key of the entry that Envoy sends");
    }
    let value = keys::text(node, "value", findings).filter(|value| !value.is_empty());
    let limit = node.get("rate_limit");
    let granted = limit.and_then(|limit| granted(limit, findings));
    let shadow = keys::flag(node, "shadow_mode", findings);
    let quota = keys::flag(node, "quota_mode", findings);
    if let Some(spot) = quota {
        findings.warn(
            spot,
            "quota_mode: a request over the limit passes with a header that says so; the status of its descriptor is OK, and no number of \
             such rules refuses the call",
        );
    }
    let shared = keys::flag(node, "share_threshold", findings);
    if let Some(spot) = shared
        && !value.is_some_and(|value| value.contains('*'))
    {
        findings.error(
            spot,
            "share_threshold needs a value with *, as files/*: other values are not shared by anyone",
        );
    }
    for word in ["detailed_metric", "value_to_metric"] {
        if let Some(spot) = keys::flag(node, word, findings) {
            findings.warn(
                spot,
                format_args!("{word}: metrics are by policy and not by value; /v1/keys/top tells the values that are refused most"),
            );
        }
    }
    if let Some((name, _)) = node.entry("metadata") {
        findings.warn(name.spot, "metadata is not sent to Envoy; the metadata of an answer names the policy, where a call asks for it");
    }
    let rules = keys::list(node.get("descriptors"), "descriptors", findings);
    let rules = rules.iter().filter_map(|node| rule(file, node, findings)).collect();
    Some(Rule {
        key: key?.to_owned(),
        value: value.map(str::to_owned),
        granted,
        lenient: match (shadow, quota) {
            (Some(_), _) => Some("mode: shadow"),
            (None, Some(_)) => Some("over: mark"),
            (None, None) => None,
        },
        shared: shared.is_some(),
        rules,
        file,
        spot: node.spot,
    })
}

fn granted(node: &Node, findings: &mut Findings) -> Option<Granted> {
    if !keys::is_map(node, "rate_limit", findings) {
        return None;
    }
    let elsewhere = RULE.map(|word| (word, "in the descriptor, beside rate_limit"));
    keys::check(node, "rate_limit", &LIMIT, &elsewhere, findings);
    if let Some((name, _)) = node.entry("name") {
        findings.warn(
            name.spot,
            "name: answers name the policy, which is called as the metrics there: domain, keys and values",
        );
    }
    if let Some((name, _)) = node.entry("replaces") {
        findings.warn(
            name.spot,
            "replaces: both limits hold when one call meets both; there the replaced one is not asked. Raise the replaced limit, or give \
             Envoy's route one of the two descriptors",
        );
        for one in keys::list(node.get("replaces"), "replaces", findings) {
            let named = one.get("name").and_then(Node::text).is_some_and(|name| !name.is_empty());
            if !named {
                findings.error(one.spot, "an element of replaces has no name; write - name: NAME");
            }
        }
    }
    let unit = keys::text(node, "unit", findings);
    let count = keys::whole(node, "requests_per_unit", u64::from(u32::MAX), findings);
    if let Some(spot) = keys::flag(node, "unlimited", findings) {
        if unit.is_some() {
            findings.error(spot, "unlimited and unit exclude each other");
        }
        return Some(Granted::Unlimited);
    }
    let Some(unit) = unit else {
        if node.get("unit").is_none() {
            findings.error(node.spot, "rate_limit has no unit; write second, minute, hour, day, week, month or year, or unlimited: true");
        }
        return None;
    };
    let Some((_, length)) = UNITS.iter().find(|(word, _)| word.eq_ignore_ascii_case(unit)) else {
        let hint = instead(unit, UNITS.iter().map(|(word, _)| *word));
        let spot = node.get("unit").map_or(node.spot, |node| node.spot);
        findings.error(spot, format_args!("rate_limit: unknown unit \"{}\"{hint}", excerpt(unit)));
        return None;
    };
    if count.is_none() && node.get("requests_per_unit").is_none() {
        findings.warn(node.spot, "rate_limit has no requests_per_unit: every request is refused, as there");
    }
    match count.unwrap_or(0) {
        0 => Some(Granted::Nothing),
        count => Some(Granted::Window { count, length: (*length).to_owned(), since_epoch: true }),
    }
}

/// What a level of the tree asks of one entry.
struct Step {
    key: String,
    attribute: String,
    value: Option<String>,
    /// The values that other rules of the level take.
    left_out: Vec<String>,
    /// Whether each value has a counter of its own.
    counted: bool,
}

/// The walk over the tree of a domain.
struct Writing<'w> {
    domain: &'w str,
    sheet: &'w mut Sheet,
    all: &'w mut [Findings],
    steps: Vec<Step>,
}

impl Writing<'_> {
    fn level(&mut self, rules: &[Rule]) {
        let mut taken: HashMap<(&str, Option<&str>), Spot> = HashMap::new();
        let mut by_key: HashMap<&str, Vec<&Rule>> = HashMap::new();
        for rule in rules {
            by_key.entry(&rule.key).or_default().push(rule);
        }
        for rule in rules {
            if let Some(first) = taken.insert((&rule.key, rule.value.as_deref()), rule.spot) {
                let key = excerpt(&rule.key);
                let value = rule.value.as_deref().map(|value| format!(" and value \"{}\"", excerpt(value)));
                let (value, line) = (value.unwrap_or_default(), first.line);
                self.all[rule.file].error(
                    rule.spot,
                    format_args!("key \"{key}\"{value} stand in line {line} too; put the two rules into one"),
                );
                continue;
            }
            if self.sheet.is_full() {
                return;
            }
            let before = self.steps.iter().filter(|step| step.key == rule.key).count();
            let left_out = taken_before(rule, &by_key[&*rule.key]);
            self.steps.push(Step {
                key: rule.key.clone(),
                attribute: attribute(&rule.key, before),
                value: rule.value.clone(),
                left_out,
                counted: rule.value.is_none() || rule.is_pattern() && !rule.shared,
            });
            self.write(rule);
            self.level(&rule.rules);
            self.steps.pop();
        }
    }

    fn write(&mut self, rule: &Rule) {
        let Some(granted) = &rule.granted else { return };
        let unlimited = *granted == Granted::Unlimited;
        let keys: Vec<&str> = self.steps.iter().map(|step| &*step.key).collect();
        let keys = (KEYS.to_owned(), Wanted::OneOf(vec![keys.join(",")]));
        let wanted = |step: &Step| {
            let wanted = step.value.clone().map_or(Wanted::Present, |value| Wanted::OneOf(vec![value]));
            (step.attribute.clone(), wanted)
        };
        let is_plain = |step: &&Step| step.value.as_deref().is_some_and(|value| !value.contains('*'));
        // Deepest first: its values tell the most policies apart.
        let plain = self.steps.iter().rev().filter(is_plain).map(wanted);
        let open = self.steps.iter().filter(|step| !is_plain(step)).map(wanted);
        let name = self.steps.iter().fold(self.domain.to_owned(), |mut name, step| {
            name.push('.');
            name.push_str(&step.key);
            if let Some(value) = &step.value {
                name.push('_');
                name.push_str(value);
            }
            name
        });
        let left_out = self.steps.iter().filter(|step| !step.left_out.is_empty());
        let draft = Draft {
            name,
            domain: self.domain.to_owned(),
            matches: plain.chain([keys]).chain(open).collect(),
            left_out: left_out.map(|step| (step.attribute.clone(), step.left_out.clone())).collect(),
            by: self
                .steps
                .iter()
                .filter(|step| step.counted && !unlimited)
                .map(|step| step.attribute.clone())
                .collect(),
            granted: granted.clone(),
            lenient: rule.lenient,
            file: rule.file,
            spot: rule.spot,
        };
        self.sheet.add(&draft, &mut self.all[rule.file]);
    }
}

/// Returns the values that rules of the same key take before this one: plain values go before patterns, patterns in the order of the file,
/// and both before the key alone.
fn taken_before(rule: &Rule, same_key: &[&Rule]) -> Vec<String> {
    let Some(value) = &rule.value else {
        return same_key.iter().filter_map(|other| other.value.clone()).take(budget::ELEMENTS + 1).collect();
    };
    if !rule.is_pattern() {
        return Vec::new();
    }
    let Ok(own) = Glob::new(&literally(value)) else { return Vec::new() };
    let earlier = same_key.iter().take_while(|other| !std::ptr::eq(**other, rule));
    let patterns = earlier.filter(|other| other.is_pattern()).filter_map(|other| other.value.clone());
    let plain = same_key.iter().filter(|other| !other.is_pattern()).filter_map(|other| other.value.as_ref());
    plain.filter(|plain| own.matches(plain)).cloned().chain(patterns).take(budget::ELEMENTS + 1).collect()
}

/// A pattern of theirs as one of ours, in which braces mean something.
fn literally(value: &str) -> String {
    value.replace(['{', '}'], "?")
}
