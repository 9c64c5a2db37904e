//! Rule: no conflict marker in any tracked text.
//!
//! `<<<<<<<`, `>>>>>>>` and `|||||||` at the start of a line are always markers. `=======` alone on a line is one too,
//! except in Markdown under a line of text, where it underlines a heading.

use super::allowed::Allowed;
use super::fault::Fault;
use super::tree::Tree;

/// How often git repeats the character of a marker.
const LENGTH: usize = 7;

pub(crate) fn check(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (path, text) in tree.texts() {
        let (mut before, mut open) = ("", false);
        for (index, line) in text.lines().enumerate() {
            let marker = marker(line);
            open |= marker == Some('<');
            let underlines = path.ends_with(".md") && !open && !before.trim().is_empty();
            if marker.is_some_and(|sign| sign != '=' || !underlines) {
                let what = "a conflict marker; settle what the merge left open, and remove the line";
                faults.push(Fault::new(path, index + 1, what));
            }
            open &= marker != Some('>');
            before = line;
        }
    }
    faults
}

/// Returns the repeated character, if a line looks like a marker.
fn marker(line: &str) -> Option<char> {
    let sign = line.chars().next().filter(|sign| "<>|=".contains(*sign))?;
    let rest = line.trim_start_matches(sign);
    let ends = rest.is_empty() || sign != '=' && rest.starts_with(' ');
    (line.len() - rest.len() == LENGTH && ends).then_some(sign)
}

#[cfg(test)]
mod tests {
    use super::LENGTH;
    use crate::tidy::found;

    fn lines(path: &str, text: &str) -> Vec<String> {
        // Written with one character each, so that this file contains no marker itself.
        let text: Vec<String> = text
            .lines()
            .map(|line| match line.chars().next() {
                Some(sign) if "<>|=".contains(sign) => sign.to_string().repeat(LENGTH) + &line[1..],
                _ => line.to_owned(),
            })
            .collect();
        found("conflict-markers", &[(path, &text.join("\n"))], "")
    }

    #[test]
    fn markers_are_found_in_code_and_in_prose() {
        for path in ["src/lib.rs", "docs/page.md"] {
            let found = lines(path, "one\n< HEAD\ntwo\n=\nthree\n> branch\nfour");
            assert_eq!(found.len(), 3, "{found:?}");
            assert!(found[0].starts_with(&format!("{path}:2: a conflict marker")), "{found:?}");
        }
        assert_eq!(lines("a.txt", "text\n=\nmore").len(), 1);
        assert_eq!(lines("a.md", "text\n\n=\nmore").len(), 1);
    }

    #[test]
    fn a_title_in_markdown_may_be_underlined() {
        assert!(lines("docs/page.md", "A title\n=\ntext").is_empty());
        assert!(lines("src/lib.rs", "// ====\n<T>\n=== a\n").is_empty());
    }
}
