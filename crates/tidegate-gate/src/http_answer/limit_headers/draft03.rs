//! Writes `X-RateLimit-*` with the quota policies after the limit, as Envoy and Limitador do.
//!
//! # Source
//! draft-polli-ratelimit-headers-03, with Envoy's `name` parameter and `X-` prefix.

use http::header::HeaderMap;

use super::super::shown_limits::ShownLimits;
use super::budget::{fitting, shown_name};
use super::field::Field;
use super::x_ratelimit::{LIMIT, write_standing};

pub(super) fn write(shown: &ShownLimits<'_>, out: &mut HeaderMap) -> usize {
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
