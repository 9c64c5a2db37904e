//! Tries an expression of `settle` with sample values when the file is read, since a failure later would go unnoticed.
//!
//! An expression of the wrong kind (`llm.output > 5`, a function that does not exist) fails at every settlement, and then the estimate is
//! never corrected. The file does not say whether a name stands for a number or a word, so both are tried.

use crate::policy::Expression;
use crate::policy::Usage;

/// The most evaluations for one expression. If none has given a number by then and there is more to try, the expression is accepted.
const MOST_TRIED: usize = 64;

/// The most evaluations for all expressions of a file, the first of each not counted; after that expressions are accepted.
const MOST_OF_A_FILE: usize = 5000;

/// Numbers that all names are tried with.
const NUMBERS: [u64; 4] = [1, 1000, 0, LARGE];

/// A number that is large beside all others, so that `llm.input - llm.cached - 5000` comes out above zero.
const LARGE: u64 = 1 << 40;

/// The word that names are tried with.
const WORD: &str = "x";

/// Returns what an expression gives in place of a number of 0 or more, if no sample makes it give one; `None` for an expression that
/// can settle.
///
/// At most 64 evaluations, one for most expressions; `tried` counts those after the first for the whole file.
pub(super) fn never_settles(expression: &Expression, tried: &mut usize) -> Option<String> {
    // An expression that looks names up by values cannot be tried: which names it would find is not known.
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

/// How many names are tried as words.
const MOST_WORDS: usize = 16;

/// Sets of names as bits, small sets first: it is likelier that one or two names stand for words than all.
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
