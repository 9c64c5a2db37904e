//! Allow-lists and deny-lists of networks and attribute values: which requests are not limited, and which are refused
//! whatever their limits say.
//!
//! A deny-list takes precedence over an allow-list of the same level. A lookup costs one hash per distinct prefix length and
//! one per attribute named.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use ipnet::IpNet;

use tidegate_core::Tick;

use super::client_ip;
use super::descriptor::Descriptor;
use tidegate_limits::visible::excerpt;

/// One entry of a list: a network of `client.ip`, or a value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AccessEntry {
    /// A network or an address of `client.ip`: `10.0.0.0/8`, `203.0.113.9`.
    Network(IpNet),
    /// A value of an attribute: `user.id=42`.
    Attribute {
        /// The name of the attribute.
        name: String,
        /// The value, compared as a whole.
        value: String,
    },
}

/// The error if a text is not an entry of an access list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct AccessEntryError {
    reason: String,
}

/// Says of a network with host bits which network or address to write: `10.0.0.5/8` may mean either.
pub fn host_bits(network: IpNet) -> Option<String> {
    let (address, whole) = (network.addr(), network.trunc());
    (whole != network).then(|| {
        format!(
            "{network} has host bits; write {address} for that address alone, or {whole} for the whole network"
        )
    })
}

impl FromStr for AccessEntry {
    type Err = AccessEntryError;

    fn from_str(text: &str) -> Result<Self, AccessEntryError> {
        // Addresses are compared as addresses, however they are written.
        let text = match text.split_once('=') {
            Some((name, network)) if name.trim() == "client.ip" => network.trim(),
            _ => text,
        };
        if let Some((name, value)) = text.split_once('=')
            && !name.trim().is_empty()
        {
            return Ok(Self::Attribute { name: name.trim().to_owned(), value: value.trim().to_owned() });
        }
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let network = network.map_err(|_| AccessEntryError {
            reason: format!(
                "\"{}\" is neither a network such as 10.0.0.0/8 nor an attribute such as user.id=42",
                excerpt(text)
            ),
        })?;
        match host_bits(network) {
            Some(reason) => Err(AccessEntryError { reason }),
            None => Ok(Self::Network(network)),
        }
    }
}

impl fmt::Display for AccessEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Attribute { name, value } => write!(f, "{name}={value}"),
        }
    }
}

/// A set of entries, indexed for lookups.
#[derive(Clone, Debug, Default)]
pub struct AccessList {
    networks: HashSet<IpNet, RandomState>,
    lengths_v4: Vec<u8>,
    lengths_v6: Vec<u8>,
    attributes: HashMap<String, HashSet<String, RandomState>, RandomState>,
}

impl PartialEq for AccessList {
    fn eq(&self, other: &Self) -> bool {
        self.networks == other.networks && self.attributes == other.attributes
    }
}

impl Eq for AccessList {}

impl FromIterator<AccessEntry> for AccessList {
    fn from_iter<I: IntoIterator<Item = AccessEntry>>(entries: I) -> Self {
        let mut list = Self::default();
        for entry in entries {
            match entry {
                AccessEntry::Network(network) => {
                    let network = network.trunc();
                    let lengths = match network {
                        IpNet::V4(_) => &mut list.lengths_v4,
                        IpNet::V6(_) => &mut list.lengths_v6,
                    };
                    if !lengths.contains(&network.prefix_len()) {
                        lengths.push(network.prefix_len());
                    }
                    list.networks.insert(network);
                }
                AccessEntry::Attribute { name, value } => {
                    list.attributes.entry(name).or_default().insert(value);
                }
            }
        }
        list
    }
}

