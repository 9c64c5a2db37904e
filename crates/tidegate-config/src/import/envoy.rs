//! Converts the configuration of envoyproxy/ratelimit: a domain with a tree of descriptors.
//!
//! A descriptor walks down the tree, one entry per level. On each level one rule applies: that with the key and value
//! of the entry; otherwise the first pattern that fits; otherwise the key alone. The limit at the last entry holds, and
//! each value that no rule spells out has a counter of its own. A call is counted whether it passes or not (`charge:
//! always`). So a rule becomes a policy for these keys in this order (`rls.keys`), without the values that other rules
//! of its level take first.

use std::collections::{BTreeMap, HashMap};

use super::super::budget;
use super::super::diagnostic::Findings;
use super::super::names::instead;
use super::super::node::{Node, Spot};
use super::attribute;
use super::draft::{AttributeMatch, Draft, Granted, PolicyFileText};
use tidegate_gate::policy::Glob;
use tidegate_limits::visible::excerpt;

/// The attribute with the keys of all entries in order, as the gRPC door sets it.
const KEYS: &str = "rls.keys";

/// The trees of all files, by domain.
#[derive(Debug, Default)]
pub(super) struct Domains {
    trees: BTreeMap<String, Vec<Rule>>,
}

impl Domains {
    pub(super) fn add(&mut self, file: usize, node: &Node, findings: &mut Findings) {
        if !super::is_map(node, "the file", findings) {
            return;
        }
        if node.entry("namespace").is_some() {
            findings.error(node.spot, "this is a file of Limitador; read it with --from-limitador");
            return;
        }
        // The name is that of the resource in xDS, as Envoy Gateway writes it.
        super::check(node, "the file", &["name", "domain", "descriptors"], &[], findings);
        let Some(domain) = super::text(node, "domain", findings).filter(|domain| !domain.is_empty()) else {
            findings.error(node.spot, "the file has no domain; write the domain of Envoy's filter");
            return;
        };
        let rules = super::list(node.get("descriptors"), "descriptors", findings);
        let read = rules.iter().filter_map(|node| rule(file, node, findings)).collect::<Vec<_>>();
        self.trees.entry(domain.to_owned()).or_default().extend(read);
    }

    pub(super) fn write(&self, file_text: &mut PolicyFileText, all: &mut [Findings]) {
        for (domain, rules) in &self.trees {
            let mut replaced = HashMap::new();
            replacements(rules, "", &mut replaced, all);
            let mut writing = Writing { domain, file_text, all, replaced, steps: Vec::new() };
            writing.level(rules);
        }
    }
}

struct Step {
    key: String,
    attribute: String,
    value: Option<String>,
    /// The values that other rules of the level take first.
    left_out: Vec<String>,
    /// Whether each value has a counter of its own.
    counted: bool,
}

struct Writing<'w> {
    domain: &'w str,
    file_text: &'w mut PolicyFileText,
    all: &'w mut [Findings],
    replaced: HashMap<&'w str, Vec<String>>,
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
                    format_args!(
                        "key \"{key}\"{value} stands in line {line} too; put the two rules into one"
                    ),
                );
                continue;
            }
            if self.file_text.is_full() {
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
        let keys = (KEYS.to_owned(), AttributeMatch::OneOf(vec![keys.join(",")]));
        let wanted = |step: &Step| {
            let wanted = step
                .value
                .clone()
                .map_or(AttributeMatch::Present, |value| AttributeMatch::OneOf(vec![value]));
            (step.attribute.clone(), wanted)
        };
        let is_plain = |step: &&Step| step.value.as_deref().is_some_and(|value| !value.contains('*'));
        // The deepest level first: its values distinguish the most policies.
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
        let left_out = left_out.map(|step| (step.attribute.clone(), step.left_out.clone()));
        let replaced = rule.name.as_deref().and_then(|name| self.replaced.get(name));
        let replaced = replaced.map(|calls| (CALL.to_owned(), calls.clone()));
        let draft = Draft {
            name,
            domain: self.domain.to_owned(),
            matches: plain.chain([keys]).chain(open).collect(),
            left_out: left_out.chain(replaced).collect(),
            by: self
                .steps
                .iter()
                .filter(|step| step.counted && !unlimited)
                .map(|step| step.attribute.clone())
                .collect(),
            granted: granted.clone(),
            charges_always: true,
            lenient: rule.lenient,
            file: rule.file,
            spot: rule.spot,
        };
        self.file_text.add(&draft, &mut self.all[rule.file]);
    }
}

