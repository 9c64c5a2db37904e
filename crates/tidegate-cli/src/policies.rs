//! Reads policy files with a timeout, and prints their mistakes.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use anyhow::Result;
use tidegate::config::{Config, Diagnostic, Format, Imported, MAX_BYTES, Peer, Severity, read_text, report};
use tidegate::policy::{Mode, Policy};
use tidegate::visible;

use crate::args::{Imports, PolicyFile};
use crate::exit::AlreadyPrinted;
use crate::output::Printer;

/// The file used if none is named.
pub(crate) const DEFAULT_FILE: &str = "tidegate.yaml";

/// The named file, or the default one if it exists.
pub(crate) fn file(named: &PolicyFile) -> Option<PathBuf> {
    named.config.clone().or_else(|| {
        let usual = PathBuf::from(DEFAULT_FILE);
        usual.exists().then_some(usual)
    })
}

/// What people call a policy file that is not read unless it is named.
const UNREAD: [&str; 9] = [
    "tidegate.yml",
    "tidegate.toml",
    "policies.yaml",
    "policies.yml",
    "policies.toml",
    "limits.yaml",
    "limits.yml",
    "limits.toml",
    "policy.yaml",
];

/// A file of the current folder that looks like the one which was meant.
pub(crate) fn beside() -> Option<&'static str> {
    UNREAD.into_iter().find(|name| Path::new(name).is_file())
}

/// A limit is spelled out.
pub(crate) fn remark_unused(named: &PolicyFile, printer: &Printer) {
    if let Some(file) = &named.config {
        printer.remark(&format!("{} is not used: the limit is given by flags", file.display()));
    }
}

/// The timeout for reading a file: far longer than a disk takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Calls a function that may block forever on a file system that does not respond, on a thread that is abandoned at the
/// timeout.
///
/// # Errors
/// If it takes longer than 10 s.
pub(crate) fn patiently<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce(&Path) -> T + Send + 'static,
) -> Result<T> {
    let (tell, told) = sync_channel(1);
    let own = path.to_owned();
    std::thread::Builder::new().spawn(move || drop(tell.send(read(&own))))?;
    told.recv_timeout(PATIENCE).map_err(|error| {
        let (name, most) = (path.display(), PATIENCE.as_secs());
        match error {
            RecvTimeoutError::Timeout => {
                anyhow::anyhow!("{name}: reading it takes longer than {most} s and was given up")
            }
            RecvTimeoutError::Disconnected => anyhow::anyhow!("{name}: reading it failed by a panic"),
        }
    })
}

/// The configuration with its warnings, or its mistakes.
type ReadPolicies = Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>>;

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) outcome: ReadPolicies,
    /// The file's text, for showing the lines of mistakes.
    pub(crate) source: NamedText,
}

/// The timeout covers reading only: the time for parsing is bounded by the bounds on the text.
///
/// # Errors
/// If reading takes longer than 10 s.
pub(crate) fn load(path: &Path) -> Result<Loaded> {
    let name = path.display().to_string();
    // If not, `Config::read_to_serve` gives the reason, or the contents if they have become readable.
    let text = patiently(path, |path| {
        read_text(path, MAX_BYTES as u64).map_err(|_| Box::new(Config::read_to_serve(path)))
    })?;
    Ok(match text {
        Ok(text) => {
            let outcome = Config::parse_to_serve(&text, &name, Format::of(path));
            Loaded { outcome, source: (name, Some(text)) }
        }
        Err(outcome) => Loaded { outcome: *outcome, source: (name, None) },
    })
}

/// Warnings are printed as remarks; mistakes are printed and end the verb.
pub(crate) fn read(path: &Path, printer: &Printer) -> Result<Config> {
    accept(load(path)?, printer)
}

/// Attributes that only the calls of Envoy's rate limit service have, beside those that begin with `rls.`: the usual
/// keys of its descriptors.
const OF_ENVOY: [&str; 5] =
    ["generic_key", "header_match", "destination_cluster", "source_cluster", "masked_remote_address"];

