//! Parses a settlement or an extension.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use tidegate::policy::{Usage, UsageValue};

use super::check::{Any, Object, Text, TextSeed, missing, once, unknown};
use super::{MAX_ATTRIBUTES, MAX_COST, MAX_NAME, MAX_VALUE};
use crate::requests::WorkEnd;
use crate::text::{quoted, quoted_text};

#[derive(Debug)]
pub(crate) struct SettlementBody<'a> {
    pub(crate) ticket: Cow<'a, str>,
    /// The units that were spent, if it says so.
    pub(crate) usage: Option<Usage<'a>>,
    pub(crate) ended: Option<WorkEnd>,
    /// What is given back, if it asks for that.
    pub(crate) refund: Option<Refund>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refund {
    All,
    Units(u64),
}

impl Refund {
    /// Returns the units; `None` for all of them.
    pub(crate) fn units(self) -> Option<u64> {
        match self {
            Self::All => None,
            Self::Units(units) => Some(units),
        }
    }
}

pub(super) struct SettlementVisitor {
    pub(super) fields: &'static [&'static str],
}

impl<'de> Visitor<'de> for SettlementVisitor {
    type Value = SettlementBody<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the fields {}", self.fields.join(" and "))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<SettlementBody<'de>, M::Error> {
        let (mut ticket, mut cost, mut values, mut status, mut outcome) = (None, None, None, None, None);
        let mut refund = None;
        while let Some(Text(field)) = map.next_key()? {
            match field.as_ref() {
                "decision_id" => {
                    let instead =
                        "`decision_id` settles nothing; send the `ticket` in the answer to the check";
                    return Err(M::Error::custom(instead));
                }
                name if !self.fields.contains(&name) => return Err(unknown(name, self.fields)),
                "ticket" => once(
                    &mut ticket,
                    "ticket",
                    map.next_value_seed(TextSeed("`ticket` as the string that a check answered"))?.0,
                )?,
                "status" => once(&mut status, "status", map.next_value_seed(Any(StatusVisitor))?)?,
                "outcome" => once(&mut outcome, "outcome", map.next_value_seed(OutcomeSeed)?)?,
                "attributes" => once(&mut values, "attributes", map.next_value_seed(Object(UsageVisitor))?)?,
                "refund" => once(&mut refund, "refund", map.next_value_seed(Any(RefundVisitor))?)?,
                _ => once(&mut cost, "cost", map.next_value_seed(Any(UnitsVisitor))?)?,
            }
        }
        let takes = |field: &str| self.fields.contains(&field);
        let Some(ticket) = ticket else {
            let what = match self.fields {
                ["ticket"] => {
                    "the `ticket` in the answer to the check that took the places, or to their last extension"
                }
                _ => {
                    "the `ticket` in the answer to a check, if a policy expects a settlement or the check asks with \"ticket\": true"
                }
            };
            return Err(missing("ticket", what));
        };
        let ended = match (status, outcome) {
            (Some(_), Some(_)) => {
                return Err(M::Error::custom("`status` and `outcome` say the same; send one of them"));
            }
            (ended, None) | (None, ended) => ended,
        };
        let cost = cost.flatten();
        let usage = match values {
            None => cost.map(Usage::cost),
            Some(mut values) => {
                values.cost = cost;
                Some(values)
            }
        };
        let refund = refund.flatten();
        if takes("outcome") && usage.is_none() && ended.is_none() && refund.is_none() {
            let detail = "the settlement says nothing about the work; send `attributes` or `cost` for what it spent, `status` or `outcome` \
                          for how it ended";
            return Err(M::Error::custom(detail));
        }
        if refund.is_some() && (usage.is_some() || ended.is_some()) {
            return Err(M::Error::custom(
                "`refund` stands alone; send what the work spent as `cost` or `attributes`, or how it ended without a refund",
            ));
        }
        if ended == Some(WorkEnd::Undone) && usage.is_some() {
            return Err(M::Error::custom(
                "work that was undone has spent nothing; leave `cost` and `attributes` out",
            ));
        }
        Ok(SettlementBody { ticket, usage, ended, refund })
    }
}

struct StatusVisitor;

impl StatusVisitor {
    fn wrong<E: Error, T>(value: &dyn fmt::Display) -> Result<T, E> {
        Err(E::custom(format_args!("`status` {value} is not an HTTP status; use a number, 100 to 599")))
    }
}

