//! What a reviewer may overlook, checked by a program: rules that read the tracked files and take seconds.
//!
//! Each rule is a file under `tidy/`. It names what it finds as `path:line: what, and what to do instead`. A rule that has
//! exceptions takes them from `xtask/tidy.toml`, each with its reason; an exception that nothing needs is a fault too.
//! What clippy can see is clippy's: banned functions stand in `clippy.toml`, chosen lints in the root `Cargo.toml`.

mod allowed;
mod code;
mod fault;
mod markdown;
mod modules;
mod packages;
mod test_only;
mod tree;

mod architecture;
mod banned_calls;
mod banned_words;
mod command_line;
mod config_keys;
mod conflict_markers;
mod crate_order;
mod dead_files;
mod file_length;
mod metrics;
mod module_form;
mod parses;
mod rings;

use anyhow::{Result, bail};

use crate::places;
use allowed::{Allowed, Exceptions};
use fault::Fault;
use tree::Tree;

/// A rule: what its table in `xtask/tidy.toml` is called, and what finds its faults.
type Rule = (&'static str, fn(&Tree, &Allowed<'_>) -> Vec<Fault>);

const RULES: [Rule; 13] = [
    ("conflict-markers", conflict_markers::check),
    ("parses", parses::check),
    ("crate-order", crate_order::check),
    ("rings", rings::check),
    ("module-form", module_form::check),
    ("file-length", file_length::check),
    ("banned-calls", banned_calls::check),
    ("banned-words", banned_words::check),
    ("dead-files", dead_files::check),
    ("metrics", metrics::check),
    ("command-line", command_line::check),
    ("config-keys", config_keys::check),
    ("architecture", architecture::check),
];

/// How many faults of one rule are printed; the rest is counted. They fit one screen with the text around them.
const SHOWN: usize = 20;

/// Runs all rules, or those that are named, over the tracked files, and fails when any finds a fault.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    let unknown = names.iter().find(|name| RULES.iter().all(|(rule, _)| rule != *name));
    if let Some(unknown) = unknown {
        let rules = RULES.map(|(rule, _)| rule).join(", ");
        bail!("tidy has no rule `{unknown}`; its rules are {rules}");
    }
    let tree = Tree::tracked(places::root())?;
    let exceptions =
        Exceptions::read(tree.text(allowed::FILE).unwrap_or_default(), &RULES.map(|(rule, _)| rule))?;
    // With rules named, all their faults are printed, since somebody works on them.
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

/// Returns what one rule finds, and which of its exceptions nothing needs.
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

/// For the rules' tests: what a rule finds in a made-up tree, as it is printed.
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
