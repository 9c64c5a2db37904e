//! How texts are read and written: names that were probably meant, quotes, and times.

use std::time::Duration;

use jiff::fmt::temporal::DateTimePrinter;
use tidegate::{SystemClock, Tick};

// Quotes words of callers for messages, and finds the name that a misspelt word probably meant.

/// How many names are compared: a file may have ten thousand policies, and a caller may misspell as often as it likes.
const COMPARED_NAMES: usize = 500;

/// Finds the name that was probably meant by a misspelt word, among the first 500.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    tidegate_core::spelling::nearest(word, names.into_iter().take(COMPARED_NAMES))
}

/// Quotes a caller's text like a JSON string, so that it is distinguishable from a number. Escaped and cut as by
/// [`quoted`].
pub(crate) fn quoted_text(text: &str) -> String {
    format!("\"{}\"", tidegate::visible::excerpt(text))
}

/// Quotes a caller's word, escaped and cut to a length that fits a sentence.
pub(crate) fn quoted(word: &str) -> String {
    format!("`{}`", tidegate::visible::excerpt(word))
}

// Formats moments for answers. They are rounded up like durations: a client that is told one second must not return
// early.

/// Prints milliseconds.
const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

/// Formats the moment `after` a tick of the server in RFC 3339, by the wall clock as it stands now, rounded up to a
/// millisecond. `None` for moments after the year 9999.
pub(crate) fn moment(at: Tick, after: Duration) -> Option<String> {
    wall_moment(SystemClock::wall_time(at), after)
}

/// Formats the moment `after` a tick of the wall clock, like [`moment`].
pub(crate) fn wall_moment(at: Tick, after: Duration) -> Option<String> {
    let nanos = u128::from(at.as_nanos()) + after.as_nanos();
    let millis = i64::try_from(nanos.div_ceil(1_000_000)).ok()?;
    let moment = jiff::Timestamp::from_millisecond(millis).ok()?;
    let mut text = String::with_capacity("2027-01-15T08:00:00.001Z".len());
    PRINTER.print_timestamp(&moment, &mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_finds_its_name_and_nonsense_finds_none() {
        let names = ["attributes", "cost", "policies"];
        assert_eq!(nearest("atributes", names), Some("attributes"));
        assert_eq!(nearest("Polices", names), Some("policies"));
        assert_eq!(nearest("xylophone", names), None);
    }

    #[test]
    fn quoted_words_are_cut_and_escaped() {
        assert_eq!(quoted("a\nb"), "`a\\nb`");
        assert!(quoted(&"é".repeat(1000)).len() < 200);
    }

    #[test]
    fn moments_are_rounded_up() {
        let at = Tick::from_secs(1_800_000_000);
        assert_eq!(moment(at, Duration::from_nanos(1)).as_deref(), Some("2027-01-15T08:00:00.001Z"));
        assert_eq!(moment(at, Duration::ZERO).as_deref(), Some("2027-01-15T08:00:00.000Z"));
        assert_eq!(moment(at, Duration::MAX), None);
    }
}