/// What to know about policies that are served as a whole: nothing is enforced, or requests which policies ask for
/// cannot come. With the index of the policy, if it is about one.
pub(crate) fn as_served(config: &Config, has_grpc: bool) -> Vec<(Option<usize>, String)> {
    let policies = config.policies.policies();
    let mut told = Vec::new();
    let envoys = policies.iter().map(|policy| if policy.mode == Mode::Off { None } else { of_envoy(policy) });
    let mut envoys = envoys.enumerate().filter_map(|(at, name)| Some((at, name?)));
    if let Some((at, name)) = envoys.next().filter(|_| !has_grpc) {
        let others = match envoys.count() {
            0 => String::new(),
            1 => " (and one other policy)".to_owned(),
            more => format!(" (and {more} other policies)"),
        };
        told.push((
            Some(at),
            format!(
                "policy \"{}\"{others} reads {name}, which only Envoy's calls have, but no gRPC door is open, so it limits nothing; \
                 write server: {{ grpc: 127.0.0.1:8081 }}, or start with --grpc 127.0.0.1:8081",
                policies[at].name
            ),
        ));
    }
    if !policies.is_empty() && policies.iter().all(|policy| policy.mode != Mode::Enforce) {
        let all = if policies.iter().all(|policy| policy.mode == Mode::Shadow) {
            "all policies are in shadow mode"
        } else {
            "all policies are in shadow mode or off"
        };
        told.push((
            None,
            format!("nothing is enforced: {all}; write mode: enforce for those that are to refuse"),
        ));
    }
    told
}

/// Returns the first attribute of a policy that only Envoy's calls have.
fn of_envoy(policy: &Policy) -> Option<&str> {
    let is_envoys = |name: &&str| name.starts_with("rls.") || OF_ENVOY.contains(name);
    let asked = policy.matching.attributes().iter().map(|(name, _)| &**name);
    policy.by.iter().map(String::as_str).chain(asked).find(is_envoys)
}

/// Reads files of other rate limiters, at least one. Notes are printed as remarks; mistakes are printed and end the
/// verb.
///
/// # Errors
/// [`AlreadyPrinted`] for mistakes, or an error if reading takes longer than 10 s.
pub(crate) fn import(imports: &Imports, printer: &Printer) -> Result<Imported> {
    let files = imports.files();
    let first = files.first().map(|(_, file)| file.clone()).unwrap_or_default();
    match patiently(&first, move |_| imported(&files))? {
        Ok(imported) => {
            imported.notes.iter().for_each(|note| printer.remark(&note.to_string()));
            Ok(imported)
        }
        Err(mistakes) => {
            printer.say(&visible::lines(&report(&mistakes)));
            Err(AlreadyPrinted.into())
        }
    }
}

/// Reads files of other rate limiters.
///
/// # Errors
/// The mistakes in the files.
pub(crate) fn imported(files: &[(Peer, PathBuf)]) -> Result<Imported, Vec<Diagnostic>> {
    let files: Vec<_> = files.iter().map(|(peer, file)| (*peer, file.as_path())).collect();
    Imported::read(&files)
}

/// Reads a policy file from YAML text.
pub(crate) fn parse(text: &str, name: &str, printer: &Printer) -> Result<Config> {
    let source = (name.to_owned(), Some(text.to_owned()));
    accept(Loaded { outcome: Config::parse_to_serve(text, name, Format::Yaml), source }, printer)
}

/// Returns a valid configuration, or prints the mistakes.
///
/// # Errors
/// [`AlreadyPrinted`] if there are mistakes.
pub(crate) fn accept(loaded: Loaded, printer: &Printer) -> Result<Config> {
    match loaded.outcome {
        Ok((config, warnings)) => {
            let is_shown = printer.remarks() && !warnings.is_empty();
            if is_shown && printer.shows_lines(&std::io::stderr()) {
                printer.say(&with_lines(&warnings, &[loaded.source]));
            } else {
                warnings.iter().for_each(|warning| printer.remark(&warning.to_string()));
            }
            Ok(config)
        }
        Err(mistakes) => {
            let lines = report(&mistakes);
            if printer.shows_lines(&std::io::stderr()) {
                let shown = with_lines(&mistakes, &[loaded.source]);
                printer.say(&format!("{shown}{}", lines.lines().last().unwrap_or_default()));
            } else {
                printer.say(&visible::lines(&lines));
            }
            Err(AlreadyPrinted.into())
        }
    }
}

// Prints the mistakes: on a terminal with a mark below the place, otherwise one line each.

/// The longest line that is shown, in characters: a file may consist of a single line of megabytes.
const LONGEST_LINE: usize = 400;

/// The name of a file as in the diagnostics, and its text, if it could be read.
pub(crate) type NamedText = (String, Option<String>);

/// Returns diagnostics with their source lines, styled for a terminal and safe to print.
pub(crate) fn with_lines(diagnostics: &[Diagnostic], sources: &[NamedText]) -> String {
    diagnostics.iter().map(|one| with_line(one, sources)).collect()
}

