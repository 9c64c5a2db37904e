//! Rule: bans words from all tracked text: paths of one machine, hosts of package registries, notes to oneself.

use super::allowed::Allowed;
use super::fault::Fault;
use super::tree::Tree;

const MACHINE: &str =
    "a place on one machine; say it from the root of the workspace, or take it from an argument";
const REGISTRY: &str =
    "the host of a package registry; cargo's own configuration says where packages come from";
const NOTE: &str = "a note to oneself; do it now, or open an issue and leave the line out";

/// Folders of users' files, and notes to oneself: the word to search for, and what to do instead.
const WORDS: [(&str, &str); 7] = [
    ("/home/", MACHINE),
    ("/root/", MACHINE),
    ("/Users/", MACHINE),
    ("C:\\Users", MACHINE),
    ("TODO", NOTE),
    ("FIXME", NOTE),
    ("XXX", NOTE),
];

/// Hosts of package registries, split so that this list does not violate the rule itself.
const HOSTS: [(&str, &str); 4] =
    [("crates", "io"), ("npmjs", "org"), ("pypi", "org"), ("pythonhosted", "org")];

/// An exception is named by the path of a file, which may then contain all of these words.
pub(crate) fn check(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| !path.ends_with(".lock")) {
        let found: Vec<(usize, (String, &str))> =
            text.lines().enumerate().filter_map(|(index, line)| Some((index, banned(line)?))).collect();
        if found.is_empty() || allowed.allows(path) {
            continue;
        }
        faults.extend(
            found
                .into_iter()
                .map(|(index, (word, instead))| Fault::new(path, index + 1, format!("`{word}`: {instead}"))),
        );
    }
    faults
}

/// Returns the first banned word or host of a line, and what to do instead.
fn banned(line: &str) -> Option<(String, &'static str)> {
    if let Some((word, instead)) = WORDS.into_iter().find(|(word, _)| stands_in(line, word)) {
        return Some((word.to_owned(), instead));
    }
    let hosts = HOSTS.map(|(name, end)| format!("{name}.{end}"));
    Some((hosts.into_iter().find(|host| line.contains(host))?, REGISTRY))
}

/// Returns whether a line contains a word that is not part of a longer one.
fn stands_in(line: &str, word: &str) -> bool {
    let part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | '}' | '*');
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let open = word.ends_with('/') || word.ends_with("Users");
        !before.is_some_and(part)
            && (open || !after.is_some_and(|letter| letter.is_alphanumeric() || letter == '_'))
    })
}

#[cfg(test)]
mod tests {
    use super::{HOSTS, REGISTRY, WORDS};
    use crate::tidy::found;

    #[test]
    fn every_word_is_found_in_any_text() {
        let hosts = HOSTS.map(|(name, end)| (format!("{name}.{end}"), REGISTRY));
        let words = WORDS.map(|(word, instead)| (word.to_owned(), instead));
        for (word, instead) in words.into_iter().chain(hosts) {
            // A preceding part of the host's name does not hide it.
            let before = if instead == REGISTRY { "https://static." } else { "" };
            let text = format!("first\nsee {before}{word} there\n");
            let found = found("banned-words", &[("docs/page.md", &text)], "");
            assert_eq!(found, [format!("docs/page.md:2: `{word}`: {instead}")]);
        }
    }

    #[test]
    fn a_part_of_a_longer_word_is_another_word_and_a_file_may_be_excepted() {
        let paths = WORDS[0].0;
        let text = format!("https://example.com{paths}page {}S {}/x", WORDS[4].0, "/homes");
        assert!(found("banned-words", &[("a.md", &text)], "").is_empty());
        let excepted = "[banned-words]\n\"a.md\" = \"tells of homes\"\n";
        assert!(found("banned-words", &[("a.md", &format!("in {paths}one"))], excepted).is_empty());
    }
}
