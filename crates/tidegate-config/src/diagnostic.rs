//! Collects the mistakes of a file, each with its place, the words found and the words possible.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use super::budget;
use super::names::is_control;
use super::node::Spot;
use tidegate_limits::visible::excerpt;

/// How bad a mistake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The file is refused.
    Error,
    /// The file works, but perhaps not as meant.
    Warn,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warn => "warn",
        })
    }
}

/// One mistake. Prints as `tidegate.yaml:31:14  error  policy "sms": unknown time zone "Asia/Shangai"`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The file's name, as given.
    pub path: String,
    /// The line, from 1; 0 if the mistake has no place in the text (for example, the file cannot be read).
    pub line: usize,
    /// The column in characters, from 1; 0 if `line` is 0.
    pub column: usize,
    /// Whether the mistake refuses the file.
    pub severity: Severity,
    /// What is wrong and what would be right, as one sentence without a full stop.
    pub message: String,
}

impl Diagnostic {
    /// Creates a diagnostic for a whole file, without a line and column.
    #[must_use]
    pub fn of_file(path: &str, severity: Severity, message: String) -> Self {
        Self { path: path.to_owned(), line: 0, column: 0, severity, message }
    }

    fn place(&self) -> String {
        // Something else in the place of a path.
        let path = if self.path.len() > LONGEST_PATH {
            Cow::Owned(excerpt(&self.path))
        } else {
            Cow::Borrowed(&*self.path)
        };
        match self.line {
            0 => path.into_owned(),
            line => format!("{path}:{line}:{}", self.column),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {:<5}  {}", self.place(), self.severity, self.message)
    }
}

/// The longest path that is printed whole, in bytes.
const LONGEST_PATH: usize = 4096;

/// The widest first column of a report. The formatter panics at widths beyond 65,535.
const WIDEST: usize = 200;

/// Formats mistakes as a table with a count below; empty if there are none.
#[must_use]
pub fn report(diagnostics: &[Diagnostic]) -> String {
    use fmt::Write as _;
    let mut out = String::new();
    if diagnostics.is_empty() {
        return out;
    }
    let width = diagnostics.iter().map(|one| one.place().chars().count()).max().unwrap_or(0).min(WIDEST);
    for one in diagnostics {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{:<width$}  {:<5}  {}", one.place(), one.severity, one.message);
    }
    let errors = diagnostics.iter().filter(|one| one.severity == Severity::Error).count();
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let _ = write!(out, "{} problem{}", diagnostics.len(), plural(diagnostics.len()));
    let _ = writeln!(out, " ({errors} error{}).", plural(errors));
    out
}

/// The mistakes of one file: the first hundred errors and as many warnings. Later ones are only counted.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// The name of each text, indexed by its number in a [`Spot`].
    paths: Vec<String>,
    /// The prefix of the messages that follow: `policy "per-ip": `, or empty.
    pub(super) subject: String,
    /// Whether a server reads the file, whose doors some warnings are about.
    pub(super) served: bool,
    /// Whether the text is in TOML, so that corrections are written in it too.
    pub(super) in_toml: bool,
    /// The subjects that have an error: at most one for each policy.
    erring: HashSet<String>,
    found: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
    /// Whether the file holds more than is allowed; then it is not checked further.
    pub(super) beyond: bool,
    alternatives: usize,
    steps: usize,
    #[cfg(feature = "cel")]
    pub(super) samples: usize,
}

impl Findings {
    pub(super) fn of(path: &str) -> Self {
        Self { paths: vec![path.to_owned()], ..Self::default() }
    }

    pub(super) fn served(path: &str) -> Self {
        Self { served: true, ..Self::of(path) }
    }

    /// Adds a text and returns its number. From 65,535 texts on, they share the last number.
    pub(super) fn another(&mut self, path: &str) -> u16 {
        self.paths.push(path.to_owned());
        u16::try_from(self.paths.len() - 1).unwrap_or(u16::MAX)
    }

    pub(super) fn paths(&self) -> &[String] {
        &self.paths
    }

