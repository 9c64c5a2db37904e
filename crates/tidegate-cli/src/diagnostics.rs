//! Prints the mistakes in policy files: on a terminal with a mark below the place, otherwise one line each, which tools
//! can parse.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use tidegate::config::{Diagnostic, Severity};
use tidegate::visible;

/// The longest line that is shown, in characters: a file may consist of a single line of megabytes.
const LONGEST_LINE: usize = 400;

/// The name of a file as in the diagnostics, and its text, if it could be read.
pub(crate) type NamedText = (String, Option<String>);

/// Returns diagnostics with their source lines, styled for a terminal and safe to print.
pub(crate) fn with_lines(diagnostics: &[Diagnostic], sources: &[NamedText]) -> String {
    diagnostics.iter().map(|one| with_line(one, sources)).collect()
}

fn with_line(one: &Diagnostic, sources: &[NamedText]) -> String {
    let level = match one.severity {
        Severity::Error => Level::ERROR,
        Severity::Warn => Level::WARNING,
    };
    let message = visible::line(&one.message);
    let path = visible::line(&one.path);
    let source = sources.iter().find(|(name, _)| *name == one.path).and_then(|(_, text)| text.as_deref());
    let line = source.and_then(|text| text.lines().nth(one.line.checked_sub(1)?)).and_then(shown);
    let group = match line {
        Some(line) => {
            let place = marked(&line, one.column);
            let snippet = Snippet::source(line).line_start(one.line).path(path);
            level.primary_title(message).element(snippet.annotation(AnnotationKind::Primary.span(place)))
        }
        None if one.line == 0 => Group::with_title(level.primary_title(format!("{path}: {message}"))),
        None => {
            let place = format!("{path}:{}:{}", one.line, one.column);
            Group::with_title(level.primary_title(format!("{place}: {message}")))
        }
    };
    format!("{}\n\n", Renderer::styled().render(&[group]))
}

/// Replaces all characters of a line that a terminal acts on, one by one, so that columns stay the same; `None` for a
/// line that is too long.
fn shown(line: &str) -> Option<String> {
    let is_short = line.chars().nth(LONGEST_LINE).is_none();
    let mut before = String::new();
    let mut safe = |char: char| {
        // Characters that join letters are harmless after some letters.
        let pair = format!("{before}{char}");
        before = char.to_string();
        let is_safe = char == '\t' || visible::line(&pair).ends_with(char);
        if is_safe { char } else { char::REPLACEMENT_CHARACTER }
    };
    is_short.then(|| line.chars().map(&mut safe).collect())
}

/// The word that starts at a column: a quoted text, a bracketed part, or a plain word with the words that belong to it.
fn marked(line: &str, column: usize) -> Range<usize> {
    let start = line.char_indices().nth(column.saturating_sub(1)).map_or(line.len(), |(at, _)| at);
    let rest = &line[start..];
    let length = match rest.chars().next() {
        Some(quote @ ('"' | '\'')) => rest[1..].find(quote).map(|end| end + 2),
        Some('{' | '[') => bracketed(rest),
        _ => {
            let ends = [",", "}", "]", ": ", " #"].into_iter().filter_map(|end| rest.find(end));
            ends.min()
        }
    };
    let word = &rest[..length.unwrap_or(rest.len())];
    start..start + word.trim_end().trim_end_matches(':').len()
}

/// Brackets included; `None` if they are not closed in the line.
fn bracketed(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, char) in text.char_indices() {
        match char {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use tidegate::config::{Config, Format};

    use super::*;

    fn printed(text: &str) -> String {
        let found = Config::parse(text, "t.yaml", Format::Yaml).unwrap_err();
        strip_str(&with_lines(&found, &[("t.yaml".to_owned(), Some(text.to_owned()))])).to_string()
    }

    #[test]
    fn the_place_is_marked_below_its_line() {
        let text = "version: 1\npolicies:\n  - name: per-ip\n    by: [request.path]\n    limit: { algorithm: gcra, rate: 100/M, bust: 200 } # é\n";
        assert_eq!(
            printed(text),
            "error: policy \"per-ip\": rate: \"M\" could be minute or month; write min or month
 --> t.yaml:5:37
  |
5 |     limit: { algorithm: gcra, rate: 100/M, bust: 200 } # é
  |                                     ^^^^^

error: policy \"per-ip\": unknown key \"bust\" in limit; did you mean \"burst\"?
 --> t.yaml:5:44
  |
5 |     limit: { algorithm: gcra, rate: 100/M, bust: 200 } # é
  |                                            ^^^^

"
        );
    }

    #[test]
    fn words_texts_and_brackets_are_marked_whole() {
        for (line, column, expected) in [
            ("  by: [client.ip]", 7, "[client.ip]"),
            ("  by: [client.ip]", 8, "client.ip"),
            ("  name: 'a, b' # x", 9, "'a, b'"),
            ("  limit: { rate: [1, {}] }", 10, "{ rate: [1, {}] }"),
            ("  limit: { rate: 1", 10, "{ rate: 1"),
            ("  name: two words # c", 9, "two words"),
            ("  http: 0.0.0.0:80", 9, "0.0.0.0:80"),
            ("  limits:", 3, "limits"),
            ("é: x", 4, "x"),
            ("x", 9, ""),
            ("", 1, ""),
        ] {
            assert_eq!(&line[marked(line, column)], expected, "{line}");
        }
    }

    /// Lines of a file are untrusted text, and a file may be one long line.
    #[test]
    fn lines_move_no_cursor_and_long_ones_are_left_out() {
        let drawn = printed("version: 1\npolicies: []\n\u{202e}\"x\\e\": \u{9b}2J\n");
        assert!(!drawn.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{drawn:?}");
        let long = format!("{{ version: 1, policies: [], x: {} }}", "y".repeat(1_000_000));
        let drawn = printed(&long);
        assert!(drawn.starts_with("error: t.yaml:1:29: unknown key \"x\"") && drawn.len() < 200, "{drawn}");
    }
}
