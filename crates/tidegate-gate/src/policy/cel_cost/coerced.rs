//! Reads each attribute of an expression as it is used: as a number where the expression calculates with it or compares
//! it with a number, else as text.
//!
//! Requests carry text and settlements carry numbers, and CEL has no value that is both: `"9" < "10"` would compare
//! letters. So the syntax tree is rewritten once: the kind of every part but the attributes is known without a request.
//! Each name becomes one identifier, and a mark in front of it says which reading is wanted ([`NUMBER`], [`PRESENCE`]).
//! Attributes may be whole numbers or fractions, and CEL does not calculate with both together: a second form, in which
//! every number is a double ([`Form::Doubles`]), is for requests that have a fraction.

use cel::common::ast::operators as op;
use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue, MapExpr};
use cel::common::types::CelDouble;

use super::tree::named;

/// The mark of a name that is read as a number. No identifier of the language begins with it.
pub(super) const NUMBER: char = '#';
/// The mark of a name that is asked for only, as in `has(user.tier)`.
pub(super) const PRESENCE: char = '?';
/// The function that reads as a number what was looked up by a computed name.
pub(super) const AS_NUMBER: &str = "@number";

/// What kind of number a part is; `Whole` for an attribute may be a fraction in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Whole,
    Unsigned,
    Double,
}

/// What a part of an expression gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gives {
    /// An attribute, whose use decides.
    Attribute,
    /// A sum of attributes: numbers, unless it is used as text.
    Sum,
    Text,
    Number(Number),
    Other,
}

/// How a part is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Anything,
    Text,
    Number(Number),
}

/// What the numbers of a rewritten expression are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As they are written; attributes are whole numbers.
    Whole,
    /// All are doubles, except keys of maps, places in lists and what a remainder is of.
    Doubles,
}

/// A comparison that is never true, since one side is a number and the other a text.
pub(super) struct Unlike;

/// Rewrites an expression whose result is a number.
pub(super) fn coerced(expr: &IdedExpr, form: Form) -> Result<IdedExpr, Unlike> {
    let want = match gives(expr) {
        Gives::Attribute | Gives::Sum => Want::Number(Number::Whole),
        _ => Want::Anything,
    };
    form.part(expr, want)
}

/// Returns what two parts give together in a calculation or a comparison; `None` if one is a number and one a text.
fn together(one: Gives, other: Gives) -> Option<Gives> {
    use Gives::{Attribute, Other, Sum, Text};
    Some(match (one, other) {
        (Text, Gives::Number(_)) | (Gives::Number(_), Text) => return None,
        (Other, _) | (_, Other) => Other,
        (Text, _) | (_, Text) => Text,
        (Gives::Number(one), Gives::Number(other)) => Gives::Number(larger(one, other)),
        (Gives::Number(number), _) | (_, Gives::Number(number)) => Gives::Number(number),
        (Sum, _) | (_, Sum) => Sum,
        (Attribute, Attribute) => Attribute,
    })
}

fn larger(one: Number, other: Number) -> Number {
    match (one, other) {
        (Number::Double, _) | (_, Number::Double) => Number::Double,
        (Number::Unsigned, _) | (_, Number::Unsigned) => Number::Unsigned,
        _ => Number::Whole,
    }
}

/// Returns what several parts of one role give; `None` if numbers and texts are mixed.
fn all_together<'e>(parts: impl Iterator<Item = &'e IdedExpr>) -> Option<Gives> {
    parts.map(gives).map(Some).reduce(|one, other| together(one?, other?)).unwrap_or(Some(Gives::Other))
}

fn gives(expr: &IdedExpr) -> Gives {
    if named(&expr.expr).is_some() {
        return Gives::Attribute;
    }
    match &expr.expr {
        Expr::Literal(LiteralValue::Int(_)) => Gives::Number(Number::Whole),
        Expr::Literal(LiteralValue::UInt(_)) => Gives::Number(Number::Unsigned),
        Expr::Literal(LiteralValue::Double(_)) => Gives::Number(Number::Double),
        Expr::Literal(LiteralValue::String(_)) => Gives::Text,
        Expr::Call(call) if call.target.is_none() => call_gives(call),
        Expr::Call(call) if is_size(call) => Gives::Number(Number::Whole),
        _ => Gives::Other,
    }
}

fn call_gives(call: &CallExpr) -> Gives {
    let of_all = || all_together(call.args.iter());
    match (call.func_name.as_str(), call.args.as_slice()) {
        (op::ADD, _) => match of_all() {
            Some(Gives::Attribute) => Gives::Sum,
            Some(found) => found,
            None => Gives::Text,
        },
        (op::SUBSTRACT | op::MULTIPLY | op::DIVIDE | op::MODULO | op::NEGATE, _) => match of_all() {
            Some(Gives::Attribute | Gives::Sum) => Gives::Number(Number::Whole),
            Some(found) => found,
            None => Gives::Other,
        },
        (op::CONDITIONAL, [_, yes, no]) => together(gives(yes), gives(no)).unwrap_or(Gives::Other),
        (op::INDEX, [base, _]) => match &base.expr {
            _ if named(&base.expr).is_some() => Gives::Attribute,
            Expr::Map(map) => all_together(entries(map).map(|(_, value)| value)).unwrap_or(Gives::Other),
            Expr::List(list) => all_together(list.elements.iter()).unwrap_or(Gives::Other),
            _ => Gives::Other,
        },
        ("int" | "size", _) => Gives::Number(Number::Whole),
        ("uint", _) => Gives::Number(Number::Unsigned),
        ("double", _) => Gives::Number(Number::Double),
        ("string", _) => Gives::Text,
        _ => Gives::Other,
    }
}

