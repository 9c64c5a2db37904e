//! 422 for policies with mistakes: lists all of them, with line and column.

use http::StatusCode;
use tidegate::config::{Diagnostic, Severity};

use crate::problem::Problem;

/// Makes the problem for the mistakes in a text: what is wrong, where, and how to correct it. `line` and `column` are
/// those of the first mistake that has a position.
pub(super) fn of_mistakes(mistakes: &[Diagnostic]) -> Problem {
    // Warnings are left out: they do not cause the refusal, and those of a whole file would hide the mistake.
    let mistakes = || mistakes.iter().filter(|mistake| mistake.severity == Severity::Error);
    let problem = of_lines(mistakes().map(ToString::to_string).collect());
    match mistakes().find(|mistake| mistake.line > 0) {
        Some(first) => problem.with("line", first.line).with("column", first.column),
        None => problem,
    }
}

/// Makes the problem from these diagnostic lines.
pub(super) fn of_lines(diagnostics: Vec<String>) -> Problem {
    let count = diagnostics.len();
    let mistakes = if count == 1 { "mistake" } else { "mistakes" };
    let detail = format!("the policies are refused, {count} {mistakes}; nothing was changed");
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).with("diagnostics", diagnostics)
}
