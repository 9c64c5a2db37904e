//! 422 for policies with mistakes: every one of them, with its line and column.

use http::StatusCode;
use tidegate::config::{Diagnostic, Severity};

use crate::problem::Problem;

/// Says what is wrong with a text, where, and how it would be right; `line` and `column` are of the first mistake that has a place.
pub(super) fn of_mistakes(mistakes: &[Diagnostic]) -> Problem {
    // Warnings refuse nothing, and would hide the mistake behind those of a whole file.
    let mistakes = || mistakes.iter().filter(|mistake| mistake.severity == Severity::Error);
    let problem = of_lines(mistakes().map(ToString::to_string).collect());
    match mistakes().find(|mistake| mistake.line > 0) {
        Some(first) => problem.with("line", first.line).with("column", first.column),
        None => problem,
    }
}

/// Says what is wrong in these lines.
pub(super) fn of_lines(diagnostics: Vec<String>) -> Problem {
    let count = diagnostics.len();
    let mistakes = if count == 1 { "mistake" } else { "mistakes" };
    let detail = format!("the policies are refused, {count} {mistakes}; nothing was changed");
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).with("diagnostics", diagnostics)
}
