//! What follows a decision: a report or a refund.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use tidegate::Cost;

use super::cost::CostSeed;
use super::{Text, missing, once, unknown};

/// What follows a decision.
#[derive(Debug, Default)]
pub(crate) struct Followed<'a> {
    pub(crate) decision_id: Option<Cow<'a, str>>,
    pub(crate) status: Option<u16>,
    pub(crate) cost: Option<Cost>,
}

pub(super) struct FollowedSeed {
    pub(super) fields: &'static [&'static str],
}

impl<'de> DeserializeSeed<'de> for FollowedSeed {
    type Value = Followed<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Followed<'de>, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FollowedSeed {
    type Value = Followed<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the fields {}", self.fields.join(" and "))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Followed<'de>, M::Error> {
        let (mut id, mut status, mut cost) = (None, None, None);
        while let Some(Text(field)) = map.next_key()? {
            match field.as_ref() {
                name if !self.fields.contains(&name) => return Err(unknown(name, self.fields)),
                "decision_id" => once(&mut id, "decision_id", map.next_value::<Text<'de>>()?.0)?,
                "status" => once(&mut status, "status", map.next_value_seed(StatusSeed)?)?,
                _ => once(&mut cost, "cost", map.next_value_seed(CostSeed)?)?,
            }
        }
        if id.is_none() {
            return Err(missing("decision_id", "the id that a check answered"));
        }
        if self.fields.contains(&"status") && status.is_none() {
            return Err(missing("status", "the HTTP status of the finished work, 100 to 599"));
        }
        Ok(Followed { decision_id: id, status, cost: cost.flatten() })
    }
}

struct StatusSeed;

impl<'de> DeserializeSeed<'de> for StatusSeed {
    type Value = u16;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<u16, D::Error> {
        match u64::deserialize(from)? {
            status @ 100..=599 => Ok(status as u16),
            other => {
                Err(D::Error::custom(format_args!("`status` {other} is no HTTP status; use 100 to 599")))
            }
        }
    }
}
