//! The bytes of a key: they contain the policy, the limit and the values that are charged.
//!
//! A key is `(policy, limit, names of by)` followed by `(values of by)`. Each text is preceded by its length, so that
//! no two different keys have the same bytes, whatever callers put into values. An absent value is the byte 0; a
//! present one is its length plus one, then its bytes, so that absent and empty values make different keys. The limit's
//! parameters are not part of the key, so counters survive a change of rate. `client.ip`, which Envoy calls
//! `remote_address`, is keyed by network.
//!
//! A policy's key begins with the length of the policy's name, which is never zero. Keys that belong to no policy begin
//! with a zero and a letter, so that keys of different kinds are never equal: a caller that chooses the rest of a key
//! cannot choose its kind.

use std::hash::BuildHasher as _;
use std::net::IpAddr;

use foldhash::quality::FixedState;
use twox_hash::XxHash64;

use super::client_ip::{address, is_address, keyed_network};
use super::descriptor::Descriptor;

/// Appends a number in groups of seven bits, the lowest first.
fn push_number(mut push: impl FnMut(u8), mut number: usize) {
    while number >= 0x80 {
        push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    push(number as u8);
}

/// Returns the leading part that all keys of a limit share: policy, limit and names.
pub(crate) fn prefix(policy: &str, limit: usize, by: &[String]) -> Box<[u8]> {
    let mut out = Vec::new();
    push_number(|byte| out.push(byte), policy.len());
    out.extend(policy.bytes());
    push_number(|byte| out.push(byte), limit);
    push_number(|byte| out.push(byte), by.len());
    for name in by {
        push_number(|byte| out.push(byte), name.len());
        out.extend(name.bytes());
    }
    out.into()
}

/// Reads a number from the start of a key and advances past it.
fn take_number(key: &mut &[u8]) -> Option<usize> {
    let mut number = 0usize;
    for group in 0..5 {
        let (byte, rest) = key.split_first()?;
        *key = rest;
        number |= usize::from(byte & 0x7f) << (7 * group);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Reads a text with its length from the start of a key and advances past it.
fn take_text<'k>(key: &mut &'k [u8]) -> Option<&'k [u8]> {
    let length = take_number(key)?;
    let text = key.get(..length)?;
    *key = &key[length..];
    Some(text)
}

/// What a key begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHead<'k> {
    /// The name of the policy.
    pub(crate) policy: &'k str,
    /// The index of the limit within the policy.
    pub(crate) limit: usize,
    /// Whether values of the request are part of the key. If not, all requests share it.
    pub(crate) has_values: bool,
}

/// Returns what a key begins with; `None` if the bytes are not a key.
pub(crate) fn head_of_key(mut key: &[u8]) -> Option<KeyHead<'_>> {
    let policy = std::str::from_utf8(take_text(&mut key)?).ok()?;
    let (limit, names) = (take_number(&mut key)?, take_number(&mut key)?);
    Some(KeyHead { policy, limit, has_values: names > 0 })
}

/// Returns the name of the policy that a key belongs to; `None` if the bytes are not a key.
#[must_use]
pub fn policy_of_key(mut key: &[u8]) -> Option<&str> {
    std::str::from_utf8(take_text(&mut key)?).ok()
}

/// Returns the values of a key in readable form: `client.ip=203.0.113.9`, or `(all)`, as
/// [`key_text`](crate::explain::key_text) does for a request. `None` if the bytes are not a key.
#[must_use]
pub fn text_of_key(mut key: &[u8]) -> Option<String> {
    take_text(&mut key)?;
    take_number(&mut key)?;
    // Each name takes at least one byte, so bytes that claim more names than that are not a key.
    let count = take_number(&mut key).filter(|count| *count <= key.len())?;
    let names = (0..count).map(|_| take_text(&mut key)).collect::<Option<Vec<_>>>()?;
    let mut text = String::new();
    for name in names {
        let name = std::str::from_utf8(name).ok()?;
        if !text.is_empty() {
            text.push_str(", ");
        }
        match take_number(&mut key)?.checked_sub(1) {
            None => text.extend([name, " absent"]),
            Some(length) => {
                let value = std::str::from_utf8(key.get(..length)?).ok()?;
                key = &key[length..];
                text.extend([name, "=", value]);
            }
        }
    }
    Some(if text.is_empty() { "(all)".to_owned() } else { text })
}

