//! Checks policies and switches that refer to other policies of the file, for example to limit one while another is busy.

use std::collections::HashSet;

use super::conditions::{condition, followed};
use super::diagnostic::Findings;
use super::names::instead;
use super::node::{Node, Spot, Value};
use super::shape::subject;
use super::switches;
use tidegate_gate::policy::{ConditionsError, PolicySetError, Source};
use tidegate_limits::visible::excerpt;

/// Checks that the policies that `when` and `follows` refer to are in the file.
pub(super) fn check(file: &Node, findings: &mut Findings) {
    let list = file.get("policies").map_or(&[][..], Node::each);
    let names: HashSet<&str> = list.iter().filter_map(|node| node.get("name")?.text()).collect();
    for (at, policy) in list.iter().enumerate() {
        for (node, name) in references(policy) {
            if names.contains(&*name) {
                continue;
            }
            // A policy cannot depend on itself, nor on one with a key for each caller.
            let fits = |other: &&Node| !std::ptr::eq(*other, policy) && other.get("by").is_none();
            let known: Vec<&str> =
                list.iter().filter(fits).filter_map(|node| node.get("name")?.text()).collect();
            let hint = match known.is_empty() {
                _ if findings.is_full() => String::new(),
                true => "; a condition names a policy without by, and there is no other such".to_owned(),
                false => instead(&name, known.into_iter()),
            };
            findings.subject = subject(policy, at);
            findings.error(node.spot, format_args!("there is no policy \"{}\"{hint}", excerpt(&name)));
            findings.subject.clear();
        }
    }
    for (switch, trigger) in switches::written(file) {
        let Some((node, name)) = of_switch(trigger).filter(|(_, name)| !names.contains(&**name)) else {
            continue;
        };
        let known = list.iter().filter(|other| other.get("by").is_none());
        let mut known = known.filter_map(|node| node.get("name")?.text()).peekable();
        let silent = known.peek().is_none() || findings.is_full();
        let hint = if silent { String::new() } else { instead(&name, known.collect::<Vec<_>>().into_iter()) };
        findings.subject = format!("switch \"{}\": ", excerpt(&switch.text));
        findings.error(node.spot, format_args!("there is no policy \"{}\"{hint}", excerpt(&name)));
        findings.subject.clear();
    }
}

/// Returns where a policy or a switch refers to a policy that it cannot depend on, if that is the error.
pub(super) fn place(file: &Node, error: &PolicySetError) -> Option<Spot> {
    let PolicySetError::Conditions(error) = error else { return None };
    if let ConditionsError::SwitchGoesBy { switch, other, .. } = error {
        let mut of_name = switches::written(file).filter(|(name, _)| name.text == *switch);
        let found = of_name.find_map(|(_, node)| of_switch(node).filter(|(_, to)| **to == **other));
        return found.map(|(node, _)| node.spot);
    }
    let ConditionsError::GoesBy { name, other, .. } = error else { return None };
    let list = file.get("policies").map_or(&[][..], Node::each);
    let policy = list.iter().find(|node| node.get("name").and_then(Node::text) == Some(name))?;
    references(policy).find(|(_, to)| **to == **other).map(|(node, _)| node.spot)
}

/// Returns the name of the policy that a trigger of a switch goes by.
fn of_switch(trigger: &Node) -> Option<(&Node, Box<str>)> {
    let node = trigger.get("off_when")?;
    match condition(node.text()?).ok()?.source() {
        Source::Policy(name) => Some((node, name.clone())),
        _ => None,
    }
}

/// Returns the names of other policies in a policy's conditions and moving rates.
fn references(policy: &Node) -> impl Iterator<Item = (&Node, Box<str>)> {
    let conditions = policy.get("when").map_or(&[][..], Node::each).iter();
    let conditions =
        conditions.filter_map(|node| Some((node, condition(node.text()?).ok()?.source().clone())));
    let own = ["limit", "shadow_limit"].into_iter().filter_map(|key| policy.get(key));
    let limits = own.flat_map(Node::each);
    let followed = limits.filter(|node| matches!(node.value, Value::Map(_))).filter_map(|limit| {
        let node = limit.get("follows")?;
        Some((node, followed(node.text()?).ok()?.source))
    });
    conditions.chain(followed).filter_map(|(node, source)| match source {
        Source::Policy(name) => Some((node, name)),
        _ => None,
    })
}
