//! How pages write numbers, times, names and links, and read the server's answers.

use std::borrow::Borrow;
use std::fmt::Write as _;

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tidegate::visible;

/// The longest name that is shown whole, in characters.
const LONGEST_NAME: usize = 200;

/// An answer that is older, in seconds, is not shown as what is now.
const STALE: u64 = 10;

/// What stands unescaped in a part of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Builds the URL of a page: a path and parameters, which are escaped here.
pub(crate) fn url<I, K, V>(path: &str, pairs: I) -> String
where
    I: IntoIterator,
    I::Item: Borrow<(K, V)>,
    K: AsRef<str>,
    V: AsRef<str>,
{
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// Escapes a text as one part of a path.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// The page of a policy.
pub(crate) fn policy_path(policy: &str) -> String {
    format!("/ui/policies/{}", segment(policy))
}

/// The page on which other limits of a policy are tried.
pub(crate) fn lab_path(policy: &str) -> String {
    format!("/ui/lab/{}", segment(policy))
}

/// Reads a number of the server's answer; anything else is 0.
pub(crate) fn num(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Reads a count of the server's answer; anything else is 0.
pub(crate) fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Reads a text of the server's answer; anything else is empty.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Reads a list of the server's answer; anything else is empty.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Makes a text fit a page: its first characters, with what is invisible written out.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => visible::line(&text[..end]).into_owned() + "…",
        None => visible::line(text).into_owned(),
    }
}

/// Shows the name of a key or a policy: at most 200 characters, with the beginning of the whole as its title.
pub(crate) fn name(text: &str) -> Markup {
    let is_long = text.chars().nth(LONGEST_NAME).is_some();
    html! { code title=[is_long.then(|| cut(text, 1_000))] { (cut(text, LONGEST_NAME)) } }
}

/// Returns the first rows that take so many bytes together. Strangers choose the names of keys, and pages that are too
/// large are not sent: whoever has long ones must not keep the others from being seen.
pub(crate) fn fitting(rows: impl Iterator<Item = Markup>, most: usize) -> Vec<Markup> {
    let mut left = most;
    let fits = |row: Markup| {
        left = left.checked_sub(row.0.len())?;
        Some(row)
    };
    rows.map_while(fits).collect()
}

/// Writes a rate or a count for people: one digit behind the point below 10, thousands grouped.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.abs() < 0.05 {
        return "< 0.1".to_owned();
    }
    if value.abs() < 9.95 {
        return format!("{value:.1}");
    }
    grouped(value.round() as i128)
}

/// Writes a count with its thousands grouped.
pub(crate) fn count(value: u64) -> String {
    grouped(i128::from(value))
}

fn grouped(value: i128) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if value < 0 {
        out.push('-');
    }
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Writes a share (1.0 is all) in per cent.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if !percent.is_finite() {
        "–".to_owned()
    } else if percent == 0.0 {
        "0 %".to_owned()
    } else if percent < 0.05 {
        "< 0.1 %".to_owned()
    } else if percent < 99.95 {
        format!("{percent:.1} %")
    } else {
        format!("{} %", grouped(percent.round() as i128))
    }
}

/// Writes a length of time that is given in nanoseconds: `2 µs`, `31 ms`.
pub(crate) fn nanos(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value < 1e3 => (value, "ns"),
        value if value < 1e6 => (value / 1e3, "µs"),
        value if value < 1e9 => (value / 1e6, "ms"),
        value => (value / 1e9, "s"),
    };
    format!("{} {unit}", number(scaled))
}

/// Writes a length of time in seconds: `3 s`, `12 min`, `5 h`, `2 d`.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Reads a time of the server (RFC 3339), in seconds since 1970.
pub(crate) fn seconds_of(text: &str) -> Option<u64> {
    let moment: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(moment.as_second()).ok()
}

/// Writes a moment of UTC: today's as `14:01:07`, others with their date. The whole is in the title.
pub(crate) fn moment(at: u64, now: u64) -> Markup {
    let format = if at / 86_400 == now / 86_400 { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    time(at, |stamp| stamp.strftime(format).to_string())
}

/// Writes how long ago a moment was: `3 min ago`, with the moment in the title.
pub(crate) fn ago(at: u64, now: u64) -> Markup {
    time(at, |_| if at > now { format!("in {}", span(at - now)) } else { format!("{} ago", span(now - at)) })
}

fn time(at: u64, words: impl FnOnce(jiff::Timestamp) -> String) -> Markup {
    let Some(stamp) = i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_second(at).ok()) else {
        return html! { "–" };
    };
    let whole = stamp.to_string();
    html! { time datetime=(whole) title=(whole) { (words(stamp)) } }
}

/// What stands beside a word, so that nobody has to tell colours apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Usual,
    Unusual,
    Unknown,
    Trouble,
}

impl Mark {
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Usual => "ok",
            Self::Unusual => "warn",
            Self::Unknown => "quiet",
            Self::Trouble => "bad",
        }
    }

    pub(crate) const fn shape(self) -> &'static str {
        match self {
            Self::Usual => "●",
            Self::Unusual => "▲",
            Self::Unknown => "?",
            Self::Trouble => "■",
        }
    }
}

