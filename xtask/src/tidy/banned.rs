//! Rules on what has a better substitute here: calls and words.

use std::collections::BTreeSet;

use super::code::{Code, Mention};
use super::fault::{Allowed, Fault};
use super::modules::{Module, Modules};
use super::packages::packages;
use super::tree::Tree;
use Where::{Everywhere, Product, Tests};

// Rule: bans calls that have a better substitute here, if clippy cannot decide where they are allowed.
//
// `clippy.toml` lists the calls that are banned everywhere. This rule distinguishes tests, the product and benches,
// and covers the fuzz targets, which a stable compiler does not build.

/// Where a call is banned.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    Everywhere,
    /// The code that users run: the sources of the crates, without tests.
    Product,
    Tests,
}

const UNFINISHED: &str = "write what is missing, or leave the branch out";
const PRINTING: &str =
    "return the text; in tidegate-cli print through `output`, which writes out what a terminal acts on";
const WAITING: &str =
    "turn a clock by hand (`ManualClock`, tokio's paused time), or wait for the event itself";
const READING: &str = "it has no bound and follows a pipe for ever; read as `reading` and `aside` do";

/// Macros by name, functions by full path.
const BANNED: [(&str, Where, &str); 15] = [
    ("todo!", Everywhere, UNFINISHED),
    ("unimplemented!", Everywhere, UNFINISHED),
    ("dbg!", Everywhere, "remove it; a test that fails says what it saw in its assertion"),
    ("print!", Product, PRINTING),
    ("println!", Product, PRINTING),
    ("eprint!", Product, PRINTING),
    ("eprintln!", Product, PRINTING),
    ("std::sync::mpsc::channel", Product, "every queue has a bound; use sync_channel"),
    ("tokio::sync::mpsc::unbounded_channel", Product, "every queue has a bound; use channel"),
    ("std::thread::sleep", Tests, WAITING),
    ("tokio::time::sleep", Tests, WAITING),
    ("tokio::time::sleep_until", Tests, WAITING),
    ("std::fs::read", Product, READING),
    ("std::fs::read_to_string", Product, READING),
    ("std::fs::write", Product, "a reader may see half of it; write as `writing` does, whole or not at all"),
];

/// An exception is named `path: call`, as in `crates/a/src/b.rs: println!`.
pub(crate) fn banned_calls(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let mut faults = BTreeSet::new();
    for package in packages(tree) {
        let sources: Vec<&str> = package.sources().collect();
        for root in &package.roots {
            let product = sources.contains(root) && root.starts_with("crates/");
            let test = root.strip_prefix(package.dir).is_some_and(|root| root.starts_with("tests/"));
            for module in Modules::of(tree, root, test).all {
                faults.extend(banned_in(&module, product, allowed));
            }
        }
    }
    faults.into_iter().collect()
}

fn banned_in(module: &Module<'_>, product: bool, allowed: &Allowed<'_>) -> Vec<Fault> {
    let code = Code::of(module.items, module.test);
    let banned = |mention: &Mention| {
        let call =
            if mention.is_macro { mention.path.last()?.clone() + "!" } else { code.whole(&mention.path) };
        let (_, place, instead) = BANNED.iter().find(|(name, ..)| *name == call)?;
        let here = match place {
            Everywhere => true,
            Product => product && !mention.test,
            Tests => mention.test,
        };
        let fault = || Fault::new(module.file, mention.line, format!("`{call}`: {instead}"));
        (here && !allowed.allows(&format!("{}: {call}", module.file))).then(fault)
    };
    code.mentions.iter().filter_map(banned).collect()
}

// Rule: bans words from all tracked text: paths of one machine, hosts of package registries, notes to oneself.

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
pub(crate) fn banned_words(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| !path.ends_with(".lock")) {
        let found: Vec<(usize, (String, &str))> =
            text.lines().enumerate().filter_map(|(index, line)| Some((index, banned_word(line)?))).collect();
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

fn banned_word(line: &str) -> Option<(String, &'static str)> {
    if let Some((word, instead)) = WORDS.into_iter().find(|(word, _)| stands_in(line, word)) {
        return Some((word.to_owned(), instead));
    }
    let hosts = HOSTS.map(|(name, end)| format!("{name}.{end}"));
    Some((hosts.into_iter().find(|host| line.contains(host))?, REGISTRY))
}

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
    use super::{BANNED, HOSTS, REGISTRY, WORDS, Where};
    use crate::tidy::found;

    const MANIFEST: (&str, &str) = ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");

    #[test]
    fn each_call_is_found_where_it_is_banned() {
        for (call, place, instead) in BANNED {
            let body = format!("fn f() {{\n    {call}();\n}}\n");
            let (path, other) = match place {
                Where::Everywhere => ("crates/a/examples/e.rs", None),
                Where::Product => ("crates/a/src/lib.rs", Some("crates/a/tests/t.rs")),
                Where::Tests => ("crates/a/tests/t.rs", Some("crates/a/src/lib.rs")),
            };
            let faults = found("banned-calls", &[MANIFEST, (path, &body)], "");
            assert_eq!(faults, [format!("{path}:2: `{call}`: {instead}")]);
            if let Some(other) = other {
                assert!(
                    found("banned-calls", &[MANIFEST, (other, &body)], "").is_empty(),
                    "{call} in {other}"
                );
            }
        }
    }

    #[test]
    fn imports_are_followed_and_tests_beside_the_code_are_tests() {
        let text = "use std::fs;\nfn f() { fs::read(1); }\n#[cfg(test)]\nmod tests {\n    use tokio::time::sleep;\n    \
                fn g() { println!(); sleep(2) }\n}\n";
        let files = [MANIFEST, ("crates/a/src/lib.rs", text)];
        let faults = found("banned-calls", &files, "");
        assert_eq!(faults.len(), 2, "{faults:#?}");
        assert!(faults[0].starts_with("crates/a/src/lib.rs:2: `std::fs::read`"));
        assert!(faults[1].starts_with("crates/a/src/lib.rs:6: `tokio::time::sleep`"));
        let reason = "[banned-calls]\n\"crates/a/src/lib.rs: std::fs::read\" = \"a file of the kernel\"\n";
        assert_eq!(found("banned-calls", &files, reason).len(), 1);
    }

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
