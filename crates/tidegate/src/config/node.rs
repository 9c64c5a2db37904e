//! One tree for both formats: what was written, and where.
//!
//! The validator reads this tree only, so YAML and TOML follow the same rules and get the same messages. Scalars keep the text that
//! was written (`1.10` stays `1.10`), since it depends on the key what the text means.

/// A place in the text: line and column from 1; zeroes when there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spot {
    /// Which text, where a tree is made of several: 0 is the file, the others are policies that were added.
    pub(super) text: u16,
    pub(super) line: usize,
    pub(super) column: usize,
}

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) spot: Spot,
    pub(super) value: Value,
}

/// What was written.
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

/// A key with its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Name {
    pub(super) spot: Spot,
    pub(super) text: String,
}

impl Node {
    /// Returns what kind of value it is, for messages.
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

    /// Returns a scalar's text; numbers and truth values count as the text they were written as.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Bool(true) => Some("true"),
            Value::Bool(false) => Some("false"),
            Value::Number(text) | Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the entries of a map; none of anything else.
    pub(super) fn entries(&self) -> &[(Name, Self)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|(_, value)| value)
    }

    /// Returns a key, with its place, and its value. A key without value counts as not there.
    pub(super) fn entry(&self, key: &str) -> Option<(&Name, &Self)> {
        let found = self.entries().iter().find(|(name, _)| name.text == key)?;
        (found.1.value != Value::Null).then_some((&found.0, &found.1))
    }

    /// Says which text it was read from.
    pub(super) fn number(&mut self, text: u16) {
        self.spot.text = text;
        match &mut self.value {
            Value::List(nodes) => nodes.iter_mut().for_each(|node| node.number(text)),
            Value::Map(entries) => entries.iter_mut().for_each(|(name, node)| {
                name.spot.text = text;
                node.number(text);
            }),
            _ => {}
        }
    }

    /// Returns the elements of a list; a single value counts as a list of one, nothing as an empty one.
    pub(super) fn each(&self) -> &[Self] {
        match &self.value {
            Value::List(nodes) => nodes,
            Value::Null => &[],
            _ => std::slice::from_ref(self),
        }
    }
}