    fn path(&self, text: u16) -> String {
        self.paths.get(usize::from(text)).or(self.paths.first()).cloned().unwrap_or_default()
    }

    pub(super) fn error(&mut self, spot: Spot, message: impl fmt::Display) {
        self.add(spot, Severity::Error, message);
    }

    pub(super) fn warn(&mut self, spot: Spot, message: impl fmt::Display) {
        self.add(spot, Severity::Warn, message);
    }

    /// Refuses a file that holds more than is allowed.
    pub(super) fn beyond(&mut self, spot: Spot, message: impl fmt::Display) {
        self.beyond = true;
        self.error(spot, message);
    }

    /// Reports whether further errors are only counted.
    pub(super) fn is_full(&self) -> bool {
        self.errors >= budget::FINDINGS
    }

    pub(super) fn patterns(&mut self, alternatives: usize, steps: usize) {
        self.alternatives += alternatives;
        self.steps += steps;
    }

    /// Refuses the file if its patterns together are too many or take too many steps, once all are counted.
    pub(super) fn check_patterns(&mut self) {
        if self.alternatives > budget::ALTERNATIVES {
            let message = format!(
                "the patterns of the file multiply out to {}; at most {} are possible",
                self.alternatives,
                budget::ALTERNATIVES
            );
            self.beyond(Spot::default(), message);
        }
        if self.steps > budget::STEPS {
            let message = format!(
                "matching the patterns of the file may take {} steps for each byte of a request; at most {} are possible: \
                 write fewer with ** before the end, or with * and ? together",
                self.steps,
                budget::STEPS
            );
            self.beyond(Spot::default(), message);
        }
    }

    fn add(&mut self, spot: Spot, severity: Severity, message: impl fmt::Display) {
        let count = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warn => &mut self.warnings,
        };
        *count += 1;
        if severity == Severity::Error && !self.subject.is_empty() && !self.erring.contains(&self.subject) {
            self.erring.insert(self.subject.clone());
        }
        if *count > budget::FINDINGS {
            return;
        }
        let mut message = message.to_string();
        if self.in_toml {
            message = in_toml(&message);
        }
        message.insert_str(0, &self.subject);
        if message.contains(is_control) {
            // A parser quotes the offending text unescaped.
            let escape = |letter: char| match is_control(letter) {
                true => letter.escape_unicode().to_string(),
                false => letter.to_string(),
            };
            message = message.chars().map(escape).collect();
        }
        self.found.push(Diagnostic {
            path: self.path(spot.text),
            line: spot.line,
            column: spot.column,
            severity,
            message,
        });
    }

    /// Reports whether a policy has an error, by the prefix of its messages; once errors are only counted, any may have
    /// one.
    pub(super) fn errs(&self, subject: &str) -> bool {
        self.is_full() || self.erring.contains(subject)
    }

    pub(super) fn refused(&self) -> bool {
        self.errors > 0
    }

    /// Returns the mistakes in the order of the file, without duplicates.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        let Self { found, paths, .. } = &mut self;
        if paths.len() > 1 {
            let text = |path: &String| paths.iter().position(|known| known == path);
            found.sort_by_cached_key(|one| (text(&one.path), one.line, one.column, one.severity));
        } else {
            found.sort_by_key(|one| (one.line, one.column, one.severity));
        }
        self.found.dedup();
        for (count, severity, what) in
            [(self.errors, Severity::Error, "errors"), (self.warnings, Severity::Warn, "warnings")]
        {
            if let Some(more) = count.checked_sub(budget::FINDINGS).filter(|more| *more > 0) {
                let message = format!("{more} more {what} are not shown");
                self.found.push(Diagnostic { path: self.path(0), line: 0, column: 0, severity, message });
            }
        }
        self.found
    }
}

// Writes the corrections of messages in TOML; they are made as YAML.

/// Words before which a correction begins.
const BEFORE: [&str; 4] = ["write ", "or ", "as ", "else "];

