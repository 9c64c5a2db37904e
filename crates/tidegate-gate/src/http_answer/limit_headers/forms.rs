//! Writes the limits of an answer in each form of headers, as many as fit.

use std::borrow::Cow;
use std::cmp::Reverse;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::super::shown_limits::{ShownLimit, ShownLimits};

// `X-RateLimit-*` with the quota policies after the limit, as Envoy and Limitador write them.
//
// # Source
// draft-polli-ratelimit-headers-03, with Envoy's `name` parameter and `X-` prefix.

pub(super) fn write_draft03(shown: &ShownLimits<'_>, out: &mut HeaderMap) -> usize {
    let Some(bound) = shown.binding.and_then(|at| shown.limits.get(at)) else { return 0 };
    let fitting = fitting(shown, 1);
    let mut limit = Field::default();
    limit.number(bound.quota);
    for limit_shown in &fitting.limits {
        limit.next_item();
        limit.number(limit_shown.quota);
        if let Some(window) = limit_shown.window {
            limit.parameter(";w=", window.max(1));
        }
        limit.text(";name=");
        limit.string(&shown_name(limit_shown.name));
    }
    limit.insert(LIMIT, out);
    write_standing(bound, out);
    fitting.left_out
}

// Writes `RateLimit-Policy` and `RateLimit`, structured field lists of strings.
//
// Written by hand: these lists need only the strings and integers of structured fields, and the library, which the
// tests compare with, formats each number with `fmt`.
//
// # Source
// draft-ietf-httpapi-ratelimit-headers-11; RFC 9651.

pub(super) const POLICIES: HeaderName = HeaderName::from_static("ratelimit-policy");

pub(super) const STANDING: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of a structured field: fifteen digits.
const LARGEST: u64 = 999_999_999_999_999;

