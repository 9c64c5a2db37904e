//! Which word an author probably meant.

use super::budget;

/// Returns the likeliest word meant, if any is near.
pub(super) fn nearest<'w>(found: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // Comparing takes time in proportion to the length; no word of ours is as long.
    if found.len() > budget::WORD {
        return None;
    }
    // A third of the letters may be wrong: `Shangai` is near, `fnord` is not.
    let allowed = (found.chars().count() / 3).max(1);
    let lower = found.to_lowercase();
    // One and many of a thing are near, though `policy` and `policies` differ in more than a third.
    let one =
        |word: &str| word.strip_suffix("ies").map_or_else(|| word.to_owned(), |stem| format!("{stem}y"));
    let lower = one(&lower);
    words
        .map(|word| (strsim::damerau_levenshtein(&lower, &one(&word.to_lowercase())), word))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Ends a sentence about an unknown word: with the likeliest one, or with all that are possible.
pub(super) fn instead<'w>(found: &str, words: impl Iterator<Item = &'w str> + Clone) -> String {
    match nearest(found, words.clone()) {
        Some(word) => format!("; did you mean \"{word}\"?"),
        None => format!("; possible are {}", words.collect::<Vec<_>>().join(", ")),
    }
}