/// The longest message that is looked through: a longer one lists names of the file's choice.
const LONGEST: usize = 4096;

pub(super) fn in_toml(message: &str) -> String {
    if message.len() > LONGEST {
        return message.to_owned();
    }
    let mut out = String::with_capacity(message.len());
    let mut rest = message;
    // What stands before the first correction may be the author's own words.
    while let Some((at, word)) =
        BEFORE.iter().filter_map(|word| Some((begin(rest, word)?, *word))).min_by_key(|(at, _)| *at)
    {
        let (before, after) = rest.split_at(at + word.len());
        out.push_str(before);
        rest = match line(after) {
            Some((written, after)) => {
                out.push_str(&written);
                after
            }
            None => after,
        };
    }
    out.push_str(rest);
    out
}

fn begin(text: &str, word: &str) -> Option<usize> {
    text.match_indices(word).map(|(at, _)| at).find(|at| *at == 0 || text[..*at].ends_with([' ', '(']))
}

/// Converts YAML at the beginning of a text: `key: value` with further pairs behind commas, `{ … }` or `[ … ]`. Returns
/// it and the rest.
fn line(text: &str) -> Option<(String, &str)> {
    if let Some(after) = text.strip_prefix("- name: ") {
        let (name, rest) = scalar(after, false)?;
        return Some((format!("[[policies]] with name = {name}"), rest));
    }
    if let Some(after) = text.strip_prefix("policies:, a list of - ") {
        let (policy, rest) = value(after)?;
        return Some((format!("policies = [{policy}]"), rest));
    }
    if text.starts_with(['{', '[']) {
        return value(text);
    }
    let (mut pairs, mut rest) = pair(text)?;
    while let Some((next, after)) = rest.strip_prefix(", ").and_then(pair) {
        pairs.push_str(", ");
        pairs.push_str(&next);
        rest = after;
    }
    Some((pairs, rest))
}

fn pair(text: &str) -> Option<(String, &str)> {
    let (key, after) = key(text)?;
    let (of, rest) = match after.starts_with(['{', '[']) {
        true => value(after)?,
        false => scalar(after, false)?,
    };
    Some((format!("{key} = {of}"), rest))
}

fn key(text: &str) -> Option<(String, &str)> {
    if let Some(after) = text.strip_prefix('"') {
        let end = closing(after, '"')? + 1;
        return Some((text[..=end].to_owned(), text[end + 1..].strip_prefix(": ")?));
    }
    let (key, after) = text.split_once(": ")?;
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
    let is_key = !key.is_empty() && key.bytes().all(is_part);
    is_key.then(|| (if key.contains('.') { format!("\"{key}\"") } else { key.to_owned() }, after))
}

fn value(text: &str) -> Option<(String, &str)> {
    let (close, is_map) = match text.chars().next()? {
        '{' => ('}', true),
        '[' => (']', false),
        _ => return scalar(text, true),
    };
    let mut rest = text[1..].trim_start();
    let mut parts = Vec::new();
    while !rest.starts_with(close) {
        if let Some(after) = rest.strip_prefix("...").or_else(|| rest.strip_prefix('…')) {
            parts.push("...".to_owned());
            rest = after.trim_start();
            continue;
        }
        if is_map {
            let (name, after) = key(rest)?;
            let (of, after) = value(after.trim_start())?;
            parts.push(format!("{name} = {of}"));
            rest = after;
        } else {
            let (of, after) = value(rest)?;
            parts.push(of);
            rest = after;
        }
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        if rest.is_empty() {
            return None;
        }
    }
    let inner = parts.join(", ");
    Some((if is_map { format!("{{ {inner} }}") } else { format!("[{inner}]") }, &rest[1..]))
}

