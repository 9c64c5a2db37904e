//! `X-RateLimit-*` as plain numbers of the limit that binds.
//!
//! Vendors disagree on `X-RateLimit-Reset`: epoch seconds, a date, or seconds from now. Ours is seconds from now, which
//! needs no agreement of clocks.

use http::header::{HeaderMap, HeaderName};

use super::super::shown::ShownLimits;
use super::insert::insert;

pub(super) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

pub(super) fn write(shown: &ShownLimits<'_>, out: &mut HeaderMap) {
    let Some(bound) = shown.binding.and_then(|at| shown.limits.get(at)) else { return };
    insert(out, LIMIT, bound.quota.to_string());
    insert(out, REMAINING, bound.remaining.to_string());
    if let Some(wait) = bound.wait {
        insert(out, RESET, wait.to_string());
    }
}
