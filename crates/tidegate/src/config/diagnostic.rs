//! Mistakes of a file, each with its place, the words found and the words possible.

use std::fmt;

use super::budget;
use super::names::is_control;
use super::node::Spot;

/// How bad a mistake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The file is refused.
    Error,
    /// The file works, perhaps not as meant.
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
    /// The line, from 1; 0 when the mistake is not in the text (a file that cannot be read).
    pub line: usize,
    /// The column in characters, from 1; 0 as for the line.
    pub column: usize,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong and what would be right, as one sentence without full stop.
    pub message: String,
}

impl Diagnostic {
    /// Makes one of a whole file, which has no place in its text.
    #[must_use]
    pub fn of_file(path: &str, severity: Severity, message: String) -> Self {
        Self { path: path.to_owned(), line: 0, column: 0, severity, message }
    }

    fn place(&self) -> String {
        match self.line {
            0 => self.path.clone(),
            line => format!("{}:{line}:{}", self.path, self.column),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {:<5}  {}", self.place(), self.severity, self.message)
    }
}

/// Renders mistakes as a table with a count below; empty for none.
#[must_use]
pub fn report(diagnostics: &[Diagnostic]) -> String {
    use fmt::Write as _;
    let mut out = String::new();
    if diagnostics.is_empty() {
        return out;
    }
    let width = diagnostics.iter().map(|one| one.place().chars().count()).max().unwrap_or(0);
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

/// Collects the mistakes of one file: the first hundred, and as many warnings; of more it keeps the number.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// What each text is called, by its number in a [`Spot`].
    paths: Vec<String>,
    /// What the words before each message are now: `policy "per-ip": `, or nothing.
    pub(super) subject: String,
    found: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
    /// Whether the file holds more than it may: then what is in it is not looked at further.
    pub(super) beyond: bool,
    alternatives: usize,
    steps: usize,
    /// How often expressions were tried with samples.
    #[cfg(feature = "cel")]
    pub(super) samples: usize,
}

impl Findings {
    pub(super) fn of(path: &str) -> Self {
        Self { paths: vec![path.to_owned()], ..Self::default() }
    }

    /// Takes one more text; returns its number. Beyond 65,535 of them the last number stands for all.
    pub(super) fn another(&mut self, path: &str) -> u16 {
        self.paths.push(path.to_owned());
        u16::try_from(self.paths.len() - 1).unwrap_or(u16::MAX)
    }

    /// Returns what each text is called, by its number.
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

    /// Refuses a file that holds too much.
    pub(super) fn beyond(&mut self, spot: Spot, message: impl fmt::Display) {
        self.beyond = true;
        self.error(spot, message);
    }

    /// Says whether more mistakes would only be counted.
    pub(super) fn is_full(&self) -> bool {
        self.errors >= budget::FINDINGS
    }

    /// Counts patterns, and the steps that matching them may take for each byte.
    pub(super) fn patterns(&mut self, alternatives: usize, steps: usize) {
        self.alternatives += alternatives;
        self.steps += steps;
    }

    /// Refuses a file whose patterns together are too many, once they are counted.
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
        if *count > budget::FINDINGS {
            return;
        }
        let mut message = format!("{}{message}", self.subject);
        if message.contains(is_control) {
            // A parser quotes what it stumbled over as it is.
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

    /// Says whether the file is to be refused.
    pub(super) fn refused(&self) -> bool {
        self.errors > 0
    }

    /// Returns the mistakes in the order of the file, each once.
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
