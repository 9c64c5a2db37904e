//! Mistakes of a file, each with its place, the words found and the words possible.

use std::fmt;

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

/// Renders mistakes as a table with a count below, as `config check` prints them; empty for none.
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
    let _ = writeln!(out, " ({errors} error{}). Nothing was changed.", plural(errors));
    out
}

/// Collects the mistakes of one file.
#[derive(Debug)]
pub(super) struct Findings {
    path: String,
    /// What the words before each message are now: `policy "per-ip": `, or nothing.
    pub(super) subject: String,
    found: Vec<Diagnostic>,
}

impl Findings {
    pub(super) fn of(path: &str) -> Self {
        Self { path: path.to_owned(), subject: String::new(), found: Vec::new() }
    }

    pub(super) fn error(&mut self, spot: Spot, message: impl fmt::Display) {
        self.add(spot, Severity::Error, message);
    }

    pub(super) fn warn(&mut self, spot: Spot, message: impl fmt::Display) {
        self.add(spot, Severity::Warn, message);
    }

    fn add(&mut self, spot: Spot, severity: Severity, message: impl fmt::Display) {
        self.found.push(Diagnostic {
            path: self.path.clone(),
            line: spot.line,
            column: spot.column,
            severity,
            message: format!("{}{message}", self.subject),
        });
    }

    /// Says whether the file is to be refused.
    pub(super) fn refused(&self) -> bool {
        self.found.iter().any(|one| one.severity == Severity::Error)
    }

    /// Returns the mistakes in the order of the file, each once.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|one| (one.line, one.column, one.severity));
        self.found.dedup();
        self.found
    }
}

/// Returns the likeliest word meant, if any is near.
pub(super) fn nearest<'w>(found: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // A third of the letters may be wrong: `Shangai` is near, `fnord` is not.
    let allowed = (found.chars().count() / 3).max(1);
    let lower = found.to_lowercase();
    words
        .map(|word| (strsim::damerau_levenshtein(&lower, &word.to_lowercase()), word))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Ends a sentence about an unknown word: with the likeliest one, or with all that are possible.
pub(super) fn instead<'w>(found: &str, words: impl Iterator<Item = &'w str> + Clone) -> String {
    match nearest(found, words.clone()) {
        Some(word) => format!("; did you mean \"{word}\"?"),
        None => format!("; possible are {}", words.collect::<Vec<_>>().join(", ")),
    }
}
