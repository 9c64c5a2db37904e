//! Writes the JSON of answers by hand, the same bytes as the library's: bodies are made for each refusal, most of their
//! bytes are known beforehand, and the library looks at each one for what it has to escape.
//!
//! Names of members, and other text that needs no escapes, are pushed as they are.

/// Appends a text in quotes.
pub fn push_text(text: &str, out: &mut String) {
    out.push('"');
    if is_plain(text.as_bytes()) {
        out.push_str(text);
        out.push('"');
        return;
    }
    let (start, mut rest) = (out.len(), text);
    while let Some(at) = rest.bytes().position(is_escaped) {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        match after.as_bytes().first() {
            Some(b'"') => out.push_str(r#"\""#),
            Some(b'\\') => out.push_str(r"\\"),
            // Control characters, which have several forms: the library writes them.
            _ => {
                out.truncate(start - 1);
                // Text is always JSON.
                out.push_str(&serde_json::to_string(text).unwrap_or_default());
                return;
            }
        }
        rest = after.get(1..).unwrap_or_default();
    }
    out.push_str(rest);
    out.push('"');
}

const fn is_escaped(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}

/// Returns whether nothing in a text is escaped. Looks at eight bytes at a time.
fn is_plain(text: &[u8]) -> bool {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    let (words, rest) = text.as_chunks::<8>();
    let mut odd = 0;
    for word in words {
        let word = u64::from_ne_bytes(*word);
        // Has a byte whose high bit is set if, and only if, some byte is less than `than`.
        let less = |word: u64, than: u64| word.wrapping_sub(ONES * than) & !word;
        odd |= less(word, 32) | less(word ^ (ONES * 0x22), 1) | less(word ^ (ONES * 0x5c), 1);
    }
    odd & HIGH == 0 && !rest.iter().copied().any(is_escaped)
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
