//! A report, not a rule: small files with at most one user, which may be better off in that file.
//!
//! It lists the Rust files of the crates' sources that have fewer than 60 lines, the smallest first, with the one file
//! that uses them (see `rings` for what a use is). A file that none uses by name has methods only, or is for other
//! crates: then its parent stands there. Roots of targets, files with children of their own and tests are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Module, Modules};
use super::packages::{Package, packages};
use super::rings;
use super::tree::Tree;

const SMALL: usize = 60;

pub(crate) fn report(tree: &Tree) -> String {
    let mut users: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let (graph, _) = rings::graph(tree);
    graph.keys().for_each(|(from, to)| _ = users.entry(to).or_default().insert(from));
    let mut small = BTreeSet::new();
    for root in
        packages(tree).iter().filter(|package| package.dir.starts_with("crates/")).flat_map(Package::sources)
    {
        let modules = Modules::of(tree, root, false).all;
        for module in modules.iter().filter(|module| !module.test) {
            let parent =
                module.parent.map(|parent| modules[parent].file).filter(|parent| *parent != module.file);
            let Some(parent) = parent else { continue };
            let own = |child: &Module<'_>| !child.test && child.file != module.file;
            if module.children.iter().any(|(_, child)| own(&modules[*child])) {
                continue;
            }
            let lines = tree.text(module.file).unwrap_or_default().lines().count();
            let users: Vec<&str> = users.get(module.file).into_iter().flatten().copied().collect();
            let told = match users[..] {
                [] => format!("no user by name; its parent is {parent}"),
                [user] => format!("only {user} uses it"),
                _ => continue,
            };
            if lines < SMALL {
                small.insert((lines, module.file, told));
            }
        }
    }
    let mut report = String::new();
    for (lines, file, told) in &small {
        report += &format!("{file}: {lines} lines; {told}\n");
    }
    report + &format!("small-files: {}; merge a file where it is read together with that one\n", small.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_with_at_most_one_user_are_listed_with_it() {
        let long = "//\n".repeat(SMALL);
        let lib = "mod one; mod two; mod both; mod long; mod methods; mod folder; #[cfg(test)] mod tests; use long::L; use both::B;";
        let report = report(&Tree::made(&[
            ("crates/c/Cargo.toml", "[package]\nname = \"c\"\n"),
            ("crates/c/src/lib.rs", lib),
            ("crates/c/src/one.rs", "//! One.\npub(crate) struct One;\n"),
            ("crates/c/src/two.rs", "use crate::{one::One, both::B}; pub(crate) struct Two;"),
            ("crates/c/src/both.rs", "pub(crate) struct B;"),
            ("crates/c/src/long.rs", &(long + "pub(crate) struct L;")),
            ("crates/c/src/methods.rs", "impl super::one::Hidden {\n\n}\n"),
            ("crates/c/src/folder.rs", "mod child;"),
            ("crates/c/src/folder/child.rs", "//! \n//!\n//!\n"),
            ("crates/c/src/tests.rs", ""),
            ("xtask/Cargo.toml", "[package]\nname = \"xtask\"\n"),
            ("xtask/src/main.rs", "mod step;"),
            ("xtask/src/step.rs", ""),
        ]));
        let expected = "crates/c/src/two.rs: 1 lines; no user by name; its parent is crates/c/src/lib.rs\n\
                        crates/c/src/one.rs: 2 lines; only crates/c/src/two.rs uses it\n\
                        crates/c/src/folder/child.rs: 3 lines; no user by name; its parent is crates/c/src/folder.rs\n\
                        crates/c/src/methods.rs: 3 lines; no user by name; its parent is crates/c/src/lib.rs\n\
                        small-files: 4; merge a file where it is read together with that one\n";
        assert_eq!(report, expected);
    }
}
