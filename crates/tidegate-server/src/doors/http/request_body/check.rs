//! Parses a check as a caller writes it: alone, in a batch, or in a dry run.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;
use tidegate::Cost;
use tidegate::config::{canonical_attribute, unknown_attribute};
use tidegate::gate::Check;
use tidegate::http_answer::server_parts::wrong_value;
use tidegate::policy::{Descriptor, PolicySet};
use tidegate::priority::Priority;

use super::{MAX_ATTRIBUTES, MAX_BATCH, MAX_COST, MAX_NAME, MAX_POLICIES, MAX_VALUE};
use crate::problem::Problem;
use crate::requests;
use crate::text::{nearest, quoted, quoted_text};

/// One check as a caller writes it.
#[derive(Debug)]
pub(crate) struct CheckBody<'a> {
    pub(crate) request: Descriptor<'a>,
    pub(crate) cost: Option<Cost>,
    pub(crate) priority: Priority,
    pub(crate) policies: Option<SmallVec<[Cow<'a, str>; 4]>>,
    /// Whether a ticket is wanted; `None`: if the policies expect a settlement.
    pub(crate) ticket: Option<bool>,
}

impl<'a> CheckBody<'a> {
    /// Returns the check for the gate, for all policies.
    pub(crate) fn check(&self) -> Check<'_, 'a> {
        Check::of(&self.request).maybe_cost(self.cost).priority(self.priority)
    }

    /// Returns the indices in `set`, which need not be in force, of the policies that the caller named.
    ///
    /// # Errors
    /// 400 for an unknown policy name.
    pub(crate) fn named(&self, set: &PolicySet) -> Result<Option<SmallVec<[usize; 4]>>, Problem> {
        let Some(names) = &self.policies else { return Ok(None) };
        let find = |name: &Cow<'_, str>| {
            requests::find(set, name).map_err(|none| {
                let advice = if none.meant.is_none() { "; GET /v1/policies lists them" } else { "" };
                Problem::bad_request(format!("{none}{advice}")).with("field", "policies")
            })
        };
        names.iter().map(find).collect::<Result<_, _>>().map(Some)
    }
}

const FIELDS: [&str; 5] = ["attributes", "cost", "priority", "policies", "ticket"];

pub(super) struct CheckVisitor;

impl<'de> Visitor<'de> for CheckVisitor {
    type Value = CheckBody<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object such as {\"attributes\": {\"client.ip\": \"203.0.113.9\"}, \"cost\": 1}")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<CheckBody<'de>, M::Error> {
        let (mut request, mut cost, mut priority, mut policies, mut ticket) = (None, None, None, None, None);
        while let Some(Text(field)) = map.next_key()? {
            match field.as_ref() {
                "attributes" => {
                    once(&mut request, "attributes", map.next_value_seed(Object(AttributesVisitor))?)?;
                }
                "cost" => once(&mut cost, "cost", map.next_value_seed(Any(CostVisitor))?)?,
                "priority" => once(&mut priority, "priority", map.next_value_seed(Any(PriorityVisitor))?)?,
                "policies" => once(&mut policies, "policies", map.next_value_seed(Any(NamesVisitor))?)?,
                "ticket" => once(&mut ticket, "ticket", map.next_value_seed(Any(YesOrNo))?)?,
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

/// True, false, or null for unspecified.
struct YesOrNo;

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

pub(super) struct BatchSeed<'i> {
    /// Afterwards, the check that cannot be read; `None` if the mistake is in none.
    pub(super) wrong: &'i Cell<Option<usize>>,
}

struct IndexedSeed<'i> {
    at: usize,
    wrong: &'i Cell<Option<usize>>,
}

impl<'de> DeserializeSeed<'de> for IndexedSeed<'_> {
    type Value = CheckBody<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<CheckBody<'de>, D::Error> {
        self.wrong.set(Some(self.at));
        let check = Object(CheckVisitor).deserialize(from)?;
        self.wrong.set(None);
        Ok(check)
    }
}

