//! Lists of networks and attribute values: which requests pass without a limit, and which are refused whatever their limits say.
//!
//! A deny-list wins over an allow-list of the same level. Looking a request up costs one hash per distinct prefix length
//! and one per attribute named, however long the lists are.

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

/// One entry of a list: a network of `client.ip`, or a value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AccessEntry {
    /// `10.0.0.0/8`, `203.0.113.9`
    Network(IpNet),
    /// `user.id=42`
    Attribute {
        /// The name.
        name: String,
        /// The whole value.
        value: String,
    },
}

/// Why a text is no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is neither a network as 10.0.0.0/8 nor an attribute as user.id=42")]
pub struct AccessEntryError {
    text: String,
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
        network
            .map(|network| Self::Network(network.trunc()))
            .map_err(|_| AccessEntryError { text: text.to_owned() })
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

/// A set of entries, ready to be looked up.
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
    /// Says whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.attributes.is_empty()
    }

    /// Returns the names of the attributes that it has values of.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.attributes.keys().map(String::as_str)
    }

    /// Returns the entry that holds for a request. A `client.ip` that is no address is in no network.
    #[must_use]
    pub fn find(&self, descriptor: &Descriptor<'_>) -> Option<AccessEntry> {
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

/// The two lists of a policy, or of a whole set, and the answer to those denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Not limited: the policy is skipped, nothing is charged.
    pub allow: AccessList,
    /// Refused, whatever the limits say.
    pub deny: AccessList,
    /// The status of the refusal; 403 by default: the caller is not over a quota and should not retry.
    pub status: u16,
}

impl Default for Access {
    fn default() -> Self {
        Self { allow: AccessList::default(), deny: AccessList::default(), status: 403 }
    }
}

/// A refusal by a deny-list, by the time that a request has left, or by a block of its key; before any limit is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Index of the policy whose list it is; `None` for the list of the whole set.
    pub policy: Option<usize>,
    /// The entry that held; of the time left, the header that says it; of a block, the policy.
    pub entry: AccessEntry,
    /// The status to answer with.
    pub status: u16,
    /// The time that a request of the policy needs, where the caller waits for less.
    pub needs: Option<Duration>,
    /// The block of its key, where it is that.
    pub block: Option<Arc<Block>>,
}

/// A key of a policy that is refused by hand, for a while and for a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The key, as people read it.
    pub key: Arc<str>,
    /// When it began.
    pub since: Tick,
    /// When it ends: from this tick on it refuses nobody.
    pub until: Tick,
    /// Why, in the words of whoever blocked it; may be empty.
    pub reason: Arc<str>,
}

impl Block {
    /// Makes a block of a key; `key` and `reason` are for people.
    #[must_use]
    pub fn new(key: &str, since: Tick, until: Tick, reason: &str) -> Self {
        Self { key: key.into(), since, until, reason: reason.into() }
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
            "\"10.0.0.0/33\" is neither a network as 10.0.0.0/8 nor an attribute as user.id=42"
        );
    }
}
