//! Evaluates an expression of `settle` with sample values when the file is read, since failures at run time would go
//! unnoticed.
//!
//! An expression with a type error (`llm.output > 5`, a function that does not exist) fails at every settlement, so the
//! estimate is never corrected. The file does not tell whether a name stands for a number or a text, so both are tried.

use crate::policy::Expression;
use crate::policy::Usage;

/// The most evaluations for one expression. If they are used up without a number as result, the expression is accepted.
const MOST_TRIED: usize = 64;

/// The most evaluations for all expressions of a file, not counting the first of each. Once they are used up,
/// expressions are accepted.
const MOST_OF_A_FILE: usize = 5000;

/// The numbers that are assigned to all names at once.
const NUMBERS: [u64; 4] = [1, 1000, 0, LARGE];

/// A number much larger than all others, so that `llm.input - llm.cached - 5000` is positive if only `llm.input` has
/// it.
const LARGE: u64 = 1 << 40;

/// The text that names are tried with.
const WORD: &str = "x";

/// Returns the error of an expression that yields no number of 0 or more for any sample; `None` if the expression can
/// settle.
///
/// Makes at most 64 evaluations, for most expressions one. `tried` counts those after the first across the whole file.
pub(super) fn never_settles(expression: &Expression, tried: &mut usize) -> Option<String> {
    // An expression that computes names cannot be tried: it is unknown which names it would look up.
    if expression.looks_up() {
        return None;
    }
    let names: Vec<&str> = expression.names().collect();
    let is_group = |name: &str| {
        names.iter().any(|other| other.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
    };
    let names: Vec<&str> = names.iter().copied().filter(|name| !is_group(name)).collect();
    let try_with = |number: &dyn Fn(usize) -> u64, is_word: &dyn Fn(usize) -> bool| {
        let usage = names.iter().enumerate().fold(Usage::default(), |usage, (at, name)| match is_word(at) {
            true => usage.with(*name, WORD),
            false => usage.with(*name, number(at)),
        });
        expression.units(&usage, &[])
    };
    let Err(first) = try_with(&|_| NUMBERS[0], &|_| false) else { return None };
    let mut left = MOST_TRIED.min(MOST_OF_A_FILE.saturating_sub(*tried));
    let mut settles = |number: &dyn Fn(usize) -> u64, is_word: &dyn Fn(usize) -> bool| {
        left = left.saturating_sub(1);
        *tried += 1;
        left == 0 || try_with(number, is_word).is_ok()
    };
    let number = |_| false;
    let found = NUMBERS.iter().any(|one| settles(&|_| *one, &number))
        || (0..names.len()).any(|large| settles(&|at| if at == large { LARGE } else { 1 }, &number))
        || words(names.len()).any(|words| {
            [1, LARGE].into_iter().any(|one| settles(&|_| one, &|at| at < MOST_WORDS && words >> at & 1 == 1))
        });
    (!found).then(|| first.to_string())
}

/// How many names are tried as texts.
const MOST_WORDS: usize = 16;

/// Yields sets of names as bit masks, small sets first: it is likelier that one or two names stand for texts than all.
fn words(names: usize) -> impl Iterator<Item = u64> {
    let names = names.min(MOST_WORDS);
    (1..=names as u32).flat_map(move |ones| (1..1_u64 << names).filter(move |set| set.count_ones() == ones))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never(source: &str) -> Option<String> {
        never_settles(&Expression::compile(source).unwrap(), &mut 0)
    }

    #[test]
    fn what_can_settle_is_let_through() {
        for source in [
            "llm.input + 3 * llm.output",
            "llm.input - llm.cached - 5000",
            "llm.a_cached - llm.b_input - 1",
            "llm.model == \"large\" ? 5 * llm.output : llm.output",
            "llm.model.startsWith(\"large\") ? 5 * llm.output : llm.output",
            "llm.model.startsWith(\"a\") || llm.region.startsWith(\"b\") ? 5 * llm.output : llm.output",
            "llm.model in [\"large\", \"larger\"] ? 5 * llm.output : llm.output",
            "{\"large\": 5, \"small\": 1}[llm.model] * llm.output",
            "\"cached\" in llm ? llm.input - llm.cached : llm.input",
            "llm[\"input\"] + llm[llm.kind]",
            "has(llm.cached) ? llm.input - llm.cached : llm.input",
            "double(llm.output) / 3.0",
            "1000000 / (llm.input - 1)",
            "size(llm.text) / 4",
            "int(llm.share)",
        ] {
            assert_eq!(never(source), None, "{source}");
        }
        let many: Vec<_> = (0..30).map(|at| format!("a.n{at}")).collect();
        assert_eq!(never(&many.join(" - ")), None, "one of them large");
    }

    #[test]
    fn what_cannot_is_named() {
        for (source, expected) in [
            ("llm.output > 5", "bool is not a whole number that a request can cost"),
            ("llm.output == \"x\"", "bool is not"),
            ("now() + llm.output", "the expression failed: Undeclared reference to 'now'"),
            ("llm.output / 0", "the expression failed: Division by zero"),
            ("0 - llm.output - 1", "-2 is not"),
            ("llm.output ? 1 : 2", "the expression failed:"),
            ("string(llm.output)", "string is not"),
        ] {
            let found = never(source).unwrap_or_else(|| panic!("{source}"));
            assert!(found.starts_with(expected), "{source}: {found}");
        }
    }
}
