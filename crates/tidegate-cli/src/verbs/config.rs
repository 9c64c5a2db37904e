//! Checks, shows, tidies and compares policy files.

mod diff;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};
use tidegate::config::{Config as PolicyConfig, Diagnostic, MAX_BYTES, Severity, read_text};
use tidegate_server::{DecidedIn, PolicyCost, round_trips, unknown_numbers};

use crate::args::{Config, Document, PolicyFile};
use crate::exit::{Exit, Mistake};
use crate::output::Printer;
use crate::styled::{Styled, table};
use crate::{features, policies, writing};

pub(crate) fn run(verb: &Config, printer: &Printer) -> Result<Exit> {
    match verb {
        Config::Check { files, policies } if files.is_empty() => {
            let usual = PathBuf::from(policies::DEFAULT_FILE);
            let is_missing = policies.config.is_none() && !usual.exists();
            if let Some(beside) = policies::beside().filter(|_| is_missing) {
                let what = format!(
                    "no policy file is named, and there is no {}; did you mean tidegate config check {beside}?",
                    policies::DEFAULT_FILE
                );
                return Err(Mistake(what).into());
            }
            check(&[policies.config.clone().unwrap_or(usual)], printer)
        }
        Config::Check { files, .. } => check(files, printer),
        Config::Show { policies, origin } => show(policies, *origin, printer),
        Config::Schema { of } => {
            let schema = of.schema()?;
            // It usually goes into a file.
            printer.value(&schema, |_| Ok(serde_json::to_string_pretty(&schema)?))?;
            Ok(Exit::Done)
        }
        Config::Fmt { files, check } => format_files(files, *check, printer),
        Config::Diff { file, server } => diff::run(file, server, printer),
    }
}

/// Reports every mistake in every file.
pub(crate) fn check(files: &[PathBuf], printer: &Printer) -> Result<Exit> {
    let (mut found, mut sources) = (Vec::<Diagnostic>::new(), Vec::new());
    let mut costs: Vec<(String, PolicyCost)> = Vec::new();
    for file in files {
        let loaded = policies::load(file)?;
        match loaded.outcome {
            Ok((config, warnings)) => {
                found.extend(warnings);
                let unknown = unknown_numbers(&config.policies);
                let name = file.display().to_string();
                costs.extend(
                    round_trips(&config.store, &config.policies).into_iter().map(|cost| (name.clone(), cost)),
                );
                let about_file = |message| Diagnostic::of_file(&name, Severity::Warn, message);
                found.extend(unknown.into_iter().map(about_file));
                for lacking in features::lacked_by(&config) {
                    let message = format!("{}; the file is checked all the same", lacking.message);
                    let mut told = about_file(message);
                    if let Some(line) = lacking.line {
                        let text = loaded.source.1.as_deref();
                        (told.line, told.column) = (line, column(text, line, &lacking.key));
                    }
                    found.push(told);
                }
                // Flags open the doors.
                let says_doors = config
                    .effective
                    .origins
                    .iter()
                    .any(|(key, from)| key.starts_with("server.") && !from.starts_with("default"));
                let has_grpc = config.server.grpc.is_some() || !says_doors;
                for (policy, message) in policies::as_served(&config, has_grpc) {
                    let mut told = about_file(message);
                    (told.line, told.column) = policy.and_then(|at| config.place(at)).unwrap_or_default();
                    found.push(told);
                }
                let set = &config.policies;
                let refuses = !set.shared_access().deny.is_empty() || !set.triggers().is_empty();
                if set.is_empty() && !refuses && !config.store.takes_cluster_policies() {
                    let empty = "no policy: nothing is limited; write policies: [{ name: api, by: [client.ip], limit: { rate: 10/s } }]";
                    found.push(about_file(empty.to_owned()));
                }
            }
            Err(mistakes) => found.extend(mistakes),
        }
        sources.push(loaded.source);
    }
    let errors = found.iter().filter(|one| one.severity == Severity::Error).count();
    let value = json!({
        "errors": errors,
        "warnings": found.len() - errors,
        "problems": found.iter().map(|one| json!({
            "file": one.path,
            // Mistakes about the file as a whole have no line.
            "line": (one.line > 0).then_some(one.line), "column": (one.column > 0).then_some(one.column),
            "severity": one.severity.to_string(), "message": one.message,
        })).collect::<Vec<_>>(),
        "costs": costs.iter().map(|(file, cost)| json!({
            "file": file, "policy": cost.policy, "share": cost.share.word(),
            "decided_in": cost.decided_in.word(), "round_trips": cost.round_trips,
            "lease_units": cost.lease_units, "settling_round_trips": cost.settling,
        })).collect::<Vec<_>>(),
    });
    printer.value(&value, |_| {
        let mut text = String::new();
        if printer.shows_lines(&std::io::stdout()) {
            printer.print(&policies::with_lines(&found, &sources))?;
        } else {
            text = found.iter().map(|one| format!("{one}\n")).collect();
        }
        let plural = |count, word| if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") };
        text.push_str(&match (found.len(), errors) {
            (0, _) => format!("{} fine", if files.len() == 1 { "The file is" } else { "The files are" }),
            (all, errors) => {
                let warnings = plural(all - errors, "warning");
                format!(
                    "{} ({}, {warnings}). Nothing was changed.",
                    plural(all, "problem"),
                    plural(errors, "error")
                )
            }
        });
        let mut text = Styled::from(text);
        if !costs.is_empty() {
            text.push("\n\n");
            text.push(costs_table(&costs, files.len() > 1));
        }
        Ok(text)
    })?;
    Ok(if errors > 0 { Exit::Bad } else { Exit::Done })
}

