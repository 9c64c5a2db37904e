//! The body that says which limit to try.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde_json::{Map, Value};

use super::check::{Text, TextSeed, missing, once, unknown};

/// A whole body, for error messages.
pub(super) const EXAMPLE_LAB: &str =
    "{\"policy\": \"per-ip\", \"limit\": {\"rate\": \"6/s\", \"burst\": 12}, \"w\": \"30m\"}";

/// A limit to try, as it was written.
#[derive(Debug)]
pub(crate) struct LabBody {
    pub(crate) policy: String,
    /// In the words of the policy file.
    pub(crate) limit: Map<String, Value>,
    /// How far back, as `30m`.
    pub(crate) window: Option<String>,
}

pub(super) struct LabVisitor;

impl<'de> Visitor<'de> for LabVisitor {
    type Value = LabBody;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object such as {EXAMPLE_LAB}")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<LabBody, M::Error> {
        let (mut policy, mut limit, mut window) = (None, None, None);
        while let Some(Text(field)) = map.next_key()? {
            match field.as_ref() {
                "policy" => {
                    let Text(name) = map.next_value_seed(TextSeed("`policy` as the name of a policy"))?;
                    once(&mut policy, "policy", name.into_owned())?;
                }
                "limit" => once(&mut limit, "limit", map.next_value()?)?,
                "w" => {
                    let Text(text) = map.next_value_seed(TextSeed("`w` as a time such as 30m"))?;
                    once(&mut window, "w", text.into_owned())?;
                }
                other => return Err(unknown(other, &["policy", "limit", "w"])),
            }
        }
        let policy = policy.ok_or_else(|| missing("policy", "the name of a policy"))?;
        let limit = limit.ok_or_else(|| {
            missing("limit", "the limit to try, such as {\"rate\": \"6/s\", \"burst\": 12}")
        })?;
        Ok(LabBody { policy, limit, window })
    }
}
