//! Converts the configuration of envoyproxy/ratelimit: a domain with a tree of descriptors.
//!
//! In envoyproxy/ratelimit, a descriptor walks down the tree, one entry per level. On each level one rule applies: the
//! rule with the key and the value of the entry; otherwise the first pattern of that key that fits the value; otherwise
//! the rule with the key alone. The limit at the last entry holds, and each value that no rule spells out has a counter
//! of its own. A call is counted whether it passes or not (`charge: always`). So a rule becomes a policy for descriptors with these keys in this order (`rls.keys`), which excludes
//! the values that other rules of the same level take first.

mod replaces;
mod rule;

use std::collections::{BTreeMap, HashMap};

use self::replaces::{CALL, replacements};
use self::rule::{Rule, rule};
use super::super::budget;
use super::super::diagnostic::Findings;
use super::super::node::{Node, Spot};
use super::draft::{AttributeMatch, Draft, Granted, PolicyFileText};
use super::keys::{self, attribute};
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
    /// Reads a file and adds its tree.
    pub(super) fn add(&mut self, file: usize, node: &Node, findings: &mut Findings) {
        if !keys::is_map(node, "the file", findings) {
            return;
        }
        if node.entry("namespace").is_some() {
            findings.error(node.spot, "this is a file of Limitador; read it with --from-limitador");
            return;
        }
        // The name is that of the resource in xDS, as Envoy Gateway writes it.
        keys::check(node, "the file", &["name", "domain", "descriptors"], &[], findings);
        let Some(domain) = keys::text(node, "domain", findings).filter(|domain| !domain.is_empty()) else {
            findings.error(node.spot, "the file has no domain; write the domain of Envoy's filter");
            return;
        };
        let rules = keys::list(node.get("descriptors"), "descriptors", findings);
        let read = rules.iter().filter_map(|node| rule(file, node, findings)).collect::<Vec<_>>();
        self.trees.entry(domain.to_owned()).or_default().extend(read);
    }

    /// Writes all rules as policies.
    pub(super) fn write(&self, file_text: &mut PolicyFileText, all: &mut [Findings]) {
        for (domain, rules) in &self.trees {
            let mut replaced = HashMap::new();
            replacements(rules, "", &mut replaced, all);
            let mut writing = Writing { domain, file_text, all, replaced, steps: Vec::new() };
            writing.level(rules);
        }
    }
}

/// What one level of the tree demands of one entry.
struct Step {
    key: String,
    attribute: String,
    value: Option<String>,
    /// The values that other rules of the level take first.
    left_out: Vec<String>,
    /// Whether each value has a counter of its own.
    counted: bool,
}

/// The walk over the tree of a domain.
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
        // The deepest level comes first: its values distinguish the most policies.
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

/// Returns the values that rules of the same key take before this rule: plain values come before patterns, patterns in
/// the order of the file, and both before the key alone.
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

/// Converts a pattern of envoyproxy/ratelimit, where braces have no special meaning.
fn literally(value: &str) -> String {
    value.replace(['{', '}'], "?")
}
