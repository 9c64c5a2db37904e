//! Parses attributes: names with strings, numbers or booleans.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use tidegate::config::{canonical_attribute, unknown_attribute};
use tidegate::http_answer::server_parts::wrong_value;
use tidegate::policy::Descriptor;

use super::bounds::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};
use super::fields::Text;
use crate::spelling::quoted;

pub(super) struct AttributesSeed;

impl<'de> DeserializeSeed<'de> for AttributesSeed {
    type Value = Descriptor<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Descriptor<'de>, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for AttributesSeed {
    type Value = Descriptor<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`attributes` as an object of names and values")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Descriptor<'de>, M::Error> {
        let mut request = Descriptor::new();
        let mut count = 0;
        while let Some(Text(name)) = map.next_key()? {
            if count == MAX_ATTRIBUTES {
                let most =
                    format_args!("more than {MAX_ATTRIBUTES} attributes; send those that policies name");
                return Err(M::Error::custom(most));
            }
            if name.is_empty() || name.len() > MAX_NAME {
                let bad = format_args!("attribute name {}: use 1 to {MAX_NAME} bytes", quoted(&name));
                return Err(M::Error::custom(bad));
            }
            if let Some(instead) = unknown_attribute(&name) {
                let shown = quoted(&name);
                return Err(M::Error::custom(format_args!(
                    "attribute {shown}: no policy reads it; {instead}"
                )));
            }
            let name = canonical_attribute(name);
            // Two readers of such a body may pick different values, and one of them would limit the wrong caller.
            if request.value(&name).is_some() {
                return Err(M::Error::custom(format_args!("attribute {} is given twice", quoted(&name))));
            }
            let value = map.next_value_seed(ValueSeed { name: &name })?;
            if let Some(wrong) = wrong_value(&name, &value) {
                return Err(M::Error::custom(wrong));
            }
            request.push(name, value);
            count += 1;
        }
        Ok(request)
    }
}

/// Reads an attribute's value: strings unchanged, numbers and booleans as they are written.
struct ValueSeed<'n> {
    name: &'n str,
}

impl ValueSeed<'_> {
    fn wrong<E: Error, T>(&self, what: &str) -> Result<T, E> {
        Err(E::custom(format_args!(
            "attribute {}: {what} is not a value; use a string, a number or a boolean",
            quoted(self.name)
        )))
    }

    fn in_bounds<'a, E: Error>(&self, value: Cow<'a, str>) -> Result<Cow<'a, str>, E> {
        if value.len() <= MAX_VALUE {
            return Ok(value);
        }
        Err(E::custom(format_args!(
            "attribute {}: {} bytes are too long; use at most {MAX_VALUE}",
            quoted(self.name),
            value.len()
        )))
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Cow<'de, str>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a number or a boolean")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        self.in_bounds(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        self.in_bounds(Cow::Owned(text.to_owned()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(if value { "true" } else { "false" }))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(value.to_string()))
    }

    fn visit_unit<E: Error>(self) -> Result<Cow<'de, str>, E> {
        self.wrong("null")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, _: S) -> Result<Cow<'de, str>, S::Error> {
        self.wrong("an array")
    }

    fn visit_map<M: MapAccess<'de>>(self, _: M) -> Result<Cow<'de, str>, M::Error> {
        self.wrong("an object")
    }
}
