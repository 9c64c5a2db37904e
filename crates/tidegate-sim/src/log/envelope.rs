//! What surrounds the line of a server in a log that others collected: words before it, as `kubectl logs --prefix`, CRI,
//! syslog and Docker Compose write them, or a JSON object that holds it as text, as Docker's `json-file` does.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::record::excerpt;

/// The fields of a JSON object that may hold a line, best first: of Docker and Fluent Bit, of Google Cloud, of others.
pub(super) const HOLDERS: [&str; 4] = ["log", "textPayload", "message", "msg"];

/// The most words before a line: syslog of RFC 5424 has seven.
pub(super) const MAX_WORDS: usize = 8;

/// What is taken off each line of a file before it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Envelope {
    /// The field of the JSON object that holds the line as text.
    pub(super) holder: Option<&'static str>,
    pub(super) words: usize,
}

impl Envelope {
    /// Returns the line inside; `None` if this line is not surrounded so. `room` holds the text of a JSON object.
    #[inline]
    pub(super) fn open<'l>(&self, line: &'l [u8], room: &'l mut Vec<u8>) -> Option<&'l [u8]> {
        if self.words == 0 && self.holder.is_none() {
            return Some(line);
        }
        let line = match self.holder {
            Some(holder) => {
                room.clear();
                room.extend_from_slice(held(holder, line)?.trim_end().as_bytes());
                room.as_slice()
            }
            None => line,
        };
        behind(line, self.words).map(|(_, rest)| rest)
    }

    /// What is taken off, with an example.
    pub(super) fn told(&self, line: &[u8]) -> Option<String> {
        let mut room = Vec::new();
        let text = match self.holder {
            Some(holder) => {
                room.extend_from_slice(held(holder, line)?.as_bytes());
                &room
            }
            None => line,
        };
        let before = behind(text, self.words).map_or(&b""[..], |(before, _)| before);
        match (self.holder, self.words) {
            (None, 0) => None,
            (Some(holder), 0) => {
                Some(format!("each line is the text in the field {holder} of a JSON object"))
            }
            (None, _) => Some(format!("what precedes each line is left out, such as {}", excerpt(before))),
            (Some(holder), _) => Some(format!(
                "each line is the text in the field {holder} of a JSON object, without what precedes it, such as {}",
                excerpt(before)
            )),
        }
    }
}

/// Splits a number of words off the front of a line; `None` if it has fewer, or nothing behind them.
pub(super) fn behind(line: &[u8], words: usize) -> Option<(&[u8], &[u8])> {
    let mut rest = line;
    for _ in 0..words {
        rest = rest.trim_ascii_start();
        rest = &rest[memchr::memchr(b' ', rest)?..];
    }
    let rest = if words == 0 { rest } else { rest.trim_ascii_start() };
    let before = line[..line.len() - rest.len()].trim_ascii_end();
    (!rest.is_empty()).then_some((before, rest))
}

/// Returns the text that a field of a JSON object holds; `None` if the line is no such object.
pub(super) fn held<'l>(holder: &'static str, line: &'l [u8]) -> Option<Cow<'l, str>> {
    if !line.starts_with(b"{") {
        return None;
    }
    let mut from = serde_json::Deserializer::from_slice(line);
    let found = from.deserialize_map(HolderVisitor { holder }).ok()?;
    from.end().ok()?;
    found
}

struct HolderVisitor {
    holder: &'static str,
}

impl<'de> Visitor<'de> for HolderVisitor {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == self.holder && found.is_none() {
                found = map.next_value_seed(Text)?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// A text, without a copy if it has no escapes; `None` for any other value.
struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Option<Cow<'de, str>>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(text.to_owned())))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}
