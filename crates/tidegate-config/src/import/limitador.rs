//! Converts the limits file of Limitador: a list of limits, each with conditions in CEL and the variables that it
//! counts by.
//!
//! Two rules are the same in both systems: a window opens with the first request and lasts its seconds, and a call that
//! any limit refuses is charged nowhere.

use std::collections::BTreeSet;

use cel::Program;
use cel::common::ast::operators::{EQUALS, IN, INDEX, LOGICAL_AND, LOGICAL_NOT, LOGICAL_OR, NOT_EQUALS};
use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use tidegate_core::Rate;

use super::super::budget;
use super::super::diagnostic::Findings;
use super::super::node::{Node, Spot, Value};
use super::attribute;
use super::draft::{AttributeMatch, Draft, Granted, LeftOut, Matches, PolicyFileText};
use tidegate_gate::policy::Glob;
use tidegate_limits::visible::excerpt;

/// The attribute with the index of the descriptor in its call, as the gRPC door sets it.
const INDEX_KEY: &str = "rls.index";

const KEYS: [&str; 7] = ["namespace", "max_value", "seconds", "name", "id", "conditions", "variables"];

pub(super) fn convert(file: usize, node: &Node, file_text: &mut PolicyFileText, findings: &mut Findings) {
    if node.entry("domain").is_some() {
        findings.error(node.spot, "this is a file of envoyproxy/ratelimit; read it with --from-envoy");
        return;
    }
    let Value::List(limits) = &node.value else {
        findings.error(node.spot, format_args!("the file is a list of limits, found {}", node.kind()));
        return;
    };
    for (at, node) in limits.iter().enumerate() {
        if let Some(draft) = limit(file, at, node, findings) {
            file_text.add(&draft, findings);
        }
    }
}

fn limit(file: usize, at: usize, node: &Node, findings: &mut Findings) -> Option<Draft> {
    if !super::is_map(node, "a limit", findings) {
        return None;
    }
    super::check(node, "a limit", &KEYS, &[], findings);
    let mut needed = |key: &str| {
        if node.get(key).is_none() {
            findings.error(node.spot, format_args!("a limit has no {key}"));
        }
    };
    ["namespace", "max_value", "seconds"].into_iter().for_each(&mut needed);
    let namespace = super::text(node, "namespace", findings);
    if namespace.is_some_and(str::is_empty) {
        findings.error(node.spot, "the namespace is empty; write the domain of Envoy's filter");
    }
    let count = super::whole(node, "max_value", Rate::MAX_COUNT, findings);
    let seconds = super::whole(node, "seconds", LONGEST, findings);
    if let (Some(0), Some(node)) = (seconds, node.get("seconds")) {
        findings.error(node.spot, "a window of 0 seconds limits nothing; write 1 or more");
    }
    let name = super::text(node, "name", findings).or(super::text(node, "id", findings));
    let mut conditions = Conditions::default();
    for one in super::list(node.get("conditions"), "conditions", findings) {
        match one.text() {
            Some(text) => conditions.add(text, one.spot, findings),
            None => findings.error(one.spot, format_args!("a condition is a text, found {}", one.kind())),
        }
    }
    let mut by = BTreeSet::new();
    for one in super::list(node.get("variables"), "variables", findings) {
        match one.text() {
            Some(text) => by.extend(conditions.variable(text, one.spot, findings)),
            None => findings.error(one.spot, format_args!("a variable is a text, found {}", one.kind())),
        }
    }
    let place = place(&conditions, node.spot, findings);
    let (namespace, count, seconds) = (namespace?, count?, seconds.filter(|seconds| *seconds > 0)?);
    let (mut matches, left_out) = conditions.finish();
    if let Some(index) = place {
        matches.push((INDEX_KEY.to_owned(), AttributeMatch::OneOf(vec![index.to_string()])));
    }
    let called = name.map_or_else(|| format!("limit-{}", at + 1), str::to_owned);
    Some(Draft {
        name: format!("{namespace}.{called}"),
        domain: namespace.to_owned(),
        matches,
        left_out,
        by: by.into_iter().collect(),
        granted: match count {
            0 => Granted::Nothing,
            count => Granted::Window { count, length: format!("{seconds}s"), since_epoch: false },
        },
        charges_always: false,
        lenient: None,
        file,
        spot: node.spot,
    })
}

