//! Parses the fields of a body: their names, and strings as their values.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};

use crate::spelling::{nearest, quoted};

/// A string of the body; borrowed if it has no escapes.
#[derive(Debug)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        TextSeed("a string").deserialize(from)
    }
}

/// Reads a string; anything else is an error that says what was expected.
pub(super) struct TextSeed(pub(super) &'static str);

impl<'de> DeserializeSeed<'de> for TextSeed {
    type Value = Text<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Text<'de>, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for TextSeed {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

/// Stores the value of a field.
///
/// # Errors
/// If the field was given before.
pub(super) fn once<T, E: Error>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    if slot.replace(value).is_some() {
        return Err(E::custom(format_args!("`{name}` is given twice")));
    }
    Ok(())
}

/// Makes the error for a missing field.
pub(super) fn missing<E: Error>(name: &str, what: &str) -> E {
    E::custom(format_args!("`{name}` is missing; it is {what}"))
}

/// Makes the error for an unknown field; suggests the name that was probably meant.
pub(super) fn unknown<E: Error>(name: &str, names: &[&'static str]) -> E {
    let known = names.join("`, `");
    match nearest(name, names.iter().copied()) {
        Some(meant) => E::custom(format_args!("unknown field {}; did you mean `{meant}`?", quoted(name))),
        // Attributes have dots or dashes in their names, fields do not.
        None if names.contains(&"attributes") && name.contains(['.', '-']) => E::custom(format_args!(
            "unknown field {}; write attributes into `attributes`, as {{\"attributes\": {{\"client.ip\": \"203.0.113.9\"}}}}",
            quoted(name)
        )),
        None => E::custom(format_args!("unknown field {}; the fields are `{known}`", quoted(name))),
    }
}
