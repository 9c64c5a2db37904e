//! Where verbs get their policies: a file, or a limit spelled out on the command line.

use std::path::{Path, PathBuf};

use anyhow::Result;
use tidegate::policy::config::{Config, Diagnostic, Format, report};

use crate::args::{LimitArgs, PolicyFile};
use crate::exit::Mistake;
use crate::output::Printer;

/// The file looked for when none is named.
pub(crate) const DEFAULT_FILE: &str = "tidegate.yaml";

/// Returns the file that was named, or the usual one if it is there.
pub(crate) fn file(named: &PolicyFile) -> Option<PathBuf> {
    named.config.clone().or_else(|| {
        let usual = PathBuf::from(DEFAULT_FILE);
        usual.exists().then_some(usual)
    })
}

/// Reads a policy file; warnings are remarks, mistakes end the verb.
pub(crate) fn read(path: &Path, printer: &Printer) -> Result<Config> {
    accept(Config::read(path), printer)
}

/// Reads a policy file from text, in the words of YAML.
pub(crate) fn parse(text: &str, name: &str, printer: &Printer) -> Result<Config> {
    accept(Config::parse(text, name, Format::Yaml), printer)
}

fn accept(outcome: Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>>, printer: &Printer) -> Result<Config> {
    match outcome {
        Ok((config, warnings)) => {
            for warning in warnings {
                printer.remark(&warning.to_string());
            }
            Ok(config)
        }
        Err(diagnostics) => Err(Mistake(report(&diagnostics)).into()),
    }
}

impl LimitArgs {
    /// Says whether a limit was given on the command line.
    pub(crate) fn given(&self) -> bool {
        self.limit.is_some() || self.rate.is_some() || self.algorithm.is_some()
    }

    /// Returns the limit as the policy file writes it, with another algorithm if one is named.
    pub(crate) fn written(&self, algorithm: Option<&str>) -> Result<String> {
        if let (Some(limit), None) = (&self.limit, algorithm) {
            return Ok(limit.clone());
        }
        let Some(rate) = &self.rate else {
            let why = if self.limit.is_some() { "to compare algorithms, give" } else { "a limit needs" };
            return Err(Mistake(format!("{why} --rate, such as --rate 100/s")).into());
        };
        let mut keys = vec![
            format!("algorithm: {}", algorithm.or(self.algorithm.as_deref()).unwrap_or("gcra")),
            format!("rate: {rate}"),
        ];
        // A window grants its count; a burst is a word of buckets.
        let windows = ["fixed-window", "sliding-window", "sliding-counter", "sliding-log"];
        if let Some(burst) = self.burst.filter(|_| algorithm.is_none_or(|name| !windows.contains(&name))) {
            keys.push(format!("burst: {burst}"));
        }
        if algorithm.is_none() {
            keys.extend(self.set.iter().map(|(key, value)| format!("{key}: {value}")));
        }
        Ok(format!("{{ {} }}", keys.join(", ")))
    }
}

/// Writes a policy file of one policy around a limit.
pub(crate) fn single(limit: &str, by: &[String], cost: Option<&str>) -> String {
    let mut text = format!("version: 1\npolicies:\n  - name: limit\n    limit: {limit}\n");
    if !by.is_empty() {
        text.push_str(&format!("    by: [{}]\n", by.join(", ")));
    }
    if let Some(cost) = cost {
        // A number or an expression; single quotes are doubled inside single quotes.
        let quoted = format!("'{}'", cost.replace('\'', "''"));
        text.push_str(&format!("    cost: {}\n", if cost.parse::<u64>().is_ok() { cost } else { &quoted }));
    }
    text
}
