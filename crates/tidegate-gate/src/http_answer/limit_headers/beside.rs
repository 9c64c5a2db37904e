//! Adds the rate-limit headers of a limit to a response that already has such headers: of a limit further inside, or of
//! the service itself.

use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::super::shown_limits::ShownLimits;
use super::LEFT_OUT;
use super::forms::{BUDGET, LIMIT, POLICIES, REMAINING, RESET, STANDING};
use crate::header_form::HeaderForm;

impl ShownLimits<'_> {
    /// Writes the rate-limit headers beside those that are there, as described for
    /// [`HttpAnswer::add_headers`](super::super::HttpAnswer::add_headers).
    pub(crate) fn write_beside(&self, form: HeaderForm, out: &mut HeaderMap) {
        // Headers of the other forms are not touched, so they need not be looked up.
        let there = match form {
            _ if out.is_empty() => false,
            HeaderForm::Draft11 => out.contains_key(STANDING) || out.contains_key(POLICIES),
            HeaderForm::Draft03 | HeaderForm::XRateLimit => {
                out.contains_key(REMAINING) || out.contains_key(LIMIT)
            }
            HeaderForm::None => false,
        };
        if there {
            self.merge(form, out);
        } else {
            self.write(form, out);
        }
    }

    /// Separate from the usual case, in which a response has no such headers.
    #[cold]
    #[inline(never)]
    fn merge(&self, form: HeaderForm, out: &mut HeaderMap) {
        let mut own = HeaderMap::new();
        self.write(form, &mut own);
        let mut left_out = number(&own, &LEFT_OUT).unwrap_or(0);
        if let (Some(standing), Some(policies)) = (own.get(&STANDING), own.get(&POLICIES)) {
            let both = [joined(out, &STANDING, standing), joined(out, &POLICIES, policies)];
            if both.iter().map(Vec::len).sum::<usize>() <= BUDGET {
                for (name, value) in [STANDING, POLICIES].into_iter().zip(both) {
                    if let Ok(value) = HeaderValue::from_bytes(&value) {
                        out.insert(name, value);
                    }
                }
            } else {
                left_out = self.limits.len() as u64;
            }
        }
        if left_out > 0 {
            let before = number(out, &LEFT_OUT).unwrap_or(0);
            out.insert(LEFT_OUT, before.saturating_add(left_out).into());
        }
        // A number that cannot be read is not ours to replace.
        let there = out.contains_key(&LIMIT) || out.contains_key(&REMAINING);
        let is_tighter = match (number(&own, &REMAINING), number(out, &REMAINING)) {
            (Some(own), Some(other)) => own < other,
            (own, _) => own.is_some() && !there,
        };
        if is_tighter {
            for name in [LIMIT, REMAINING, RESET] {
                match own.remove(&name) {
                    Some(value) => drop(out.insert(name, value)),
                    None => drop(out.remove(&name)),
                }
            }
        }
        for name in [RETRY_AFTER, ACCESS_CONTROL_EXPOSE_HEADERS] {
            if let Some(value) = own.remove(&name) {
                out.entry(name).or_insert(value);
            }
        }
    }
}

/// Returns a list that is there, in one line, and the items of our own after it.
fn joined(out: &HeaderMap, name: &HeaderName, own: &HeaderValue) -> Vec<u8> {
    let there = out.get_all(name).into_iter().map(HeaderValue::as_bytes);
    let lists: Vec<&[u8]> = there.filter(|list| !list.is_empty()).chain([own.as_bytes()]).collect();
    lists.join(&b", "[..])
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::super::shown_limits::ShownLimit;
    use super::*;

    fn shown(name: &str, quota: u64, remaining: u64) -> ShownLimits<'_> {
        let limit = ShownLimit {
            name,
            quota,
            window: Some(60),
            concurrent: false,
            remaining,
            refused: false,
            wait: Some(30),
        };
        ShownLimits { limits: [limit].into_iter().collect(), binding: Some(0), refused: None }
    }

    /// Writes the headers of an inner limit and then those of an outer one.
    fn both(form: HeaderForm, inner: &ShownLimits<'_>, outer: &ShownLimits<'_>) -> HeaderMap {
        let mut out = HeaderMap::new();
        inner.write_beside(form, &mut out);
        outer.write_beside(form, &mut out);
        out
    }

    #[test]
    fn lists_are_continued() {
        let out = both(HeaderForm::Draft11, &shown("each", 1, 0), &shown("all", 1000, 998));
        assert_eq!(out["ratelimit"], r#""each";r=0;t=30, "all";r=998;t=30"#);
        assert_eq!(out["ratelimit-policy"], r#""each";q=1;w=60, "all";q=1000;w=60"#);
        assert_eq!(out.get_all("ratelimit").iter().count(), 1);

        // The lists of a service may be in several lines.
        let mut out = HeaderMap::new();
        out.append("ratelimit", HeaderValue::from_static(r#""a";r=1"#));
        out.append("ratelimit", HeaderValue::from_static(r#""b";r=2"#));
        shown("all", 9, 8).write_beside(HeaderForm::Draft11, &mut out);
        assert_eq!(out["ratelimit"], r#""a";r=1, "b";r=2, "all";r=8;t=30"#);
    }

    #[test]
    fn of_headers_with_one_limit_the_tighter_stays() {
        for form in [HeaderForm::XRateLimit, HeaderForm::Draft03] {
            for (inner, outer, left) in [(0, 998, "0"), (7, 3, "3"), (5, 5, "5")] {
                let out = both(form, &shown("each", 10, inner), &shown("all", 1000, outer));
                assert_eq!(out["x-ratelimit-remaining"], left);
                let limit = out["x-ratelimit-limit"].to_str().unwrap();
                assert_eq!(limit.starts_with("1000"), inner > outer, "{limit}");
            }
        }
        let mut out = HeaderMap::new();
        out.insert(REMAINING, HeaderValue::from_static("many"));
        shown("all", 9, 0).write_beside(HeaderForm::XRateLimit, &mut out);
        assert_eq!(out["x-ratelimit-remaining"], "many");
    }

    #[test]
    fn what_is_added_is_bounded() {
        let names: Vec<String> = (0..60).map(|at| format!("{at} {}", "x".repeat(100))).collect();
        let mut out = HeaderMap::new();
        for name in &names {
            shown(name, 10, 5).write_beside(HeaderForm::Draft11, &mut out);
        }
        let bytes = out["ratelimit"].len() + out["ratelimit-policy"].len();
        assert!(bytes <= BUDGET, "{bytes}");
        let list = out["ratelimit"].to_str().unwrap();
        let left_out: usize = out["x-tidegate-policies-left-out"].to_str().unwrap().parse().unwrap();
        assert_eq!(list.matches(";r=5").count() + left_out, 60, "the inner ones are there: {list}");
        assert!(list.starts_with("\"0 "));
    }
}