impl Visitor<'_> for StatusVisitor {
    type Value = WorkEnd;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`status` as a number such as 200")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<WorkEnd, E> {
        let ended = u16::try_from(value).ok().and_then(WorkEnd::of_status);
        ended.map_or_else(|| Self::wrong(&value), Ok)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<WorkEnd, E> {
        Self::wrong(&value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<WorkEnd, E> {
        Self::wrong(&format_args!("{value:?}"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<WorkEnd, E> {
        Self::wrong(&quoted_text(value))
    }
}

struct OutcomeSeed;

impl<'de> DeserializeSeed<'de> for OutcomeSeed {
    type Value = WorkEnd;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<WorkEnd, D::Error> {
        let Text(word) = TextSeed("`outcome` as a string such as \"success\"").deserialize(from)?;
        WorkEnd::of_word(&word).ok_or_else(|| {
            let known = WorkEnd::known_words();
            D::Error::custom(format_args!("`outcome` {} does not exist; there are {known}", quoted(&word)))
        })
    }
}

/// Reads a number of units; null counts as absent.
struct UnitsVisitor;

impl UnitsVisitor {
    fn wrong<E: Error, T>(value: &dyn fmt::Display) -> Result<T, E> {
        Err(E::custom(format_args!("`cost` {value} is not a cost; use a whole number, 0 to {MAX_COST}")))
    }
}

impl Visitor<'_> for UnitsVisitor {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`cost` as a whole number, 0 to {MAX_COST}")
    }

    fn visit_unit<E>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<u64>, E> {
        if value > MAX_COST { Self::wrong(&value) } else { Ok(Some(value)) }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<u64>, E> {
        Self::wrong(&value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<u64>, E> {
        // As it was written: 1000.0 is not a whole number.
        Self::wrong(&format_args!("{value:?}"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Option<u64>, E> {
        Self::wrong(&quoted_text(value))
    }
}

/// Reads what is given back: units, or `"all"`; null counts as absent.
struct RefundVisitor;

impl RefundVisitor {
    fn wrong<E: Error, T>(value: &dyn fmt::Display) -> Result<T, E> {
        Err(E::custom(format_args!(
            "`refund` {value} gives nothing back; use \"all\", or a whole number, 1 to {MAX_COST}"
        )))
    }
}

impl Visitor<'_> for RefundVisitor {
    type Value = Option<Refund>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`refund` as \"all\", or a whole number, 1 to {MAX_COST}")
    }

    fn visit_unit<E>(self) -> Result<Option<Refund>, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<Refund>, E> {
        if (1..=MAX_COST).contains(&value) { Ok(Some(Refund::Units(value))) } else { Self::wrong(&value) }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<Refund>, E> {
        Self::wrong(&value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<Refund>, E> {
        Self::wrong(&format_args!("{value:?}"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Option<Refund>, E> {
        if value == "all" { Ok(Some(Refund::All)) } else { Self::wrong(&quoted_text(value)) }
    }
}

/// Reads the usage: names with whole numbers or words. APIs answer null for numbers that they do not have, so it
/// counts as absent.
struct UsageVisitor;

impl<'de> Visitor<'de> for UsageVisitor {
    type Value = Usage<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`attributes` as an object such as {\"llm.input\": 900, \"llm.output\": 133}")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Usage<'de>, M::Error> {
        let mut usage = Usage::default();
        let mut count = 0;
        while let Some(Text(name)) = map.next_key()? {
            if count == MAX_ATTRIBUTES {
                let most =
                    format_args!("more than {MAX_ATTRIBUTES} attributes; send those that policies settle by");
                return Err(M::Error::custom(most));
            }
            if name.is_empty() || name.len() > MAX_NAME {
                let bad = format_args!("attribute name {}: use 1 to {MAX_NAME} bytes", quoted(&name));
                return Err(M::Error::custom(bad));
            }
            if usage.value(&name).is_some() {
                return Err(M::Error::custom(format_args!("attribute {} is given twice", quoted(&name))));
            }
            if let Some(value) = map.next_value_seed(Any(ValueVisitor { name: &name }))? {
                usage.push(name, value);
            }
            count += 1;
        }
        Ok(usage)
    }
}

struct ValueVisitor<'n> {
    name: &'n str,
}

impl ValueVisitor<'_> {
    fn wrong<E: Error, T>(&self, found: &dyn fmt::Display) -> Result<T, E> {
        Err(E::custom(format_args!(
            "attribute {}: {found} is not an amount that was spent; use a whole number, 0 to {MAX_COST}, or a string",
            quoted(self.name)
        )))
    }

    fn text<'v, E: Error>(&self, text: Cow<'v, str>) -> Result<Option<UsageValue<'v>>, E> {
        match text.len() {
            0..=MAX_VALUE => Ok(Some(UsageValue::Text(text))),
            long => Err(E::custom(format_args!(
                "attribute {}: {long} bytes are too long; use at most {MAX_VALUE}",
                quoted(self.name)
            ))),
        }
    }
}

impl<'de> Visitor<'de> for ValueVisitor<'_> {
    type Value = Option<UsageValue<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number or a string")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        if value > MAX_COST { self.wrong(&value) } else { Ok(Some(UsageValue::Units(value))) }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        self.wrong(&value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        self.wrong(&format_args!("{value:?}"))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        self.wrong(&value)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        self.text(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        self.text(Cow::Owned(text.to_owned()))
    }

    fn visit_seq<S: serde::de::SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        self.wrong(&"an array")
    }

    fn visit_map<M: MapAccess<'de>>(self, _: M) -> Result<Self::Value, M::Error> {
        self.wrong(&"an object")
    }
}