/// The longest window, in seconds: a hundred years.
const LONGEST: u64 = 3_153_600_000;

fn place(conditions: &Conditions, spot: Spot, findings: &mut Findings) -> Option<u64> {
    let mut places = conditions.places().iter();
    match (places.next(), places.next()) {
        // A limit that names no descriptor is charged once per call.
        (None, _) => Some(0),
        (Some(DescriptorPlace::Any), None) => {
            findings.warn(
                spot,
                "a bare name is the key of an entry, as until version 1 of Limitador; in newer ones such a limit never applies: write \
                 descriptors[0].name",
            );
            None
        }
        (Some(DescriptorPlace::At(index)), None) => Some(*index),
        (Some(_), Some(_)) => {
            findings.error(
                spot,
                "a limit over several descriptors of a call cannot be a policy, which sees one at a time; have Envoy put the entries into one \
                 descriptor, and write descriptors[0] for all",
            );
            None
        }
    }
}

const LONGEST_CONDITION: usize = 2000;

/// The deepest nesting of an expression: the parser recurses on the caller's stack.
const DEEPEST: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DescriptorPlace {
    /// `descriptors[0]`
    At(u64),
    /// A bare name, which may be in any descriptor.
    Any,
}

#[derive(Clone, Debug, PartialEq)]
enum Requirement {
    OneOf(Vec<String>),
    NoneOf(Vec<String>),
    Present,
    Absent,
}

#[derive(Debug, Default)]
pub(super) struct Conditions {
    demands: Vec<(String, Requirement)>,
    places: BTreeSet<DescriptorPlace>,
}

struct Inexpressible;

impl Conditions {
    pub(super) fn add(&mut self, text: &str, spot: Spot, findings: &mut Findings) {
        let shown = excerpt(text);
        let Some(program) = compiled(text, spot, findings) else { return };
        let outcome = self.all_of(program.expression());
        if outcome.is_err() {
            findings.error(
                spot,
                format_args!(
                    "the condition \"{shown}\" cannot be expressed in a policy; supported are: descriptors[0].key == 'value', !=, in ['a', 'b'], \
                     .startsWith('a'), .endsWith('a'), .contains('a'), 'key' in descriptors[0], these with !, with &&, and with || over one key"
                ),
            );
        }
    }

    pub(super) fn variable(&mut self, text: &str, spot: Spot, findings: &mut Findings) -> Option<String> {
        let program = compiled(text, spot, findings)?;
        let Some(name) = self.entry(program.expression()) else {
            let shown = excerpt(text);
            findings.error(
                spot,
                format_args!("the variable \"{shown}\" is not an entry of a descriptor; write descriptors[0].key or descriptors[0]['key']"),
            );
            return None;
        };
        self.demands.push((name.clone(), Requirement::Present));
        Some(name)
    }

    pub(super) const fn places(&self) -> &BTreeSet<DescriptorPlace> {
        &self.places
    }

