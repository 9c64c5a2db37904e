//! Checks rules that reviewers may overlook: they read the tracked files and take seconds.
//!
//! Each rule is a file under `tidy/`. It reports its findings as `path:line: what, and what to do instead`. Exceptions
//! are in `xtask/tidy.toml`, each with its reason; one that is not needed is a fault too. Clippy's checks are left to
//! clippy: `clippy.toml` and the root `Cargo.toml`.

mod banned;
mod code;
mod fault;
mod file_form;
mod markdown;
mod modules;
mod packages;
mod tree;

mod command_line;
mod config_keys;
mod crate_order;
mod dead_files;
mod metrics;
pub(crate) mod ratchets;
mod rings;
mod small_files;

use anyhow::{Result, bail};

use crate::step;
use fault::{Allowed, Exceptions, Fault};
use tree::Tree;

type Rule = (&'static str, fn(&Tree, &Allowed<'_>) -> Vec<Fault>);

const RULES: [Rule; 14] = [
    ("conflict-markers", file_form::conflict_markers),
    ("parses", file_form::parses),
    ("crate-order", crate_order::check),
    ("rings", rings::check),
    ("module-form", file_form::module_form),
    ("file-length", file_form::file_length),
    ("banned-calls", banned::banned_calls),
    ("banned-words", banned::banned_words),
    ("dead-files", dead_files::check),
    ("metrics", metrics::check),
    ("command-line", command_line::check),
    ("config-keys", config_keys::check),
    ("architecture", file_form::architecture),
    ("ratchets", ratchets::check),
];

/// The most faults printed per rule; the others are only counted. They fit on one screen.
const SHOWN: usize = 20;

const REPORT: &str = "small-files";
const RECORD: &str = "--record";

/// Runs all rules, or the named ones, over the tracked files, and fails if any finds a fault. Or prints a report, or
/// records numbers.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    match names {
        [REPORT] => {
            print!("{}", small_files::report(&Tree::tracked(step::root())?));
            return Ok(());
        }
        [RECORD] => return ratchets::record(&Tree::tracked(step::root())?, step::root()),
        _ => {}
    }
    let unknown = names.iter().find(|name| RULES.iter().all(|(rule, _)| rule != *name));
    if let Some(unknown) = unknown {
        let rules = RULES.map(|(rule, _)| rule).join(", ");
        bail!(
            "tidy has no rule `{unknown}`; its rules are {rules}; on its own, {REPORT} reports files to merge, and {RECORD} \
             writes numbers that fell"
        );
    }
    let tree = Tree::tracked(step::root())?;
    let exceptions =
        Exceptions::read(tree.text(fault::FILE).unwrap_or_default(), &RULES.map(|(rule, _)| rule))?;
    // Someone is fixing them.
    let shown = if names.is_empty() { SHOWN } else { usize::MAX };
    let mut all = 0;
    for (rule, check) in RULES.iter().filter(|(rule, _)| names.is_empty() || names.contains(rule)) {
        let faults = faults(&tree, &exceptions, rule, *check);
        for fault in faults.iter().take(shown) {
            println!("{fault}");
        }
        if faults.len() > shown {
            println!("and {} more; `cargo xtask tidy {rule}` shows all", faults.len() - shown);
        }
        if !faults.is_empty() {
            println!("{rule}: {}\n", faults.len());
        }
        all += faults.len();
    }
    match all {
        0 => {
            eprintln!("tidy: nothing found");
            Ok(())
        }
        1 => bail!("tidy: one fault"),
        _ => bail!("tidy: {all} faults"),
    }
}

fn faults(
    tree: &Tree,
    exceptions: &Exceptions,
    rule: &str,
    check: fn(&Tree, &Allowed<'_>) -> Vec<Fault>,
) -> Vec<Fault> {
    let allowed = exceptions.of(rule);
    let mut faults = check(tree, &allowed);
    faults.extend(allowed.unused());
    faults.sort();
    faults.dedup();
    faults
}

#[cfg(test)]
fn found(rule: &str, files: &[(&str, &str)], exceptions: &str) -> Vec<String> {
    let tree = Tree::made(files);
    let names = RULES.map(|(rule, _)| rule);
    let exceptions = Exceptions::read(exceptions, &names).expect("the exceptions are good");
    let (_, check) = RULES.iter().find(|(name, _)| *name == rule).expect("there is such a rule");
    faults(&tree, &exceptions, rule, *check).iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_rule_is_named_with_those_there_are() {
        let error = run(&["ringz"]).unwrap_err().to_string();
        assert!(error.contains("`ringz`") && error.contains("rings"), "{error}");
    }
}
