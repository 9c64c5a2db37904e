//! Bodies of operators: objects of strings, the value of a signal, and a limit to try.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::check::{Any, Object, Text, TextSeed, missing, once, unknown};

/// Reads an object of strings. Null counts as absent; the first field is required.
pub(super) struct StringsVisitor<const N: usize> {
    pub(super) fields: &'static [&'static str; N],
    pub(super) example: &'static str,
}

impl<'de, const N: usize> Visitor<'de> for StringsVisitor<N> {
    type Value = [Option<String>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object such as {}", self.example)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut values = [const { None }; N];
        while let Some(Text(field)) = map.next_key()? {
            let Some(at) = self.fields.iter().position(|known| *known == field) else {
                return Err(unknown(&field, self.fields));
            };
            let name = self.fields[at];
            once(&mut values[at], name, map.next_value_seed(Any(StringVisitor { name }))?)?;
        }
        let values = values.map(Option::flatten);
        match (values.first(), self.fields.first()) {
            (Some(None), Some(name)) => Err(missing(name, &format!("a string, as in {}", self.example))),
            _ => Ok(values),
        }
    }
}

struct StringVisitor {
    name: &'static str,
}

impl Visitor<'_> for StringVisitor {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` as a string", self.name)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(text.to_owned()))
    }
}

/// `{"block": {…}}` with strings, or `{"block": null}`.
pub(super) struct BlockVisitor<const N: usize>(pub(super) StringsVisitor<N>);

impl<'de, const N: usize> Visitor<'de> for BlockVisitor<N> {
    type Value = Option<[Option<String>; N]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let StringsVisitor { fields, example } = self.0;
        let mut block = None;
        while let Some(Text(field)) = map.next_key()? {
            match field.as_ref() {
                "block" => {
                    once(
                        &mut block,
                        "block",
                        map.next_value_seed(OrNull(StringsVisitor { fields, example }))?,
                    )?;
                }
                other => return Err(unknown(other, &["block"])),
            }
        }
        block.ok_or_else(|| missing("block", &format!("an object, as in {example}")))
    }
}

/// Null as `None`, or an object of strings.
struct OrNull<const N: usize>(StringsVisitor<N>);

impl<'de, const N: usize> DeserializeSeed<'de> for OrNull<N> {
    type Value = Option<[Option<String>; N]>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_option(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for OrNull<N> {
    type Value = Option<[Option<String>; N]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        Object(self.0).deserialize(from).map(Some)
    }
}

/// The shortest report of a signal, for error messages.
pub(super) const EXAMPLE_SIGNAL: &str = "{\"value\": 1200}";

pub(super) struct SignalVisitor;

impl<'de> Visitor<'de> for SignalVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object such as {EXAMPLE_SIGNAL}")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<f64, M::Error> {
        let mut value = None;
        while let Some(Text(field)) = map.next_key()? {
            match field.as_ref() {
                "value" => once(&mut value, "value", map.next_value_seed(Any(NumberVisitor(VALUE)))?)?,
                other => return Err(unknown(other, &["value"])),
            }
        }
        value.ok_or_else(|| missing("value", "the number that is reported"))
    }
}

/// What the value of a signal is.
const VALUE: &str = "`value` as a number such as 1200";

/// Reads the number of which this says what it is.
struct NumberVisitor(&'static str);

impl Visitor<'_> for NumberVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }
}

/// The shortest body with all its fields, for error messages.
pub(super) const EXAMPLE_CANARY: &str = "{\"share\": 0, \"reason\": \"customers complain\"}";

/// The share of a canary that a person sets.
#[derive(Debug)]
pub(crate) struct CanaryBody {
    pub(crate) share: f64,
    pub(crate) reason: Option<String>,
}

pub(super) struct CanaryVisitor;

impl<'de> Visitor<'de> for CanaryVisitor {
    type Value = CanaryBody;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object such as {EXAMPLE_CANARY}")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<CanaryBody, M::Error> {
        const SHARE: &str = "`share` as a number such as 0.05";
        let (mut share, mut reason) = (None, None);
        while let Some(Text(field)) = map.next_key()? {
            match field.as_ref() {
                "share" => once(&mut share, "share", map.next_value_seed(Any(NumberVisitor(SHARE)))?)?,
                "reason" => {
                    let name = "reason";
                    once(&mut reason, name, map.next_value_seed(Any(StringVisitor { name }))?)?;
                }
                other => return Err(unknown(other, &["share", "reason"])),
            }
        }
        let share = share.ok_or_else(|| missing("share", "the share of the keys, from 0, which stops it"))?;
        Ok(CanaryBody { share, reason: reason.flatten() })
    }
}

/// The shortest body with all its fields, for error messages.
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