    pub(super) fn finish(self) -> (Matches, LeftOut) {
        let mut wanted = Matches::new();
        let mut left_out = LeftOut::new();
        for (name, demand) in self.demands {
            let want = match demand {
                Requirement::OneOf(values) => AttributeMatch::OneOf(values),
                Requirement::Present => AttributeMatch::Present,
                Requirement::Absent => AttributeMatch::Absent,
                // In Limitador, a missing entry fails this condition too.
                Requirement::NoneOf(values) => {
                    match left_out.iter_mut().find(|(other, _)| *other == name) {
                        Some((_, all)) => all.extend(values),
                        None => left_out.push((name.clone(), values)),
                    }
                    AttributeMatch::Present
                }
            };
            match wanted.iter_mut().find(|(other, _)| *other == name) {
                None => wanted.push((name, want)),
                Some((_, have)) if *have == AttributeMatch::Present => *have = want,
                Some(_) => {}
            }
        }
        // Attributes with values come first, for the index of policies.
        wanted.sort_by_key(|(_, want)| !matches!(want, AttributeMatch::OneOf(_)));
        (wanted, left_out)
    }

    fn all_of(&mut self, node: &IdedExpr) -> Result<(), Inexpressible> {
        if let Expr::Call(call) = &node.expr
            && call.func_name == LOGICAL_AND
        {
            return call.args.iter().try_for_each(|part| self.all_of(part));
        }
        let (name, demand) = self.one(node)?;
        // Two demands on one entry can be written as one match only if they can be combined.
        let fits = self.demands.iter().filter(|(other, _)| *other == name).all(|(_, other)| {
            let together = |one: &Requirement, other: &Requirement| match (one, other) {
                (Requirement::Present, Requirement::Absent) | (Requirement::Absent, _) => false,
                (Requirement::OneOf(_), Requirement::OneOf(_)) => one == other,
                _ => true,
            };
            together(other, &demand) && together(&demand, other)
        });
        if !fits {
            return Err(Inexpressible);
        }
        self.demands.push((name, demand));
        Ok(())
    }

    fn one(&mut self, node: &IdedExpr) -> Result<(String, Requirement), Inexpressible> {
        match &node.expr {
            Expr::Select(select) if select.test => {
                let there = Expr::Select(cel::common::ast::SelectExpr { test: false, ..select.clone() });
                let name = self.entry(&IdedExpr { id: node.id, expr: there }).ok_or(Inexpressible)?;
                Ok((name, Requirement::Present))
            }
            Expr::Call(call) => self.call(call),
            _ => Err(Inexpressible),
        }
    }

    fn call(&mut self, call: &CallExpr) -> Result<(String, Requirement), Inexpressible> {
        let target = call.target.as_deref();
        match (&*call.func_name, target, &*call.args) {
            (EQUALS, None, [one, other]) => {
                let (name, value) = self.compared(one, other)?;
                Ok((name, Requirement::OneOf(vec![plain(value)?])))
            }
            (NOT_EQUALS, None, [one, other]) => {
                let (name, value) = self.compared(one, other)?;
                Ok((name, Requirement::NoneOf(vec![plain(value)?])))
            }
            (IN, None, [one, other]) => match &other.expr {
                Expr::List(list) => {
                    let name = self.entry(one).ok_or(Inexpressible)?;
                    let values =
                        list.elements.iter().map(|value| plain(literal(value).ok_or(Inexpressible)?));
                    let values = values.collect::<Result<Vec<_>, _>>()?;
                    if values.is_empty() || values.len() > budget::ELEMENTS {
                        return Err(Inexpressible);
                    }
                    Ok((name, Requirement::OneOf(values)))
                }
                _ => {
                    let index = index_of(other).ok_or(Inexpressible)?;
                    let key = literal(one).ok_or(Inexpressible)?;
                    self.places.insert(DescriptorPlace::At(index));
                    Ok((attribute(key, 0), Requirement::Present))
                }
            },
            ("startsWith" | "endsWith" | "contains", Some(entry), [value]) => {
                let name = self.entry(entry).ok_or(Inexpressible)?;
                let part = plain(literal(value).ok_or(Inexpressible)?)?;
                let pattern = match &*call.func_name {
                    "startsWith" => format!("{part}*"),
                    "endsWith" => format!("*{part}"),
                    _ => format!("*{part}*"),
                };
                Ok((name, Requirement::OneOf(vec![pattern])))
            }
            (LOGICAL_NOT, None, [inner]) => {
                let (name, demand) = self.one(inner)?;
                Ok((
                    name,
                    match demand {
                        Requirement::OneOf(values) => Requirement::NoneOf(values),
                        Requirement::NoneOf(values) => Requirement::OneOf(values),
                        Requirement::Present => Requirement::Absent,
                        Requirement::Absent => Requirement::Present,
                    },
                ))
            }
            (LOGICAL_OR, None, [one, other]) => {
                let ((name, one), (same, other)) = (self.one(one)?, self.one(other)?);
                match (one, other) {
                    (Requirement::OneOf(mut values), Requirement::OneOf(more)) if name == same => {
                        values.extend(more);
                        Ok((name, Requirement::OneOf(values)))
                    }
                    _ => Err(Inexpressible),
                }
            }
            _ => Err(Inexpressible),
        }
    }

