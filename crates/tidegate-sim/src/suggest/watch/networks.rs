//! The networks that ask for most: keys that are addresses, grouped by their first parts.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::peaks::GivenHash;
use crate::suggest::bursts::Needs;

/// The most networks watched.
const NETWORKS: usize = 20;

/// Returns the patterns of the networks that ask for most, of those with at least `least` keys, and the network of
/// each key in one of them.
pub(super) fn networks(needs: &Needs, least: u64) -> (Vec<String>, HashMap<u64, u32, GivenHash>) {
    let mut all: HashMap<String, (u64, Vec<u64>)> = HashMap::new();
    for key in needs.remembered() {
        let Some(pattern) = pattern(&key.name) else { continue };
        let (asked, keys) = all.entry(pattern).or_default();
        *asked += key.asked();
        keys.push(key.hash);
    }
    let mut large: Vec<_> = all.into_iter().filter(|(_, (_, keys))| keys.len() as u64 >= least).collect();
    large.sort_by(|(a, (one, _)), (b, (other, _))| other.cmp(one).then_with(|| a.cmp(b)));
    large.truncate(NETWORKS);
    let mut members = HashMap::default();
    let mut patterns = Vec::with_capacity(large.len());
    for (place, (pattern, (_, keys))) in large.into_iter().enumerate() {
        patterns.push(pattern);
        // The cast is lossless: there are at most `NETWORKS`.
        members.extend(keys.into_iter().map(|key| (key, place as u32)));
    }
    (patterns, members)
}

/// Returns the pattern of an address's network: 24 bits of IPv4, 48 of IPv6. `None` if the text is not an address.
fn pattern(name: &str) -> Option<String> {
    let name = name.split_once('/').map_or(name, |(address, _)| address);
    match name.parse().ok()? {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            Some(format!("{a}.{b}.{c}.*"))
        }
        IpAddr::V6(address) => {
            let [a, b, c, ..] = address.segments();
            // Addresses are written without leading zeros; a zero within the first three parts may be written as
            // `::`.
            (b != 0 && c != 0).then(|| format!("{a:x}:{b:x}:{c:x}:*"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_patterns() {
        let rows = [
            ("203.0.113.7", Some("203.0.113.*")),
            ("2001:db8:5:1::/64", Some("2001:db8:5:*")),
            ("2001:db8::1", None),
            ("crawler.example", None),
        ];
        for (name, network) in rows {
            assert_eq!(pattern(name).as_deref(), network, "{name}");
        }
    }
}
