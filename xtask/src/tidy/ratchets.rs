//! Rule: what the project shows and has to be kept may only get less. Numbers are counted from the tracked files and
//! compared with their record in `xtask/ratchets.toml`.
//!
//! A number above its record is a fault, and so is one below it, because the record would let it grow again. `cargo
//! xtask tidy --record` writes the numbers that fell. To raise one, change it by hand, with the reason beside it.
//!
//! | number | counts |
//! |---|---|
//! | `public-items.CRATE` | what a published library shows; see `public` |
//! | `async-twins` | methods of public types and traits that have a twin `.._async` beside them |
//! | `policy-keys` | names of keys that the policy file may have, each once |
//! | `limit-keys` | those of them that may stand directly under one `limit` |
//! | `serve-options` | flags of `serve` itself, without those of all verbs |
//! | `markdown-words` | words with a letter or a digit in the tracked pages, also in code blocks |
//! | `test-programs` | programs of integration tests: `[[test]]`, and what cargo finds under `tests/` |
//! | `locked-packages` | packages in the root's `Cargo.lock` |
//! | `program-packages` | packages that the default program is built of; see `program_packages` |
//! | `source-files` | Rust files under `crates/*/src/` |

mod declared;
pub(crate) mod program_packages;
mod public;

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};

use super::fault::{Allowed, Fault};
use super::packages::{Package, packages};
use super::tree::Tree;

const FILE: &str = "xtask/ratchets.toml";

pub(crate) fn check(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let fault = |line: usize, what: String| Fault::new(FILE, line, what);
    let record = match Record::read(tree.text(FILE).unwrap_or_default()) {
        Ok(record) => record,
        Err((line, what)) => return vec![fault(line, what)],
    };
    let counted = counted(tree);
    let mut faults = Vec::new();
    for (name, &now) in &counted {
        faults.extend(match record.of(name) {
            None => {
                Some(fault(1, format!("`{name}` has no record; it is {now}: add the line `{name} = {now}`")))
            }
            Some((line, most)) if now > most => Some(fault(
                line,
                format!(
                    "`{name}` is {now}, {} more than the {most} of its record; remove as much elsewhere, \
                     or write `{name} = {now}  # and the reason`",
                    now - most
                ),
            )),
            Some((line, most)) if now < most => Some(fault(
                line,
                format!(
                    "`{name}` is {now}, {} less than the {most} of its record; keep the gain: \
                     `cargo xtask tidy --record` writes the lower number",
                    most - now
                ),
            )),
            Some(_) => None,
        });
    }
    let uncounted = record.names().filter(|(_, name)| !counted.contains_key(*name));
    let what =
        |name| format!("nothing counts `{name}`; remove the line, or correct xtask/src/tidy/ratchets.rs");
    faults.extend(uncounted.map(|(line, name)| fault(line, what(name))));
    faults
}

pub(crate) fn record(tree: &Tree, file: &std::path::Path) -> Result<()> {
    let record = Record::read(tree.text(FILE).unwrap_or_default())
        .map_err(|(line, what)| anyhow!("{FILE}:{line}: {what}"))?;
    let (text, fell) = record.lowered(&counted(tree));
    for (name, most, now) in &fell {
        println!("{name}: {most} -> {now}");
    }
    if fell.is_empty() {
        println!("no number is below its record");
        return Ok(());
    }
    Ok(std::fs::write(file.join(FILE), text)?)
}

