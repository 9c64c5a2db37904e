//! Reads the descriptors of a call: attributes, units, and a limit of their own.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::config::Envoy;
use tidegate::gate::Check;
use tidegate::http_answer::server_parts::wrong_value;
use tidegate::policy::Descriptor;
use tidegate::priority::Priority;
use tidegate::visible::excerpt;
use tidegate::{Cost, Quota};

use super::super::envoy::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use super::super::framing::{Code, Status};
use crate::active_config::ActiveConfig;
use crate::requests::{InlineLimit, InlineQuotas, MAX_ATTRIBUTES, MAX_COST, MAX_NAME, MAX_VALUE};

/// Attributes of a descriptor: the domain.
const DOMAIN: &str = "rls.domain";
/// The keys of all entries, joined by commas: the descriptor's shape.
const KEYS: &str = "rls.keys";
/// The attribute with the descriptor's index in its call, from 0.
const INDEX: &str = "rls.index";
/// The attribute with all descriptors of the call: `|key=value,key=value|key=value|`.
const CALL: &str = "rls.call";
/// The most bytes of `rls.call`: each descriptor has it, and each policy may search it.
pub(super) const MAX_CALL: usize = 4 * MAX_VALUE;
/// The prefix by which policies reach an entry whose key means something else in the file.
const ENTRY: &str = "rls.entry.";
/// The entry with the caller's address, and the attribute of all doors for it.
const ADDRESS: (&str, &str) = ("remote_address", "client.ip");
/// The most descriptors of a call: a proxy makes one for each matching rule, and each pair of limits is compared.
const MAX_DESCRIPTORS: usize = 32;

/// What a descriptor does with its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Units {
    Take(Cost),
    Peek,
    /// Gives back what was spent before.
    GiveBack(Cost),
}

/// Why a descriptor is over the limit, whatever its limits say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Refused {
    /// A value is too long to be judged, or the whole call is and a policy reads it. An error would let the request
    /// pass at a proxy that fails open.
    TooLong,
    /// An entry `client.ip` is not an address: a caller could write it in any number of ways, each a key of its
    /// own, and be on no list.
    NotAnAddress,
    /// Its own limit grants nothing.
    NothingGranted,
}

#[derive(Debug)]
pub(in super::super) struct CallDescriptor<'r> {
    pub(in super::super) request: Descriptor<'r>,
    pub(in super::super) units: Units,
    /// That of the whole call.
    pub(in super::super) priority: Priority,
    /// Replaces the policies' own.
    pub(in super::super) quota: Option<Arc<Quota>>,
    pub(in super::super) refused: Option<Refused>,
}

impl<'r> CallDescriptor<'r> {
    pub(in super::super) fn check(&self) -> Check<'_, 'r> {
        let mut check = Check::of(&self.request).priority(self.priority);
        match self.units {
            // A check without a cost spends one unit, or the policy's default; an explicit one would override that.
            Units::Take(Cost::ONE) | Units::GiveBack(_) => {}
            Units::Take(cost) => check = check.maybe_cost(Some(cost)),
            Units::Peek => check = check.peek(),
        }
        check.quota = self.quota.as_ref();
        check
    }
}

/// Reads a call under the configuration in force.
///
/// # Errors
/// [`Code::InvalidArgument`] for mistakes of a proxy's configuration: no domain, no descriptors or too many, invalid
/// keys and units.
pub(in super::super) fn read<'r>(
    call: &'r RateLimitRequest,
    quotas: &InlineQuotas,
    live: &'r ActiveConfig,
) -> Result<SmallVec<[CallDescriptor<'r>; 1]>, Status> {
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
    let priority = priority(call, &live.envoy);
    // Written once for all descriptors. `None`: it is too long.
    let spelled = if live.rls_attributes.iter().any(|name| &**name == CALL) {
        spelled(call)
    } else {
        Some(String::new())
    };
    let mut all = SmallVec::new();
    all.reserve_exact(call.descriptors.len());
    for (index, descriptor) in call.descriptors.iter().enumerate() {
        // In place: attributes are large, and moving them costs more than reading them.
        all.push(CallDescriptor {
            request: Descriptor::new(),
            units: Units::Peek,
            priority,
            quota: None,
            refused: None,
        });
        let Some(parsed) = all.last_mut() else { break };
        read_one(call, descriptor, quotas, parsed)?;
        if parsed.refused == Some(Refused::NotAnAddress) {
            live.unmet.note_no_address(|| not_an_address(&descriptor.entries).unwrap_or_default());
        }
        // Last, so that these win over entries of the same names.
        match &spelled {
            Some(spelled) => {
                describe(
                    &mut parsed.request,
                    spelled.as_str(),
                    index,
                    &descriptor.entries,
                    &live.rls_attributes,
                );
            }
            None => parsed.refused = Some(Refused::TooLong),
        }
    }
    Ok(all)
}

