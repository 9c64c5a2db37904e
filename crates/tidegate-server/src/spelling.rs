//! Quotes words of callers for messages, and finds the name that a misspelt word probably meant.

/// How many characters of a word are compared. The time grows with the length of the word, which a caller chooses.
const COMPARED_CHARS: usize = 64;
/// How many names are compared: a file may have ten thousand policies, and a caller may misspell as often as it likes.
const COMPARED_NAMES: usize = 500;

/// Finds the name that was probably meant by a misspelt word.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = word.chars().take(COMPARED_CHARS).collect();
    names
        .into_iter()
        .take(COMPARED_NAMES)
        .map(|name| (strsim::damerau_levenshtein(&word, name), name))
        .filter(|(distance, name)| *distance <= 2.max(name.len() / 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
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