impl AccessList {
    /// Reports whether the list has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.attributes.is_empty()
    }

    /// Returns the number of different entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.networks.len() + self.attributes.values().map(HashSet::len).sum::<usize>()
    }

    /// Returns the names of the attributes that entries have values for.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.attributes.keys().map(String::as_str)
    }

    /// Returns the entry that a request fits; `None` if it fits none. A `client.ip` that is not an address fits no
    /// network.
    pub(crate) fn find(&self, descriptor: &Descriptor<'_>) -> Option<AccessEntry> {
        if !self.networks.is_empty()
            && let Some(address) = descriptor.value("client.ip").and_then(client_ip::address)
        {
            let lengths = if address.is_ipv4() { &self.lengths_v4 } else { &self.lengths_v6 };
            let in_list = lengths.iter().find_map(|length| {
                let network = IpNet::new(address, *length).ok()?.trunc();
                self.networks.contains(&network).then_some(network)
            });
            if let Some(network) = in_list {
                return Some(AccessEntry::Network(network));
            }
        }
        self.attributes.iter().find_map(|(name, values)| {
            let value = descriptor.value(name).filter(|value| values.contains(*value))?;
            Some(AccessEntry::Attribute { name: name.clone(), value: value.to_owned() })
        })
    }
}

/// The allow-list and the deny-list of a policy or of a whole set, and the status of refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Requests that are not limited: the policy is skipped and nothing is charged.
    pub allow: AccessList,
    /// Requests that are refused, whatever the limits say.
    pub deny: AccessList,
    /// The HTTP status of the refusal; by default 403, since the caller is not over a quota and should not retry.
    pub status: u16,
}

impl Default for Access {
    fn default() -> Self {
        Self { allow: AccessList::default(), deny: AccessList::default(), status: 403 }
    }
}

/// A refusal before any limit is checked: by a deny-list, by a deadline, or by a block of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Index of the policy that refuses; `None` for the deny-list of the whole set, and for a block for all policies.
    pub policy: Option<usize>,
    /// The entry that fits; for a deadline, the header with the time left; for a block of a key, the policy.
    pub entry: AccessEntry,
    /// The HTTP status to answer with.
    pub status: u16,
    /// The time that a request of the policy needs, if the caller waits for less; otherwise `None`.
    pub needs: Option<Duration>,
    /// The block, if the key or the caller is blocked.
    pub block: Option<Arc<Block>>,
}

/// A block: requests of one key of a policy are refused for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The key in readable form.
    pub key: Arc<str>,
    /// When the block begins.
    pub since: Tick,
    /// When the block ends: from this tick on it refuses no request.
    pub until: Tick,
    /// The reason given for the block; may be empty.
    pub reason: Arc<str>,
    /// Whether a limit began the block ([`Over::Block`](super::Over::Block)), and not a person.
    pub by_limit: bool,
    /// Until when this process goes by it without asking the store that keeps it.
    pub(crate) known_until: Tick,
}

impl Block {
    /// Creates a block of a key; `key` and `reason` are texts for people.
    #[must_use]
    pub fn new(key: &str, since: Tick, until: Tick, reason: &str) -> Self {
        let (key, reason) = (key.into(), reason.into());
        Self { key, since, until, reason, by_limit: false, known_until: until }
    }

    /// Reports whether the block is known to be in effect.
    pub(crate) fn holds(&self, now: Tick) -> bool {
        now < self.known_until
    }

    /// Creates the block of a key that exceeded a limit.
    pub(crate) fn by_limit(key: &str, since: Tick, until: Tick) -> Self {
        Self { by_limit: true, ..Self::new(key, since, until, "over its limit") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_values_are_found() {
        let list: AccessList = ["10.0.0.0/8", "203.0.113.9", "2001:db8::/32", "user.id=42"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let found = |name, value| {
            let descriptor = Descriptor::new().with(name, value);
            list.find(&descriptor).map(|entry| entry.to_string())
        };
        assert_eq!(found("client.ip", "10.1.2.3").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(found("client.ip", "::ffff:10.1.2.3").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(found("client.ip", "203.0.113.9").as_deref(), Some("203.0.113.9/32"));
        assert_eq!(found("client.ip", "203.0.113.10"), None);
        assert_eq!(found("client.ip", "2001:db8:9::1").as_deref(), Some("2001:db8::/32"));
        assert_eq!(found("client.ip", "not an address"), None);
        assert_eq!(found("user.id", "42").as_deref(), Some("user.id=42"));
        assert_eq!(found("user.id", "43"), None);
        assert_eq!(
            "10.0.0.0/33".parse::<AccessEntry>().unwrap_err().to_string(),
            "\"10.0.0.0/33\" is neither a network such as 10.0.0.0/8 nor an attribute such as user.id=42"
        );
    }
}
