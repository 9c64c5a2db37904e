//! What all doors share for requests: bounds, policy names, keys and outcomes of work.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::http_answer::server_parts::wrong_value;
use tidegate::limiter::Rate;
use tidegate::policy::{AccessEntry, Descriptor, PolicySet, canonical, keyed_network};
use tidegate::{Outcome, Quota};

use crate::text::{nearest, quoted};

/// The most attributes of one check: a linear look-up stays cheap.
pub(crate) const MAX_ATTRIBUTES: usize = 64;

/// The longest attribute name, in bytes.
pub(crate) const MAX_NAME: usize = Descriptor::MAX_NAME;

/// The longest attribute value, in bytes: a long URL or token fits.
pub(crate) const MAX_VALUE: usize = Descriptor::MAX_VALUE;

/// The largest cost, equal to the largest possible burst. A larger cost could never be allowed.
pub(crate) const MAX_COST: u64 = Rate::MAX_COUNT;

// Quotas for limits that callers bring along.

/// How many different limits are remembered. Beyond that, quotas are made anew.
const REMEMBERED: usize = 256;

/// The latest quotas that callers brought: making one costs more than deciding by it.
#[derive(Debug, Default)]
pub(crate) struct InlineQuotas {
    slots: Mutex<Vec<(InlineLimit, Arc<Quota>)>>,
}

/// A limit as the caller states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InlineLimit {
    /// The units that are granted at once.
    pub(crate) burst: u64,
    /// The units that come back in each period.
    pub(crate) count: u64,
    /// In seconds, the length of the period.
    pub(crate) period: u64,
}

impl InlineQuotas {
    /// Returns the quota of a limit.
    ///
    /// # Errors
    /// Names the number that is out of range.
    pub(crate) fn of(&self, limit: InlineLimit) -> Result<Arc<Quota>, String> {
        let mut slots = self.slots.lock();
        if let Some(at) = slots.iter().position(|(known, _)| *known == limit) {
            let quota = Arc::clone(&slots[at].1);
            // Moves limits in use towards the front.
            if at > 0 {
                slots.swap(at, at / 2);
            }
            return Ok(quota);
        }
        let builder = Quota::per(limit.count, Duration::from_secs(limit.period));
        let quota = builder.burst(limit.burst).gcra().map_err(|error| error.to_string())?;
        let quota = Arc::new(quota);
        if slots.len() >= REMEMBERED {
            slots.pop();
        }
        slots.push((limit, Arc::clone(&quota)));
        Ok(quota)
    }
}

/// Why some attributes are not a key of a policy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WrongKey {
    #[error("{} is not part of the key; the key is made of {by}", quoted(name))]
    Other { name: String, by: String },
    #[error("{} is given twice; a key has one value of it", quoted(name))]
    Twice { name: String },
    #[error("`{name}` is missing; the key is made of {by}")]
    Missing { name: String, by: String },
    #[error(
        "{} is not one address, and one key of the policy is; for a network write `tidegate key block client.ip={value}` without a policy",
        quoted(value)
    )]
    Network { value: String },
    #[error("{0}")]
    Value(String),
}

/// Parses a key of the policy with this index.
///
/// # Errors
/// [`WrongKey`] names the attribute, and those that make up the key.
pub(crate) fn key_of<'q>(
    set: &PolicySet,
    policy: usize,
    pairs: impl IntoIterator<Item = (Cow<'q, str>, Cow<'q, str>)>,
) -> Result<Descriptor<'q>, WrongKey> {
    let by = &*set.policies()[policy].by;
    let words = || match by {
        [] => "nothing: all requests share one".to_owned(),
        by => format!("`{}`", by.join("`, `")),
    };
    let mut key = Descriptor::new();
    for (name, value) in pairs {
        if !by.iter().any(|have| *have == name) {
            return Err(WrongKey::Other { name: name.into_owned(), by: words() });
        }
        if key.value(&name).is_some() {
            return Err(WrongKey::Twice { name: name.into_owned() });
        }
        if let Some(wrong) = wrong_value(&name, &value)
            && !is_shared_network(set, &name, &value)
        {
            let is_network = value.contains('/') && matches!(value.parse(), Ok(AccessEntry::Network(_)));
            return Err(if is_network {
                WrongKey::Network { value: value.into_owned() }
            } else {
                WrongKey::Value(wrong)
            });
        }
        key.push(name, value);
    }
    // All attributes must be given: requests without the attribute share one key, whose reset must be intended, and
    // an empty text is another key.
    match by.iter().find(|name| key.value(name).is_none()) {
        None => Ok(key),
        Some(missing) => Err(WrongKey::Missing { name: missing.clone(), by: words() }),
    }
}

