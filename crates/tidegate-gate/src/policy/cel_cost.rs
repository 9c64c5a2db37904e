//! Costs as CEL expressions, such as `request.path.startsWith("/api/export") ? 10 : 1`.
//!
//! The variables are the attributes of the request, by their dotted names, and at a settlement the values that it
//! reports. What the expression calculates with, or compares with a number, is a number; everything else is text
//! ([`coerced`]). A prefix of names is a map. An expression is compiled once per policy. An evaluation borrows the values
//! and looks up only the names in the expression.

mod coerced;
mod tree;
mod variables;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use cel::common::ast::IdedExpr;
use cel::context::VariableResolver;
use cel::{Context, Env, ExecutionError, Value};
use tidegate_core::{Cost, Rate};

use self::coerced::{AS_NUMBER, Form, NUMBER, coerced};
use self::tree::{Tree, bracketed, nesting, tidy};
use self::variables::{Attributes, Values, as_number};
use super::cost_error::{CostError, MAX_EXPRESSION};
use super::descriptor::Descriptor;
use super::usage::Usage;

/// The deepest nesting of brackets and operators: the parser recurses on the caller's stack.
const MAX_NESTING: usize = 32;

/// The most nodes of the syntax tree. Each is evaluated at most once per request, since loops are refused.
const MAX_NODES: usize = 200;

/// A compiled expression.
pub struct Expression {
    source: String,
    program: IdedExpr,
    /// The same with doubles for all numbers: decides where the values have a fraction.
    in_doubles: IdedExpr,
    names: Vec<String>,
    looks_up: bool,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source).finish()
    }
}

/// Why a text is not a valid expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ExpressionError {
    reason: String,
}