/// Attributes that are compared with each other for their order are numbers.
fn numeric(found: Option<Gives>) -> Gives {
    match found {
        Some(Gives::Attribute | Gives::Sum) => Gives::Number(Number::Whole),
        Some(found) => found,
        None => Gives::Other,
    }
}

fn entries(map: &MapExpr) -> impl Iterator<Item = (&IdedExpr, &IdedExpr)> {
    map.entries.iter().filter_map(|entry| match &entry.expr {
        EntryExpr::MapEntry(entry) => Some((&entry.key, &entry.value)),
        EntryExpr::StructField(_) => None,
    })
}

/// Returns how the parts of a calculation or comparison are used.
fn want_of(found: Option<Gives>) -> Want {
    match found {
        Some(Gives::Number(number)) => Want::Number(number),
        Some(Gives::Sum) => Want::Number(Number::Whole),
        Some(Gives::Text | Gives::Attribute) => Want::Text,
        Some(Gives::Other) | None => Want::Anything,
    }
}

fn call(id: u64, name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr { id, expr: Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }) }
}

/// Reports whether a call is `text.size()`.
fn is_size(found: &CallExpr) -> bool {
    found.target.is_some() && found.func_name == "size" && found.args.is_empty()
}

impl Form {
    fn is_double(self, want: Want) -> bool {
        match want {
            Want::Number(number) => self == Self::Doubles || number == Number::Double,
            Want::Anything | Want::Text => false,
        }
    }

    /// Converts a number to the kind that is used.
    fn as_kind(self, number: IdedExpr, kind: Number) -> IdedExpr {
        match kind {
            _ if self.is_double(Want::Number(kind)) => call(number.id, "double", vec![number]),
            Number::Unsigned => call(number.id, "uint", vec![number]),
            Number::Whole | Number::Double => number,
        }
    }

    /// Converts a number where doubles are calculated with.
    fn in_doubles(self, number: IdedExpr, want: Want) -> IdedExpr {
        if self.is_double(want) { self.as_kind(number, Number::Double) } else { number }
    }

    /// Rewrites one part and all parts below it. The recursion is as deep as the parser allows.
    fn part(self, expr: &IdedExpr, want: Want) -> Result<IdedExpr, Unlike> {
        let same = |rewritten| Ok(IdedExpr { id: expr.id, expr: rewritten });
        if let Some(name) = named(&expr.expr) {
            return match want {
                Want::Number(number) => {
                    let marked = IdedExpr { id: expr.id, expr: Expr::Ident(format!("{NUMBER}{name}")) };
                    Ok(self.as_kind(marked, number))
                }
                Want::Anything | Want::Text => same(Expr::Ident(name)),
            };
        }
        match &expr.expr {
            Expr::Literal(LiteralValue::Int(whole)) if self.is_double(want) => {
                same(Expr::Literal(LiteralValue::Double(CelDouble::from(*whole.inner() as f64))))
            }
            Expr::Literal(LiteralValue::UInt(whole)) if self.is_double(want) => {
                same(Expr::Literal(LiteralValue::Double(CelDouble::from(*whole.inner() as f64))))
            }
            Expr::Call(found) => match &found.target {
                None => self.global_call(expr.id, found, want),
                Some(target) => {
                    let called = Expr::Call(CallExpr {
                        func_name: found.func_name.clone(),
                        target: Some(Box::new(self.part(target, Want::Text)?)),
                        args: self.parts(&found.args, Want::Text)?,
                    });
                    let called = IdedExpr { id: expr.id, expr: called };
                    Ok(if is_size(found) { self.in_doubles(called, want) } else { called })
                }
            },
            Expr::List(list) => same(Expr::List(ListExpr {
                elements: self.parts(&list.elements, want)?,
                optional_indices: list.optional_indices.clone(),
            })),
            Expr::Map(map) => {
                let mut rewritten = Vec::with_capacity(map.entries.len());
                for entry in &map.entries {
                    rewritten.push(match &entry.expr {
                        EntryExpr::MapEntry(pair) => {
                            let mut pair = pair.clone();
                            pair.key = self.part(&pair.key, Want::Text)?;
                            pair.value = self.part(&pair.value, want)?;
                            IdedEntryExpr { id: entry.id, expr: EntryExpr::MapEntry(pair) }
                        }
                        EntryExpr::StructField(_) => entry.clone(),
                    });
                }
                same(Expr::Map(MapExpr { entries: rewritten }))
            }
            Expr::Select(select) => {
                let mut select = select.clone();
                select.operand = Box::new(self.part(&select.operand, Want::Anything)?);
                same(Expr::Select(select))
            }
            _ => Ok(expr.clone()),
        }
    }