/// Returns the tag of a key, see [`tidegate_limits::store::Step::tag`]. Keys with the same values have the same tag, whichever
/// policy and limit they belong to, so that all limits of one caller can be charged in one step. For a key without
/// values, the tag covers all its bytes.
///
/// The tag is the same on every node and in every version, since engines place keys by it.
pub(crate) fn tag_of_key(key: &[u8]) -> u64 {
    let values = values_of_key(key).filter(|values| !values.is_empty());
    XxHash64::oneshot(0, values.unwrap_or(key))
}

/// Returns the end of a key: the values of `by`. `None` if the bytes are not a key.
pub(crate) fn values_of_key(mut key: &[u8]) -> Option<&[u8]> {
    take_text(&mut key)?;
    take_number(&mut key)?;
    for _ in 0..take_number(&mut key)? {
        take_text(&mut key)?;
    }
    Some(key)
}

/// Returns the values of a key in the order of `by`, an absent one as `None`; none for bytes that are not a key.
pub(crate) fn each_value(key: &[u8]) -> impl Iterator<Item = Option<&str>> {
    let mut rest = values_of_key(key).unwrap_or_default();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(length) = take_number(&mut rest)?.checked_sub(1) else { return Some(None) };
        let value = std::str::from_utf8(rest.get(..length)?).ok()?;
        rest = &rest[length..];
        Some(Some(value))
    })
}

/// Returns the number of a policy. It depends only on the name, and two names have the same number with probability
/// 2⁻³². Never 0, which is the number of keys without a policy.
pub(crate) fn owner(policy: &str) -> u32 {
    // A fixed seed is safe: names come from the author of the file, and two policies with the same number only share
    // their part of a full store.
    (FixedState::default().hash_one(policy) as u32).max(1)
}

/// Appends the values of `by`; returns how many of them the request has.
#[inline]
pub(crate) fn push_values(
    out: &mut Vec<u8>,
    by: &[String],
    descriptor: &Descriptor<'_>,
    ipv6_prefix: u8,
) -> usize {
    let mut there = 0;
    for name in by {
        let Some(value) = descriptor.value(name) else {
            out.push(0);
            continue;
        };
        there += 1;
        // Only IPv6 addresses contain a colon; the text of an IPv4 address is its key as it stands. The loop over bytes
        // is fastest for so short a text.
        let has_colon = || value.bytes().any(|byte| byte == b':');
        match (is_address(name) && has_colon()).then(|| address(value)).flatten() {
            Some(address) => push_address(out, address, ipv6_prefix),
            None => push_text(out, value.as_bytes()),
        }
    }
    there
}

fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    push_number(|byte| out.push(byte), text.len() + 1);
    out.extend_from_slice(text);
}

/// A separate function, so that keys without an address do not pay for its local variables.
#[inline(never)]
fn push_address(out: &mut Vec<u8>, address: IpAddr, ipv6_prefix: u8) {
    let network = keyed_network(address, ipv6_prefix);
    match network.addr() {
        IpAddr::V4(address) => push_text(out, address.to_string().as_bytes()),
        IpAddr::V6(address) => {
            // The text has at most 43 bytes, so its length takes one byte.
            let length = out.len();
            out.push(0);
            push_ipv6(out, address.segments());
            out.push(b'/');
            push_decimal(out, network.prefix_len());
            out[length] = (out.len() - length) as u8;
        }
    }
}