pub(super) fn write_draft11(shown: &ShownLimits<'_>, out: &mut HeaderMap) -> usize {
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

// Writes `X-RateLimit-*` as plain numbers of the limit that binds.
//
// Vendors disagree on `X-RateLimit-Reset`: epoch seconds, a date, or seconds from now. This module writes seconds from
// now, which needs no synchronised clocks.

pub(super) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");

pub(super) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");

pub(super) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

pub(super) fn write_x_ratelimit(shown: &ShownLimits<'_>, out: &mut HeaderMap) {
    let Some(bound) = shown.binding.and_then(|at| shown.limits.get(at)) else { return };
    out.insert(LIMIT, bound.quota.into());
    write_standing(bound, out);
}

/// Writes what is left of the limit that binds, and the wait.
fn write_standing(bound: &ShownLimit<'_>, out: &mut HeaderMap) {
    out.insert(REMAINING, bound.remaining.into());
    if let Some(wait) = bound.wait {
        out.insert(RESET, wait.into());
    }
}

// A buffer for the value of a header.

/// Enough for a list of two limits, unless their names are long.
const USUAL: usize = 128;

/// A header value that is written piece by piece and consists of printable ASCII.
#[derive(Debug, Default)]
pub(super) struct Field(SmallVec<[u8; USUAL]>);

impl Field {
    #[inline]
    pub(super) fn text(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    #[inline]
    pub(super) fn number(&mut self, number: u64) {
        self.text(itoa::Buffer::new().format(number));
    }

    /// Begins another item of a list.
    #[inline]
    pub(super) fn next_item(&mut self) {
        if !self.0.is_empty() {
            self.text(", ");
        }
    }

    /// Appends a string of a structured field, in quotes.
    #[inline]
    pub(super) fn string(&mut self, text: &str) {
        self.0.push(b'"');
        let is_plain = |byte: u8| !matches!(byte, b'"' | b'\\');
        if text.bytes().all(is_plain) {
            self.text(text);
        } else {
            for byte in text.bytes() {
                if !is_plain(byte) {
                    self.0.push(b'\\');
                }
                self.0.push(byte);
            }
        }
        self.0.push(b'"');
    }

    /// Appends a parameter to an item: the key and its number.
    #[inline]
    pub(super) fn parameter(&mut self, key: &str, number: u64) {
        self.text(key);
        self.number(number);
    }

    /// Sets a header to the value.
    pub(super) fn insert(&self, name: HeaderName, out: &mut HeaderMap) {
        // Only bytes that a header can carry are ever written.
        if let Ok(value) = HeaderValue::from_bytes(&self.0) {
            out.insert(name, value);
        }
    }
}

// Selects the limits that the headers of an answer show if there is no room for all.
//
// A proxy reads the head of the server's answer into one buffer, of 4 KiB in nginx by default, and turns a head that
// does not fit into an error for the caller. So the lists of limits take at most [`BUDGET`] bytes in total, which
// leaves half of that buffer for the status, the headers of fixed size and the proxy's own. If all limits fit, they
// are in the order of the policies. If not, the most binding come first: the one that binds, which is always shown,
// then those that refuse, then those with the smallest share left.

/// The most bytes of the lists of limits, in all headers of one answer.
pub(super) const BUDGET: usize = 2048;

/// The longest name that is shown in full, in bytes; a longer one is cut and ends in two dots.
const NAME: usize = 128;

/// The bytes of the unit parameter of a limit that counts requests in flight.
const UNIT: usize = 25;

/// The limits to show, and the number of limits left out.
#[derive(Debug)]
pub(super) struct Fitting<'p, 'a> {
    pub(super) limits: SmallVec<[&'p ShownLimit<'a>; 4]>,
    pub(super) left_out: usize,
}

/// Selects the limits that fit if each limit's name appears in `lists` headers.
pub(super) fn fitting<'p, 'a>(shown: &'p ShownLimits<'a>, lists: usize) -> Fitting<'p, 'a> {
    let mut limits: SmallVec<[&ShownLimit<'_>; 4]> = shown.limits.iter().collect();
    let sizes = |limits: &[&ShownLimit<'_>]| limits.iter().map(|limit| size(limit, lists)).sum::<usize>();
    // This few limits always fit, whatever their names and numbers.
    if limits.len() <= BUDGET / largest(lists) || sizes(&limits) <= BUDGET {
        return Fitting { limits, left_out: 0 };
    }
    let binding = shown.binding.and_then(|at| shown.limits.get(at));
    limits.sort_by_cached_key(|limit| {
        let binds = binding.is_some_and(|binding| std::ptr::eq(*limit, binding));
        let share = (u128::from(limit.remaining) << 64) / u128::from(limit.quota.max(1));
        (Reverse(binds), Reverse(limit.refused), share)
    });
    let mut used = 0;
    let fit = limits.iter().take_while(|limit| {
        used += size(limit, lists);
        used <= BUDGET
    });
    // At least one always fits, since names are cut to far less than the budget.
    let fit = fit.count();
    let left_out = limits.len() - fit;
    limits.truncate(fit);
    Fitting { limits, left_out }
}

/// The most bytes that any limit can take, with separators: a name in which each byte is escaped, and four numbers of
/// twenty digits.
const fn largest(lists: usize) -> usize {
    lists * (2 * NAME + 9) + 4 * (3 + 20) + UNIT
}

/// Returns an upper bound of the bytes that a limit takes, with separators.
fn size(limit: &ShownLimit<'_>, lists: usize) -> usize {
    let digits = |number: u64| number.checked_ilog10().unwrap_or(0) as usize + 1;
    let name = shown_name(limit.name);
    let escaped = name.len() + name.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    // `, "name"` or `;name="name"`; then `;q=`, `;r=`, `;w=` and `;t=` with their numbers, and the unit.
    lists * (escaped + 9)
        + [Some(limit.quota), Some(limit.remaining), limit.window, limit.wait]
            .into_iter()
            .flatten()
            .map(|number| 3 + digits(number))
            .sum::<usize>()
        + if limit.concurrent { UNIT } else { 0 }
}

/// Returns a name as shown in headers. Strings of structured fields are printable ASCII; any other character becomes a
/// question mark.
fn shown_name(name: &str) -> Cow<'_, str> {
    let plain = |char: char| if matches!(char, ' '..='~') { char } else { '?' };
    if name.len() <= NAME && name.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
        return Cow::Borrowed(name);
    }
    let mut cut: String = name.chars().take(NAME).map(plain).collect();
    if name.chars().nth(NAME).is_some() {
        cut.truncate(NAME - 2);
        cut.push_str("..");
    }
    Cow::Owned(cut)
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
            write_draft11(&shown, &mut out);
            prop_assert_eq!([POLICIES, STANDING].map(|name| out[name].to_str().unwrap().to_owned()), expected);
        }
    }
}
