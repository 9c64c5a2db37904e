//! `RateLimit-Policy` and `RateLimit`, structured field lists of strings.
//!
//! # Source
//! draft-ietf-httpapi-ratelimit-headers-11; RFC 9651.

use http::header::{HeaderMap, HeaderName};
use sfv::{Integer, KeyRef, ListSerializer, StringRef, integer, key_ref, string_ref};

use super::super::shown::{ShownLimit, ShownLimits};
use super::budget::{fitting, shown_name};
use super::insert::insert;

const QUOTA: &KeyRef = key_ref("q");
const WINDOW: &KeyRef = key_ref("w");
const UNIT: &KeyRef = key_ref("qu");
const REMAINING: &KeyRef = key_ref("r");
const WAIT: &KeyRef = key_ref("t");
const CONCURRENT: &StringRef = string_ref("concurrent-requests");
/// The largest integer of a structured field: fifteen digits.
const LARGEST: Integer = integer(999_999_999_999_999);
/// More bytes than one limit has in one of the lists, unless its name is long.
const USUAL: usize = 64;

pub(super) fn write(shown: &ShownLimits<'_>, out: &mut HeaderMap) -> usize {
    let fitting = fitting(shown, 2);
    let room = USUAL * fitting.limits.len();
    let (mut policies, mut standing) = (String::with_capacity(room), String::with_capacity(room));
    write_lists(&fitting.limits, &mut policies, &mut standing);
    // An empty list has no form: the header is left out.
    if !policies.is_empty() {
        insert(out, HeaderName::from_static("ratelimit-policy"), policies);
        insert(out, HeaderName::from_static("ratelimit"), standing);
    }
    fitting.left_out
}

fn write_lists(limits: &[&ShownLimit<'_>], policies: &mut String, standing: &mut String) {
    let mut policies = ListSerializer::with_buffer(policies);
    let mut standing = ListSerializer::with_buffer(standing);
    for limit in limits {
        let name = shown_name(limit.name);
        // Nothing but printable ASCII is left in the name.
        let Ok(name) = StringRef::from_str(&name) else { continue };
        let mut item = policies.bare_item(name).parameter(QUOTA, number(limit.quota));
        if let Some(window) = limit.window {
            item = item.parameter(WINDOW, number(window.max(1)));
        }
        if limit.concurrent {
            item = item.parameter(UNIT, CONCURRENT);
        }
        let _ = item.finish();
        let mut item = standing.bare_item(name).parameter(REMAINING, number(limit.remaining));
        if let Some(wait) = limit.wait {
            item = item.parameter(WAIT, number(wait));
        }
        let _ = item.finish();
    }
}

fn number(value: u64) -> Integer {
    Integer::try_from(value).unwrap_or(LARGEST)
}
