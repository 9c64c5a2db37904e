//! Names the entries of descriptors in policies, and reads values of other rate limiters' files.

use super::super::diagnostic::Findings;
use super::super::names::{self, instead};
use super::super::node::{Node, Spot, Value};
use tidegate_gate::policy::BUILT_IN;
use tidegate_limits::visible::excerpt;

/// Returns the attribute of an entry: its key, or `rls.entry.` and its key if that means something else. `before`
/// counts earlier entries with the same key.
pub(super) fn attribute(key: &str, before: usize) -> String {
    let name = if before == 0 { key.to_owned() } else { format!("{key}.{}", before + 1) };
    let is_ours = BUILT_IN.contains(&&*name) || name.starts_with("rls.") || names::attribute(&name).is_err();
    if is_ours { format!("rls.entry.{name}") } else { name }
}

/// Reports unknown and repeated keys of a map. `elsewhere` lists known words with the place where they belong.
pub(super) fn check(
    node: &Node,
    what: &str,
    known: &[&str],
    elsewhere: &[(&str, &str)],
    findings: &mut Findings,
) {
    for (at, (name, _)) in node.entries().iter().enumerate() {
        let key = excerpt(&name.text);
        if let Some((first, _)) = node.entries()[..at].iter().find(|(first, _)| first.text == name.text) {
            let line = first.spot.line;
            findings.error(name.spot, format_args!("key \"{key}\" is given twice, first in line {line}"));
        } else if let Some((_, place)) = elsewhere.iter().find(|(word, _)| *word == name.text) {
            findings.error(name.spot, format_args!("{key} has no effect in {what}; it belongs {place}"));
        } else if !known.contains(&&*name.text) {
            let hint = instead(&name.text, known.iter().copied());
            findings.error(name.spot, format_args!("unknown key \"{key}\" in {what}{hint}"));
        }
        if at >= 64 {
            // A map with free keys: comparing all pairs would take too long.
            break;
        }
    }
}

pub(super) fn is_map(node: &Node, what: &str, findings: &mut Findings) -> bool {
    let is_map = matches!(node.value, Value::Map(_));
    if !is_map {
        findings.error(node.spot, format_args!("{what} is a map, found {}", node.kind()));
    }
    is_map
}

/// Returns the elements of a list; reports any other value.
pub(super) fn list<'n>(node: Option<&'n Node>, what: &str, findings: &mut Findings) -> &'n [Node] {
    match node {
        None => &[],
        Some(Node { value: Value::List(nodes), .. }) => nodes,
        Some(node) => {
            findings.error(node.spot, format_args!("{what} is a list, found {}", node.kind()));
            &[]
        }
    }
}

pub(super) fn text<'n>(node: &'n Node, key: &str, findings: &mut Findings) -> Option<&'n str> {
    let value = node.get(key)?;
    if value.text().is_none() {
        findings.error(value.spot, format_args!("{key} is a text, found {}", value.kind()));
    }
    value.text()
}

/// Returns the place of a flag that is `true`; reports any value but a flag.
pub(super) fn flag(node: &Node, key: &str, findings: &mut Findings) -> Option<Spot> {
    let (name, value) = node.entry(key)?;
    match value.value {
        Value::Bool(true) => Some(name.spot),
        Value::Bool(false) => None,
        _ => {
            findings.error(value.spot, format_args!("{key} is true or false, found {}", value.kind()));
            None
        }
    }
}

pub(super) fn whole(node: &Node, key: &str, most: u64, findings: &mut Findings) -> Option<u64> {
    let value = node.get(key)?;
    let number = value.text().and_then(|text| text.parse().ok()).filter(|number| *number <= most);
    if number.is_none() {
        let found =
            value.text().map_or_else(|| value.kind().to_owned(), |text| format!("\"{}\"", excerpt(text)));
        findings.error(value.spot, format_args!("{key} is a whole number from 0 to {most}, found {found}"));
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_mean_something_else_here_have_a_name_of_their_own() {
        let told = ["user", "remote_address", "client_ip", "request.path", "rls.keys", "PATH"]
            .map(|key| attribute(key, 0));
        let expected = [
            "user",
            "remote_address",
            "rls.entry.client_ip",
            "rls.entry.request.path",
            "rls.entry.rls.keys",
            "PATH",
        ];
        assert_eq!(told, expected);
        assert_eq!(attribute("user", 1), "user.2");
    }
}