/// Returns the mark of a level that the server tells by the word of its class.
pub(crate) fn mark_of(level: &str) -> Mark {
    let marks = [Mark::Usual, Mark::Unusual, Mark::Trouble];
    marks.into_iter().find(|mark| mark.class() == level).unwrap_or(Mark::Unknown)
}

/// The shape of a mark. Beside it stands the word.
pub(crate) fn mark(mark: Mark) -> Markup {
    html! { span class=(mark.class()) aria-hidden="true" { (mark.shape()) } }
}

/// The head of a table: words of the columns, and whether a column has numbers.
pub(crate) fn columns(words: &[(&str, bool)]) -> Markup {
    html! {
        thead { tr { @for (word, is_number) in words {
            th scope="col" class=[is_number.then_some("n")] { (word) }
        } } }
    }
}

/// Marks an answer that is not of now.
pub(crate) fn stale(at: Option<u64>, now: u64) -> Markup {
    match at {
        Some(at) if now.saturating_sub(at) <= STALE => html! {},
        Some(at) => {
            html! { p class="stale" role="status" { strong { "STALE" } " since " (moment(at, now)) "." } }
        }
        None => html! { p class="stale" role="status" { strong { "STALE" } ": the answer has no time." } },
    }
}

/// A command to copy.
pub(crate) fn command(text: &str) -> Markup {
    html! { pre { code { (cut(text, 2_000)) } } }
}

/// The limits of a policy in the words of the file, from its description in `/v1/policies`.
pub(crate) fn limit_words(policy: &Value) -> String {
    let limits = list(&policy["limits"]).iter().map(limit_of);
    cut(&limits.collect::<Vec<_>>().join(" and "), LONGEST_NAME)
}

/// One limit in the words of the file.
pub(crate) fn limit_of(limit: &Value) -> String {
    let label = text(&limit["limit"]);
    let Some(tiers) = limit["tiers"]["rates"].as_object() else { return label.to_owned() };
    let by = text(&limit["tiers"]["by"]);
    let each = tiers.iter().take(6).map(|(tier, rate)| format!("{tier} {}", text(rate)));
    let mut words = format!("by {by}: {}", each.collect::<Vec<_>>().join(", "));
    if tiers.len() > 6 {
        let _ = write!(words, " and {} more", tiers.len() - 6);
    }
    let _ = write!(words, "; otherwise {label}");
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_never_more_exact_than_they_are() {
        let rates = [0.0, 0.01, 0.94, 9.94, 9.96, 1_234.4, -3.0, f64::NAN].map(number);
        assert_eq!(rates, ["0", "< 0.1", "0.9", "9.9", "10", "1,234", "-3.0", "–"]);
        let shares = [0.0, 0.0001, 0.171, 0.9999, 10.4].map(percent);
        assert_eq!(shares, ["0 %", "< 0.1 %", "17.1 %", "100 %", "1,040 %"]);
        assert_eq!([900.0, 2e3, 31e6, 2.5e9].map(nanos), ["900 ns", "2.0 µs", "31 ms", "2.5 s"]);
        assert_eq!([0, 119, 120, 7_200, 172_800].map(span), ["0 s", "119 s", "2 min", "2 h", "2 d"]);
        assert_eq!(count(1_204_331), "1,204,331");
    }

    #[test]
    fn times_are_utc_and_the_whole_is_in_the_title() {
        let at = seconds_of("2027-01-15T08:00:00.250Z").unwrap();
        assert_eq!(at, 1_800_000_000);
        let today = moment(at, at + 60).into_string();
        assert!(today.contains(">08:00:00<") && today.contains("title=\"2027-01-15T08:00:00Z\""), "{today}");
        assert!(moment(at, at + 86_400).into_string().contains(">2027-01-15 08:00:00<"));
        assert!(ago(at, at + 180).into_string().contains(">3 min ago<"));
        assert!(ago(at + 5, at).into_string().contains(">in 5 s<"));
        assert_eq!(moment(u64::MAX, at).into_string(), "–");
        assert!(stale(Some(at), at + 10).into_string().is_empty());
        assert!(stale(Some(at), at + 11).into_string().contains("STALE"));
    }

    #[test]
    fn names_are_shown_and_not_obeyed() {
        let hostile = "<img src=x onerror=alert(1)>\"'&\u{202e}\u{1b}[2J";
        let shown = name(hostile).into_string();
        assert!(
            !shown.contains("<img") && !shown.contains('\u{202e}') && !shown.contains('\u{1b}'),
            "{shown}"
        );
        assert!(shown.contains(r"\u{202e}"), "{shown}");
        let long = name(&"x".repeat(10_000)).into_string();
        assert!(long.len() < 1_400 && long.contains("title="), "{}", long.len());
        assert_eq!(policy_path("a/../b?c#d e%"), "/ui/policies/a%2F..%2Fb%3Fc%23d%20e%25");
        assert_eq!(
            url("/ui/keys", &[("policy", "a&b=c"), ("q", "\"<")]),
            "/ui/keys?policy=a%26b%3Dc&q=%22%3C"
        );
    }
}