/// Returns the values that rules of the same key take first: plain values before patterns, patterns in order, the key
/// alone last.
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

/// Converts a pattern in which braces have no special meaning.
fn literally(value: &str) -> String {
    value.replace(['{', '}'], "?")
}

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

/// The units of limits: the name in envoyproxy/ratelimit and the name here.
const UNITS: [(&str, &str); 7] = [
    ("second", "s"),
    ("minute", "min"),
    ("hour", "h"),
    ("day", "day"),
    ("week", "week"),
    ("month", "month"),
    ("year", "year"),
];

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) key: String,
    /// The required value, perhaps with stars; `None`: any value.
    pub(super) value: Option<String>,
    pub(super) granted: Option<Granted>,
    /// The name by which other limits replace this one.
    pub(super) name: Option<String>,
    /// The names of the limits that are not checked in a call that meets this one.
    pub(super) replaces: Vec<(String, Spot)>,
    pub(super) lenient: Option<&'static str>,
    pub(super) shared: bool,
    pub(super) rules: Vec<Rule>,
    pub(super) file: usize,
    pub(super) spot: Spot,
}

impl Rule {
    pub(super) fn is_pattern(&self) -> bool {
        self.value.as_deref().is_some_and(|value| value.contains('*'))
    }
}

pub(super) fn rule(file: usize, node: &Node, findings: &mut Findings) -> Option<Rule> {
    if !super::is_map(node, "a descriptor", findings) {
        return None;
    }
    let elsewhere = LIMIT.map(|word| (word, "in rate_limit"));
    super::check(node, "a descriptor", &RULE, &elsewhere, findings);
    let key = super::text(node, "key", findings).filter(|key| !key.is_empty());
    if key.is_none() {
        findings.error(node.spot, "a descriptor has no key; write the key of the entry that Envoy sends");
    }
    let value = super::text(node, "value", findings).filter(|value| !value.is_empty());
    let limit = node.get("rate_limit");
    let granted = limit.and_then(|limit| granted(limit, findings));
    let name =
        limit.and_then(|limit| limit.text_of("name")).filter(|name| !name.is_empty()).map(str::to_owned);
    let replaces = limit.map(|limit| replaced(limit, name.as_deref(), findings)).unwrap_or_default();
    let shadow = super::flag(node, "shadow_mode", findings);
    let quota = super::flag(node, "quota_mode", findings);
    if let Some(spot) = quota {
        findings.warn(
            spot,
            "quota_mode: a request over the limit passes with a header that says so; the status of its descriptor is OK, and no number of \
             such rules refuses the call",
        );
    }
    let shared = super::flag(node, "share_threshold", findings);
    if let Some(spot) = shared
        && !value.is_some_and(|value| value.contains('*'))
    {
        findings.error(
            spot,
            "share_threshold needs a value with *, as files/*: other values are not shared by anyone",
        );
    }
    for word in ["detailed_metric", "value_to_metric"] {
        if let Some(spot) = super::flag(node, word, findings) {
            findings.warn(
                spot,
                format_args!("{word}: metrics count by policy, not by value; /v1/keys/top lists the values that are refused most"),
            );
        }
    }
    if let Some((name, _)) = node.entry("metadata") {
        findings.warn(name.spot, "metadata is not sent to Envoy; the metadata of an answer names the policy, if the call asks for it");
    }
    let rules = super::list(node.get("descriptors"), "descriptors", findings);
    let rules = rules.iter().filter_map(|node| rule(file, node, findings)).collect();
    Some(Rule {
        key: key?.to_owned(),
        value: value.map(str::to_owned),
        granted,
        name,
        replaces,
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
    if !super::is_map(node, "rate_limit", findings) {
        return None;
    }
    let elsewhere = RULE.map(|word| (word, "in the descriptor, beside rate_limit"));
    super::check(node, "rate_limit", &LIMIT, &elsewhere, findings);
    if let Some((name, value)) = node.entry("name")
        && value.text() != Some("")
    {
        findings.warn(
            name.spot,
            "name: answers name the policy, which is called as the metrics there: domain, keys and values",
        );
    }
    let unit = super::text(node, "unit", findings);
    let count = super::whole(node, "requests_per_unit", u64::from(u32::MAX), findings);
    if let Some(spot) = super::flag(node, "unlimited", findings) {
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

fn replaced(node: &Node, own: Option<&str>, findings: &mut Findings) -> Vec<(String, Spot)> {
    let mut names = Vec::new();
    for one in super::list(node.get("replaces"), "replaces", findings) {
        match one.text_of("name").filter(|name| !name.is_empty()) {
            None => findings.error(one.spot, "an element of replaces has no name; write - name: NAME"),
            Some(name) if Some(name) == own => {
                findings.error(
                    one.spot,
                    format_args!("\"{}\" replaces itself; name another limit", excerpt(name)),
                );
            }
            Some(name) => names.push((name.to_owned(), one.spot)),
        }
    }
    names
}

// Handles `replaces`: limits that are not checked in a call that meets another limit.

/// The attribute with all descriptors of the call, as the gRPC door sets it.
const CALL: &str = "rls.call";

/// Collects patterns of `rls.call` for the calls in which limits are replaced, by their names.
///
/// A pattern finds a descriptor that meets the replacing rule: exactly, if all values of that rule are spelled out. If
/// the last key has no value and no other rule of its level has that key, the pattern also fits longer descriptors. For
/// other rules, the values that neighbours take cannot be excluded, so they are reported.
fn replacements<'r>(
    rules: &'r [Rule],
    before: &str,
    found: &mut HashMap<&'r str, Vec<String>>,
    all: &mut [Findings],
) {
    for rule in rules {
        let start = format!("{before}{}=", escaped(&rule.key));
        let exact = rule.value.as_deref().filter(|value| !value.contains('*'));
        let has_neighbours = rules.iter().any(|other| !std::ptr::eq(other, rule) && other.key == rule.key);
        let pattern = match exact {
            Some(value) => Some(format!("*|{start}{}|*", escaped(value))),
            None if rule.value.is_none() && !has_neighbours => Some(format!("*|{start}*|*")),
            None => None,
        };
        for (name, spot) in &rule.replaces {
            match &pattern {
                Some(pattern) => found.entry(name).or_default().push(pattern.clone()),
                None => unsaid(name, rule.file, *spot, all),
            }
        }
        match exact {
            Some(value) => replacements(&rule.rules, &format!("{start}{},", escaped(value)), found, all),
            None => unsaid_below(&rule.rules, all),
        }
    }
}

fn unsaid_below(rules: &[Rule], all: &mut [Findings]) {
    for rule in rules {
        rule.replaces.iter().for_each(|(name, spot)| unsaid(name, rule.file, *spot, all));
        unsaid_below(&rule.rules, all);
    }
}

fn unsaid(name: &str, file: usize, spot: Spot, all: &mut [Findings]) {
    let name = excerpt(name);
    all[file].warn(
        spot,
        format_args!(
            "replaces: a call that matches both is limited by \"{name}\" too, because this rule does not list all its values; in \
             envoyproxy/ratelimit it is not"
        ),
    );
}

fn escaped(part: &str) -> String {
    part.replace('%', "%25").replace('|', "%7C").replace(',', "%2C").replace('=', "%3D")
}
