//! Writes `X-RateLimit-*` as plain numbers of the limit that binds.
//!
//! Vendors disagree on `X-RateLimit-Reset`: epoch seconds, a date, or seconds from now. This module writes seconds from
//! now, which needs no synchronised clocks.

use http::header::{HeaderMap, HeaderName};

use super::super::shown_limits::{ShownLimit, ShownLimits};

pub(super) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

pub(super) fn write(shown: &ShownLimits<'_>, out: &mut HeaderMap) {
    let Some(bound) = shown.binding.and_then(|at| shown.limits.get(at)) else { return };
    out.insert(LIMIT, bound.quota.into());
    write_standing(bound, out);
}

/// Writes what is left of the limit that binds, and the wait.
pub(super) fn write_standing(bound: &ShownLimit<'_>, out: &mut HeaderMap) {
    out.insert(REMAINING, bound.remaining.into());
    if let Some(wait) = bound.wait {
        out.insert(RESET, wait.into());
    }
}
