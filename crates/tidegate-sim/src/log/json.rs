//! One JSON object per line. Nested names are joined with dots, list items by their index: `request.headers.Host.0`.
//!
//! Values are visited as the parser finds them, so no tree is built and nothing is allocated per line. A line that is
//! not UTF-8 is read once more as Latin-1.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::fields::Fields;
use super::record::{Malformed, Record, text};

/// The deepest nesting of objects that is still read.
const MAX_DEPTH: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Json {
    fields: Fields,
    name: String,
}

impl Json {
    pub(super) fn new(columns: &[(String, String)]) -> Self {
        Self { fields: Fields::new(columns), name: String::new() }
    }

    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    pub(super) fn read(&mut self, line: &[u8]) -> Result<Record<'_>, Malformed> {
        if self.visit(line).is_err() {
            let latin = text(line);
            if matches!(latin, Cow::Borrowed(_)) || self.visit(latin.as_bytes()).is_err() {
                return Err(Malformed::Json);
            }
        }
        self.fields.record()
    }

    fn visit(&mut self, line: &[u8]) -> serde_json::Result<()> {
        self.fields.clear();
        self.name.clear();
        let mut from = serde_json::Deserializer::from_slice(line);
        Value { to: self, depth: 0 }.deserialize(&mut from)?;
        from.end()
    }

    fn push(&mut self, value: &[u8]) {
        let Some(name) = self.fields.number(&self.name) else { return };
        // CloudFront URL-encodes headers in JSON too.
        if self.name.starts_with("cs(") {
            self.fields.push(name, &Cow::from(percent_decode(value)));
        } else {
            self.fields.push(name, value);
        }
    }
}

struct Value<'j> {
    to: &'j mut Json,
    depth: usize,
}

impl Value<'_> {
    fn inner<R>(&mut self, visit: impl FnOnce(Value<'_>) -> R) -> R {
        visit(Value { to: self.to, depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        match self.depth {
            0 => from.deserialize_map(self),
            MAX_DEPTH.. => from.deserialize_ignored_any(serde::de::IgnoredAny).map(|_| ()),
            _ => from.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.to.push(value.as_bytes());
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        write(self.to, format_args!("{value}"));
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        write(self.to, format_args!("{value}"));
        Ok(())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        write(self.to, format_args!("{value}"));
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.to.push(if value { b"true" } else { b"false" });
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let prefix = self.to.name.len();
        while map.next_key_seed(KeyPath { name: &mut self.to.name, prefix })?.is_some() {
            self.inner(|value| map.next_value_seed(value))?;
        }
        self.to.name.truncate(prefix);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let prefix = self.to.name.len();
        let mut index = 0u32;
        loop {
            self.to.name.truncate(prefix);
            let _ = fmt::Write::write_fmt(&mut self.to.name, format_args!(".{index}"));
            if self.inner(|value| list.next_element_seed(value))?.is_none() {
                break;
            }
            index = index.saturating_add(1);
        }
        self.to.name.truncate(prefix);
        Ok(())
    }
}

/// The buffer suffices: the longest finite float in plain digits takes about 326 bytes.
fn write(to: &mut Json, number: fmt::Arguments<'_>) {
    use std::io::Write;
    let mut out = [0; 400];
    let mut rest = &mut out[..];
    if rest.write_fmt(number).is_ok() {
        let used = 400 - rest.len();
        to.push(&out[..used]);
    }
}

struct KeyPath<'n> {
    name: &'n mut String,
    prefix: usize,
}

impl<'de> DeserializeSeed<'de> for KeyPath<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyPath<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<(), E> {
        self.name.truncate(self.prefix);
        if self.prefix > 0 {
            self.name.push('.');
        }
        self.name.push_str(key);
        Ok(())
    }
}
