//! The rate-limit headers of an answer, in one of four forms.
//!
//! The forms differ in names and grammar, not in numbers: `q` is the most a limit grants at once, `w` the time after
//! which a used-up limit is full again, `r` what is left, `t` the wait; times are rounded up. `r` never exceeds `q`.
//! `Retry-After` is added in all forms, and on a refusal browser scripts may read the headers.

mod beside;
mod forms;

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
            out.insert(RETRY_AFTER, seconds_up(wait).max(1).into());
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

// Sets a header to a text.

/// Sets a header. If the text is not a valid header value, for example because of a line break, the header is omitted.
pub fn insert(out: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        out.insert(name, value);
    }
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
