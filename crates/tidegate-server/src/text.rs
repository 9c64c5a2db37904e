//! Names that were probably meant, quotes, times, and keys as people see them.

use std::time::Duration;

use jiff::fmt::temporal::DateTimePrinter;
use sha2::{Digest as _, Sha256};
use tidegate::Tick;
use tidegate::clock::SystemClock;
use tidegate::gate::explain::key_text;
use tidegate::policy::{Descriptor, Policy, PolicySet};

/// How many names are compared: a file may have ten thousand policies, and a caller may misspell as often as it
/// likes.
const COMPARED_NAMES: usize = 500;

/// Finds the name that a misspelt word meant, among the first 500.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    tidegate_core::spelling::nearest(word, names.into_iter().take(COMPARED_NAMES))
}

/// Quotes a text like a JSON string, to tell it from a number; otherwise as [`quoted`].
pub(crate) fn quoted_text(text: &str) -> String {
    format!("\"{}\"", tidegate::visible::excerpt(text))
}

/// Quotes a word, escaped and cut to fit a sentence.
pub(crate) fn quoted(word: &str) -> String {
    format!("`{}`", tidegate::visible::excerpt(word))
}

// Moments are rounded up: who is told one second must not return early.

/// Prints milliseconds.
const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

/// Formats the moment `after` a tick of the server in RFC 3339, by the wall clock as it stands now, rounded up to a
/// millisecond. `None` after the year 9999.
pub(crate) fn moment(at: Tick, after: Duration) -> Option<String> {
    wall_moment(SystemClock::wall_time(at), after)
}

/// As [`moment`], for a tick of the wall clock.
pub(crate) fn wall_moment(at: Tick, after: Duration) -> Option<String> {
    let nanos = u128::from(at.as_nanos()) + after.as_nanos();
    let millis = i64::try_from(nanos.div_ceil(1_000_000)).ok()?;
    let moment = jiff::Timestamp::from_millisecond(millis).ok()?;
    let mut text = String::with_capacity("2027-01-15T08:00:00.001Z".len());
    PRINTER.print_timestamp(&moment, &mut text).ok()?;
    Some(text)
}

// Keys contain addresses and account names, and answers end up in tickets and screenshots. So a key is shown as a
// digest under a secret from the ticket key: nobody finds an address by trying, and nodes with the same ticket key
// show the same digest, before and after a restart. `?reveal=true` shows the key itself to callers with the
// scope `keys`.

/// Replaces values by digests, consistently.
#[derive(Clone)]
pub(crate) struct Redact {
    secret: [u8; 32],
}

impl std::fmt::Debug for Redact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redact")
    }
}

impl Redact {
    /// Makes digests under a secret.
    pub(crate) const fn new(secret: [u8; 32]) -> Self {
        Self { secret }
    }

    /// Returns a text in full, or its digest.
    pub(crate) fn text(&self, text: &str, reveal: bool) -> String {
        if reveal || text == "(all)" {
            return text.to_owned();
        }
        let digest = Sha256::new().chain_update(self.secret).chain_update(text).finalize();
        let short = digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
        format!("#{short:016x}")
    }

    /// Returns the key of a request; hidden, as in the list of top keys.
    pub(crate) fn key(
        &self,
        set: &PolicySet,
        policy: &Policy,
        request: &Descriptor<'_>,
        reveal: bool,
    ) -> String {
        self.text(&key_text(set, policy, request), reveal)
    }
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
