//! Suggests the word that an author probably meant.

/// The longest word that is compared, in bytes. The time grows with the length, and no known word is longer.
const LONGEST: usize = 64;

/// Returns the most similar word, if one is similar enough.
pub(crate) fn nearest<'w>(found: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    if found.len() > LONGEST {
        return None;
    }
    // A third of the letters may be wrong: `Shangai` is near, `fnord` is not.
    let allowed = (found.chars().count() / 3).max(1);
    let lower = found.to_lowercase();
    // Singular and plural count as equal, though `policy` and `policies` differ in more than a third.
    let one =
        |word: &str| word.strip_suffix("ies").map_or_else(|| word.to_owned(), |stem| format!("{stem}y"));
    let lower = one(&lower);
    words
        .map(|word| (strsim::damerau_levenshtein(&lower, &one(&word.to_lowercase())), word))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Returns the end of a message about an unknown word: the most similar word, or all possible ones.
pub(crate) fn instead<'w>(found: &str, words: impl Iterator<Item = &'w str> + Clone) -> String {
    match nearest(found, words.clone()) {
        Some(word) => format!("; did you mean \"{word}\"?"),
        None => format!("; possible are {}", words.collect::<Vec<_>>().join(", ")),
    }
}