/// One check of a batch that was read before.
pub(super) struct BatchedCheck<'a>(pub(super) CheckBody<'a>);

impl<'de> Deserialize<'de> for BatchedCheck<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Object(CheckVisitor).deserialize(from).map(Self)
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

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
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

#[derive(Debug)]
pub(crate) struct DryRunBody<'a> {
    pub(crate) check: CheckBody<'a>,
    /// Proposed policies, as in the file; `None`: those in force.
    pub(crate) config: Option<Cow<'a, str>>,
}

pub(super) struct DryRunVisitor;

impl<'de> Visitor<'de> for DryRunVisitor {
    type Value = DryRunBody<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object such as {EXAMPLE_DRY_RUN}")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<DryRunBody<'de>, M::Error> {
        let (mut check, mut config) = (None, None);
        while let Some(Text(field)) = map.next_key()? {
            match field.as_ref() {
                "check" => once(&mut check, "check", map.next_value_seed(Object(CheckVisitor))?)?,
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

struct AttributesVisitor;

impl<'de> Visitor<'de> for AttributesVisitor {
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
            // Two readers of such a body may pick different values, and one would limit the wrong caller.
            if request.value(&name).is_some() {
                return Err(M::Error::custom(format_args!("attribute {} is given twice", quoted(&name))));
            }
            let value = map.next_value_seed(Any(ValueVisitor { name: &name }))?;
            if let Some(wrong) = wrong_value(&name, &value) {
                return Err(M::Error::custom(wrong));
            }
            request.push(name, value);
            count += 1;
        }
        Ok(request)
    }
}

/// Strings unchanged, numbers and booleans as they are written.
struct ValueVisitor<'n> {
    name: &'n str,
}

impl ValueVisitor<'_> {
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

impl<'de> Visitor<'de> for ValueVisitor<'_> {
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

struct CostVisitor;

impl CostVisitor {
    fn wrong<E: Error, T>(value: &dyn fmt::Display) -> Result<T, E> {
        Err(E::custom(format_args!("`cost` {value} is not a cost; use a whole number, 1 to {MAX_COST}")))
    }
}

impl<'de> Visitor<'de> for CostVisitor {
    type Value = Option<Cost>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`cost` as a whole number, 1 to {MAX_COST}")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Cost>, E> {
        Self::wrong(&"null")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<Cost>, E> {
        match Cost::new(value) {
            None => Err(E::custom(
                "`cost` 0 asks for nothing; use 1 or more, or POST /v1/peek to look without spending",
            )),
            Some(_) if value > MAX_COST => Self::wrong(&value),
            cost => Ok(cost),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<Cost>, E> {
        Err(E::custom(format_args!(
            "`cost` {value} is negative; use 1 or more, or `refund` of POST /v1/settle to give back"
        )))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<Cost>, E> {
        // As it was written: 1000.0 is not a whole number.
        Self::wrong(&format_args!("{value:?}"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Option<Cost>, E> {
        Self::wrong(&quoted_text(value))
    }
}

// Fields of a body: their names, and strings as values.

/// A string of the body; borrowed if it has no escapes.
#[derive(Debug)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        TextSeed("a string").deserialize(from)
    }
}

/// Reads a value of any type by a visitor.
pub(super) struct Any<V>(pub(super) V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Any<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        from.deserialize_any(self.0)
    }
}

/// Reads an object by a visitor.
pub(super) struct Object<V>(pub(super) V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Object<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        from.deserialize_map(self.0)
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
/// If it was given before.
pub(super) fn once<T, E: Error>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    if slot.replace(value).is_some() {
        return Err(E::custom(format_args!("`{name}` is given twice")));
    }
    Ok(())
}

pub(super) fn missing<E: Error>(name: &str, what: &str) -> E {
    E::custom(format_args!("`{name}` is missing; it is {what}"))
}

/// The error for an unknown field, with the name that was probably meant.
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

/// Reads `priority`: a string, or null for none.
struct PriorityVisitor;

impl Visitor<'_> for PriorityVisitor {
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