    fn parts(self, all: &[IdedExpr], want: Want) -> Result<Vec<IdedExpr>, Unlike> {
        all.iter().map(|one| self.part(one, want)).collect()
    }

    fn global_call(self, id: u64, found: &CallExpr, want: Want) -> Result<IdedExpr, Unlike> {
        let name = found.func_name.as_str();
        let all = |want| Ok(call(id, name, self.parts(&found.args, want)?));
        let together = all_together(found.args.iter());
        match (name, found.args.as_slice()) {
            ("has", [of]) => match named(&of.expr) {
                Some(name) => Ok(IdedExpr { id, expr: Expr::Ident(format!("{PRESENCE}{name}")) }),
                None => all(Want::Anything),
            },
            (op::ADD, _) => match (together, want) {
                (Some(Gives::Attribute | Gives::Sum), Want::Text) => all(Want::Text),
                (Some(Gives::Attribute), _) => all(number_in(Number::Whole, want)),
                (Some(Gives::Number(number)), _) => all(number_in(number, want)),
                (together, _) => all(want_of(together)),
            },
            // There is no remainder of doubles.
            (op::MODULO, _) => match numeric(together) {
                Gives::Number(number) => {
                    let args = Self::Whole.parts(&found.args, Want::Number(number))?;
                    Ok(self.in_doubles(call(id, name, args), want))
                }
                _ => all(Want::Anything),
            },
            (op::SUBSTRACT | op::MULTIPLY | op::DIVIDE | op::NEGATE, _) => match numeric(together) {
                Gives::Number(number) => all(number_in(number, want)),
                _ => all(Want::Anything),
            },
            (op::CONDITIONAL, [condition, yes, no]) => {
                let want = match (want, self::together(gives(yes), gives(no))) {
                    (Want::Anything, Some(Gives::Attribute) | None) => Want::Anything,
                    (Want::Anything, found) => want_of(found),
                    (want, _) => want,
                };
                let args =
                    vec![self.part(condition, Want::Anything)?, self.part(yes, want)?, self.part(no, want)?];
                Ok(call(id, name, args))
            }
            (op::EQUALS | op::NOT_EQUALS, [_, _]) => match together {
                None => Err(Unlike),
                together => all(want_of(together)),
            },
            (op::LESS | op::LESS_EQUALS | op::GREATER | op::GREATER_EQUALS, _) => match together {
                None => Err(Unlike),
                together => all(want_of(Some(numeric(together)))),
            },
            (op::IN, [one, list]) => match &list.expr {
                Expr::List(several) => {
                    let together = all_together(several.elements.iter().chain([one]));
                    if together.is_none() && matches!(gives(one), Gives::Number(_) | Gives::Text) {
                        return Err(Unlike);
                    }
                    all(want_of(together))
                }
                _ => Ok(call(id, name, vec![self.part(one, Want::Text)?, self.part(list, Want::Anything)?])),
            },
            (op::INDEX, [base, key]) => {
                let numbers = |kind: Option<Gives>| matches!(kind, Some(Gives::Number(_)));
                match &base.expr {
                    Expr::Map(map) if numbers(all_together(entries(map).map(|(key, _)| key))) => Ok(call(
                        id,
                        name,
                        vec![self.part(base, want)?, Self::Whole.part(key, Want::Number(Number::Whole))?],
                    )),
                    Expr::Map(_) => {
                        Ok(call(id, name, vec![self.part(base, want)?, self.part(key, Want::Text)?]))
                    }
                    Expr::List(_) => Ok(call(
                        id,
                        name,
                        vec![self.part(base, want)?, Self::Whole.part(key, Want::Number(Number::Whole))?],
                    )),
                    _ => {
                        let looked_up = call(
                            id,
                            name,
                            vec![self.part(base, Want::Anything)?, self.part(key, Want::Text)?],
                        );
                        Ok(match want {
                            Want::Number(number) => {
                                self.as_kind(call(id, AS_NUMBER, vec![looked_up]), number)
                            }
                            Want::Text => call(id, "string", vec![looked_up]),
                            Want::Anything => looked_up,
                        })
                    }
                }
            }
            ("int" | "uint" | "double", [of]) => {
                let read = match gives(of) {
                    Gives::Attribute | Gives::Sum => Want::Number(Number::Whole),
                    _ => Want::Anything,
                };
                let converted = all(read)?;
                Ok(if name == "double" { converted } else { self.in_doubles(converted, want) })
            }
            ("size", _) => Ok(self.in_doubles(all(Want::Text)?, want)),
            (op::LOGICAL_AND | op::LOGICAL_OR | op::LOGICAL_NOT, _) => all(Want::Anything),
            _ => all(Want::Text),
        }
    }
}

/// Returns the kind of number that the parts of a calculation are read as, which is used as `want`.
fn number_in(own: Number, want: Want) -> Want {
    match want {
        Want::Number(wanted) => Want::Number(larger(own, wanted)),
        _ => Want::Number(own),
    }
}
