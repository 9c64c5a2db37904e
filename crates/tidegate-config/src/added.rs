//! Policies outside of the file, each in a text of its own, in force together with the file's; and the file as it was
//! written, the base for them.
//!
//! The rules of the file hold for them: its `defaults`, references in both directions, and the bounds of a single file.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Number, Value as Json};

use super::budget;
use super::diagnostic::Findings;
use super::node::{Name, Node, Spot, Value};
use super::read::{self, beyond};
use super::{Config, Diagnostic, Format, OWN_SECTIONS};
use tidegate_limits::visible::excerpt;

/// One policy in a text of its own: an element of the list `policies` of a file.
#[derive(Clone, Copy, Debug)]
pub struct AddedPolicy<'a> {
    /// The name of the policy. The text may repeat the name or leave it out.
    pub name: &'a str,
    /// The policy, in YAML, JSON or TOML.
    pub text: &'a str,
}

/// A validated file as it was written: its tree, which is as large as the file. Clones share the tree.
#[derive(Clone, Debug, Default)]
pub struct Written(Arc<File>);

#[derive(Debug)]
struct File {
    name: String,
    tree: Node,
    places: HashMap<String, Spot>,
}

impl Default for File {
    fn default() -> Self {
        let tree = Node { spot: Spot::default(), value: Value::Map(Vec::new()) };
        Self { name: String::new(), tree, places: HashMap::new() }
    }
}

impl Written {
    pub(super) fn of(tree: Node, paths: &[String]) -> Self {
        let list = tree.each_of("policies");
        let places = list.iter().filter_map(|node| Some((node.text_of("name")?.to_owned(), node.spot)));
        let places = places.collect();
        Self(Arc::new(File { name: paths.first().cloned().unwrap_or_default(), tree, places }))
    }

    pub(super) fn tree(&self) -> &Node {
        &self.0.tree
    }

    /// Returns the name of the file, as diagnostics print it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the file as it was written, without the sections that are each node's own (`server`, `store`, `tickets`),
    /// which may have passwords.
    ///
    /// # Examples
    /// ```
    /// use tidegate::config::{Config, Format};
    /// let file = "version: 1\nstore: { kind: memory }\npolicies:\n  - { name: all, limit: { rate: 60/min } }\n";
    /// let (file, _) = Config::parse(file, "tidegate.yaml", Format::Yaml).unwrap();
    /// let json = file.written().to_json();
    /// assert_eq!((&json["policies"][0]["limit"]["rate"], json.get("store")), (&"60/min".into(), None));
    /// ```
    #[must_use]
    pub fn to_json(&self) -> Json {
        let shared = self.tree().entries().iter().filter(|(name, _)| !OWN_SECTIONS.contains(&&*name.text));
        shared.map(|(name, node)| (name.text.clone(), json(node))).collect()
    }

    /// Returns the place of a policy in the file, such as `tidegate.yaml:12:5`; `None` if the file has no policy of
    /// this name.
    #[must_use]
    pub fn place(&self, policy: &str) -> Option<String> {
        let spot = self.0.places.get(policy)?;
        Some(format!("{}:{}:{}", self.0.name, spot.line, spot.column))
    }
}

