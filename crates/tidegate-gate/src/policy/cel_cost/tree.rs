//! Analyses an expression before it is evaluated: its size, and the names that it uses.

use cel::common::ast::operators::{IN, INDEX};
use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};

/// The calls that CEL turns into loops.
const LOOPS: [&str; 5] = ["all", "exists", "exists_one", "map", "filter"];

/// The facts about an expression that are known before it is evaluated.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) nodes: usize,
    pub(super) loops: bool,
    /// Whether `has(…)` asks for something that has no name.
    pub(super) has_nothing: bool,
    pub(super) looks_up: bool,
    pub(super) names: Vec<String>,
}

impl Tree {
    /// Counts a node and all nodes below it. The recursion is as deep as the parser allows.
    pub(super) fn add(&mut self, node: &IdedExpr) {
        self.nodes += 1;
        if let Some(name) = named(&node.expr) {
            self.names.push(name);
            return;
        }
        match &node.expr {
            Expr::Call(call) => {
                let in_a_list = || matches!(call.args.get(1).map(|list| &list.expr), Some(Expr::List(_)));
                self.loops |= call.target.is_some() && LOOPS.contains(&call.func_name.as_str());
                self.has_nothing |= call.func_name == "has"
                    && !matches!(call.args.as_slice(), [of] if named(&of.expr).is_some_and(|name| name.contains('.')));
                self.looks_up |= call.func_name == INDEX || call.func_name == IN && !in_a_list();
                call.target.iter().for_each(|target| self.add(target));
                call.args.iter().for_each(|argument| self.add(argument));
            }
            Expr::List(list) => list.elements.iter().for_each(|element| self.add(element)),
            Expr::Map(map) => map.entries.iter().for_each(|entry| self.add_entry(&entry.expr)),
            Expr::Struct(fields) => fields.entries.iter().for_each(|entry| self.add_entry(&entry.expr)),
            Expr::Select(select) => self.add(&select.operand),
            Expr::Comprehension(_) => self.loops = true,
            Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
        }
    }

    fn add_entry(&mut self, entry: &EntryExpr) {
        match entry {
            EntryExpr::StructField(field) => self.add(&field.value),
            EntryExpr::MapEntry(entry) => {
                self.add(&entry.key);
                self.add(&entry.value);
            }
        }
    }
}

/// Returns the dotted name that a node stands for: written with fields, such as `user.id`, or with a text in brackets,
/// as `user["id"]`.
pub(super) fn named(node: &Expr) -> Option<String> {
    let (operand, field) = match node {
        Expr::Ident(name) => return Some(name.clone()),
        Expr::Select(select) => (&select.operand.expr, select.field.as_str()),
        Expr::Call(call) if call.func_name == INDEX => match call.args.as_slice() {
            [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(field)), .. }] => {
                (&operand.expr, field.inner())
            }
            _ => return None,
        },
        _ => return None,
    };
    let mut name = named(operand)?;
    name.push('.');
    name.push_str(field);
    Some(name)
}

/// Reduces a parser's report to what is wrong and where, without the list of all tokens that were possible.
pub(super) fn tidy(report: &str) -> String {
    let first = report.lines().find(|line| !line.trim().is_empty()).unwrap_or("cannot be read");
    let first = first.split(" expecting {").next().unwrap_or(first).trim().trim_start_matches("ERROR: ");
    let placed = first.strip_prefix("<input>:1:").and_then(|rest| rest.split_once(": "));
    match placed {
        Some((column, what)) => {
            let what = what.strip_prefix("Syntax error: ").unwrap_or(what);
            format!("the expression cannot be read at its character {column}: {what}")
        }
        None => format!("the expression cannot be read: {first}"),
    }
}

/// Estimates the nesting depth of a text without parsing it: each opening bracket, `?`, `!` and `-` may be a level.
pub(super) fn nesting(source: &str) -> usize {
    let (mut depth, mut deepest, mut operators) = (0_usize, 0, 0);
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'?' | b'!' | b'-' => operators += 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest + operators
}
