//! Makes untrusted text safe to show: terminals act on some characters instead of drawing them, and other characters
//! are invisible.
//!
//! Escape sequences move the cursor or inject input, direction marks change the order in which a line reads, and
//! zero-width characters make two names look the same. Everything printed for people passes through here once, where it
//! is printed. Such characters are replaced by Rust's escapes, such as `\u{1b}`.
//!
//! Joiners (U+200C, U+200D) and variation selectors (U+FE00 to U+FE0F) are kept where they may have an effect: behind a
//! character from U+0600 on, as in Persian words and emoji. Letters that look alike, and spaces of all widths, are
//! kept.

use std::borrow::Cow;

/// Returns whether a terminal acts on a character instead of drawing it: C0, DEL and C1 controls, direction marks and
/// overrides, and line and paragraph separators.
pub fn is_acted_on(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns whether a character is invisible in every context: those that Unicode allows programs to ignore by default,
/// without the joiners below.
fn is_invisible(char: char) -> bool {
    matches!(char,
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e00ff}' | '\u{e01f0}'..='\u{e0fff}')
}

fn is_joiner(char: char) -> bool {
    matches!(char, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}')
}

fn is_hidden(before: Option<char>, char: char) -> bool {
    // Nearly all characters that are shown.
    if matches!(char, ' '..='~') {
        return false;
    }
    // Latin, Greek, Cyrillic, Armenian and Hebrew letters lie below U+0600, and joiners have no effect on them.
    let may_join = || match before {
        // As in the rainbow flag: a variation selector, followed by a joiner.
        Some('\u{fe0f}') => char == '\u{200d}',
        Some(before) => before >= '\u{600}' && !is_joiner(before) && !is_invisible(before),
        None => false,
    };
    is_acted_on(char) || is_invisible(char) || (is_joiner(char) && !may_join())
}

/// Makes a text safe to show in one line, such as a name or a message: line ends and tabs are replaced too.
///
/// Borrows when there is nothing to replace.
///
/// # Examples
/// ```
/// assert_eq!(tidegate::visible::line("ad\u{200b}min\u{feff}"), r"ad\u{200b}min\u{feff}");
/// assert_eq!(tidegate::visible::line("a\u{1b}]0;title\u{7}\n"), r"a\u{1b}]0;title\u{7}\n");
/// assert_eq!(tidegate::visible::line("Zürich"), "Zürich");
/// ```
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    replaced(text, |_| false, |char, out| out.extend(char.escape_default()))
}

/// Makes a text of several lines safe to show: like [`line()`], but keeps line ends and tabs.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    replaced(text, |char| matches!(char, '\n' | '\t'), |char, out| out.extend(char.escape_default()))
}

/// Makes a JSON text safe to show without changing its value. The characters that [`line()`] replaces become one or two
/// `\uXXXX`; in valid JSON they occur only within strings. Line ends and tabs are kept.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    use std::fmt::Write as _;
    replaced(
        text,
        |char| matches!(char, '\n' | '\t'),
        |char, out| {
            for unit in char.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        },
    )
}

/// Quotes untrusted text in a message: escaped as in a Rust literal, and cut to 60 characters.
#[must_use]
pub fn excerpt(words: &str) -> String {
    const SHOWN: usize = 60;
    match words.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", words[..end].escape_debug()),
        None => words.escape_debug().to_string(),
    }
}

/// Formats an untrusted name for a table: like [`line()`], and cut to 80 characters, so that one name does not widen
/// all rows.
#[must_use]
pub fn name(name: &str) -> Cow<'_, str> {
    const SHOWN: usize = 80;
    match name.char_indices().nth(SHOWN) {
        Some((end, _)) => Cow::Owned(line(&name[..end]).into_owned() + "…"),
        None => line(name),
    }
}

fn replaced(text: &str, kept: fn(char) -> bool, replace: fn(char, &mut String)) -> Cow<'_, str> {
    let mut before = None;
    let hidden = |(at, char): (usize, char)| {
        let is_hidden = is_hidden(before.replace(char), char) && !kept(char);
        (at, char, is_hidden)
    };
    let mut chars = text.char_indices().map(hidden);
    let Some((first, char, _)) = chars.find(|(.., is_hidden)| *is_hidden) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    replace(char, &mut out);
    for (_, char, is_hidden) in chars {
        if is_hidden { replace(char, &mut out) } else { out.push(char) }
    }
    Cow::Owned(out)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    /// Everything that terminals are known to act on.
    const HOSTILE: &str = "\u{0}\u{7}\u{8}\r\u{b}\u{c}\u{1b}[2J\u{7f}\u{85}\u{9b}31m\u{9d}0;x\u{9c}\u{202e}gpj\u{2066}\u{2069}\u{200f}\u{2028}";

    #[test]
    fn what_a_terminal_acts_on_is_written_out() {
        let shown = line(HOSTILE);
        assert!(!shown.chars().any(is_acted_on), "{shown}");
        assert!(shown.starts_with(r"\u{0}\u{7}\u{8}\r\u{b}\u{c}\u{1b}[2J\u{7f}\u{85}\u{9b}31m"), "{shown}");
        assert_eq!(lines("a\n\tb\rc"), "a\n\tb\\rc");
        for plain in ["", "per-ip", "Zürich 東京 🚦", "e\u{301} a\u{a0}b"] {
            assert!(matches!(line(plain), Cow::Borrowed(text) if text == plain));
        }
    }

    /// Two keys that looked the same used to be two rows of one table.
    #[test]
    fn what_cannot_be_seen_is_written_out() {
        let rows = [
            ("\u{feff}per-ip", r"\u{feff}per-ip"),
            ("ad\u{200b}min", r"ad\u{200b}min"),
            ("soft\u{ad}hyphen", r"soft\u{ad}hyphen"),
            ("a\u{e0041}b", r"a\u{e0041}b"),
            // Joiners have no effect between these letters, at the start, or after one another.
            ("ad\u{200d}min\u{fe0f}", r"ad\u{200d}min\u{fe0f}"),
            ("\u{200c}", r"\u{200c}"),
            ("👩\u{200d}\u{200d}💻", "👩\u{200d}\\u{200d}💻"),
        ];
        for (text, shown) in rows {
            assert_eq!(line(text), shown);
        }
        for joined in ["می\u{200c}خواهم", "👩\u{200d}💻", "🏳\u{fe0f}\u{200d}🌈"] {
            assert!(matches!(line(joined), Cow::Borrowed(_)), "{joined}");
        }
    }

    #[test]
    fn json_keeps_its_value() {
        let unseen = "\u{feff}\u{e0041}\u{200d}";
        let value = serde_json::json!({ HOSTILE: [HOSTILE, "plain", unseen] });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = json(&text);
        assert!(!shown.chars().any(|char| is_hidden(None, char) && char != '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
