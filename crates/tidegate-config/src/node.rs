//! The tree that both formats are parsed into: values and their places in the text.
//!
//! YAML and TOML follow the same rules and get the same messages. Scalars keep their text as written (`1.10` stays
//! `1.10`), since its meaning depends on the key.

use std::time::Duration;

use tidegate_core::QuotaError;
use tidegate_gate::policy::{WrittenRate, span, whole_number};
use tidegate_limits::visible::excerpt;

/// A place in the text: line and column from 1; both 0 if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spot {
    /// The number of the text: 0 is the file, the others are added policies.
    pub(super) text: u16,
    pub(super) line: usize,
    pub(super) column: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) spot: Spot,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// Any number, as written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file; a key may occur twice.
    Map(Vec<(Name, Node)>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Name {
    pub(super) spot: Spot,
    pub(super) text: String,
}

impl Node {
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// Returns the text of a scalar, as written.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Bool(true) => Some("true"),
            Value::Bool(false) => Some("false"),
            Value::Number(text) | Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn entries(&self) -> &[(Name, Self)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|(_, value)| value)
    }

    /// Returns the text of a key's value.
    pub(super) fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    /// Returns the elements of a key's value, as [`Node::each`]; none without the key.
    pub(super) fn each_of(&self, key: &str) -> &[Self] {
        self.get(key).map_or(&[][..], Self::each)
    }

    /// Returns the entries of a key's map; none without the key.
    pub(super) fn entries_of(&self, key: &str) -> &[(Name, Self)] {
        self.get(key).map_or(&[][..], Self::entries)
    }

    /// Returns a key and its value. A key without a value counts as missing.
    pub(super) fn entry(&self, key: &str) -> Option<(&Name, &Self)> {
        let found = self.entries().iter().find(|(name, _)| name.text == key)?;
        (found.1.value != Value::Null).then_some((&found.0, &found.1))
    }

    /// Sets the number of the text that this node and all below it were read from.
    pub(super) fn number(&mut self, text: u16) {
        self.move_to(&|spot| Spot { text, ..spot });
    }

    /// Moves this node and all below it to other places.
    pub(super) fn move_to(&mut self, place: &impl Fn(Spot) -> Spot) {
        self.spot = place(self.spot);
        match &mut self.value {
            Value::List(nodes) => nodes.iter_mut().for_each(|node| node.move_to(place)),
            Value::Map(entries) => entries.iter_mut().for_each(|(name, node)| {
                name.spot = place(name.spot);
                node.move_to(place);
            }),
            _ => {}
        }
    }

    /// Returns the elements of a list. A single value is a list of one, a missing one an empty list.
    pub(super) fn each(&self) -> &[Self] {
        match &self.value {
            Value::List(nodes) => nodes,
            Value::Null => &[],
            _ => std::slice::from_ref(self),
        }
    }
}

/// The words of a limit. A shadow limit takes those that it lacks from the limit beside it.
pub(super) struct Words<'n> {
    pub(super) node: &'n Node,
    pub(super) base: Option<&'n Node>,
}

impl<'n> Words<'n> {
    pub(super) fn get(&self, key: &str) -> Option<&'n Node> {
        self.node.get(key).or_else(|| self.base?.get(key))
    }

    pub(super) fn text(&self, key: &str) -> Option<&'n str> {
        self.get(key)?.text()
    }

    pub(super) fn whole(&self, key: &str) -> Option<u64> {
        whole_number(self.text(key)?).ok()
    }

    pub(super) fn span(&self, key: &str) -> Option<Duration> {
        span(self.text(key)?).ok()
    }

    pub(super) fn error_text(&self, key: &str, error: &QuotaError) -> String {
        match (error, self.text(key)) {
            (QuotaError::Parameter { want, .. }, Some(written)) => {
                format!("{key} {} {want}", excerpt(written.trim()))
            }
            _ => error.to_string(),
        }
    }

    pub(super) fn rate(&self, key: &str) -> Option<WrittenRate> {
        self.text(key)?.parse().ok()
    }
}
