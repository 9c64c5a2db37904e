//! `X-RateLimit-*` with quota policies behind the limit, as Envoy and Limitador write them.
//!
//! # Source
//! draft-polli-ratelimit-headers-03, with the `name` parameter and the `X-` that Envoy gave it.

use std::fmt::Write;

use http::header::HeaderMap;

use super::super::shown::ShownLimits;
use super::budget::{fitting, shown_name};
use super::insert::insert;
use super::x_ratelimit::{LIMIT, REMAINING, RESET};

pub(super) fn write(shown: &ShownLimits<'_>, out: &mut HeaderMap) -> usize {
    let Some(bound) = shown.binding.and_then(|at| shown.limits.get(at)) else { return 0 };
    let fitting = fitting(shown, 1);
    let mut limit = bound.quota.to_string();
    for limit_shown in &fitting.limits {
        // Writing to a String cannot fail.
        let _ = write!(limit, ", {}", limit_shown.quota);
        if let Some(window) = limit_shown.window {
            let _ = write!(limit, ";w={}", window.max(1));
        }
        let name = shown_name(limit_shown.name).replace('\\', "\\\\").replace('"', "\\\"");
        let _ = write!(limit, ";name=\"{name}\"");
    }
    insert(out, LIMIT, limit);
    insert(out, REMAINING, bound.remaining.to_string());
    if let Some(wait) = bound.wait {
        insert(out, RESET, wait.to_string());
    }
    fitting.left_out
}