fn with_line(one: &Diagnostic, sources: &[NamedText]) -> String {
    let level = match one.severity {
        Severity::Error => Level::ERROR,
        Severity::Warn => Level::WARNING,
    };
    let message = visible::line(&one.message);
    let path = visible::line(&one.path);
    let source = sources.iter().find(|(name, _)| *name == one.path).and_then(|(_, text)| text.as_deref());
    let line = source.and_then(|text| text.lines().nth(one.line.checked_sub(1)?)).and_then(shown);
    let group = match line {
        Some(line) => {
            let place = marked(&line, one.column);
            let snippet = Snippet::source(line).line_start(one.line).path(path);
            level.primary_title(message).element(snippet.annotation(AnnotationKind::Primary.span(place)))
        }
        None if one.line == 0 => Group::with_title(level.primary_title(format!("{path}: {message}"))),
        None => {
            let place = format!("{path}:{}:{}", one.line, one.column);
            Group::with_title(level.primary_title(format!("{place}: {message}")))
        }
    };
    format!("{}\n\n", Renderer::styled().render(&[group]))
}

/// Replaces all characters of a line that a terminal acts on, one by one, so that columns stay the same; `None` for a
/// line that is too long.
fn shown(line: &str) -> Option<String> {
    let is_short = line.chars().nth(LONGEST_LINE).is_none();
    let mut before = String::new();
    let mut safe = |char: char| {
        // Characters that join letters are harmless after some letters.
        let pair = format!("{before}{char}");
        before = char.to_string();
        let is_safe = char == '\t' || visible::line(&pair).ends_with(char);
        if is_safe { char } else { char::REPLACEMENT_CHARACTER }
    };
    is_short.then(|| line.chars().map(&mut safe).collect())
}

/// The word that starts at a column: a quoted text, a bracketed part, or a plain word with the words that belong to it.
fn marked(line: &str, column: usize) -> Range<usize> {
    let start = line.char_indices().nth(column.saturating_sub(1)).map_or(line.len(), |(at, _)| at);
    let rest = &line[start..];
    let length = match rest.chars().next() {
        Some(quote @ ('"' | '\'')) => rest[1..].find(quote).map(|end| end + 2),
        Some('{' | '[') => bracketed(rest),
        _ => {
            let ends = [",", "}", "]", ": ", " #"].into_iter().filter_map(|end| rest.find(end));
            ends.min()
        }
    };
    let word = &rest[..length.unwrap_or(rest.len())];
    start..start + word.trim_end().trim_end_matches(':').len()
}

/// Brackets included; `None` if they are not closed in the line.
fn bracketed(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, char) in text.char_indices() {
        match char {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    fn printed(text: &str) -> String {
        let found = Config::parse(text, "t.yaml", Format::Yaml).unwrap_err();
        strip_str(&with_lines(&found, &[("t.yaml".to_owned(), Some(text.to_owned()))])).to_string()
    }

    #[test]
    fn the_place_is_marked_below_its_line() {
        let text = "version: 1\npolicies:\n  - name: per-ip\n    by: [request.path]\n    limit: { algorithm: gcra, rate: 100/M, bust: 200 } # é\n";
        assert_eq!(
            printed(text),
            "error: policy \"per-ip\": rate: \"M\" could be minute or month; write min or month
 --> t.yaml:5:37
  |
5 |     limit: { algorithm: gcra, rate: 100/M, bust: 200 } # é
  |                                     ^^^^^

error: policy \"per-ip\": unknown key \"bust\" in limit; did you mean \"burst\"?
 --> t.yaml:5:44
  |
5 |     limit: { algorithm: gcra, rate: 100/M, bust: 200 } # é
  |                                            ^^^^

"
        );
    }

    #[test]
    fn words_texts_and_brackets_are_marked_whole() {
        for (line, column, expected) in [
            ("  by: [client.ip]", 7, "[client.ip]"),
            ("  by: [client.ip]", 8, "client.ip"),
            ("  name: 'a, b' # x", 9, "'a, b'"),
            ("  limit: { rate: [1, {}] }", 10, "{ rate: [1, {}] }"),
            ("  limit: { rate: 1", 10, "{ rate: 1"),
            ("  name: two words # c", 9, "two words"),
            ("  http: 0.0.0.0:80", 9, "0.0.0.0:80"),
            ("  limits:", 3, "limits"),
            ("é: x", 4, "x"),
            ("x", 9, ""),
            ("", 1, ""),
        ] {
            assert_eq!(&line[marked(line, column)], expected, "{line}");
        }
    }

    /// Lines of a file are untrusted text, and a file may be one long line.
    #[test]
    fn lines_move_no_cursor_and_long_ones_are_left_out() {
        let drawn = printed("version: 1\npolicies: []\n\u{202e}\"x\\e\": \u{9b}2J\n");
        assert!(!drawn.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{drawn:?}");
        let long = format!("{{ version: 1, policies: [], x: {} }}", "y".repeat(1_000_000));
        let drawn = printed(&long);
        assert!(drawn.starts_with("error: t.yaml:1:29: unknown key \"x\"") && drawn.len() < 200, "{drawn}");
    }
}
