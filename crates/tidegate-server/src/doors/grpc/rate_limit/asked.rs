//! Reads what a call asks: of each descriptor its attributes, its units, and the limit that it brings.

use std::borrow::Cow;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use smallvec::SmallVec;
use tidegate::visible::excerpt;
use tidegate::{Check, Cost, Descriptor, Quota};

use super::super::status::{Code, Status};
use crate::requests::{Brought, BroughtQuotas, MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};

/// The attribute of the domain.
const DOMAIN: &str = "rls.domain";
/// The keys of all entries in their order, joined by commas: which shape of descriptor it is.
const KEYS: &str = "rls.keys";
/// The place of the descriptor in its call, from 0.
const INDEX: &str = "rls.index";
/// All descriptors of the call: `|key=value,key=value|key=value|`.
const CALL: &str = "rls.call";
/// Before the key of an entry: its value, for keys whose names mean something else in the policy file.
const ENTRY: &str = "rls.entry.";
/// The entry that has the caller's address, and the attribute that policies for all doors have it in.
const ADDRESS: (&str, &str) = ("remote_address", "client.ip");
/// The most descriptors of a call: a proxy makes one for each of its own rules that matches. Each pair of limits is compared.
const MAX_DESCRIPTORS: usize = 32;

/// What a descriptor does with its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Units {
    /// Spends.
    Take(Cost),
    /// Looks, and spends nothing.
    Look,
    /// Gives back what was spent before.
    GiveBack(Cost),
}

/// Why a descriptor is over the limit, whatever its limits say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Refused {
    /// A value is too long to be judged. An error would let it pass at a proxy that fails open.
    TooLong,
    /// The limit that it brings grants nothing.
    NothingGranted,
}

/// One descriptor of a call.
#[derive(Debug)]
pub(in super::super) struct Asked<'r> {
    pub(in super::super) request: Descriptor<'r>,
    pub(in super::super) units: Units,
    /// The limit that holds in place of the policies' own.
    pub(in super::super) quota: Option<Arc<Quota>>,
    pub(in super::super) refused: Option<Refused>,
}

impl<'r> Asked<'r> {
    /// Returns the question to the gate.
    pub(in super::super) fn check(&self) -> Check<'_, 'r> {
        let mut check = Check::of(&self.request);
        match self.units {
            // One unit is what a check spends unless it says otherwise; said, it would hold against a policy's own default.
            Units::Take(Cost::ONE) | Units::GiveBack(_) => {}
            Units::Take(cost) => check = check.maybe_cost(Some(cost)),
            Units::Look => check = check.peek(),
        }
        check.quota = self.quota.as_ref();
        check
    }
}

/// Reads all descriptors of a call. `wanted` are the attributes beginning with `rls.` that policies name.
///
/// # Errors
/// [`Code::InvalidArgument`] for what only a proxy's configuration can be wrong about: no domain, no descriptors, or too many; names and
/// units that there are not.
pub(in super::super) fn read<'r>(
    call: &'r RateLimitRequest,
    quotas: &BroughtQuotas,
    wanted: &'r [Box<str>],
) -> Result<SmallVec<[Asked<'r>; 1]>, Status> {
    let wrong = |message: String| Err(Status::new(Code::InvalidArgument, message));
    if call.domain.is_empty() {
        return wrong("the domain is empty; policies have it as the attribute rls.domain".to_owned());
    }
    if call.domain.len() > MAX_VALUE {
        return wrong(format!("the domain has {} bytes; use at most {MAX_VALUE}", call.domain.len()));
    }
    match call.descriptors.len() {
        0 => return wrong("there are no descriptors; send at least one".to_owned()),
        1..=MAX_DESCRIPTORS => {}
        many => return wrong(format!("there are {many} descriptors; send at most {MAX_DESCRIPTORS}")),
    }
    let mut all = SmallVec::new();
    all.reserve_exact(call.descriptors.len());
    for (index, descriptor) in call.descriptors.iter().enumerate() {
        // Filled in where it stays: attributes are large, and to move them costs more than to read them.
        all.push(Asked { request: Descriptor::new(), units: Units::Look, quota: None, refused: None });
        let Some(asked) = all.last_mut() else { break };
        read_one(call, descriptor, quotas, asked)?;
        // Last, and so above entries of these names.
        describe(&mut asked.request, (call, index), &descriptor.entries, wanted);
    }
    Ok(all)
}

/// Adds what policies want to know of the descriptor itself.
fn describe<'r>(
    request: &mut Descriptor<'r>,
    (call, index): (&RateLimitRequest, usize),
    entries: &[Entry],
    wanted: &'r [Box<str>],
) {
    for name in wanted {
        let value = match &**name {
            DOMAIN => continue,
            KEYS => {
                let keys: SmallVec<[&str; 8]> = entries.iter().map(|entry| entry.key.as_str()).collect();
                Cow::Owned(keys.join(","))
            }
            INDEX => Cow::Owned(index.to_string()),
            CALL => Cow::Owned(spelled(call)),
            other => match other.strip_prefix(ENTRY).and_then(|key| request.value(key)) {
                Some(value) => Cow::Owned(value.to_owned()),
                None => continue,
            },
        };
        request.push(&**name, value);
    }
}

