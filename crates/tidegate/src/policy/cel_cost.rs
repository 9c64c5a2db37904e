//! Costs as CEL expressions, such as `request.path.startsWith("/api/export") ? 10 : 1`.
//!
//! The variables are the attributes of the request, by their dotted names; all are strings: `request.path`,
//! `int(llm.tokens)`. A prefix of names is a map, so `request.header["x-batch"]` and `has(user.tier)` work too. At a
//! settlement the variables are the values that it reports, and numbers are numbers: `llm.input + 3 * llm.output`. An
//! expression is compiled once per policy. An evaluation borrows the request's values and looks up only the names in
//! the expression.

mod tree;
mod variables;

use std::fmt;

use cel::context::VariableResolver;
use cel::{Context, ExecutionError, Program, Value};
use tidegate_core::{Cost, Rate};

use self::tree::{Tree, nesting, tidy};
use self::variables::{Attributes, Values, with_smaller_numbers};
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
    program: Program,
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
    static STANDARD: Context<'static, 'static> = Context::default();
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// [`ExpressionError`] with the parser's message. Also for a text of more than 2000 bytes, more than 32 nested
    /// brackets and operators, more than 200 parts, or a loop (`map`, `filter`, `all`, `exists`): so the cost of an
    /// evaluation is bounded before the first request.
    pub fn compile(source: &str) -> Result<Self, ExpressionError> {
        let refuse = |reason: &str| Err(ExpressionError { reason: reason.to_owned() });
        if source.len() > MAX_EXPRESSION || nesting(source) > MAX_NESTING {
            return refuse(
                "the expression is too long or nested too deep; compute the cost before the request is sent",
            );
        }
        let program = match Program::compile(source) {
            Ok(program) => program,
            Err(errors) => return Err(ExpressionError { reason: tidy(&errors.to_string()) }),
        };
        let mut tree = Tree::default();
        tree.add(program.expression());
        if tree.loops {
            return refuse("an expression has no loops; `x in [\"a\", \"b\"]` compares with several values");
        }
        if tree.nodes > MAX_NODES {
            let parts = tree.nodes;
            return refuse(&format!("the expression has {parts} parts; at most {MAX_NODES} are possible"));
        }
        tree.names.sort_unstable();
        tree.names.dedup();
        Ok(Self { source: source.to_owned(), names: tree.names, looks_up: tree.looks_up, program })
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
    pub(crate) fn looks_up(&self) -> bool {
        self.looks_up
    }

    /// Evaluates the expression for a request. A result above [`Rate::MAX_COUNT`], or beyond the range of an integer, is
    /// [`Rate::MAX_COUNT`], so that a larger number in an attribute does not cost less than a smaller one.
    ///
    /// # Errors
    /// [`CostError`] if the evaluation fails or yields no whole number of 1 or more.
    pub fn cost(&self, descriptor: &Descriptor<'_>) -> Result<Cost, CostError> {
        let value = self.evaluate(&Attributes(descriptor));
        let units = match value {
            Ok(Value::Int(units)) => u64::try_from(units).ok(),
            Ok(Value::UInt(units)) => Some(units),
            Ok(other) => {
                return Err(CostError::NotACost { found: format!("{:?}", other.type_of()).to_lowercase() });
            }
            Err(ref failed) => {
                let smaller = |shift| self.evaluate(&Attributes(&with_smaller_numbers(descriptor, shift)));
                if !is_too_large(failed, smaller) {
                    return Err(CostError::Failed { reason: failed.to_string() });
                }
                Some(Rate::MAX_COUNT)
            }
        };
        let cost = units.and_then(|units| Cost::new(units.min(Rate::MAX_COUNT)));
        cost.ok_or_else(|| CostError::NotACost { found: format!("{value:?}") })
    }

    /// Evaluates the expression for the values that a settlement reports; `missing` holds the numbers for names that
    /// are not reported.
    ///
    /// A fraction is rounded up, so that a settlement does not round a request's cost down to 0. A result beyond the
    /// range of an integer is [`Rate::MAX_COUNT`], so that a huge use does not cost less than a smaller one.
    ///
    /// # Errors
    /// [`CostError`] if the evaluation fails or yields no number of 0 or more. If names were not reported, the error
    /// lists them.
    pub fn units(&self, usage: &Usage<'_>, missing: &[(String, u64)]) -> Result<u64, CostError> {
        let values = Values { usage, missing, shift: 0 };
        match self.evaluate(&values) {
            Ok(value) => whole(&value),
            Err(failed)
                if is_too_large(&failed, |shift| self.evaluate(&Values { usage, missing, shift })) =>
            {
                Ok(Rate::MAX_COUNT)
            }
            Err(failed) => {
                let untold = self.names().filter(|name| values.resolve(name).is_none());
                let names: Vec<_> = untold.map(str::to_owned).collect();
                Err(match names.is_empty() {
                    true => CostError::Failed { reason: failed.to_string() },
                    false => CostError::Untold { names },
                })
            }
        }
    }

    fn evaluate(&self, variables: &dyn VariableResolver) -> Result<Value, ExecutionError> {
        STANDARD.with(|standard| {
            let mut scope = standard.new_inner_scope();
            scope.set_variable_resolver(variables);
            self.program.execute(&scope)
        })
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

/// Returns the result of a settlement as units, rounded up.
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

    #[test]
    fn a_settlement_tells_numbers() {
        let usage = Usage::default()
            .with("llm.input", 900)
            .with("llm.output", 133)
            .with("llm.model", "large")
            .with("llm.most", u64::MAX);
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
        for bad in
            ["0", "-5", "1.5", "\"3\"", "true", "user.id == \"42\" ? 1 : 2", "int(request.path)", "1 / 0"]
        {
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
