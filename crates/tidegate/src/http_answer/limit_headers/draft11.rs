//! `RateLimit-Policy` and `RateLimit`, structured field lists of strings.
//!
//! # Source
//! draft-ietf-httpapi-ratelimit-headers-11; RFC 9651.

use http::header::{HeaderMap, HeaderName};
use sfv::{Integer, KeyRef, ListSerializer, StringRef, integer, key_ref, string_ref};

use super::super::shown::ShownLimits;
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

pub(super) fn write(shown: &ShownLimits<'_>, out: &mut HeaderMap) -> usize {
    let fitting = fitting(shown, 2);
    let mut policies = ListSerializer::new();
    let mut standing = ListSerializer::new();
    for limit in &fitting.limits {
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
    // An empty list has no form: the header is left out.
    if let (Some(policies), Some(standing)) = (policies.finish(), standing.finish()) {
        insert(out, HeaderName::from_static("ratelimit-policy"), policies);
        insert(out, HeaderName::from_static("ratelimit"), standing);
    }
    fitting.left_out
}

fn number(value: u64) -> Integer {
    Integer::try_from(value).unwrap_or(LARGEST)
}
