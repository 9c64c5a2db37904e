//! Rounds durations for answers, always up: a client that is told one second must not come back earlier.

use std::time::Duration;

/// The longest wait in answers, in seconds: a hundred years. A longer one is shown as this, in every unit, so that all
/// numbers of an answer say the same, and fit an integer of a structured header field (RFC 9651) and of JavaScript.
const LONGEST_SECS: u64 = 100 * 31_557_600;

/// Rounds a duration up to whole seconds; at most a hundred years, 3,155,760,000.
#[must_use]
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "headers alone count seconds"))]
pub fn seconds_up(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0)).min(LONGEST_SECS)
}

/// Rounds a duration up to whole milliseconds; at most a hundred years, 3,155,760,000,000.
#[must_use]
pub fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(LONGEST_SECS * 1000)
}

/// Writes a duration for people, rounded up: `250 µs`, `350 ms`, `1.2 s`, `2 min`, `21 h 54 min 27 s`. Below a second in
/// the largest of milliseconds, microseconds and nanoseconds that it has one of, below two minutes in seconds with up to
/// two decimals, else in whole seconds, minutes, hours and days. Zero is `0 ms`.
#[must_use]
pub fn in_words(span: Duration) -> String {
    match span.as_nanos() {
        nanos @ 1..1000 => return format!("{nanos} ns"),
        nanos @ 1000..=999_000 => return format!("{} µs", nanos.div_ceil(1000)),
        _ => {}
    }
    let millis = millis_up(span);
    // By hand: a refusal says it, and the formatter takes ten times as many instructions.
    let mut text = String::with_capacity("36525 d 23 h 59 min 59 s".len());
    if millis < 1000 {
        push_number(millis, &mut text);
        text.push_str(" ms");
        return text;
    }
    if millis < 120_000 {
        let hundredths = millis.div_ceil(10);
        push_number(hundredths / 100, &mut text);
        let (tenth, hundredth) = (hundredths / 10 % 10, hundredths % 10);
        if (tenth, hundredth) != (0, 0) {
            text.push('.');
            push_number(tenth, &mut text);
        }
        if hundredth != 0 {
            push_number(hundredth, &mut text);
        }
        text.push_str(" s");
        return text;
    }
    let whole = millis.div_ceil(1000);
    for (count, unit) in
        [(whole / 86_400, " d"), (whole / 3600 % 24, " h"), (whole / 60 % 60, " min"), (whole % 60, " s")]
    {
        if count > 0 {
            text.push_str(if text.is_empty() { "" } else { " " });
            push_number(count, &mut text);
            text.push_str(unit);
        }
    }
    text
}

/// Appends a number of few digits.
fn push_number(number: u64, text: &mut String) {
    if number > 9 {
        push_number(number / 10, text);
    }
    text.push(char::from(b'0' + (number % 10) as u8));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_up() {
        assert_eq!(seconds_up(Duration::from_nanos(1)), 1);
        assert_eq!(seconds_up(Duration::from_secs(3)), 3);
        assert_eq!(seconds_up(Duration::MAX), 3_155_760_000);
        assert_eq!(millis_up(Duration::from_nanos(1)), 1);
        assert_eq!(millis_up(Duration::MAX), 3_155_760_000_000);
    }

    #[test]
    fn spans_are_written_for_people_and_never_shorter_than_they_are() {
        let words = |millis: &[u64]| -> Vec<String> {
            millis.iter().map(|millis| in_words(Duration::from_millis(*millis))).collect()
        };
        assert_eq!(words(&[0, 1, 350, 999]), ["0 ms", "1 ms", "350 ms", "999 ms"]);
        assert_eq!(words(&[1000, 1001, 1200, 29_959]), ["1 s", "1.01 s", "1.2 s", "29.96 s"]);
        assert_eq!(words(&[60_000, 61_001, 119_999]), ["60 s", "61.01 s", "120 s"]);
        assert_eq!(words(&[120_000, 120_001, 600_000]), ["2 min", "2 min 1 s", "10 min"]);
        assert_eq!(words(&[78_866_160, 2 * 86_400_000]), ["21 h 54 min 27 s", "2 d"]);
        let short = [1, 999, 1000, 1001, 250_000, 999_000, 999_001, 1_000_000, 1_000_001];
        let words = short.map(|nanos| in_words(Duration::from_nanos(nanos)));
        assert_eq!(words, ["1 ns", "999 ns", "1 µs", "2 µs", "250 µs", "999 µs", "1 ms", "1 ms", "2 ms"]);
        assert_eq!(in_words(Duration::MAX), "36525 d");
    }
}