thread_local! {
    // The standard functions, built once per thread: each evaluation opens a scope inside this context.
    static STANDARD: Context<'static, 'static> = {
        let mut context = Context::default();
        // Fails only for a name of the language, and none begins with this one's first letter.
        let _ = context.add_function(AS_NUMBER, as_number);
        context
    };
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// [`ExpressionError`] with the parser's message. Also, to bound the cost of an evaluation, for a text of more than
    /// 2000 bytes, more than 32 nested brackets and operators, more than 200 parts, or a loop (`map`, `filter`, `all`,
    /// `exists`).
    pub fn compile(source: &str) -> Result<Self, ExpressionError> {
        let refuse = |reason: &str| Err(ExpressionError { reason: reason.to_owned() });
        if source.len() > MAX_EXPRESSION || nesting(source) > MAX_NESTING {
            return refuse(
                "the expression is too long or nested too deep; compute the cost before the request is sent",
            );
        }
        let read = bracketed(source).map_err(|reason| ExpressionError { reason })?;
        // Without macros: `has(…)` is rewritten with the names, and loops are refused.
        let written = match Env::default().parser().parse(&read) {
            Ok(written) => written,
            Err(errors) => return Err(ExpressionError { reason: tidy(&errors.to_string()) }),
        };
        let mut tree = Tree::default();
        tree.add(&written);
        if tree.loops {
            return refuse("an expression has no loops; `x in [\"a\", \"b\"]` compares with several values");
        }
        if tree.has_nothing {
            return refuse("has() asks for one attribute, as in has(user.tier)");
        }
        if tree.nodes > MAX_NODES {
            let parts = tree.nodes;
            return refuse(&format!("the expression has {parts} parts; at most {MAX_NODES} are possible"));
        }
        tree.names.sort_unstable();
        tree.names.dedup();
        let (Ok(program), Ok(in_doubles)) =
            (coerced(&written, Form::Whole), coerced(&written, Form::Doubles))
        else {
            return refuse(
                "a number is compared with a text, which are never equal; compare with a number, as in llm.tokens == 5, \
                 or with a text, as in user.id == \"5\"",
            );
        };
        Ok(Self {
            source: source.to_owned(),
            names: tree.names,
            looks_up: tree.looks_up,
            program,
            in_doubles,
        })
    }

    /// Returns the expression as written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the names of the attributes that the expression uses, and of groups of attributes, such as
    /// `request.header`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Reports whether the expression looks up attributes, or entries of a map of its own, by computed values, as
    /// `{"large": 5}[llm.model]` does.
    #[must_use]
    pub fn looks_up(&self) -> bool {
        self.looks_up
    }

    /// Evaluates the expression for a request. The result is rounded up to a whole number of 1 or more. A result above
    /// [`Rate::MAX_COUNT`], or beyond the range of an integer, is [`Rate::MAX_COUNT`]. So a larger number in an
    /// attribute never costs less than a smaller one.
    ///
    /// # Errors
    /// [`CostError`] if an attribute that it uses is missing or is not the number that it is used as, or if the result
    /// is no number of 0 or more.
    pub fn cost(&self, descriptor: &Descriptor<'_>) -> Result<Cost, CostError> {
        let fraction = AtomicBool::new(false);
        let evaluate =
            |shift| self.evaluate(&Attributes { request: descriptor, shift, fraction: &fraction }, &fraction);
        let units = match evaluate(0) {
            Ok(value) => whole(&value)?,
            Err(failed) if is_too_large(&failed, evaluate) => Rate::MAX_COUNT,
            Err(failed) => {
                return Err(match asked_for(&failed) {
                    Some(name) if descriptor.value(name).is_some() => {
                        CostError::NotANumber { name: name.to_owned() }
                    }
                    Some(name) => CostError::Missing { name: name.to_owned() },
                    None => CostError::Failed { reason: failed.to_string() },
                });
            }
        };
        // A request takes one unit at least.
        Ok(Cost::new(units.min(Rate::MAX_COUNT)).unwrap_or_default())
    }

    /// Evaluates the expression for the values that a settlement reports; `missing` holds the numbers for names that
    /// are not reported.
    ///
    /// A fraction is rounded up. A result beyond the range of an integer is [`Rate::MAX_COUNT`]. So a settlement
    /// neither rounds a cost down to 0 nor makes a huge use cheaper than a smaller one.
    ///
    /// # Errors
    /// [`CostError`] if the evaluation fails or yields no number of 0 or more. If names were not reported, the error
    /// lists them.
    pub fn units(&self, usage: &Usage<'_>, missing: &[(String, u64)]) -> Result<u64, CostError> {
        let fraction = AtomicBool::new(false);
        let values = Values { usage, missing, shift: 0, fraction: &fraction };
        let evaluate = |shift| self.evaluate(&Values { shift, ..values }, &fraction);
        match evaluate(0) {
            Ok(value) => whole(&value),
            Err(failed) if is_too_large(&failed, evaluate) => Ok(Rate::MAX_COUNT),
            Err(failed) => {
                let untold = self.names().filter(|name| !values.has(name));
                let names: Vec<_> = untold.map(str::to_owned).collect();
                Err(match asked_for(&failed) {
                    _ if !names.is_empty() => CostError::Untold { names },
                    Some(name) if values.has(name) => CostError::NotANumber { name: name.to_owned() },
                    _ => CostError::Failed { reason: failed.to_string() },
                })
            }
        }
    }

    /// Evaluates the expression with its numbers as they are written, and with doubles if the variables had a
    /// `fraction`.
    fn evaluate(
        &self,
        variables: &dyn VariableResolver,
        fraction: &AtomicBool,
    ) -> Result<Value, ExecutionError> {
        STANDARD.with(|standard| {
            let mut scope = standard.new_inner_scope();
            scope.set_variable_resolver(variables);
            let whole = Value::resolve(&self.program, &scope);
            // What was looked up by a computed name shows only as numbers of two kinds that do not fit together.
            if !fraction.load(Ordering::Relaxed) && !whole.as_ref().is_err_and(is_of_two_kinds) {
                return whole;
            }
            Value::resolve(&self.in_doubles, &scope).or(whole)
        })
    }
}

/// Reports whether an evaluation failed because two parts are of different kinds.
fn is_of_two_kinds(failed: &ExecutionError) -> bool {
    matches!(
        failed,
        ExecutionError::NoSuchOverload(_)
            | ExecutionError::UnsupportedBinaryOperator(..)
            | ExecutionError::ValuesNotComparable(..)
    )
}

/// Returns the name of the attribute that an evaluation asked for in vain.
fn asked_for(failed: &ExecutionError) -> Option<&str> {
    let ExecutionError::UndeclaredReference(name) = failed else { return None };
    match name.strip_prefix(NUMBER) {
        Some(name) => Some(name),
        // A function that does not exist is one word.
        None => name.contains('.').then_some(name.as_str()),
    }
}

/// Reports whether an evaluation failed because its result is too large, rather than too far below zero.
///
/// The step that overflows need not have the sign of the result, as in `1000 - 15 * llm.cached`. So the expression is
/// evaluated again with smaller values in the same proportions, which show the sign: `smaller` evaluates it with numbers
/// of at most 2^60, shifted right by so many bits. If those overflow too, the step that overflows decides.
fn is_too_large(failed: &ExecutionError, smaller: impl Fn(u32) -> Result<Value, ExecutionError>) -> bool {
    let Some(mut upwards) = overflows_upwards(failed) else { return false };
    for shift in [20, 40] {
        match smaller(shift) {
            Ok(value) => return whole(&value).is_ok_and(|units| units > 0),
            Err(failed) => match overflows_upwards(&failed) {
                Some(again) => upwards = again,
                None => return false,
            },
        }
    }
    upwards
}