/// Writes all descriptors of a call; in keys and values `%`, `|`, `,` and `=` are escaped, so that no value looks like another entry.
fn spelled(call: &RateLimitRequest) -> String {
    let mut text = "|".to_owned();
    for descriptor in &call.descriptors {
        for (at, entry) in descriptor.entries.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            push_escaped(&mut text, &entry.key);
            text.push('=');
            push_escaped(&mut text, &entry.value);
        }
        text.push('|');
    }
    text
}

fn push_escaped(text: &mut String, part: &str) {
    for letter in part.chars() {
        match letter {
            '%' => text.push_str("%25"),
            '|' => text.push_str("%7C"),
            ',' => text.push_str("%2C"),
            '=' => text.push_str("%3D"),
            other => text.push(other),
        }
    }
}

fn read_one<'r>(
    call: &'r RateLimitRequest,
    descriptor: &'r RateLimitDescriptor,
    quotas: &BroughtQuotas,
    asked: &mut Asked<'r>,
) -> Result<(), Status> {
    if let Some(limit) = &descriptor.limit {
        match brought(limit)? {
            None => asked.refused = Some(Refused::NothingGranted),
            Some(limit) => {
                let made = quotas.of(limit);
                asked.quota = Some(
                    made.map_err(|error| Status::new(Code::InvalidArgument, format!("limit: {error}")))?,
                );
            }
        }
    }
    if descriptor.entries.iter().any(|entry| entry.value.len() > MAX_VALUE) {
        asked.refused = Some(Refused::TooLong);
    }
    asked.units = units(call.hits_addend, descriptor);
    attributes(&call.domain, &descriptor.entries, &mut asked.request)
}

/// Returns what a descriptor does: its own number wins over the call's, of which 0 is the same as none.
fn units(of_call: u32, descriptor: &RateLimitDescriptor) -> Units {
    let units = descriptor.hits_addend.as_ref().map_or(u64::from(of_call.max(1)), |own| own.value);
    // However many: more than a limit ever grants is refused by that limit, and not by an error, which a proxy might let pass.
    match (Cost::new(units), descriptor.is_negative_hits) {
        (None, _) => Units::Look,
        (Some(cost), false) => Units::Take(cost),
        (Some(cost), true) => Units::GiveBack(cost),
    }
}

/// Returns the limit that a descriptor brings; `None` for one that grants nothing.
fn brought(limit: &RateLimitOverride) -> Result<Option<Brought>, Status> {
    const DAY: u64 = 86_400;
    let period = match limit.unit {
        1 => 1,
        2 => 60,
        3 => 3600,
        4 => DAY,
        // As everywhere but in calendar windows: 30 days and 365.
        5 => 30 * DAY,
        6 => 365 * DAY,
        7 => 7 * DAY,
        other => {
            let message = format!("limit: there is no unit {other}; use 1 (SECOND) to 7 (WEEK)");
            return Err(Status::new(Code::InvalidArgument, message));
        }
    };
    let count = u64::from(limit.requests_per_unit);
    Ok((count > 0).then_some(Brought { burst: count, count, period }))
}

fn attributes<'r>(domain: &'r str, entries: &'r [Entry], request: &mut Descriptor<'r>) -> Result<(), Status> {
    // The domain, and the address once more.
    if entries.len() > MAX_ATTRIBUTES - 2 {
        let message =
            format!("a descriptor has {} entries; send at most {}", entries.len(), MAX_ATTRIBUTES - 2);
        return Err(Status::new(Code::InvalidArgument, message));
    }
    for (at, entry) in entries.iter().enumerate() {
        let (key, value) = (entry.key.as_str(), entry.value.as_str());
        if key.is_empty() || key.len() > MAX_NAME {
            let shown = excerpt(key);
            let message =
                format!("the key \"{shown}\" of an entry has {} bytes; use 1 to {MAX_NAME}", key.len());
            return Err(Status::new(Code::InvalidArgument, message));
        }
        // Of several entries of one key each is an attribute: generic_key, generic_key.2 and so on.
        match entries[..at].iter().filter(|before| before.key == key).count() {
            0 => request.push(key, value),
            before => request.push(Cow::Owned(format!("{key}.{}", before + 1)), value),
        }
        if key == ADDRESS.0 && !entries.iter().any(|entry| entry.key == ADDRESS.1) {
            request.push(ADDRESS.1, value);
        }
    }
    // Last, and so above an entry of this name.
    request.push(DOMAIN, domain);
    Ok(())
}