/// Returns the column of a key in its line, from 1: where its last word is, if the line has that word once, else 1.
fn column(text: Option<&str>, line: usize, key: &str) -> usize {
    let word = key.rsplit('.').next().unwrap_or(key);
    let line = text.and_then(|text| text.lines().nth(line.checked_sub(1)?)).unwrap_or_default();
    match line.match_indices(word).collect::<Vec<_>>()[..] {
        [(at, _)] => line[..at].chars().count() + 1,
        _ => 1,
    }
}

/// Returns a table of the round trips to the engine that policies cost.
fn costs_table(costs: &[(String, PolicyCost)], several: bool) -> Styled {
    let rows = costs.iter().map(|(file, cost)| {
        let trips = match (cost.decided_in, cost.round_trips) {
            (DecidedIn::Leases, Some(trips)) => {
                let most = cost.lease_units.unwrap_or_default();
                format!("{trips} for a lease of up to {most} units, else {}", cost.at_least)
            }
            (DecidedIn::CompareAndSet, Some(trips)) => {
                format!("{trips}; 1 for a refusal, at most {trips} more for each conflicting write")
            }
            (DecidedIn::Unknown, _) | (_, None) => "built without the engine's client".to_owned(),
            (_, Some(trips)) => trips.to_string(),
        };
        let settling = if cost.settling == 0 { "-".to_owned() } else { cost.settling.to_string() };
        let policy = if several { format!("{file}: {}", cost.policy) } else { cost.policy.clone() };
        vec![policy, cost.share.word().to_owned(), cost.decided_in.word().to_owned(), trips, settling]
    });
    table(&["POLICY", "SHARE", "DECIDED IN", "ROUND TRIPS OF A REQUEST", "TO SETTLE IT"], &[], rows)
}

fn show(named: &PolicyFile, origin: bool, printer: &Printer) -> Result<Exit> {
    let config = match policies::file(named) {
        Some(file) => policies::read(&file, printer)?,
        None => policies::parse(tidegate::config::QUICKSTART, "quickstart", printer)?,
    };
    let effective = &config.effective;
    if origin {
        let leaf = |path: &str| {
            let pointer = format!("/{}", path.replace('.', "/"));
            effective.value.pointer(&pointer).map_or_else(String::new, ToString::to_string)
        };
        printer.value(&effective.origins, |_| {
            let rows =
                effective.origins.iter().map(|(path, from)| vec![path.clone(), leaf(path), from.clone()]);
            Ok(table(&["KEY", "VALUE", "FROM"], &[], rows))
        })?;
    } else {
        printer.value(&effective.value, |_| Ok(effective.to_yaml()))?;
    }
    Ok(Exit::Done)
}

/// Tidies files without changing their meaning: the configuration parsed before and after must be the same.
fn format_files(files: &[PathBuf], check: bool, printer: &Printer) -> Result<Exit> {
    let mut untidy = Vec::new();
    for file in files {
        let text = policies::patiently(file, |file| read_text(file, MAX_BYTES as u64))?
            .map_err(|error| anyhow::anyhow!("{} {error}", file.display()))?;
        let before = policies::read(file, printer)?;
        let tidy = tidied(&text);
        if tidy == text {
            continue;
        }
        untidy.push(file.display().to_string());
        let format = tidegate::config::Format::of(file);
        let after = PolicyConfig::parse(&tidy, &file.display().to_string(), format);
        if after.map(|(after, _)| after.effective.value).ok().as_ref() != Some(&before.effective.value) {
            let name = file.display();
            return Err(
                Mistake(format!("{name}: tidying would change what it says; it is left as it is")).into()
            );
        }
        if check {
            printer.people(format!("{} is not tidy", file.display()))?;
        } else {
            writing::replace(file, &tidy)?;
            printer.remark(&format!("tidied {}", file.display()));
        }
    }
    printer.programs(&json!({ "untidy": untidy, "changed": !check && !untidy.is_empty() }))?;
    Ok(if check && !untidy.is_empty() { Exit::No } else { Exit::Done })
}