    fn compared<'e>(
        &mut self,
        one: &'e IdedExpr,
        other: &'e IdedExpr,
    ) -> Result<(String, &'e str), Inexpressible> {
        let (entry, value) = match (literal(one), literal(other)) {
            (None, Some(value)) => (one, value),
            (Some(value), None) => (other, value),
            _ => return Err(Inexpressible),
        };
        Ok((self.entry(entry).ok_or(Inexpressible)?, value))
    }

    fn entry(&mut self, node: &IdedExpr) -> Option<String> {
        let (place, key) = match &node.expr {
            Expr::Select(select) if !select.test && index_of(&select.operand).is_some() => {
                (index_of(&select.operand).map(DescriptorPlace::At)?, select.field.clone())
            }
            Expr::Call(call) if call.func_name == INDEX => {
                let [map, key] = &*call.args else { return None };
                (DescriptorPlace::At(index_of(map)?), literal(key)?.to_owned())
            }
            expr => (DescriptorPlace::Any, bare(expr)?),
        };
        // An empty key is not an entry of a descriptor, and these names are Limitador's own.
        if key.is_empty()
            || place == DescriptorPlace::Any && (key == "descriptors" || key.starts_with("limit."))
        {
            return None;
        }
        self.places.insert(place);
        Some(attribute(&key, 0))
    }
}

fn index_of(node: &IdedExpr) -> Option<u64> {
    let Expr::Call(call) = &node.expr else { return None };
    let [list, index] = &*call.args else { return None };
    let is_list = matches!(&list.expr, Expr::Ident(name) if name == "descriptors");
    match &index.expr {
        Expr::Literal(LiteralValue::Int(index)) if call.func_name == INDEX && is_list => {
            u64::try_from(*index.inner()).ok()
        }
        _ => None,
    }
}

fn bare(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => {
            Some(format!("{}.{}", bare(&select.operand.expr)?, select.field))
        }
        _ => None,
    }
}

fn literal(node: &IdedExpr) -> Option<&str> {
    match &node.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Returns a value that can stand as a pattern. Fails for an empty value and for a star, which would match anything.
fn plain(value: &str) -> Result<String, Inexpressible> {
    let bends = value.contains('*') || value.is_empty() || Glob::new(value).is_err();
    if bends { Err(Inexpressible) } else { Ok(value.to_owned()) }
}

fn compiled(text: &str, spot: Spot, findings: &mut Findings) -> Option<Program> {
    let opened = text.bytes().filter(|byte| matches!(byte, b'(' | b'[' | b'{' | b'!' | b'-' | b'?')).count();
    if text.len() > LONGEST_CONDITION || opened > 4 * DEEPEST {
        findings.error(spot, "the expression is too long or nested too deep; write several conditions");
        return None;
    }
    match Program::compile(text) {
        Ok(program) => Some(program),
        Err(_) => {
            findings.error(spot, format_args!("\"{}\" is not an expression in CEL", excerpt(text)));
            None
        }
    }
}
