//! The faults that rules found, and the exceptions that are allowed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result, bail};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fault {
    path: String,
    line: usize,
    what: String,
}

impl Fault {
    /// Makes a fault; lines count from 1.
    pub(crate) fn new(path: impl Into<String>, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

// The exceptions in `xtask/tidy.toml`: a table per rule, and a reason per exception.

pub(crate) const FILE: &str = "xtask/tidy.toml";

#[derive(Debug)]
pub(crate) struct Exceptions {
    text: String,
    rules: BTreeMap<String, BTreeMap<String, String>>,
}

impl Exceptions {
    /// Reads the file.
    ///
    /// # Errors
    /// Text that is not TOML, a table without a rule, an exception without a reason.
    pub(crate) fn read(text: &str, known: &[&str]) -> Result<Self> {
        let rules: BTreeMap<String, BTreeMap<String, String>> =
            toml::from_str(text).with_context(|| format!("cannot read {FILE}"))?;
        for (rule, entries) in &rules {
            if !known.contains(&rule.as_str()) {
                bail!("{FILE}: no rule is called `{rule}`; there are {}", known.join(", "));
            }
            if let Some((what, _)) = entries.iter().find(|(_, reason)| reason.trim().is_empty()) {
                bail!("{FILE}: the exception `{what}` of {rule} has no reason; write one or remove it");
            }
        }
        Ok(Self { text: text.to_owned(), rules })
    }

    pub(crate) fn of<'e>(&'e self, rule: &str) -> Allowed<'e> {
        Allowed { text: &self.text, entries: self.rules.get(rule), used: RefCell::default() }
    }
}

#[derive(Debug)]
pub(crate) struct Allowed<'e> {
    text: &'e str,
    entries: Option<&'e BTreeMap<String, String>>,
    used: RefCell<BTreeSet<&'e str>>,
}

impl<'e> Allowed<'e> {
    /// Returns whether `what` is an exception, and records that it was needed. Only to be called for actual faults.
    pub(crate) fn allows(&self, what: &str) -> bool {
        let entry = self.entries.and_then(|entries| entries.get_key_value(what));
        entry.is_some_and(|(what, _)| {
            self.used.borrow_mut().insert(what);
            true
        })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'e str> + use<'e> {
        self.entries.into_iter().flat_map(|entries| entries.keys().map(String::as_str))
    }

    pub(crate) fn unused(&self) -> Vec<Fault> {
        let unused = self.names().filter(|what| !self.used.borrow().contains(what));
        let fault = |what: &str| {
            let line =
                self.text.lines().position(|line| line.contains(&format!("\"{what}\""))).unwrap_or(0) + 1;
            Fault::new(FILE, line, format!("nothing needs the exception `{what}` any more; remove it"))
        };
        unused.map(fault).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[rings]\n\"a -> b\" = \"because\"\n\"b -> c\" = \"so\"\n";

    #[test]
    fn an_exception_that_nothing_needs_is_a_fault() {
        let exceptions = Exceptions::read(TEXT, &["rings"]).unwrap();
        let allowed = exceptions.of("rings");
        assert!(allowed.allows("a -> b") && !allowed.allows("c -> a"));
        let unused: Vec<String> = allowed.unused().iter().map(ToString::to_string).collect();
        assert_eq!(unused, ["xtask/tidy.toml:3: nothing needs the exception `b -> c` any more; remove it"]);
    }

    #[test]
    fn an_exception_says_why_and_whose_it_is() {
        let without = Exceptions::read("[rings]\n\"a -> b\" = \" \"\n", &["rings"]).unwrap_err().to_string();
        assert!(without.contains("no reason"), "{without}");
        let whose = Exceptions::read(TEXT, &["metrics"]).unwrap_err().to_string();
        assert!(whose.contains("no rule is called `rings`"), "{whose}");
    }
}
