//! Rule: no unused file.
//!
//! A Rust file is used if a target reaches it by `mod`. A page, a picture, an example or a fixture is used if a page
//! links to it, or another tracked file names it: by its path, its folder and name, or from the same folder by its
//! name.

use std::collections::BTreeSet;
use std::path::Path;

use super::fault::{Allowed, Fault};
use super::markdown::links;
use super::modules::{Modules, plain};
use super::packages::packages;
use super::tree::Tree;

const PICTURES: [&str; 6] = [".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp"];

pub(crate) fn check(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut reached = BTreeSet::new();
    let packages = packages(tree);
    for root in packages.iter().flat_map(|package| &package.roots) {
        let modules = Modules::of(tree, root, false);
        reached.extend(modules.all.iter().map(|module| module.file));
        faults.extend(modules.missing.iter().map(|missing| {
            let what =
                format!("module `{}` has no tracked file; git add it, or remove the line", missing.name);
            Fault::new(missing.file, missing.line, what)
        }));
    }
    for path in tree.rust().filter(|path| !reached.contains(path)) {
        let what = "no `mod` leads here, so no compiler sees it; name it in its parent, or remove it";
        faults.push(Fault::new(path, 1, what));
    }
    let linked: BTreeSet<String> = tree.texts().flat_map(|(path, text)| targets(path, text)).collect();
    for path in tree.paths().filter(|path| is_used_by_name(path)) {
        if !linked.contains(path) && !named(tree, path) {
            faults.push(Fault::new(
                path,
                1,
                "nothing links to it or names it; link it where it helps, or remove it",
            ));
        }
    }
    faults
}

/// Returns whether a file has to be named by another one. Cargo, git and test runners find the other kinds by
/// themselves.
fn is_used_by_name(path: &str) -> bool {
    let folders = ["docs", "examples", "fixtures", "peers", "images"];
    let folder = path.split('/').rev().skip(1).any(|folder| folders.contains(&folder));
    !path.ends_with(".rs") && (folder || PICTURES.iter().any(|end| path.ends_with(end)))
}

/// Lists the tracked files that a page links to; a link to a folder means its README.
fn targets(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".md") {
        return Vec::new();
    }
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let targets = links(text).filter_map(|target| plain(&folder.join(target)));
    let targets = targets.flat_map(|target| [target.join("README.md"), target]);
    targets.filter_map(|target| target.to_str().map(str::to_owned)).filter(|target| target != path).collect()
}

fn named(tree: &Tree, path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let with_folder = format!("{}/{name}", folder.rsplit('/').next().unwrap_or_default());
    // `README.md` alone is ambiguous, so its folder has to be named too.
    tree.texts().filter(|(other, _)| *other != path).any(|(other, text)| {
        let beside = other.rsplit_once('/').map_or("", |(folder, _)| folder);
        has(text, path)
            || has(text, &with_folder)
            || beside == folder && name != "README.md" && has(text, name)
    })
}

fn has(text: &str, name: &str) -> bool {
    let part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-');
    text.match_indices(name).any(|(at, _)| {
        let rest = &text[at + name.len()..];
        let longer = rest.strip_prefix('.').unwrap_or(rest).starts_with(part);
        !text[..at].ends_with(part) && !longer
    })
}

#[cfg(test)]
mod tests {
    use crate::tidy::found;

    const MANIFEST: (&str, &str) = ("a/Cargo.toml", "[package]\nname = \"a\"\n");

    #[test]
    fn a_rust_file_that_no_mod_names_is_found_and_a_mod_without_a_file() {
        let files = [
            MANIFEST,
            ("a/src/lib.rs", "mod used;\nmod gone;"),
            ("a/src/used.rs", "#[cfg(test)] mod tests;"),
            ("a/src/used/tests.rs", ""),
            ("a/src/left.rs", ""),
            ("a/tests/one.rs", "mod help;"),
            ("a/tests/help/mod.rs", ""),
            ("a/tests/old/mod.rs", ""),
        ];
        let found = found("dead-files", &files, "");
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found[0].starts_with("a/src/left.rs:1: no `mod` leads here"));
        assert!(found[1].starts_with("a/src/lib.rs:2: module `gone` has no tracked file"));
        assert!(found[2].starts_with("a/tests/old/mod.rs:1: "));
    }

    #[test]
    fn a_page_a_picture_or_a_fixture_that_nothing_names_is_found() {
        let files = [
            MANIFEST,
            ("README.md", "[manual](docs/manual.md#start) and [examples](examples/)"),
            ("docs/manual.md", "![](images/flow.svg) and lonely.md.txt"),
            ("docs/lonely.md", "[lonely](lonely.md)"),
            ("docs/images/flow.svg", ""),
            ("docs/images/old.svg", ""),
            ("examples/README.md", "takes `access.log`"),
            ("examples/access.log", ""),
            ("a/tests/t.rs", "const F: &str = include_str!(\"fixtures/v1.txt\");"),
            ("a/tests/fixtures/v1.txt", ""),
            ("a/tests/fixtures/v0.txt", ""),
        ];
        let found = found("dead-files", &files, "");
        let paths: Vec<&str> = found.iter().filter_map(|fault| fault.split(':').next()).collect();
        assert_eq!(paths, ["a/tests/fixtures/v0.txt", "docs/images/old.svg", "docs/lonely.md"], "{found:#?}");
    }
}
