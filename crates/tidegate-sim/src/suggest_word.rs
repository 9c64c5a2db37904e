//! Suggests the nearest valid word in messages about an invalid one.

/// Returns "; did you mean `word`?" for the nearest of `words`, or an empty text if none is near.
pub(crate) fn nearest(wrong: &str, words: &[&str]) -> String {
    let near = tidegate_core::spelling::nearest(wrong, words.iter().copied());
    near.map_or_else(String::new, |word| format!("; did you mean `{word}`?"))
}

/// Returns "; did you mean `word`? use ...", with all of `words`; only "; use ..." if none is near.
pub(crate) fn possible(wrong: &str, words: &[&str]) -> String {
    nearest_and_forms(wrong, words, &words.join(", "))
}

/// Returns the same with `forms` in place of the words.
pub(crate) fn nearest_and_forms(wrong: &str, words: &[&str], forms: &str) -> String {
    let near = nearest(wrong, words);
    let stop = if near.is_empty() { ";" } else { "" };
    format!("{near}{stop} use {forms}")
}