/// Returns whether a value of `client.ip` is the network that its IPv6 addresses share as a key: keys are listed
/// so.
fn is_shared_network(set: &PolicySet, name: &str, value: &str) -> bool {
    match value.parse() {
        Ok(AccessEntry::Network(network)) if name == "client.ip" => {
            keyed_network(network.network(), set.ipv6_prefix()) == network && network.to_string() == value
        }
        _ => false,
    }
}

/// Returns the network that shares a key with its IPv6 address; otherwise `None`.
pub(crate) fn network_of(set: &PolicySet, key: &Descriptor<'_>) -> Option<String> {
    let written = key.value("client.ip")?;
    let address = written.split(['/', '%']).next()?.trim_start_matches('[').split(']').next()?;
    let address = canonical(address.parse::<IpAddr>().ok()?);
    address.is_ipv6().then(|| keyed_network(address, set.ipv6_prefix()).to_string())
}

// Looks up policies that a caller names.

/// The error if no policy has the given name.
#[derive(Debug, thiserror::Error)]
#[error("there is no policy {}{}", quoted(name), meant.as_ref().map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default())]
pub(crate) struct NoPolicy {
    name: String,
    /// The policy that was probably meant.
    pub(crate) meant: Option<String>,
}

/// Finds a policy by its name.
///
/// # Errors
/// [`NoPolicy`], with the nearest name.
pub(crate) fn find(set: &PolicySet, name: &str) -> Result<usize, NoPolicy> {
    set.find(name).map(|(at, _)| at).ok_or_else(|| {
        let known = set.policies().iter().map(|policy| policy.name.as_str());
        NoPolicy { meant: nearest(name, known).map(str::to_owned), name: name.to_owned() }
    })
}

// How finished work ended, by a word or by its HTTP status.

/// The statuses that can be reported.
pub(crate) const STATUSES: RangeInclusive<u16> = 100..=599;

/// The words for outcomes of the work.
pub(crate) const OUTCOMES: [(&str, Option<Outcome>); 6] = [
    ("success", Some(Outcome::Success)),
    ("callers-fault", Some(Outcome::CallersFault)),
    ("failure", Some(Outcome::Failure)),
    ("overloaded", Some(Outcome::Overloaded)),
    ("ignored", Some(Outcome::Ignored)),
    ("undone", None),
];

/// How the work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkEnd {
    With(Outcome),
    /// The work was not done.
    Undone,
}

impl WorkEnd {
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        let (_, outcome) = OUTCOMES.iter().find(|(known, _)| *known == word)?;
        Some(outcome.map_or(Self::Undone, Self::With))
    }

    /// Returns the outcome that the work's status means; `None` if it is not a status.
    pub(crate) fn of_status(status: u16) -> Option<Self> {
        STATUSES.contains(&status).then(|| Self::With(Outcome::from_status(status)))
    }

    /// Lists all words, for messages.
    pub(crate) fn known_words() -> String {
        OUTCOMES.map(|(word, _)| word).join(", ")
    }

    /// Returns the word.
    pub(crate) fn word(self) -> &'static str {
        let meant = match self {
            Self::With(outcome) => Some(outcome),
            Self::Undone => None,
        };
        OUTCOMES.iter().find(|(_, outcome)| *outcome == meant).map_or("ignored", |(word, _)| word)
    }
}