/// Appends the text of an IPv6 address that is not IPv4-mapped in the form of RFC 5952: the first of the longest runs
/// of at least two zero groups becomes `::`.
///
/// Written by hand, since the standard formatting took a third of the time of making an IPv6 key.
fn push_ipv6(out: &mut Vec<u8>, groups: [u16; 8]) {
    let (mut run, mut longest) = (0..0, 0..0);
    for (at, group) in groups.into_iter().enumerate() {
        run = if group == 0 { run.start..at + 1 } else { at + 1..at + 1 };
        if run.len() > longest.len().max(1) {
            longest = run.clone();
        }
    }
    for (at, group) in groups.into_iter().enumerate() {
        if longest.contains(&at) {
            if at == longest.start {
                out.extend_from_slice(b"::");
            }
            continue;
        }
        if at > 0 && at != longest.end {
            out.push(b':');
        }
        let digits = (16 - group.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            out.push(b"0123456789abcdef"[usize::from(group >> (4 * digit) & 0xf)]);
        }
    }
}

fn push_decimal(out: &mut Vec<u8>, number: u8) {
    for (unit, least) in [(100, 100), (10, 10), (1, 0)] {
        if number >= least {
            out.push(b'0' + number / unit % 10);
        }
    }
}

/// The mark that half of a ticket has been settled, followed by the half and the ticket's id.
#[cfg(any(test, feature = "ticket"))]
pub(crate) const TICKET_MARK: [u8; 2] = [0, b't'];

