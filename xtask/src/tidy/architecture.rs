//! Rule: ARCHITECTURE.md is short enough to be read before the first change.

use super::allowed::Allowed;
use super::fault::Fault;
use super::tree::Tree;

const FILE: &str = "ARCHITECTURE.md";

/// The most words: five minutes of reading.
const MOST: usize = 1500;

pub(crate) fn check(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let words = tree.text(FILE).map_or(0, |text| text.split_whitespace().count());
    let what =
        format!("{words} words, more than {MOST}; move what a newcomer need not know to a page under docs/");
    if words > MOST { vec![Fault::new(FILE, 1, what)] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::MOST;
    use crate::tidy::found;

    #[test]
    fn one_word_too_many_is_found() {
        let full = "word\n".repeat(MOST);
        assert!(found("architecture", &[("ARCHITECTURE.md", &full)], "").is_empty());
        let found = found("architecture", &[("ARCHITECTURE.md", &(full + "more"))], "");
        assert!(found[0].starts_with("ARCHITECTURE.md:1: 1501 words"), "{found:?}");
    }
}
