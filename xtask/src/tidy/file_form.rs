//! Rules on the form of files: what a reader or another rule needs of each.

use super::fault::{Allowed, Fault};
use super::tree::Tree;

// Rule: ARCHITECTURE.md is short enough to be read before the first change.

const FILE: &str = "ARCHITECTURE.md";

/// The most words: five minutes of reading.
const WORDS: usize = 1500;

pub(crate) fn architecture(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let words = tree.text(FILE).map_or(0, |text| text.split_whitespace().count());
    let what =
        format!("{words} words, more than {WORDS}; move what a newcomer need not know to a page under docs/");
    if words > WORDS { vec![Fault::new(FILE, 1, what)] } else { Vec::new() }
}

// Rule: no conflict marker in any tracked text.
//
// `<<<<<<<`, `>>>>>>>` and `|||||||` at the start of a line are always markers. `=======` alone on a line is one too,
// except in Markdown under a line of text, where it underlines a heading.

const LENGTH: usize = 7;

pub(crate) fn conflict_markers(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
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

// Rule: Rust files have at most 800 lines, tests included, unless an exception gives a reason.

/// The most lines of a file: what a reader takes in at one sitting, with documentation and tests.
const LINES: usize = 800;

pub(crate) fn file_length(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let lengths = tree.rust().map(|path| (path, tree.text(path).unwrap_or_default().lines().count()));
    let long = lengths.filter(|(path, lines)| *lines > LINES && !allowed.allows(path));
    let fault = |(path, lines)| {
        let what = format!(
            "{lines} lines, more than {LINES}; find the second job in it and give that its own file, or state in {} why not",
            super::fault::FILE
        );
        Fault::new(path, LINES + 1, what)
    };
    long.map(fault).collect()
}

// Rule: modules have one form, `foo.rs` beside `foo/`, in tests too: with `autotests = false` and a `tests/main.rs` that
// names its modules, cargo does not take `tests/foo.rs` for a program of its own.

pub(crate) fn module_form(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let modules = tree.rust().filter_map(|path| Some((path, path.strip_suffix("/mod.rs")?)));
    let fault = |(path, module): (&str, &str)| {
        let beside = module.rsplit_once('/').is_some_and(|(folder, _)| folder.ends_with("tests"));
        let beside = if beside { ", a module of tests/main.rs" } else { "" };
        Fault::new(path, 1, format!("the other form of module; name it {module}.rs{beside}"))
    };
    modules.map(fault).collect()
}

// Rule: every Rust file parses, including those that no build compiles, because the other rules skip a file that does
// not.

pub(crate) fn parses(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let errors = tree.rust().filter_map(|path| Some((path, tree.error(path)?)));
    let fault = |(path, error): (&str, &syn::Error)| {
        let what = format!("does not parse: {error}; the other rules see nothing in it until it does");
        Fault::new(path, error.span().start().line, what)
    };
    errors.map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::{LENGTH, LINES, WORDS};
    use crate::tidy::found;

    #[test]
    fn one_word_too_many_is_found() {
        let full = "word\n".repeat(WORDS);
        assert!(found("architecture", &[("ARCHITECTURE.md", &full)], "").is_empty());
        let found = found("architecture", &[("ARCHITECTURE.md", &(full + "more"))], "");
        assert!(found[0].starts_with("ARCHITECTURE.md:1: 1501 words"), "{found:?}");
    }

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

    #[test]
    fn a_long_file_is_found_unless_there_is_a_reason() {
        let (long, full) = ("//\n".repeat(LINES + 1), "//\n".repeat(LINES));
        let files = [("a/long.rs", &*long), ("a/full.rs", &*full), ("a/page.md", &*long)];
        let faults = found("file-length", &files, "");
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("a/long.rs:801: 801 lines, more than 800; "), "{faults:?}");
        assert!(found("file-length", &files, "[file-length]\n\"a/long.rs\" = \"one table\"\n").is_empty());
        let unused = found("file-length", &files[1..], "[file-length]\n\"a/full.rs\" = \"one table\"\n");
        assert_eq!(unused.len(), 1, "{unused:?}");
    }

    #[test]
    fn the_other_form_is_found_in_tests_too() {
        let files = [("a/src/b/mod.rs", ""), ("a/src/c.rs", ""), ("a/tests/help/mod.rs", "")];
        let expected = [
            "a/src/b/mod.rs:1: the other form of module; name it a/src/b.rs",
            "a/tests/help/mod.rs:1: the other form of module; name it a/tests/help.rs, a module of tests/main.rs",
        ];
        assert_eq!(found("module-form", &files, ""), expected);
    }

    #[test]
    fn a_file_that_does_not_parse_is_named_with_its_line() {
        let found =
            found("parses", &[("a.rs", "fn sound() {}\nfn un sound() {}\n"), ("b.rs", "fn b() {}")], "");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("a.rs:2: does not parse: "), "{found:?}");
    }
}
