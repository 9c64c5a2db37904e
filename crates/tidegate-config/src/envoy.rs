//! Reads the `envoy` section: how a call of Envoy's rate limit service says which priority its request has.
//!
//! The protocol has no field for it, so the file names the key of an entry. Without a name no entry is read as a
//! priority: a descriptor may have an entry of any key already.

use tidegate_core::{Criticality, Priority};

use super::diagnostic::Findings;
use super::node::Node;

const ADDRESSES: [&str; 2] = ["remote_address", "client.ip"];

/// How Envoy's calls say which priority their requests have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envoy {
    /// The key of the entry whose value is the priority; `None`: all requests have [`Envoy::default_priority`].
    pub priority_entry: Option<String>,
    /// The priority of a request without that entry, or with an empty one; `critical` unless the file sets another.
    pub default_priority: Priority,
}

impl Envoy {
    /// Returns the priority of a request with these entries, as (key, value).
    ///
    /// Of several values the lowest counts, and a text that is no priority counts as the lowest level: a caller must
    /// not gain by it.
    pub fn priority<'e>(&self, entries: impl Iterator<Item = (&'e str, &'e str)>) -> Priority {
        let Some(name) = &self.priority_entry else { return self.default_priority };
        let values = entries.filter(|(key, value)| key == name && !value.is_empty());
        let lowest = Priority::of(Criticality::Sheddable);
        values.map(|(_, value)| value.parse().unwrap_or(lowest)).min().unwrap_or(self.default_priority)
    }
}

pub(super) fn envoy(file: &Node, findings: &mut Findings) -> Envoy {
    let Some(section) = file.get("envoy") else { return Envoy::default() };
    let text = |key: &str| section.text_of(key);
    let priority_entry = text("priority_entry").map(str::to_owned);
    let default_priority = text("default_priority").and_then(|text| text.parse().ok()).unwrap_or_default();
    if let (Some(node), Some(name)) = (section.get("priority_entry"), &priority_entry)
        && (ADDRESSES.contains(&name.as_str()) || name.starts_with("rls."))
    {
        findings.error(
            node.spot,
            format_args!(
                "envoy.priority_entry: {name} already has another meaning; use another key, as priority"
            ),
        );
    }
    Envoy { priority_entry, default_priority }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Format};
    use super::*;

    fn read(section: &str) -> Result<Envoy, String> {
        let text = format!("version: 1\n{section}\npolicies: []\n");
        let read = Config::parse(&text, "f", Format::Yaml);
        read.map(|(config, _)| config.envoy).map_err(|mistakes| mistakes[0].to_string())
    }

    #[test]
    fn nothing_is_read_as_a_priority_unless_the_file_names_it() {
        let silent = read("").unwrap();
        let claims = [("priority", "critical-plus")];
        assert_eq!(silent.priority(claims.into_iter()), Priority::of(Criticality::Critical));
        let lower = read("envoy: { default_priority: sheddable-plus }").unwrap();
        assert_eq!(lower.priority(claims.into_iter()), Priority::of(Criticality::SheddablePlus));
    }

    #[test]
    fn the_lowest_value_counts_and_one_that_cannot_be_read_is_the_lowest() {
        let envoy = read("envoy: { priority_entry: priority, default_priority: critical-plus }").unwrap();
        for (values, level) in [
            (&[][..], Criticality::CriticalPlus),
            (&[""], Criticality::CriticalPlus),
            (&["critical"], Criticality::Critical),
            (&["critical/17"], Criticality::Critical),
            (&["critical", "sheddable-plus", "critical-plus"], Criticality::SheddablePlus),
            (&["critical-plus", ""], Criticality::CriticalPlus),
            (&["critical-plus", "CRITICAL"], Criticality::Sheddable),
            (&["critical/128"], Criticality::Sheddable),
            (&["??"], Criticality::Sheddable),
        ] {
            let entries = values.iter().map(|value| ("priority", *value));
            let others = [("Priority", "sheddable"), ("priority.2", "sheddable")];
            assert_eq!(envoy.priority(entries.chain(others)).level(), level, "{values:?}");
        }
    }

    #[test]
    fn a_key_with_another_meaning_and_a_level_that_is_none_are_refused() {
        for (section, says) in [
            (
                "{ priority_entry: remote_address }",
                "envoy.priority_entry: remote_address already has another",
            ),
            (
                "{ priority_entry: rls.domain }",
                "envoy.priority_entry: rls.domain already has another meaning",
            ),
            ("{ priority_entry: '' }", "envoy.priority_entry"),
            ("{ default_priority: low }", "envoy.default_priority: unknown word \"low\""),
            (
                "{ priority_header: x }",
                "unknown key \"priority_header\" in envoy; did you mean \"priority_entry\"?",
            ),
        ] {
            let told = read(&format!("envoy: {section}")).unwrap_err();
            assert!(told.contains(says), "{section}: {told}");
        }
    }
}