impl Config {
    /// Validates a file with policies appended to its own, in this order. Does not read the file again; takes as long
    /// as validating it, and the work is bounded as in [`Self::parse`].
    ///
    /// Returns the configuration and the warnings. Diagnostics of an added policy have the path `policy NAME`, and the
    /// line and column in its text.
    ///
    /// # Errors
    /// As [`Self::read`]. Also if a text gives a name other than its own, and if the policies together have more values
    /// than a file may have.
    ///
    /// # Examples
    /// ```
    /// use tidegate::config::{AddedPolicy, Config, Format};
    /// let file = "version: 1\ndefaults: { mode: shadow }\npolicies:\n  - { name: all, limit: { rate: 60/min } }\n";
    /// let (file, _) = Config::parse(file, "tidegate.yaml", Format::Yaml).unwrap();
    /// let added = |text| [AddedPolicy { name: "per-user", text }];
    /// let (whole, _) = Config::with_added(file.written(), &added("by: [user.id]\nlimit: { rate: 5/s }\n")).unwrap();
    /// assert_eq!(whole.policies.policies()[1].name, "per-user");
    /// let wrong = Config::with_added(file.written(), &added("by: [user.id]\nlimit: { rate: 5/M }\n")).unwrap_err();
    /// assert!(wrong[0].to_string().starts_with("policy per-user:2:16  error  policy \"per-user\": rate: "));
    /// ```
    pub fn with_added(
        file: &Written,
        added: &[AddedPolicy<'_>],
    ) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        let mut findings = Findings::served(file.name());
        let mut tree = file.tree().clone();
        let mut room = budget::NODES;
        if beyond(&tree, budget::DEPTH, &mut room).is_none() {
            for policy in added {
                let node = read_one(policy, &mut findings, &mut room)?;
                push(&mut tree, node);
            }
        }
        Self::build(tree, findings)
    }
}

fn json(node: &Node) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Bool(bool) => (*bool).into(),
        // One that JSON writes in another way stays as it was written.
        Value::Number(text) => match serde_json::from_str::<Number>(text) {
            Ok(number) if number.to_string() == *text => number.into(),
            _ => text.as_str().into(),
        },
        Value::Text(text) => text.as_str().into(),
        Value::List(nodes) => nodes.iter().map(json).collect(),
        Value::Map(entries) => entries.iter().map(|(name, node)| (name.text.clone(), json(node))).collect(),
    }
}

fn read_one(policy: &AddedPolicy<'_>, all: &mut Findings, room: &mut usize) -> Result<Node, Vec<Diagnostic>> {
    let path = format!("policy {}", excerpt(policy.name));
    let mut findings = Findings::of(&path);
    let Some(mut node) = read::read(policy.text, Format::of_text(policy.text), &mut findings) else {
        return Err(findings.finish());
    };
    if beyond(&node, budget::DEPTH, room).is_some() {
        let many = format_args!("file and added policies together have more than {} values", budget::NODES);
        findings.error(node.spot, many);
    }
    let said = node.get("name").map(|name| (name.spot, name.text().map(str::to_owned)));
    match (said, &mut node.value) {
        (Some((spot, said)), _) if said.as_deref() != Some(policy.name) => {
            let own = excerpt(policy.name);
            findings.error(
                spot,
                format_args!("the policy is put as \"{own}\"; leave its name out, or write the same"),
            );
        }
        (Some(_), _) => {}
        (None, Value::Map(entries)) => {
            let text = Value::Text(policy.name.to_owned());
            let spot = node.spot;
            entries.retain(|(name, _)| name.text != "name");
            entries.push((Name { spot, text: "name".to_owned() }, Node { spot, value: text }));
        }
        (None, _) => {
            let kind = node.kind();
            findings.error(node.spot, format_args!("a policy is a map with a limit, found {kind}"));
        }
    }
    if findings.refused() {
        return Err(findings.finish());
    }
    // The caller of this text reads the answer.
    all.in_toml = findings.in_toml;
    node.number(all.another(&path));
    Ok(node)
}

fn push(tree: &mut Node, policy: Node) {
    let Value::Map(entries) = &mut tree.value else { return };
    let list = entries.iter_mut().find(|(name, _)| name.text == "policies");
    match list.map(|(_, node)| &mut node.value) {
        Some(Value::List(policies)) => policies.push(policy),
        Some(value) => *value = Value::List(vec![policy]),
        None => {
            let spot = Spot::default();
            let list = Node { spot, value: Value::List(vec![policy]) };
            entries.push((Name { spot, text: "policies".to_owned() }, list));
        }
    }
}