/// Counts all numbers. One that is defined in a place that is not found is missing.
fn counted(tree: &Tree) -> BTreeMap<String, usize> {
    let packages = packages(tree);
    let mut counted = BTreeMap::new();
    let mut twins = 0;
    for (package, library) in packages.iter().filter_map(|package| Some((package, library(package)?))) {
        let public = public::count(tree, library);
        counted.insert(format!("public-items.{}", package.name), public.items);
        twins += public.twins;
    }
    let sources = || tree.rust().filter(|path| path.starts_with("crates/") && path.contains("/src/"));
    let pages = tree.texts().filter(|(path, _)| path.ends_with(".md"));
    let words = pages.flat_map(|(_, text)| text.split_whitespace());
    let lock = tree.text("Cargo.lock").map(|lock| lock.lines().filter(|line| *line == "[[package]]").count());
    let numbers = [
        ("async-twins", Some(twins)),
        ("policy-keys", declared::policy_keys(tree, sources())),
        ("limit-keys", declared::limit_keys(tree, sources())),
        ("serve-options", declared::options(tree, "Serve")),
        ("markdown-words", Some(words.filter(|word| word.contains(char::is_alphanumeric)).count())),
        ("test-programs", Some(packages.iter().map(Package::test_programs).sum())),
        ("locked-packages", lock),
        ("program-packages", program_packages(tree)),
        ("source-files", Some(sources().count())),
    ];
    counted.extend(numbers.into_iter().filter_map(|(name, count)| Some((name.to_owned(), count?))));
    counted
}

/// `None` if cargo cannot say it, or the tree is not of this workspace.
fn program_packages(tree: &Tree) -> Option<usize> {
    let count = tree.is_checkout().then(program_packages::count)?;
    count.inspect_err(|error| eprintln!("the packages of the program are NOT counted: {error:#}")).ok()
}

fn library<'t>(package: &Package<'t>) -> Option<&'t str> {
    let publish = package.manifest.get("package")?.get("publish").and_then(toml::Value::as_bool);
    let published = package.dir.starts_with("crates/") && publish != Some(false);
    package.sources().find(|root| published && root.ends_with("src/lib.rs"))
}

// The recorded numbers: a line `name = number` for each, and a comment where one was raised.

#[derive(Debug)]
pub(crate) struct Record<'t> {
    text: &'t str,
    numbers: BTreeMap<&'t str, (usize, usize)>,
}

impl<'t> Record<'t> {
    /// Reads a record; the error is a line and what is wrong with it.
    pub(crate) fn read(text: &'t str) -> Result<Self, (usize, String)> {
        let mut numbers = BTreeMap::new();
        for (line, content) in (1..).zip(text.lines()) {
            let Some((name, number)) = split(content) else {
                if content.trim().is_empty() || content.starts_with('#') {
                    continue;
                }
                return Err((line, format!("`{content}` is no number; write `name = 12  # reason`")));
            };
            let Ok(number) = number.parse() else {
                return Err((line, format!("`{number}` is no number; write digits only")));
            };
            if numbers.insert(name, (line, number)).is_some() {
                return Err((line, format!("`{name}` is recorded twice; remove one of its lines")));
            }
        }
        Ok(Self { text, numbers })
    }

    /// Returns the line of a number, and the number.
    pub(crate) fn of(&self, name: &str) -> Option<(usize, usize)> {
        self.numbers.get(name).copied()
    }

    fn names(&self) -> impl Iterator<Item = (usize, &'t str)> {
        self.numbers.iter().map(|(name, (line, _))| (*line, *name))
    }

    /// Returns the text with the numbers that fell, and these: name, before and now.
    pub(crate) fn lowered(
        &self,
        counted: &BTreeMap<String, usize>,
    ) -> (String, Vec<(&'t str, usize, usize)>) {
        let (mut text, mut fell) = (String::new(), Vec::new());
        for content in self.text.lines() {
            let before = split(content).and_then(|(name, number)| Some((name, number, self.of(name)?.1)));
            match before {
                Some((name, number, most)) if counted.get(name).is_some_and(|now| *now < most) => {
                    let now = counted[name];
                    // The first such number is the recorded one, unless the name has it too.
                    let (head, tail) = content.split_at(content.find('=').unwrap_or_default());
                    text.push_str(head);
                    text.push_str(&tail.replacen(number, &now.to_string(), 1));
                    fell.push((name, most, now));
                }
                _ => text.push_str(content),
            }
            text.push('\n');
        }
        (text, fell)
    }
}

fn split(line: &str) -> Option<(&str, &str)> {
    let (name, number) = line.split('#').next()?.split_once('=')?;
    Some((name.trim(), number.trim()))
}

#[cfg(test)]
mod tests;
