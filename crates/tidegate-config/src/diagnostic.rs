//! Collects the mistakes of a file, each with its place, the words found and the words possible.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use super::budget;
use super::names::is_control;
use super::node::Spot;
use super::toml_words::in_toml;
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
        // No system has longer paths, so it is something else in the place of one.
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

/// Collects the mistakes of one file: the first hundred errors and the first hundred warnings. Later ones are only
/// counted.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// The name of each text, indexed by its number in a [`Spot`].
    paths: Vec<String>,
    /// The prefix of the messages that follow: `policy "per-ip": `, or empty.
    pub(super) subject: String,
    /// Whether a server reads the file, so that the warnings about what its doors do apply. A program finds the
    /// attributes of its requests itself.
    pub(super) served: bool,
    /// Whether the text is in TOML, so that corrections are written in it too.
    pub(super) in_toml: bool,
    /// The subjects that have an error: at most one for each policy.
    erring: HashSet<String>,
    found: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
    /// Whether the file holds more than is allowed. If so, its content is not checked further.
    pub(super) beyond: bool,
    alternatives: usize,
    steps: usize,
    /// How many samples expressions have been evaluated with.
    #[cfg(feature = "cel")]
    pub(super) samples: usize,
}

impl Findings {
    pub(super) fn of(path: &str) -> Self {
        Self { paths: vec![path.to_owned()], ..Self::default() }
    }

    /// The mistakes of a file that a server reads.
    pub(super) fn served(path: &str) -> Self {
        Self { served: true, ..Self::of(path) }
    }

    /// Adds a text and returns its number. From 65,535 texts on, they share the last number.
    pub(super) fn another(&mut self, path: &str) -> u16 {
        self.paths.push(path.to_owned());
        u16::try_from(self.paths.len() - 1).unwrap_or(u16::MAX)
    }

    /// Returns the names of the texts, indexed by number.
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

    /// Adds to the number of patterns and of steps that matching them may take for each byte.
    pub(super) fn patterns(&mut self, alternatives: usize, steps: usize) {
        self.alternatives += alternatives;
        self.steps += steps;
    }

    /// Refuses the file if its patterns together are too many or take too many steps. Called once all are counted.
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

    /// Reports whether a policy has an error, by the prefix of its messages. Once further errors are only counted, any
    /// policy may have one.
    pub(super) fn errs(&self, subject: &str) -> bool {
        self.is_full() || self.erring.contains(subject)
    }

    /// Reports whether the file has an error.
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
