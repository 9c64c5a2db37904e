//! Parses the key of a policy from a caller: the attributes that the policy's `by` names.

use std::borrow::Cow;
use std::net::IpAddr;

use tidegate::http_answer::server_parts::wrong_value;
use tidegate::policy::{AccessEntry, Descriptor, PolicySet, canonical, keyed_network};

use crate::spelling::quoted;

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

/// Parses a key of the policy with this index, which consists of these attributes.
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
    // All attributes must be given: an empty text is not the same as a missing attribute, and requests without the
    // attribute share one key, whose reset must be intended.
    match by.iter().find(|name| key.value(name).is_none()) {
        None => Ok(key),
        Some(missing) => Err(WrongKey::Missing { name: missing.clone(), by: words() }),
    }
}

/// Returns whether a value of `client.ip` is the network that its IPv6 addresses share as a key: keys are listed so.
fn is_shared_network(set: &PolicySet, name: &str, value: &str) -> bool {
    match value.parse() {
        Ok(AccessEntry::Network(network)) if name == "client.ip" => {
            keyed_network(network.network(), set.ipv6_prefix()) == network && network.to_string() == value
        }
        _ => false,
    }
}

/// Returns the network that shares a key with its IPv6 address; `None` for other keys.
pub(crate) fn network_of(set: &PolicySet, key: &Descriptor<'_>) -> Option<String> {
    let written = key.value("client.ip")?;
    let address = written.split(['/', '%']).next()?.trim_start_matches('[').split(']').next()?;
    let address = canonical(address.parse::<IpAddr>().ok()?);
    address.is_ipv6().then(|| keyed_network(address, set.ipv6_prefix()).to_string())
}
