//! Checks the `reason` with which a person forces a breaker, turns a switch or blocks a key.
//!
//! It is stored, and shown to others later: in answers, in the log, on terminals. So it must read as it is written.

use tidegate::breaker::Forced;
use tidegate::visible;

use crate::problem::Problem;

/// The longest reason, in bytes.
const MAX_REASON: usize = Forced::MAX_REASON;

/// Returns the reason; empty if there is none.
///
/// # Errors
/// 400 if it is longer than [`MAX_REASON`], or has a character that is not drawn: a control character, one that changes
/// the direction of the text, or an invisible one.
pub(crate) fn reason(text: Option<String>) -> Result<String, Problem> {
    let text = text.unwrap_or_default();
    let refuse = |detail: String| Err(Problem::bad_request(detail).with("field", "reason"));
    if text.len() > MAX_REASON {
        return refuse(format!("the reason has {} bytes; at most {MAX_REASON} are kept", text.len()));
    }
    match hidden(&text) {
        None => Ok(text),
        Some(char) if char.is_control() => {
            refuse("the reason has a control character; write one line of text".to_owned())
        }
        Some(char) => refuse(format!(
            "the reason has the character U+{:04X}, which is invisible or changes the direction of the text; leave it out",
            u32::from(char)
        )),
    }
}

/// Returns the first character of a text that is replaced when the text is shown.
fn hidden(text: &str) -> Option<char> {
    let shown = visible::line(text);
    text.chars().zip(shown.chars()).find(|(char, shown)| char != shown).map(|(char, _)| char)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(text: &str) -> Option<String> {
        reason(Some(text.to_owned())).err().map(|problem| problem.detail().to_owned())
    }

    #[test]
    fn a_reason_that_reads_as_it_is_written_is_taken() {
        for text in [
            "",
            "upgrade",
            "C:\\temp \\u{202e}",
            "Wartung für Zürich",
            "می\u{200c}خواهم",
            "🏳\u{fe0f}\u{200d}🌈",
        ] {
            assert_eq!(detail(text), None, "{text:?}");
        }
        assert_eq!(reason(None).unwrap(), "");
        assert_eq!(detail(&"é".repeat(127)), None);
    }

    #[test]
    fn a_reason_that_reads_as_something_else_is_refused() {
        for (text, says) in [
            ("a\nb", "the reason has a control character; write one line of text"),
            ("\u{9b}2J", "the reason has a control character"),
            ("upgrade \u{202e}kcatta", "U+202E, which is invisible or changes the direction"),
            ("\u{2066}x", "U+2066"),
            ("pass\u{200b}word", "U+200B"),
            ("x\u{2028}y", "U+2028"),
            ("\u{feff}", "U+FEFF"),
        ] {
            assert!(detail(text).is_some_and(|detail| detail.contains(says)), "{text:?}: {:?}", detail(text));
        }
        assert_eq!(detail(&"é".repeat(128)).unwrap(), "the reason has 256 bytes; at most 255 are kept");
    }
}
