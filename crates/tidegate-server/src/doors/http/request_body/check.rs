//! Parses a check as a caller writes it: alone, in a batch, or in a dry run.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;
use tidegate::gate::Check;
use tidegate::policy::Descriptor;
use tidegate::{Cost, Priority};

use super::attributes::AttributesSeed;
use super::bounds::{MAX_BATCH, MAX_POLICIES};
use super::cost::CostSeed;
use super::fields::{Text, TextSeed, missing, once, unknown};
use super::priority::PrioritySeed;

/// One check as a caller writes it.
#[derive(Debug)]
pub(crate) struct CheckBody<'a> {
    pub(crate) request: Descriptor<'a>,
    pub(crate) cost: Option<Cost>,
    pub(crate) priority: Priority,
    pub(crate) policies: Option<SmallVec<[Cow<'a, str>; 4]>>,
    /// Whether the caller wants a ticket; `None`: if the policies expect a settlement.
    pub(crate) ticket: Option<bool>,
}

impl<'a> CheckBody<'a> {
    /// Returns the check for the gate, for all policies.
    pub(crate) fn check(&self) -> Check<'_, 'a> {
        Check::of(&self.request).maybe_cost(self.cost).priority(self.priority)
    }
}

const FIELDS: [&str; 5] = ["attributes", "cost", "priority", "policies", "ticket"];

#[derive(Clone, Copy)]
pub(super) struct CheckSeed;

impl<'de> DeserializeSeed<'de> for CheckSeed {
    type Value = CheckBody<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<CheckBody<'de>, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for CheckSeed {
    type Value = CheckBody<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object such as {\"attributes\": {\"client.ip\": \"203.0.113.9\"}, \"cost\": 1}")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<CheckBody<'de>, M::Error> {
        let (mut request, mut cost, mut priority, mut policies, mut ticket) = (None, None, None, None, None);
        while let Some(Text(field)) = map.next_key()? {
            match field.as_ref() {
                "attributes" => once(&mut request, "attributes", map.next_value_seed(AttributesSeed)?)?,
                "cost" => once(&mut cost, "cost", map.next_value_seed(CostSeed)?)?,
                "priority" => once(&mut priority, "priority", map.next_value_seed(PrioritySeed)?)?,
                "policies" => once(&mut policies, "policies", map.next_value_seed(NamesSeed)?)?,
                "ticket" => once(&mut ticket, "ticket", map.next_value_seed(YesOrNo)?)?,
                other => return Err(unknown(other, &FIELDS)),
            }
        }
        let request = request.ok_or_else(|| missing("attributes", "an object of names and values"))?;
        Ok(CheckBody {
            request,
            cost: cost.flatten(),
            priority: priority.flatten().unwrap_or_default(),
            policies: policies.flatten(),
            ticket: ticket.flatten(),
        })
    }
}

/// Reads `ticket`: true, false, or null for unspecified.
struct YesOrNo;

impl<'de> DeserializeSeed<'de> for YesOrNo {
    type Value = Option<bool>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for YesOrNo {
    type Value = Option<bool>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`ticket` as true or false: whether the answer is to have one")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, wanted: bool) -> Result<Self::Value, E> {
        Ok(Some(wanted))
    }
}

/// Reads a batch.
pub(super) struct BatchSeed<'i> {
    /// Afterwards, the index of the check that cannot be read; `None` if the mistake is in no check.
    pub(super) wrong: &'i Cell<Option<usize>>,
}

/// Reads the check with this index in a batch.
struct IndexedSeed<'i> {
    at: usize,
    wrong: &'i Cell<Option<usize>>,
}

impl<'de> DeserializeSeed<'de> for IndexedSeed<'_> {
    type Value = CheckBody<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<CheckBody<'de>, D::Error> {
        self.wrong.set(Some(self.at));
        let check = CheckSeed.deserialize(from)?;
        self.wrong.set(None);
        Ok(check)
    }
}

/// One check of a batch that was read before.
pub(super) struct BatchedCheck<'a>(pub(super) CheckBody<'a>);

impl<'de> Deserialize<'de> for BatchedCheck<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        CheckSeed.deserialize(from).map(Self)
    }
}

impl<'de> DeserializeSeed<'de> for BatchSeed<'_> {
    type Value = Vec<CheckBody<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for BatchSeed<'_> {
    type Value = Vec<CheckBody<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of checks such as [{\"attributes\": {\"user.id\": 42}}]")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
        let mut checks = Vec::new();
        while let Some(check) = seq.next_element_seed(IndexedSeed { at: checks.len(), wrong: self.wrong })? {
            if checks.len() == MAX_BATCH {
                return Err(S::Error::custom(format_args!(
                    "a batch holds at most {MAX_BATCH} checks; send several"
                )));
            }
            checks.push(check);
        }
        Ok(checks)
    }
}

struct NamesSeed;

impl<'de> DeserializeSeed<'de> for NamesSeed {
    type Value = Option<SmallVec<[Cow<'de, str>; 4]>>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NamesSeed {
    type Value = Option<SmallVec<[Cow<'de, str>; 4]>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`policies` as an array of policy names")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
        let mut names = SmallVec::new();
        while names.len() < MAX_POLICIES {
            match seq.next_element::<Text<'de>>()? {
                Some(Text(name)) => names.push(name),
                None if names.is_empty() => {
                    let none =
                        "`policies` is empty, so nothing would be checked; name one, or leave it out for all";
                    return Err(S::Error::custom(none));
                }
                None => return Ok(Some(names)),
            }
        }
        match seq.next_element::<IgnoredAny>()? {
            None => Ok(Some(names)),
            Some(_) => Err(S::Error::custom(format_args!("more than {MAX_POLICIES} names in `policies`"))),
        }
    }
}

/// The shortest body, for error messages.
pub(super) const EXAMPLE_DRY_RUN: &str = "{\"check\": {\"attributes\": {\"client.ip\": \"203.0.113.9\"}}}";

/// One dry run.
#[derive(Debug)]
pub(crate) struct DryRunBody<'a> {
    pub(crate) check: CheckBody<'a>,
    /// The text of proposed policies, in the form of the file; `None`: use those in force.
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
        write!(f, "an object such as {EXAMPLE_DRY_RUN}")
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
