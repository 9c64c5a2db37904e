//! Writes the JSON of answers by hand, the same bytes as the library's: bodies are made for each refusal, most of their
//! bytes are known beforehand, and the library looks at each one for what it has to escape.
//!
//! Names of members, and other text that needs no escapes, are pushed as they are.

/// Appends a text in quotes.
pub fn push_text(text: &str, out: &mut String) {
    let (start, mut rest) = (out.len(), text);
    out.push('"');
    loop {
        let (plain, after) = rest.split_at(plain_length(rest.as_bytes()));
        out.push_str(plain);
        match after.as_bytes().first() {
            None => break,
            Some(b'"') => out.push_str(r#"\""#),
            Some(b'\\') => out.push_str(r"\\"),
            // Control characters, which have several forms: the library writes them.
            Some(_) => {
                out.truncate(start);
                // Text is always JSON.
                out.push_str(&serde_json::to_string(text).unwrap_or_default());
                return;
            }
        }
        rest = after.get(1..).unwrap_or_default();
    }
    out.push('"');
}

/// Returns how many bytes come before the first that is escaped: a control character, a quote or a backslash. Looks at
/// eight bytes at a time.
fn plain_length(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    let (words, rest) = text.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // Its lowest byte with a high bit is the first byte that is less than `than`; what comes after it may be wrong.
        let less = |word: u64, than: u64| word.wrapping_sub(ONES * than) & !word;
        let odd = less(word, 32) | less(word ^ (ONES * 0x22), 1) | less(word ^ (ONES * 0x5c), 1);
        if odd & HIGH != 0 {
            return 8 * at + (odd & HIGH).trailing_zeros() as usize / 8;
        }
    }
    8 * words.len() + rest.iter().take_while(|byte| !matches!(**byte, 0..b' ' | b'"' | b'\\')).count()
}

/// Appends a number; `null` without one.
pub fn push_number(number: impl Into<Option<u64>>, out: &mut String) {
    match number.into() {
        Some(number) => out.push_str(itoa::Buffer::new().format(number)),
        None => out.push_str("null"),
    }
}

/// Appends a list of texts.
pub fn push_texts<'t>(texts: impl IntoIterator<Item = &'t str>, out: &mut String) {
    out.push('[');
    for (at, text) in texts.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        push_text(text, out);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_what_the_library_writes(
            texts in proptest::collection::vec(".{0,30}|[ -~\u{7f}-\u{81}]{0,40}|\\PC*", 0..4),
            number: Option<u64>,
        ) {
            let mut out = String::new();
            push_texts(texts.iter().map(String::as_str), &mut out);
            prop_assert_eq!(&out, &serde_json::to_string(&texts).unwrap());
            out.clear();
            push_number(number, &mut out);
            prop_assert_eq!(&out, &serde_json::to_string(&number).unwrap());
        }
    }

    #[test]
    fn each_character_is_escaped_as_by_the_library() {
        for char in (0..=0x2029_u32).filter_map(char::from_u32) {
            for text in [format!("a{char}b"), format!("abcdef{char}ghijklmnop"), format!("\"{char}\\")] {
                let mut out = String::new();
                push_text(&text, &mut out);
                assert_eq!(out, serde_json::to_string(&text).unwrap());
            }
        }
    }
}
