//! Quotes words of callers for messages, and finds the name that a misspelt word probably meant.

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
}