/// A limit that a caller sends with its check, followed by the caller's own key.
pub const CALLER_LIMIT: [u8; 2] = [0, b'c'];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::client_ip::canonical;
    use super::super::policy::{Limit, Policy, Terms};
    use super::*;

    #[test]
    fn a_key_says_what_it_is_made_of() {
        let by = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let request = Descriptor::new()
            .with("user.id", "ann")
            .with("client.ip", "2001:db8::1")
            .with("remote_address", "::ffff:203.0.113.9")
            .with("e", "");
        for (names, text) in [
            (&["user.id"][..], "user.id=ann"),
            (&["client.ip", "path", "e"], "client.ip=2001:db8::/64, path absent, e="),
            (&["remote_address"], "remote_address=203.0.113.9"),
            (&[], "(all)"),
        ] {
            let mut key = prefix("p", 1, &by(names)).to_vec();
            push_values(&mut key, &by(names), &request, 64);
            assert_eq!(text_of_key(&key).as_deref(), Some(text));
            let policy = Policy { by: by(names), ..Policy::new("p", Limit::of(Terms::unlimited())) };
            let values = policy.key_values(&request, 64).map(|(_, value)| value);
            let read = each_value(&key).map(|value| value.map(std::borrow::Cow::Borrowed));
            assert!(read.eq(values), "{text}: as they are told of a request");
            assert!((0..key.len()).all(|end| text_of_key(&key[..end]).is_none()), "{text}: cut short");
        }
    }

    /// Engines place keys by their tags, so nodes of every version have to agree on them: these must never change.
    #[test]
    fn tags_are_the_same_in_every_version() {
        let pair = |name: &str, value: Option<&str>| (name.to_owned(), value.map(ToOwned::to_owned));
        let ann = [pair("user.id", Some("ann"))];
        let both = [pair("user.id", Some("ann")), pair("path", None)];
        let network = [pair("client.ip", Some("2001:db8::1"))];
        let tags = [
            key("per-user", 0, &ann),
            key("another", 3, &ann),
            key("per-user", 0, &both),
            key("per-ip", 0, &network),
            key("all", 0, &[]),
            b"no key".to_vec(),
        ];
        let told: Vec<u64> = tags.iter().map(|key| tag_of_key(key)).collect();
        assert_eq!(
            told,
            [
                0x4430_a57f_667b_a18c,
                0x4430_a57f_667b_a18c,
                0x09f6_864f_5752_6f4a,
                0x84b8_b204_1c4f_595f,
                0x2cbf_c5fc_229e_7527,
                0x3401_0862_ef6e_5b00,
            ]
        );
    }

    fn key(policy: &str, limit: usize, pairs: &[(String, Option<String>)]) -> Vec<u8> {
        let by: Vec<String> = pairs.iter().map(|(name, _)| name.clone()).collect();
        let mut descriptor = Descriptor::new();
        for (name, value) in pairs {
            if let Some(value) = value {
                descriptor.push(name.as_str(), value.as_str());
            }
        }
        let mut values = Vec::new();
        push_values(&mut values, &by, &descriptor, 64);
        [&prefix(policy, limit, &by)[..], &values[..]].concat()
    }

    fn one(value: &str) -> Vec<u8> {
        key("p", 0, &[("client.ip".to_owned(), Some(value.to_owned()))])
    }

    #[test]
    fn addresses_of_one_customer_are_one_key() {
        assert_eq!(one("2001:db8:1:2::1"), one("2001:0DB8:1:2:ffff::"));
        assert_ne!(one("2001:db8:1:2::1"), one("2001:db8:1:3::1"));
        assert_eq!(one("::ffff:203.0.113.9"), one("203.0.113.9"));
        // Behind NAT64 all IPv4 addresses are in one network of IPv6.
        assert_eq!(one("64:ff9b::cb00:7109"), one("203.0.113.9"));
        assert_ne!(one("64:ff9b::203.0.113.9"), one("64:ff9b::203.0.113.10"));
        assert_ne!(one("64:ff9b:1::203.0.113.9"), one("203.0.113.9"));
    }

    #[test]
    fn absent_is_not_empty() {
        let with = |value: Option<&str>| key("p", 0, &[("a".to_owned(), value.map(str::to_owned))]);
        assert_ne!(with(None), with(Some("")));
    }

    fn parts() -> impl Strategy<Value = (String, usize, Vec<(String, Option<String>)>)> {
        // Distinct names: a name repeated in `by` is refused before keys are made.
        let pairs = proptest::collection::btree_map(
            "[a-c\u{0}\u{1}]{1,2}",
            proptest::option::of("[a-c\u{0}\u{1}]{0,3}"),
            0..3,
        );
        ("[a-c\u{0}\u{1}]{1,3}", 0..3_usize, pairs.prop_map(|pairs| pairs.into_iter().collect()))
    }

    proptest! {
        /// Counters are kept under these bytes: they are the text that the standard library writes.
        #[test]
        fn networks_are_written_as_everywhere(
            groups in proptest::array::uniform8(proptest::prop_oneof![Just(0), Just(0xffff), Just(0x64), Just(0xff9b), 0..=0xffff_u16]),
            prefix in 1..=128_u8,
        ) {
            let address = IpAddr::from(groups);
            let mut values = Vec::new();
            push_values(
                &mut values,
                &["client.ip".to_owned()],
                &Descriptor::new().with("client.ip", format!("[{address}]:80")),
                prefix,
            );
            let mut expected = Vec::new();
            let text = match canonical(address) {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(_) => keyed_network(address, prefix).to_string(),
            };
            push_text(&mut expected, text.as_bytes());
            prop_assert_eq!(values, expected);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn different_parts_make_different_keys(a in parts(), b in parts()) {
            let bytes = key(&a.0, a.1, &a.2);
            prop_assert_eq!(policy_of_key(&bytes), Some(a.0.as_str()));
            prop_assert_eq!(a == b, key(&a.0, a.1, &a.2) == key(&b.0, b.1, &b.2));
        }
    }

    #[test]
    fn no_kind_of_key_begins_as_another() {
        assert_ne!(TICKET_MARK, CALLER_LIMIT);
        assert!([TICKET_MARK, CALLER_LIMIT].iter().all(|kind| kind[0] == 0), "no policy's");
    }
}
