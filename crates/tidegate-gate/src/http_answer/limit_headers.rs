//! The rate-limit headers of an answer, in one of four forms, alone or beside those of a limit further inside or of the
//! service itself.
//!
//! The forms differ in names and grammar, not in numbers: `q` is the most a limit grants at once, `w` the time after
//! which a used-up limit is full again, `r` what is left, `t` the wait; times are rounded up. `r` never exceeds `q`.
//! `Retry-After` is added in all forms, and on a refusal browser scripts may read the headers.

mod forms;

use forms::{BUDGET, LIMIT, POLICIES, REMAINING, RESET, STANDING};
use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::shown_limits::ShownLimits;
use crate::header_form::HeaderForm;
use tidegate_limits::duration_text::seconds_up;

/// The number of limits that the lists omit, see [`forms::BUDGET`].
const LEFT_OUT: HeaderName = HeaderName::from_static("x-tidegate-policies-left-out");

impl ShownLimits<'_> {
    /// Writes the rate-limit headers of the answer, as described for
    /// [`HttpAnswer::write_headers`](super::HttpAnswer::write_headers).
    pub fn write(&self, form: HeaderForm, out: &mut HeaderMap) {
        let left_out = match form {
            HeaderForm::Draft11 => forms::write_draft11(self, out),
            HeaderForm::Draft03 => forms::write_draft03(self, out),
            HeaderForm::XRateLimit => {
                // This form shows one limit, however many there are.
                forms::write_x_ratelimit(self, out);
                0
            }
            HeaderForm::None => 0,
        };
        if left_out > 0 {
            out.insert(LEFT_OUT, left_out.into());
        }
        let Some(refused) = self.refused else { return };
        if let Some(wait) = refused.after() {
            // At least as long as the waits in the other headers: a client that sees both follows this one.
            // Made of text: a value that is made of the number allocates twice.
            let mut digits = itoa::Buffer::new();
            if let Ok(seconds) = HeaderValue::from_str(digits.format(seconds_up(wait).max(1))) {
                out.insert(RETRY_AFTER, seconds);
            }
        }
        let exposed = match form {
            HeaderForm::Draft11 => "Retry-After, RateLimit, RateLimit-Policy",
            HeaderForm::Draft03 | HeaderForm::XRateLimit => {
                "Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset"
            }
            HeaderForm::None => "Retry-After",
        };
        out.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(exposed));
    }
}

/// Sets a header. If the text is not a valid header value, for example because of a line break, the header is omitted.
pub fn insert(out: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        out.insert(name, value);
    }
}

