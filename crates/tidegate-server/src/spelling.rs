//! Words that callers wrote: quoted in messages, and the name that was probably meant by a misspelt one.

/// Characters of a word that are compared: the time for a comparison grows with the word's length, which a caller chooses.
const COMPARED_CHARS: usize = 64;
/// Names that are compared: a file may have ten thousand policies, and a caller may misspell as often as he likes.
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

/// Quotes a caller's text as JSON has it, so that it is told from a number; escaped and cut as by [`quoted`].
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
