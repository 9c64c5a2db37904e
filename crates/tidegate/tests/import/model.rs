//! Random trees: the limit that a descriptor meets and its counter agree with a slow model of the other limiter's
//! matching.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate::config::Peer;

use super::door::{described, imported, met};

/// A rule of a tree.
#[derive(Clone, Debug)]
struct Rule {
    key: String,
    value: Option<String>,
    limit: Option<u32>,
    shared: bool,
    rules: Vec<Rule>,
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let rule = |below: BoxedStrategy<Vec<Rule>>| {
        let value =
            prop_oneof![Just(None), "[xy]{1,2}".prop_map(Some), "[xy]{0,1}\\*[xy]{0,1}".prop_map(Some)];
        let parts = ("[ab]", value, proptest::option::weighted(0.7, 0..9_u32), any::<bool>(), below);
        let rule = parts.prop_map(|(key, value, limit, shared, rules)| {
            let shared = shared && value.as_deref().is_some_and(|value| value.contains('*'));
            Rule { key, value, limit, shared, rules }
        });
        proptest::collection::vec(rule, 0..5).prop_map(distinct)
    };
    let leaf = Just(Vec::new()).boxed();
    let below = rule(leaf).boxed();
    let above = rule(below.clone()).boxed();
    rule(above)
}

fn distinct(rules: Vec<Rule>) -> Vec<Rule> {
    let mut kept: Vec<Rule> = Vec::new();
    for rule in rules {
        if !kept.iter().any(|other| (&other.key, &other.value) == (&rule.key, &rule.value)) {
            kept.push(rule);
        }
    }
    kept
}

fn write(rules: &[Rule], indent: usize, out: &mut String) {
    let space = " ".repeat(indent);
    for rule in rules {
        out.push_str(&format!("{space}- key: {}\n", rule.key));
        if let Some(value) = &rule.value {
            out.push_str(&format!("{space}  value: \"{value}\"\n"));
        }
        if rule.shared {
            out.push_str(&format!("{space}  share_threshold: true\n"));
        }
        if let Some(limit) = rule.limit {
            out.push_str(&format!("{space}  rate_limit: {{ unit: hour, requests_per_unit: {limit} }}\n"));
        }
        if !rule.rules.is_empty() {
            out.push_str(&format!("{space}  descriptors:\n"));
            write(&rule.rules, indent + 4, out);
        }
    }
}

/// Says whether a text matches a pattern, by trying every way.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_at_checked(1) {
        None => text.is_empty(),
        Some(("*", rest)) => (0..=text.len()).any(|at| fits(rest, &text[at..])),
        Some((letter, rest)) => text.strip_prefix(letter).is_some_and(|text| fits(rest, text)),
    }
}

/// What a descriptor meets in the other limiter: the limit, the name that the import gives it, and the key of its
/// counter.
fn theirs(tree: &[Rule], entries: &[(String, String)]) -> Option<(u32, String, Vec<String>)> {
    let (mut level, mut name, mut counted) = (tree, "shop".to_owned(), Vec::new());
    for (at, (key, value)) in entries.iter().enumerate() {
        let of_key = || level.iter().filter(|rule| rule.key == *key);
        let exact = of_key().find(|rule| rule.value.as_ref() == Some(value));
        let is_pattern = |rule: &&Rule| {
            rule.value.as_deref().is_some_and(|pattern| pattern.contains('*') && fits(pattern, value))
        };
        let rule = exact
            .or_else(|| of_key().find(is_pattern))
            .or_else(|| of_key().find(|rule| rule.value.is_none()))?;
        name =
            format!("{name}.{key}{}", rule.value.iter().map(|value| format!("_{value}")).collect::<String>());
        counted.push(if rule.shared { rule.value.clone()? } else { value.clone() });
        if at + 1 == entries.len() {
            return Some((rule.limit?, name, counted));
        }
        if rule.rules.is_empty() {
            return None;
        }
        level = &rule.rules;
    }
    None
}

fn descriptor() -> impl Strategy<Value = Vec<(String, String)>> {
    proptest::collection::vec(("[ab]", "[xy]{0,3}"), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_same_limit_holds_and_counts_the_same_together(
        tree in rules(),
        descriptors in proptest::collection::vec(descriptor(), 1..40),
    ) {
        let mut text = "domain: shop\ndescriptors:\n".to_owned();
        if tree.is_empty() {
            text = "domain: shop\n".to_owned();
        }
        write(&tree, 2, &mut text);
        let imported = imported(Peer::Envoy, &text);
        let set = &imported.config.policies;
        let mut keys: HashMap<Vec<u8>, (String, Vec<String>)> = HashMap::new();
        let mut seen: HashMap<(String, Vec<String>), Vec<u8>> = HashMap::new();
        for entries in &descriptors {
            let borrowed: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
            let request = described("shop", 0, &borrowed);
            let expected = theirs(&tree, entries);
            let ours = met(set, &request);
            prop_assert_eq!(&ours, &expected.iter().map(|(_, name, _)| name.clone()).collect::<Vec<_>>(), "{:?} in\n{}\n{}", entries, text, imported.text);
            let Some((limit, name, counted)) = expected else { continue };
            let (at, policy) = set.find(&name).unwrap();
            if limit == 0 {
                prop_assert!(set.access(&request).is_some());
                continue;
            }
            prop_assert_eq!(&policy.limits[0].terms.label, &format!("fixed-window {limit}/h calendar epoch"));
            let plan = set.plan(&request, None);
            prop_assert_eq!(plan.lines.len(), 1, "the index finds what matches");
            let key = set.key(at, 0, &request).unwrap();
            let theirs = (name, counted);
            prop_assert_eq!(keys.entry(key.clone()).or_insert_with(|| theirs.clone()), &theirs);
            prop_assert_eq!(seen.entry(theirs).or_insert_with(|| key.clone()), &key);
        }
    }
}
