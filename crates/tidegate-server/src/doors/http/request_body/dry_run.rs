//! A dry run as a caller writes it: a check, and the policies that it is tried under.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};

use super::check::{CheckBody, CheckSeed};
use super::fields::{Text, TextSeed, missing, once, unknown};

/// The shortest body, for messages.
pub(super) const EXAMPLE: &str = "{\"check\": {\"attributes\": {\"client.ip\": \"203.0.113.9\"}}}";

/// One dry run.
#[derive(Debug)]
pub(crate) struct DryRunBody<'a> {
    pub(crate) check: CheckBody<'a>,
    /// The text of proposed policies, as a file has it; `None` for those in force.
    pub(crate) config: Option<Cow<'a, str>>,
}

pub(super) struct DryRunSeed;

impl<'de> DeserializeSeed<'de> for DryRunSeed {
    type Value = DryRunBody<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<DryRunBody<'de>, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for DryRunSeed {
    type Value = DryRunBody<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object such as {EXAMPLE}")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<DryRunBody<'de>, M::Error> {
        let (mut check, mut config) = (None, None);
        while let Some(Text(field)) = map.next_key()? {
            match field.as_ref() {
                "check" => once(&mut check, "check", map.next_value_seed(CheckSeed)?)?,
                "config" => {
                    let Text(text) =
                        map.next_value_seed(TextSeed("`config` as the text of a file in YAML or TOML"))?;
                    once(&mut config, "config", text)?;
                }
                other => return Err(unknown(other, &["check", "config"])),
            }
        }
        let check =
            check.ok_or_else(|| missing("check", "the body of a check, such as {\"attributes\": {}}"))?;
        Ok(DryRunBody { check, config })
    }
}