/// Normalises line ends to LF, removes blanks at line ends, allows one empty line in a row, and ends with a single line
/// end.
fn tidied(text: &str) -> String {
    let mut tidy = String::with_capacity(text.len());
    let mut blank = true;
    for line in text.lines() {
        let line = line.trim_end();
        if line.is_empty() && blank {
            continue;
        }
        blank = line.is_empty();
        tidy.push_str(line);
        tidy.push('\n');
    }
    while tidy.ends_with("\n\n") {
        tidy.pop();
    }
    tidy
}

// The JSON Schemas of `-o json` output, one per document. Tests check the output of every verb against its schema.
//
// They are written by hand: the meaning of a value, and when it is absent, are not in the types.

/// Definitions shared by several documents, whose schemas refer to them as `#/$defs/..`.
const SHARED: &str = include_str!("../../schemas/shared.json");

impl Document {
    /// Returns the schema, in JSON Schema 2020-12.
    ///
    /// # Errors
    /// Never with the files of this build: a test parses them all.
    fn schema(self) -> serde_json::Result<Value> {
        let own = match self {
            Self::PolicyFile => return Ok(tidegate::config::schema()),
            Self::Replay => include_str!("../../schemas/replay.json"),
            Self::Simulate => include_str!("../../schemas/simulate.json"),
            Self::Suggest => include_str!("../../schemas/suggest.json"),
            Self::Explain => include_str!("../../schemas/explain.json"),
            Self::Bench => include_str!("../../schemas/bench.json"),
            Self::Top => include_str!("../../schemas/top.json"),
            Self::Stat => include_str!("../../schemas/stat.json"),
            Self::Tail => include_str!("../../schemas/tail.json"),
            Self::Changes => include_str!("../../schemas/changes.json"),
            Self::Key => include_str!("../../schemas/key.json"),
            Self::Switch => include_str!("../../schemas/switch.json"),
            Self::Breaker => include_str!("../../schemas/breaker.json"),
            Self::Ready => include_str!("../../schemas/ready.json"),
            Self::Drain => include_str!("../../schemas/drain.json"),
            Self::Policies => include_str!("../../schemas/policies.json"),
            Self::ConfigCheck => include_str!("../../schemas/config-check.json"),
            Self::ConfigOrigin => include_str!("../../schemas/config-origin.json"),
            Self::ConfigFmt => include_str!("../../schemas/config-fmt.json"),
            Self::ConfigDiff => include_str!("../../schemas/config-diff.json"),
            Self::Init => include_str!("../../schemas/init.json"),
            Self::Completions => include_str!("../../schemas/completions.json"),
            Self::Man => include_str!("../../schemas/man.json"),
        };
        let mut schema: Value = serde_json::from_str(own)?;
        let shared: BTreeMap<String, Value> = serde_json::from_str(SHARED)?;
        // Each definition may refer to others.
        while let Some((name, definition)) = shared.iter().find(|(name, _)| lacks(&schema, name)) {
            schema["$defs"][name] = definition.clone();
        }
        Ok(schema)
    }
}

fn lacks(schema: &Value, name: &str) -> bool {
    schema["$defs"].get(name).is_none() && schema.to_string().contains(&format!("\"#/$defs/{name}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_marked_where_its_line_has_it_once() {
        let text = Some("version: 1\nstore: { \"é\": 1, kind: redis }\nkind: kind\n");
        assert_eq!(column(text, 2, "store.kind"), 18);
        assert_eq!(column(text, 3, "store.kind"), 1);
        assert_eq!((column(text, 9, "store.kind"), column(None, 2, "store.kind")), (1, 1));
    }

    #[test]
    fn tidying_keeps_comments_and_words() {
        assert_eq!(tidied("\n\n# a  \r\nx: 1\n\n\n\ny: 2\t\n\n"), "# a\nx: 1\n\ny: 2\n");
    }
}
