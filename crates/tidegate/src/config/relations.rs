//! Checks policies that refer to other policies of the file, for example to limit one while another is busy.

use std::collections::HashSet;

use super::conditions::{condition, source};
use super::diagnostic::Findings;
use super::node::{Node, Value};
use super::shape::subject;
use super::suggest::instead;
use crate::policy::Source;
use crate::visible::excerpt;

/// Checks that the policies that `when` and `follows` refer to are in the file.
pub(super) fn check(file: &Node, findings: &mut Findings) {
    let list = file.get("policies").map_or(&[][..], Node::each);
    let names: HashSet<&str> = list.iter().filter_map(|node| node.get("name")?.text()).collect();
    for (at, policy) in list.iter().enumerate() {
        let conditions = policy.get("when").map_or(&[][..], Node::each).iter();
        let conditions =
            conditions.filter_map(|node| Some((node, condition(node.text()?).ok()?.source().clone())));
        let own = ["limit", "shadow_limit"].into_iter().filter_map(|key| policy.get(key));
        let limits = own.chain(policy.get("limits").map_or(&[][..], Node::each));
        let followed = limits.filter(|node| matches!(node.value, Value::Map(_))).filter_map(|limit| {
            let node = limit.get("follows")?;
            Some((node, source(node.text()?).ok()?))
        });
        for (node, source) in conditions.chain(followed) {
            let Source::Policy(name) = source else { continue };
            if names.contains(&*name) {
                continue;
            }
            let known = names.iter().copied();
            let hint = if findings.is_full() { String::new() } else { instead(&name, known) };
            findings.subject = subject(policy, at);
            findings.error(node.spot, format_args!("there is no policy \"{}\"{hint}", excerpt(&name)));
            findings.subject.clear();
        }
    }
}