/// Returns the priority of a call: one for all descriptors, which describe one request of the proxy's client.
fn priority(call: &RateLimitRequest, envoy: &Envoy) -> Priority {
    let entries = call.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    envoy.priority(entries.map(|entry| (&*entry.key, &*entry.value)))
}

/// Adds the attributes about the descriptor that policies use.
fn describe<'r>(
    request: &mut Descriptor<'r>,
    spelled: &str,
    index: usize,
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
            CALL => Cow::Owned(spelled.to_owned()),
            other => match other.strip_prefix(ENTRY).and_then(|key| request.value(key)) {
                Some(value) => Cow::Owned(value.to_owned()),
                None => continue,
            },
        };
        request.push(&**name, value);
    }
}

/// Writes all descriptors; `None` beyond [`MAX_CALL`]. Escapes `%`, `|`, `,` and `=`, so that no value looks like
/// another entry.
fn spelled(call: &RateLimitRequest) -> Option<String> {
    let mut text = "|".to_owned();
    for descriptor in &call.descriptors {
        for (at, entry) in descriptor.entries.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            push_escaped(&mut text, &entry.key);
            text.push('=');
            push_escaped(&mut text, &entry.value);
            if text.len() >= MAX_CALL {
                return None;
            }
        }
        text.push('|');
    }
    Some(text)
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
    quotas: &InlineQuotas,
    parsed: &mut CallDescriptor<'r>,
) -> Result<(), Status> {
    if let Some(limit) = &descriptor.limit {
        match inline_limit(limit)? {
            None => parsed.refused = Some(Refused::NothingGranted),
            Some(limit) => {
                let made = quotas.of(limit);
                parsed.quota = Some(
                    made.map_err(|error| Status::new(Code::InvalidArgument, format!("limit: {error}")))?,
                );
            }
        }
    }
    if descriptor.entries.iter().any(|entry| entry.value.len() > MAX_VALUE) {
        parsed.refused = Some(Refused::TooLong);
    }
    if not_an_address(&descriptor.entries).is_some() {
        parsed.refused = Some(Refused::NotAnAddress);
    }
    parsed.units = units(call.hits_addend, descriptor);
    attributes(&call.domain, &descriptor.entries, &mut parsed.request)
}

/// Says which entry with the key `client.ip` is not an address.
pub(super) fn not_an_address(entries: &[Entry]) -> Option<String> {
    entries
        .iter()
        .filter(|entry| entry.key == ADDRESS.1)
        .find_map(|entry| wrong_value(&entry.key, &entry.value))
}

/// Returns what a descriptor does. Its own number wins over the call's, where 0 means none.
fn units(of_call: u32, descriptor: &RateLimitDescriptor) -> Units {
    let units = descriptor.hits_addend.unwrap_or(u64::from(of_call.max(1)));
    // Any number: one beyond the limit is refused by it, not by an error that a proxy might let pass. Nothing costs
    // more than the largest cost, as at the other doors.
    match (Cost::new(units.min(MAX_COST)), descriptor.is_negative_hits) {
        (None, _) => Units::Peek,
        (Some(cost), false) => Units::Take(cost),
        (Some(cost), true) => Units::GiveBack(cost),
    }
}

/// Returns a descriptor's own limit; `None` if it grants nothing.
fn inline_limit(limit: &RateLimitOverride) -> Result<Option<InlineLimit>, Status> {
    const DAY: u64 = 86_400;
    let period = match limit.unit {
        1 => 1,
        2 => 60,
        3 => 3600,
        4 => DAY,
        // A month is 30 days and a year 365, as everywhere except in calendar windows.
        5 => 30 * DAY,
        6 => 365 * DAY,
        7 => 7 * DAY,
        other => {
            let message = format!("limit: there is no unit {other}; use 1 (SECOND) to 7 (WEEK)");
            return Err(Status::new(Code::InvalidArgument, message));
        }
    };
    let count = u64::from(limit.requests_per_unit);
    Ok((count > 0).then_some(InlineLimit { burst: count, count, period }))
}

fn attributes<'r>(domain: &'r str, entries: &'r [Entry], request: &mut Descriptor<'r>) -> Result<(), Status> {
    // Room for the domain and a copy of the address.
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
        // Several entries of one key are generic_key, generic_key.2 and so on.
        match entries[..at].iter().filter(|before| before.key == key).count() {
            0 => request.push(key, value),
            before => request.push(Cow::Owned(format!("{key}.{}", before + 1)), value),
        }
        if key == ADDRESS.0 && !entries.iter().any(|entry| entry.key == ADDRESS.1) {
            request.push(ADDRESS.1, value);
        }
    }
    // Pushed last, so that it wins over an entry with this name.
    request.push(DOMAIN, domain);
    Ok(())
}