impl ShownLimits<'_> {
    /// Writes the rate-limit headers beside those that are there, as described for
    /// [`HttpAnswer::add_headers`](super::HttpAnswer::add_headers).
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
    use std::time::Duration;

    use tidegate_core::Retry;

    use super::super::shown_limits::ShownLimit;
    use super::*;

    fn shown<'a>() -> ShownLimits<'a> {
        let per_ip = ShownLimit {
            name: "per-ip",
            quota: 200,
            window: Some(2),
            concurrent: false,
            remaining: 0,
            refused: true,
            wait: Some(1),
        };
        let tier = ShownLimit {
            name: "per-user-tier",
            quota: 60,
            window: Some(60),
            remaining: 17,
            refused: false,
            wait: Some(42),
            ..per_ip
        };
        let search = ShownLimit {
            name: "search",
            quota: 64,
            window: None,
            concurrent: true,
            remaining: 3,
            refused: false,
            wait: None,
        };
        ShownLimits {
            limits: [per_ip, tier, search].into_iter().collect(),
            binding: Some(0),
            refused: Some(Retry::After(Duration::from_millis(410))),
        }
    }

    fn written(form: HeaderForm, shown: &ShownLimits<'_>) -> Vec<String> {
        let mut out = HeaderMap::new();
        shown.write(form, &mut out);
        let mut lines: Vec<_> =
            out.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        lines
    }

    #[test]
    fn draft_11_golden() {
        assert_eq!(
            written(HeaderForm::Draft11, &shown()),
            [
                "access-control-expose-headers: Retry-After, RateLimit, RateLimit-Policy",
                "ratelimit-policy: \"per-ip\";q=200;w=2, \"per-user-tier\";q=60;w=60, \
                 \"search\";q=64;qu=\"concurrent-requests\"",
                "ratelimit: \"per-ip\";r=0;t=1, \"per-user-tier\";r=17;t=42, \"search\";r=3",
                "retry-after: 1",
            ]
        );
    }

    #[test]
    fn draft_03_golden() {
        assert_eq!(
            written(HeaderForm::Draft03, &shown()),
            [
                "access-control-expose-headers: Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, \
                 X-RateLimit-Reset",
                "retry-after: 1",
                "x-ratelimit-limit: 200, 200;w=2;name=\"per-ip\", 60;w=60;name=\"per-user-tier\", 64;name=\"search\"",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 1",
            ]
        );
    }

    #[test]
    fn x_ratelimit_golden() {
        assert_eq!(
            written(HeaderForm::XRateLimit, &shown()),
            [
                "access-control-expose-headers: Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, \
                 X-RateLimit-Reset",
                "retry-after: 1",
                "x-ratelimit-limit: 200",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 1",
            ]
        );
    }

    #[test]
    fn no_form_still_says_when_to_retry() {
        let expected = ["access-control-expose-headers: Retry-After", "retry-after: 1"];
        assert_eq!(written(HeaderForm::None, &shown()), expected);
    }

    #[test]
    fn a_refusal_for_ever_has_no_retry_after_and_no_limit_no_header() {
        let mut never = shown();
        never.refused = Some(Retry::Never);
        assert!(!written(HeaderForm::Draft11, &never).iter().any(|line| line.starts_with("retry-after")));
        for form in [HeaderForm::Draft11, HeaderForm::Draft03, HeaderForm::XRateLimit, HeaderForm::None] {
            assert!(written(form, &ShownLimits::default()).is_empty());
        }
    }

    #[test]
    fn names_beyond_ascii_and_numbers_beyond_the_field_stay_legal() {
        let mut odd = shown();
        odd.limits[0] = ShownLimit { name: "pro Nutzer ä\"\\", quota: u64::MAX, ..odd.limits[0] };
        let lines = written(HeaderForm::Draft11, &odd);
        let expected = "ratelimit-policy: \"pro Nutzer ?\\\"\\\\\";q=999999999999999;w=2";
        assert!(lines.iter().any(|line| line.starts_with(expected)), "{lines:?}");
        assert!(written(HeaderForm::Draft03, &odd)[2].starts_with("x-ratelimit-limit: 18446744073709551615"));
    }

    /// Formerly ninety policies made headers of more than 4 KiB, and nginx answered every caller with 500.
    #[test]
    fn what_is_written_is_bounded_and_the_most_binding_come_first() {
        let names: Vec<String> = (0..300).map(|at| format!("policy number {at} \"quoted\"")).collect();
        let mut many = shown();
        many.limits = names
            .iter()
            .enumerate()
            .map(|(at, name)| ShownLimit {
                name,
                quota: u64::MAX,
                window: Some(u64::MAX),
                concurrent: at % 2 == 0,
                remaining: u64::MAX - 1 - at as u64,
                refused: at % 100 == 7,
                wait: Some(u64::MAX),
            })
            .collect();
        many.binding = Some(207);
        for form in [HeaderForm::Draft11, HeaderForm::Draft03, HeaderForm::XRateLimit, HeaderForm::None] {
            let lines = written(form, &many);
            let bytes: usize = lines.iter().map(|line| line.len() + 2).sum();
            assert!(bytes < 2048 + 256, "{form:?}: {bytes}");
            let lists = match form {
                HeaderForm::Draft11 => "ratelimit: ",
                HeaderForm::Draft03 => "x-ratelimit-limit: ",
                _ => {
                    assert!(!lines.iter().any(|line| line.contains("left-out")));
                    continue;
                }
            };
            let list = lines.iter().find(|line| line.starts_with(lists)).unwrap();
            let at = |number: u32| list.find(&format!("policy number {number} ")).unwrap_or(usize::MAX);
            assert!(at(207) < at(107) && at(107) < at(7).max(at(299)), "{list}");
            assert!(at(299) < usize::MAX && at(0) == usize::MAX, "{list}");
            let left_out =
                lines.iter().find(|line| line.starts_with("x-tidegate-policies-left-out: ")).unwrap();
            let left_out: usize = left_out.rsplit(' ').next().unwrap().parse().unwrap();
            assert_eq!(left_out + list.matches("policy number").count(), 300);
        }
    }

    #[test]
    fn a_long_name_is_cut_and_still_there() {
        for name in ["x".repeat(100_000), "\"".repeat(100_000), "ä".repeat(300)] {
            let mut long = shown();
            long.limits[0] = ShownLimit { name: &name, ..long.limits[0] };
            for form in [HeaderForm::Draft11, HeaderForm::Draft03] {
                let lines = written(form, &long);
                assert!(lines.iter().map(String::len).sum::<usize>() < 2048, "{lines:?}");
                assert!(lines.iter().any(|line| line.contains("..\"")), "{lines:?}");
                assert!(lines.iter().any(|line| line.contains("search")), "all of three fit: {lines:?}");
            }
        }
    }
}

#[cfg(test)]
mod beside_tests {
    use super::super::shown_limits::ShownLimit;
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
