//! `X-RateLimit-*` with quota policies behind the limit, as Envoy and Limitador write them.
//!
//! # Source
//! draft-polli-ratelimit-headers-03, with the `name` parameter and the `X-` that Envoy gave it.

use std::fmt::Write;

use http::header::HeaderMap;

use super::draft11::printable;
use super::x_ratelimit::{LIMIT, REMAINING, RESET};
use super::{Picture, put};

pub(super) fn write(picture: &Picture<'_>, out: &mut HeaderMap) {
    let Some(bound) = picture.binding.and_then(|at| picture.limits.get(at)) else { return };
    let mut limit = bound.quota.to_string();
    for shown in &picture.limits {
        // Writing to a String cannot fail.
        let _ = write!(limit, ", {}", shown.quota);
        if let Some(window) = shown.window {
            let _ = write!(limit, ";w={}", window.max(1));
        }
        let name = printable(shown.name).replace('\\', "\\\\").replace('"', "\\\"");
        let _ = write!(limit, ";name=\"{name}\"");
    }
    put(out, LIMIT, limit);
    put(out, REMAINING, bound.remaining.to_string());
    if let Some(wait) = bound.wait {
        put(out, RESET, wait.to_string());
    }
}
