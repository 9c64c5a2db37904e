//! Parses priorities: a word, or a word with a cohort.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};
use tidegate::Priority;

use crate::spelling::quoted_text;

/// Reads `priority`: a string, or null for none.
pub(super) struct PrioritySeed;

impl<'de> DeserializeSeed<'de> for PrioritySeed {
    type Value = Option<Priority>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for PrioritySeed {
    type Value = Option<Priority>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`priority` as a text such as \"sheddable\"")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let priority =
            text.parse().map_err(|error| E::custom(format_args!("`priority` {} {error}", quoted_text(text))));
        priority.map(Some)
    }
}
