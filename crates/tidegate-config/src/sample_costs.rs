//! Evaluates the expressions of `cost` and `settle` with sample values when the file is read, rather than fail at every
//! request.
//!
//! An expression with a type error (`llm.output > 5`, a function that does not exist) never gives a cost. A name may
//! stand for a number or a text, so both are tried, and for a cost each name is left out once.

use tidegate_core::Cost;

use tidegate_gate::policy::{CostError, Descriptor, Expression, Usage};

/// The most evaluations for one expression; without a number by then, it is accepted.
const MOST_TRIED: usize = 64;

/// The most evaluations for a file, not counting the first of each expression.
const MOST_OF_A_FILE: usize = 5000;

const NUMBERS: [u64; 4] = [1, 1000, 0, LARGE];

/// A number much larger than all others, so that `llm.input - llm.cached - 5000` is positive if only `llm.input` has
/// it.
const LARGE: u64 = 1 << 40;

const WORD: &str = "x";

#[derive(Clone, Copy, Debug)]
enum Sample {
    Number(u64),
    Word,
    Absent,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Request,
    Settlement,
}

/// Returns the error of a `settle` that yields no number of 0 or more for any sample; `None` if it can settle.
///
/// Makes at most 64 evaluations, mostly one; `tried` counts those after the first across the file.
pub(super) fn never_settles(expression: &Expression, tried: &mut usize) -> Option<String> {
    working(expression, From::Settlement, tried).err()
}

/// Like [`never_settles`], for the cost of a check.
pub(super) fn never_costs(expression: &Expression, tried: &mut usize) -> Option<String> {
    working(expression, From::Request, tried).err()
}

/// Returns the attributes without which, or without a number in which, a cost cannot be worked out: two evaluations for
/// each name.
pub(super) fn fails_without<'e>(expression: &'e Expression, tried: &mut usize) -> Vec<&'e str> {
    let names = sampled(expression);
    let Ok(Some(works)) = working(expression, From::Request, tried) else { return Vec::new() };
    let mut fails = |at: usize, sample: Sample| {
        *tried += 1;
        let mut samples = works.clone();
        samples[at] = sample;
        *tried < MOST_OF_A_FILE && evaluate(expression, From::Request, &names, &samples).is_err()
    };
    let places = (0..names.len()).filter(|at| fails(*at, Sample::Absent) || fails(*at, Sample::Word));
    places.map(|at| names[at]).collect()
}

fn sampled(expression: &Expression) -> Vec<&str> {
    let names: Vec<&str> = expression.names().collect();
    let is_group = |name: &str| {
        names.iter().any(|other| other.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
    };
    names.iter().copied().filter(|name| !is_group(name)).collect()
}

fn evaluate(
    expression: &Expression,
    from: From,
    names: &[&str],
    samples: &[Sample],
) -> Result<u64, CostError> {
    let given = names.iter().zip(samples);
    match from {
        From::Settlement => {
            let usage = given.fold(Usage::default(), |usage, (name, sample)| match sample {
                Sample::Number(number) => usage.with(*name, *number),
                Sample::Word => usage.with(*name, WORD),
                Sample::Absent => usage,
            });
            expression.units(&usage, &[])
        }
        From::Request => {
            let request = given.fold(Descriptor::new(), |request, (name, sample)| match sample {
                Sample::Number(number) => request.with(*name, number.to_string()),
                Sample::Word => request.with(*name, WORD),
                Sample::Absent => request,
            });
            expression.cost(&request).map(Cost::units)
        }
    }
}

/// Finds samples for which an expression yields a number of 0 or more: the first error if there are none, `None` if
/// that is not known.
fn working(expression: &Expression, from: From, tried: &mut usize) -> Result<Option<Vec<Sample>>, String> {
    // An expression that computes names cannot be tried.
    if expression.looks_up() {
        return Ok(None);
    }
    let names = sampled(expression);
    let samples = |number: &dyn Fn(usize) -> u64, is_word: &dyn Fn(usize) -> bool| -> Vec<Sample> {
        let sample = |at| if is_word(at) { Sample::Word } else { Sample::Number(number(at)) };
        (0..names.len()).map(sample).collect()
    };
    let first = samples(&|_| NUMBERS[0], &|_| false);
    let Err(error) = evaluate(expression, from, &names, &first) else { return Ok(Some(first)) };
    let mut left = MOST_TRIED.min(MOST_OF_A_FILE.saturating_sub(*tried));
    let mut found = None;
    let mut works = |number: &dyn Fn(usize) -> u64, is_word: &dyn Fn(usize) -> bool| {
        left = left.saturating_sub(1);
        *tried += 1;
        let samples = samples(number, is_word);
        let works = evaluate(expression, from, &names, &samples).is_ok();
        found = works.then_some(samples);
        left == 0 || works
    };
    let number = |_| false;
    let ends = NUMBERS.iter().any(|one| works(&|_| *one, &number))
        || (0..names.len()).any(|large| works(&|at| if at == large { LARGE } else { 1 }, &number))
        || words(names.len()).any(|words| {
            [1, LARGE].into_iter().any(|one| works(&|_| one, &|at| at < MOST_WORDS && words >> at & 1 == 1))
        });
    if ends { Ok(found) } else { Err(error.to_string()) }
}

const MOST_WORDS: usize = 16;

/// Yields sets of names as bit masks, small sets first: one or two texts are likelier than all.
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
    fn what_a_cost_needs_is_found() {
        let needs = |source: &str| fails_without(&Expression::compile(source).unwrap(), &mut 0).join(" ");
        assert_eq!(needs("llm.prompt + llm.max"), "llm.max llm.prompt");
        assert_eq!(needs("has(llm.max) ? 2 : 1"), "");
        assert_eq!(
            needs("llm.prompt + (has(llm.max) ? llm.max : 9)"),
            "llm.max llm.prompt",
            "must be a number"
        );
        assert_eq!(needs("user.tier == \"x\" ? 2 : 1"), "user.tier");
        let never = |source: &str| never_costs(&Expression::compile(source).unwrap(), &mut 0);
        assert!(never("user.tier == \"x\"").is_some() && never("foo(llm.max)").is_some());
        assert_eq!(never("llm.max - 5000"), None);
    }

    #[test]
    fn what_cannot_is_named() {
        for (source, expected) in [
            ("llm.output > 5", "bool is not a number that a request can cost"),
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