/// Reads a text, number or word: up to its quote, within brackets up to a comma or their end, else up to a blank.
fn scalar(text: &str, within: bool) -> Option<(String, &str)> {
    if let Some(quote) = text.chars().next().filter(|quote| matches!(quote, '"' | '\'')) {
        let end = closing(&text[1..], quote)? + 1;
        let written = if quote == '"' { text[..=end].to_owned() } else { quoted(&text[1..end]) };
        return Some((written, &text[end + 1..]));
    }
    let mut depth = 0_usize;
    let end = text.char_indices().find(|(_, letter)| match letter {
        '{' => {
            depth += 1;
            false
        }
        '}' if depth > 0 => {
            depth -= 1;
            false
        }
        ',' | '}' | ']' => depth == 0,
        ' ' | ';' | ')' => !within,
        _ => false,
    });
    let end = end.map_or(text.len(), |(at, _)| at);
    let word = text[..end].trim_end();
    let is_plain = matches!(word, "true" | "false") || word.bytes().all(|byte| byte.is_ascii_digit());
    let written = if is_plain { word.to_owned() } else { quoted(word) };
    (!word.is_empty()).then_some((written, &text[end..]))
}

/// Returns where a quoted text ends. Between double quotes, a backslash escapes.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    let end = text.char_indices().find(|(_, letter)| {
        let ends = *letter == quote && !escaped;
        escaped = quote == '"' && *letter == '\\' && !escaped;
        ends
    });
    end.map(|(at, _)| at)
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrections_are_written_in_toml() {
        for (yaml, toml) in [
            (
                "file has no version; write version: 1 in its first line",
                "file has no version; write version = 1 in its first line",
            ),
            (
                "unknown key \"key\" in policy; write by: [client.ip, user.id]",
                "unknown key \"key\" in policy; write by = [\"client.ip\", \"user.id\"]",
            ),
            (
                "; write { rate: 100/s } or { rate: 100/min }",
                "; write { rate = \"100/s\" } or { rate = \"100/min\" }",
            ),
            (
                "; name one attribute of `by`, as key: { user.id: vip }",
                "; name one attribute of `by`, as key = { \"user.id\" = \"vip\" }",
            ),
            (
                "; write policies:, a list of - { name: api, limit: { rate: 10/s } }",
                "; write policies = [{ name = \"api\", limit = { rate = \"10/s\" } }]",
            ),
            (
                "; write on_cost_error: deny if that is meant, else on_cost_error: whole-limit",
                "; write on_cost_error = \"deny\" if that is meant, else on_cost_error = \"whole-limit\"",
            ),
            (
                "; write limit: { algorithm: breaker, ... }",
                "; write limit = { algorithm = \"breaker\", ... }",
            ),
            ("; write match: { path: /{api,v1}/** }", "; write match = { path = \"/{api,v1}/**\" }"),
            ("; write url: \"redis://db:6379\"", "; write url = \"redis://db:6379\""),
            ("; write over: \"demote to sheddable\"", "; write over = \"demote to sheddable\""),
            ("; write name: \"a \\\"b\\\" c\" here", "; write name = \"a \\\"b\\\" c\" here"),
            (
                "; write profile: sentinel, window: \"100 calls\", min_calls: 100, which differ",
                "; write profile = \"sentinel\", window = \"100 calls\", min_calls = 100, which differ",
            ),
            (
                "; write rate: { by: user.tier, values: { \"Gold\": 1/s, ... }, otherwise: 1/s }, with the others",
                "; write rate = { by = \"user.tier\", values = { \"Gold\" = \"1/s\", ... }, otherwise = \"1/s\" }, with the others",
            ),
            (
                "; write estimate: \"learned 99%\" for a share other than 90%",
                "; write estimate = \"learned 99%\" for a share other than 90%",
            ),
        ] {
            assert_eq!(in_toml(yaml), toml);
        }
        for same in [
            "cannot be read as TOML: duplicate key",
            "rate: \"M\" could be minute or month; write min or month",
            "write 100/s, 100/min or 100/day",
            "\"x\" has no host; write 0.0.0.0:90 for all addresses of this machine, or 127.0.0.1:90",
            "write {a,b}, not nested",
            "write { é",
            "write [",
        ] {
            assert_eq!(in_toml(same), same);
        }
    }
}
