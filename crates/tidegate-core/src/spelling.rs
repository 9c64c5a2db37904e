//! Finds the known word that an unknown one probably means, for messages.

use strsim::damerau_levenshtein;

/// The longest word that is compared, in bytes. The time grows with the length, and no known word is longer.
pub(crate) const LONGEST: usize = 64;

/// Returns the most similar of some words, the first of several, for a word that has to be one of them; `None` if more
/// than a third of the letters of `found` would be wrong with each of them (one may always be), and for more than 64
/// bytes. Upper and lower case count as equal, and so do singular and plural. Takes some microseconds for each word,
/// so it is for people, not for each request.
///
/// # Examples
/// ```
/// use tidegate_core::spelling::nearest;
/// let words = ["limit", "policies"];
/// assert_eq!(nearest("Polices", words), Some("policies"));
/// assert_eq!(nearest("policy", words), Some("policies"));
/// assert_eq!(nearest("fnord", words), None);
/// ```
pub fn nearest<'w>(found: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let near = words.into_iter().filter_map(|word| Some((distance(found, word)?, word)));
    near.min_by_key(|(distance, _)| *distance).map(|(_, word)| word)
}

/// Returns by how many letters two words differ, if the second may be meant by the first, as [`nearest`] says.
pub(crate) fn distance(found: &str, word: &str) -> Option<usize> {
    if found.len() > LONGEST {
        return None;
    }
    // `Shangai` is near, `fnord` is not.
    let allowed = (found.chars().count() / 3).max(1);
    let (found, word) = (found.to_lowercase(), word.to_lowercase());
    let mut distance = damerau_levenshtein(&found, &word);
    // `policy` and `policies` differ in more than a third.
    if found.ends_with("ies") || word.ends_with("ies") {
        distance = distance.min(damerau_levenshtein(&singular(&found), &singular(&word)));
    }
    (distance <= allowed).then_some(distance)
}

fn singular(word: &str) -> String {
    word.strip_suffix("ies").map_or_else(|| word.to_owned(), |stem| format!("{stem}y"))
}

/// Says whether one letter of `found` is wrong, missing or superfluous, or two neighbours are swapped, against
/// `word`: for a word that may be its author's own. `false` for more than 64 bytes.
#[must_use]
pub fn is_slip(found: &str, word: &str) -> bool {
    found.len() <= LONGEST && damerau_levenshtein(found, word) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_the_letters_may_be_wrong() {
        let words = ["attributes", "cost", "policies", "per-ip"];
        for (found, word) in [
            ("atributes", Some("attributes")),
            ("ATRIBUTES", Some("attributes")),
            ("Polices", Some("policies")),
            ("policy", Some("policies")),
            ("csot", Some("cost")),
            ("cast", Some("cost")),
            ("case", None),
            ("c", None),
            ("", None),
            ("per-pi", Some("per-ip")),
            ("perip", Some("per-ip")),
            ("xylophone", None),
        ] {
            assert_eq!(nearest(found, words), word, "{found}");
        }
        assert_eq!(nearest("ab", ["ax", "ay"]), Some("ax"), "the first of several");
        assert_eq!(nearest(&"x".repeat(65), ["x"]), None);
    }
}