/// Returns a result as units, rounded up.
fn whole(value: &Value) -> Result<u64, CostError> {
    let found = match value {
        Value::UInt(units) => return Ok(*units),
        Value::Int(units) => match u64::try_from(*units) {
            Ok(units) => return Ok(units),
            Err(_) => units.to_string(),
        },
        // A cast of a float saturates, and results above 2^60 are cut in any case.
        Value::Float(units) if units.is_finite() && *units >= 0.0 => return Ok(units.ceil() as u64),
        Value::Float(units) => units.to_string(),
        other => format!("{:?}", other.type_of()).to_lowercase(),
    };
    Err(CostError::NotACost { found })
}

/// Reports whether a step overflowed upwards (`true`) or downwards (`false`) in an integer; `None` for any other
/// failure.
fn overflows_upwards(failed: &ExecutionError) -> Option<bool> {
    match failed {
        ExecutionError::Overflow("add" | "sub", Value::Int(left), _) => Some(*left >= 0),
        ExecutionError::Overflow("mul", Value::Int(left), Value::Int(right)) => {
            Some((*left < 0) == (*right < 0))
        }
        ExecutionError::Overflow("sub", Value::UInt(_), _) => Some(false),
        ExecutionError::Overflow(_, Value::Int(_) | Value::UInt(_), _) => Some(true),
        // From `int(…)`, whose error does not contain the value. Evaluating with smaller values shows whether it was
        // negative.
        ExecutionError::FunctionError { message, .. } if message == "integer overflow" => Some(true),
        // From `uint(…)`. Smaller values fit if they are not negative.
        ExecutionError::FunctionError { message, .. } if message == "unsigned integer overflow" => {
            Some(false)
        }
        // From `int(…)` and `uint(…)` of a text with more digits than an integer has.
        ExecutionError::FunctionError { message, .. } if message.contains("number too large to fit") => {
            Some(true)
        }
        ExecutionError::FunctionError { message, .. } if message.contains("number too small to fit") => {
            Some(false)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request() -> Descriptor<'static> {
        Descriptor::new()
            .with("request.path", "/api/export/all")
            .with("request.header.x-batch", "7")
            .with("llm.tokens", "250")
    }

    fn cost(source: &str) -> Result<u64, CostError> {
        Expression::compile(source).unwrap().cost(&request()).map(Cost::units)
    }

    #[test]
    fn attributes_are_variables() {
        assert_eq!(cost("request.path.startsWith(\"/api/export\") ? 10 : 1"), Ok(10));
        assert_eq!(cost("request.path == \"/\" ? 10 : 1"), Ok(1));
        assert_eq!(cost("int(llm.tokens) / 100 + 1"), Ok(3));
        assert_eq!(cost("int(request.header[\"x-batch\"])"), Ok(7));
        assert_eq!(cost("has(llm.tokens) ? 4 : 1"), Ok(4));
        assert_eq!(cost("has(llm.model) ? 4 : 1"), Ok(1));
    }

    /// Formerly `+` joined the two texts, the result was no number, and the request cost 1.
    #[test]
    fn what_is_calculated_with_is_a_number() {
        let request = Descriptor::new()
            .with("llm.prompt_tokens", "1400")
            .with("llm.max_tokens", "500")
            .with("llm.seconds", "1.5")
            .with("llm.model", "large")
            .with("llm.one", "1")
            .with("user.id", "42")
            .with("user.zip", "01234")
            .with("request.header.x-cost", "9");
        let cost = |source: &str| Expression::compile(source).unwrap().cost(&request).map(Cost::units);
        for (source, units) in [
            ("llm.prompt_tokens + llm.max_tokens", 1900),
            ("llm.max_tokens", 500),
            ("-llm.max_tokens + 600", 100),
            ("llm.max_tokens > 99 ? 7 : 1", 7),
            ("llm.max_tokens > llm.prompt_tokens ? 7 : 2", 2),
            ("llm.prompt_tokens + llm.max_tokens == 1900 ? 7 : 1", 7),
            ("has(llm.cached) ? llm.cached : llm.max_tokens", 500),
            ("llm.max_tokens * 1.5", 750),
            ("double(llm.max_tokens) / 3", 167),
            ("llm.seconds", 2),
            ("llm.seconds * 2.0 + size(llm.model)", 8),
            ("int(request.header.x-cost)", 9),
            ("request.header.x-cost * 2", 18),
            ("has(request.header.x-cost) ? 4 : 1", 4),
            ("{\"large\": 5, \"small\": 1}[llm.model] * llm.max_tokens", 2500),
            ("llm[\"max_tokens\"] + llm[llm.model == \"large\" ? \"prompt_tokens\" : \"max_tokens\"]", 1900),
            ("llm.max_tokens in [500, 600] ? 7 : 1", 7),
            ("0 * llm.max_tokens", 1),
            // Formerly a fraction and a whole number gave no cost.
            ("llm.seconds + llm.max_tokens", 502),
            ("llm.seconds * 2", 3),
            ("llm.max_tokens / 100 * llm.seconds", 8),
            ("llm.seconds > 1 && llm.seconds < 2 ? 7 : 1", 7),
            ("llm.seconds * 2 == 3 ? 7 : 1", 7),
            ("2u * llm.seconds + uint(llm.max_tokens)", 503),
            ("int(llm.seconds) + llm.seconds * 2", 4),
            ("llm.max_tokens % 7 * llm.seconds", 5),
            ("llm.max_tokens % 7 * 1.5", 5),
            ("[10, 20, 30][llm.one] * llm.seconds", 30),
            ("{1: 5, 2: 9}[llm.one + 1] + llm.seconds", 11),
            ("llm[llm.model == \"large\" ? \"seconds\" : \"one\"] + llm.one", 3),
            ("llm.model.size() + llm.max_tokens", 505),
            ("has(llm.seconds) ? llm.seconds : 1", 2),
            // Texts stay texts.
            ("user.id == \"42\" ? 7 : 1", 7),
            ("user.id == 42 ? 7 : 1", 7),
            ("user.zip == \"1234\" ? 7 : 2", 2),
            ("user.id.startsWith(\"4\") ? 7 : 1", 7),
            ("user.id in [\"41\", \"42\"] ? 7 : 1", 7),
            ("{\"42\": 7}[user.id]", 7),
            ("user.id + user.zip == \"4201234\" ? 7 : 1", 7),
            ("\"x-cost\" in request.header ? 7 : 1", 7),
            ("llm.model < \"m\" ? 7 : 1", 7),
        ] {
            assert_eq!(cost(source), Ok(units), "{source}");
        }
        let missing = Err(CostError::Missing { name: "llm.cached".to_owned() });
        assert_eq!(cost("llm.max_tokens + llm.cached"), missing);
        assert_eq!(cost("llm.cached.startsWith(\"a\") ? 1 : 2"), missing);
        assert_eq!(cost("2 * llm.model"), Err(CostError::NotANumber { name: "llm.model".to_owned() }));
        for never in
            ["size(llm.model) == \"5\" ? 1 : 2", "5 in [\"a\"] ? 1 : 2", "llm.a * 2 != \"4\" ? 1 : 2"]
        {
            let error = Expression::compile(never).unwrap_err().to_string();
            assert!(error.starts_with("a number is compared with a text"), "{never}: {error}");
        }
        assert!(
            Expression::compile("has(5) ? 1 : 2").is_err() && Expression::compile("[1].map(x, x)").is_err()
        );
    }

    #[test]
    fn a_settlement_tells_numbers() {
        let usage = Usage::default()
            .with("llm.input", 900)
            .with("llm.output", 133)
            .with("llm.model", "large")
            .with("llm.most", u64::MAX)
            .with("llm.text", "900")
            .with("llm.seconds", "1.5");
        let units = |source: &str, missing: &[(&str, u64)]| {
            let missing: Vec<_> = missing.iter().map(|(name, units)| ((*name).to_owned(), *units)).collect();
            Expression::compile(source).unwrap().units(&usage, &missing)
        };
        assert_eq!(units("llm.input + 3 * llm.output", &[]), Ok(1299));
        assert_eq!(units("llm.input - llm.cached", &[("llm.cached", 100)]), Ok(800));
        assert_eq!(units("llm.input - (has(llm.cached) ? llm.cached : 0)", &[]), Ok(900));
        assert_eq!(units("llm.model == \"large\" ? 5 * llm.output : llm.output", &[]), Ok(665));
        assert_eq!(units("double(llm.output) / 2.0", &[]), Ok(67), "rounded up");
        assert_eq!(units("0", &[]), Ok(0));
        assert_eq!(units("llm.text + llm.input", &[]), Ok(1800), "a number where it reads as one");
        assert_eq!(units("llm.seconds * 2 + llm.input", &[]), Ok(903), "a fraction beside whole numbers");
        assert_eq!(units("llm.input == \"900\" && llm.input > 99 ? 7 : 1", &[]), Ok(7));
        let untold = |name: &str| Err(CostError::Untold { names: vec![name.to_owned()] });
        assert_eq!(units("llm.input - llm.cached", &[]), untold("llm.cached"));
        assert_eq!(units("other.thing + 1", &[]), untold("other.thing"));
        for bad in ["llm.output - llm.input", "llm.model", "true", "1.0 / 0.0", "1 / 0"] {
            assert!(units(bad, &[]).is_err(), "{bad}: {:?}", units(bad, &[]));
        }
    }

    #[test]
    fn a_huge_use_never_costs_less_than_a_smaller_one() {
        let usage = Usage::default().with("llm.output", Rate::MAX_COUNT).with("llm.cached", 7);
        let units = |source: &str| Expression::compile(source).unwrap().units(&usage, &[]);
        for large in [
            "15 * llm.output",
            "15 * llm.output + 3 * llm.cached",
            "3 * (llm.output - llm.cached) + 15 * llm.output",
            "llm.output * llm.output * llm.output * llm.output",
            "0 - (1 - llm.output) * 100",
            "(llm.output > 1000 ? 20 : 15) * llm.output",
            "uint(llm.output) * 100u",
            "int(double(llm.output) * 15.0)",
            "9223372036854775807 + llm.cached",
        ] {
            assert_eq!(units(large), Ok(Rate::MAX_COUNT), "{large}");
        }
        for below in [
            "1000 - 15 * llm.output",
            "15 * (0 - llm.output)",
            "llm.cached - 15 * llm.output",
            "uint(llm.cached) - uint(llm.output)",
        ] {
            assert!(units(below).is_err(), "{below}: {:?}", units(below));
        }
    }

    #[test]
    fn a_larger_number_in_an_attribute_never_costs_less() {
        let cost = |source: &str, value: &'static str| {
            let request = Descriptor::new().with("llm.tokens", value).with("user.id", "42");
            Expression::compile(source).unwrap().cost(&request).map(Cost::units)
        };
        let (int, uint) = ("9223372036854775807", "18446744073709551615");
        for (source, value) in [
            ("int(llm.tokens) + 10", int),
            ("int(llm.tokens) + 10", uint),
            ("int(llm.tokens) + 10", "99999999999999999999999"),
            ("uint(llm.tokens) * 2u", uint),
            ("uint(llm.tokens)", "99999999999999999999999"),
            ("uint(double(llm.tokens))", "1e30"),
            ("int(double(llm.tokens))", "1e30"),
            ("int(llm.tokens) * int(llm.tokens)", int),
            ("0 - (1 - int(llm.tokens)) * 100", int),
            ("user.id == \"42\" ? int(llm.tokens) * 2 : 1", int),
            ("int(llm.tokens)", int),
            ("uint(llm.tokens)", uint),
        ] {
            assert_eq!(cost(source, value), Ok(Rate::MAX_COUNT), "{source} with {value}");
        }
        for (source, value) in [
            ("1000 - 15 * int(llm.tokens)", int),
            ("1000 - int(llm.tokens)", "99999999999999999999999"),
            ("int(llm.tokens) + 10", "-99999999999999999999999"),
            ("int(double(llm.tokens))", "-1e30"),
            ("uint(int(llm.tokens))", "-5"),
            ("int(llm.tokens)", "many"),
        ] {
            assert!(cost(source, value).is_err(), "{source} with {value}: {:?}", cost(source, value));
        }
    }

    #[test]
    fn what_is_no_cost_is_an_error() {
        for bad in ["-5", "\"3\"", "true", "user.id == \"42\" ? 1 : 2", "int(request.path)", "1 / 0"] {
            assert!(cost(bad).is_err(), "{bad}: {:?}", cost(bad));
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_when_it_is_written() {
        for bad in
            ["", "1 +", "request.path.startsWith(", &"(".repeat(40), &"!".repeat(500), &"1+".repeat(2000)]
        {
            assert!(Expression::compile(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn no_expression_panics(
            source in prop_oneof![
                "\\PC{0,30}",
                "([a-c.]|request\\.path|[0-9]{1,20}|[-+*/%?:!<>=&|()\\[\\]{},\"']|in|has|size|\\.map|\\.all| ){0,14}",
            ],
        ) {
            if let Ok(expression) = Expression::compile(&source) {
                let _ = expression.cost(&request());
            }
        }
    }

    #[test]
    fn it_is_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Expression>();
    }
}
