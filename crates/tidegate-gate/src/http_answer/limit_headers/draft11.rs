//! Writes `RateLimit-Policy` and `RateLimit`, structured field lists of strings.
//!
//! Written by hand: these lists need only the strings and integers of structured fields, and the library, which the
//! tests compare with, formats each number with `fmt`.
//!
//! # Source
//! draft-ietf-httpapi-ratelimit-headers-11; RFC 9651.

use http::header::{HeaderMap, HeaderName};

use super::super::shown_limits::{ShownLimit, ShownLimits};
use super::budget::{fitting, shown_name};
use super::field::Field;

pub(super) const POLICIES: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const STANDING: HeaderName = HeaderName::from_static("ratelimit");
/// The largest integer of a structured field: fifteen digits.
const LARGEST: u64 = 999_999_999_999_999;

pub(super) fn write(shown: &ShownLimits<'_>, out: &mut HeaderMap) -> usize {
    let fitting = fitting(shown, 2);
    // An empty list has no serialized form, so the header is omitted.
    if !fitting.limits.is_empty() {
        let (mut policies, mut standing) = (Field::default(), Field::default());
        for limit in &fitting.limits {
            write_limit(limit, &mut policies, &mut standing);
        }
        policies.insert(POLICIES, out);
        standing.insert(STANDING, out);
    }
    fitting.left_out
}

fn write_limit(limit: &ShownLimit<'_>, policies: &mut Field, standing: &mut Field) {
    let name = shown_name(limit.name);
    policies.next_item();
    policies.string(&name);
    policies.parameter(";q=", limit.quota.min(LARGEST));
    if let Some(window) = limit.window {
        policies.parameter(";w=", window.clamp(1, LARGEST));
    }
    if limit.concurrent {
        policies.text(";qu=\"concurrent-requests\"");
    }
    standing.next_item();
    standing.string(&name);
    standing.parameter(";r=", limit.remaining.min(LARGEST));
    if let Some(wait) = limit.wait {
        standing.parameter(";t=", wait.min(LARGEST));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sfv::{Integer, KeyRef, ListSerializer, StringRef, key_ref};

    use super::*;

    fn limit(name: &str) -> impl Strategy<Value = ShownLimit<'_>> {
        let number = || prop_oneof![0..200_u64, Just(LARGEST), Just(LARGEST + 1), Just(u64::MAX)];
        let times = (proptest::option::of(number()), proptest::option::of(number()), any::<bool>());
        (number(), number(), times).prop_map(move |(quota, remaining, (window, wait, concurrent))| {
            ShownLimit { name, quota, window, concurrent, remaining, refused: false, wait }
        })
    }

    /// Builds the same lists with the library.
    fn model(limits: &[ShownLimit<'_>]) -> [String; 2] {
        const KEYS: [&KeyRef; 5] = [key_ref("q"), key_ref("w"), key_ref("qu"), key_ref("r"), key_ref("t")];
        let number = |number: u64| Integer::try_from(number.min(LARGEST)).unwrap();
        let (mut policies, mut standing) = (ListSerializer::new(), ListSerializer::new());
        for limit in limits {
            let name = shown_name(limit.name);
            let name = StringRef::from_str(&name).unwrap();
            let mut item = policies.bare_item(name).parameter(KEYS[0], number(limit.quota));
            if let Some(window) = limit.window {
                item = item.parameter(KEYS[1], number(window.max(1)));
            }
            if limit.concurrent {
                item = item.parameter(KEYS[2], StringRef::from_str("concurrent-requests").unwrap());
            }
            let _ = item.finish();
            let item = standing.bare_item(name).parameter(KEYS[3], number(limit.remaining));
            let _ = match limit.wait {
                Some(wait) => item.parameter(KEYS[4], number(wait)),
                None => item,
            }
            .finish();
        }
        [policies, standing].map(|list| list.finish().unwrap())
    }

    proptest! {
        #[test]
        fn lists_are_what_a_library_writes(limits in proptest::collection::vec(
            prop_oneof![limit("per-ip"), limit(""), limit("a \"b\\ ä"), limit("\"\"\\\\\u{7f}")], 1..4,
        )) {
            let expected = model(&limits);
            let shown = ShownLimits { limits: limits.into_iter().collect(), ..ShownLimits::default() };
            let mut out = HeaderMap::new();
            write(&shown, &mut out);
            prop_assert_eq!([POLICIES, STANDING].map(|name| out[name].to_str().unwrap().to_owned()), expected);
        }
    }
}
