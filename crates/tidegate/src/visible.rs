//! Text from elsewhere, made safe to show: a terminal acts on some characters instead of drawing them.
//!
//! A log line, a policy's name or a server's answer may hold escape sequences that move the cursor, retitle the window or
//! answer as if typed, and direction marks that make a line read as another. Everything printed for people goes through
//! here once, at the edge where it is printed. The characters are replaced by how Rust writes them, as `\u{1b}`, so that
//! whoever reads sees that they were there.
//!
//! Letters that look alike, and characters without width, are left as they are.

use std::borrow::Cow;

/// Says whether a terminal acts on a character instead of drawing it: C0, DEL and C1 controls, the marks and overrides of
/// direction, and the separators of lines and paragraphs.
pub(crate) fn is_acted_on(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Makes a text safe to show in one line, such as a name or a message: line ends and tabs are replaced too.
///
/// Borrows when there is nothing to replace.
///
/// # Examples
/// ```
/// assert_eq!(tidegate::visible::line("a\u{1b}]0;title\u{7}\n"), r"a\u{1b}]0;title\u{7}\n");
/// assert_eq!(tidegate::visible::line("Zürich"), "Zürich");
/// ```
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    replaced(text, |_| false, |char, out| out.extend(char.escape_default()))
}

/// Makes a text of several lines safe to show: as [`line()`], but line ends and tabs are kept.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    replaced(text, |char| matches!(char, '\n' | '\t'), |char, out| out.extend(char.escape_default()))
}

/// Makes a JSON text safe to show without changing its value: the characters that [`line()`] replaces, which JSON allows within its strings
/// only, become `\uXXXX`. Line ends and tabs are kept.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    use std::fmt::Write as _;
    replaced(
        text,
        |char| matches!(char, '\n' | '\t'),
        |char, out| {
            // Writing to a string does not fail. All the characters replaced lie below U+10000, so each is one unit of UTF-16.
            let _ = write!(out, "\\u{:04x}", u32::from(char));
        },
    )
}

/// Quotes an outsider's words in a message: escaped as in a Rust literal, and cut to 60 characters, which fit a sentence.
///
/// # Examples
/// ```
/// assert_eq!(tidegate::visible::excerpt("say \"hi\"\n"), r#"say \"hi\"\n"#);
/// assert_eq!(tidegate::visible::excerpt(&"é".repeat(1000)), "é".repeat(60) + "…");
/// ```
#[must_use]
pub fn excerpt(words: &str) -> String {
    const SHOWN: usize = 60;
    match words.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", words[..end].escape_debug()),
        None => words.escape_debug().to_string(),
    }
}

/// Writes an outsider's name for people who read a table: as [`line()`], and cut to 80 characters, so that one name does not widen all rows.
///
/// # Examples
/// ```
/// assert_eq!(tidegate::visible::name("203.0.113.9"), "203.0.113.9");
/// assert_eq!(tidegate::visible::name(&"k".repeat(5_000)), "k".repeat(80) + "…");
/// ```
#[must_use]
pub fn name(name: &str) -> Cow<'_, str> {
    const SHOWN: usize = 80;
    match name.char_indices().nth(SHOWN) {
        Some((end, _)) => Cow::Owned(line(&name[..end]).into_owned() + "…"),
        None => line(name),
    }
}

fn replaced(text: &str, kept: fn(char) -> bool, replace: fn(char, &mut String)) -> Cow<'_, str> {
    let hidden = |char: char| is_acted_on(char) && !kept(char);
    let Some(first) = text.find(hidden) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for char in text[first..].chars() {
        if hidden(char) { replace(char, &mut out) } else { out.push(char) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What no terminal may get: everything that terminals are known to act on.
    const HOSTILE: &str = "\u{0}\u{7}\u{8}\r\u{b}\u{c}\u{1b}[2J\u{7f}\u{85}\u{9b}31m\u{9d}0;x\u{9c}\u{202e}gpj\u{2066}\u{2069}\u{200f}\u{2028}";

    #[test]
    fn what_a_terminal_acts_on_is_written_out() {
        let shown = line(HOSTILE);
        assert!(!shown.chars().any(is_acted_on), "{shown}");
        assert!(shown.starts_with(r"\u{0}\u{7}\u{8}\r\u{b}\u{c}\u{1b}[2J\u{7f}\u{85}\u{9b}31m"), "{shown}");
        assert_eq!(lines("a\n\tb\rc"), "a\n\tb\\rc");
        for plain in ["", "per-ip", "Zürich 東京 🚦", "\u{ad}"] {
            assert!(matches!(line(plain), Cow::Borrowed(text) if text == plain));
        }
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({ HOSTILE: [HOSTILE, "plain"] });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = json(&text);
        assert!(!shown.chars().any(|char| is_acted_on(char) && char != '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
