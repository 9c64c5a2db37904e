//! Analyses an expression before it is evaluated: its size, the names that it uses, and the dashes in them.

use std::borrow::Cow;

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

// Reads names that have dashes.
//
// In CEL a dash is always a minus: `request.header.x-cost` is the header `x` less a value called `cost`. Names of
// headers have dashes, and all other keys of the file have them as they are. So behind `request.header.` a dash belongs
// to the name, as in `by`. Elsewhere, a dash without a space between a dotted name and a single word may be meant as
// either, and the error says how to write both.

/// What all names of headers begin with.
const HEADER: &str = "request.header.";

/// Returns the expression with the headers that have dashes in brackets, which CEL reads as one name.
///
/// # Errors
/// The sentence about a dash that may be a minus or part of a name.
pub(super) fn bracketed(source: &str) -> Result<Cow<'_, str>, String> {
    let bytes = source.as_bytes();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut out: Option<String> = None;
    let (mut at, mut copied) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => at = after_text(bytes, at, quote),
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| at + end);
            }
            byte if is_word(byte) => {
                let start = at;
                while at < bytes.len() && (is_word(bytes[at]) || bytes[at] == b'.') {
                    at += 1;
                }
                if bytes.get(at) != Some(&b'-') || !bytes.get(at + 1).copied().is_some_and(is_word) {
                    continue;
                }
                let name = &source[start..at];
                if let Some(first) = name.strip_prefix(HEADER)
                    && !first.is_empty()
                {
                    while at < bytes.len() && (is_word(bytes[at]) || bytes[at] == b'-') {
                        at += 1;
                    }
                    let end = source[..at].trim_end_matches('-').len();
                    let out = out.get_or_insert_default();
                    out.push_str(&source[copied..start]);
                    out.push_str("request.header[\"");
                    out.push_str(&source[start + HEADER.len()..end]);
                    out.push_str("\"]");
                    (at, copied) = (end, end);
                    continue;
                }
                let dotted = name.contains('.') && name.starts_with(|c: char| c.is_ascii_alphabetic());
                if dotted {
                    let rest = &bytes[at + 1..];
                    let length = rest.iter().take_while(|byte| is_word(**byte) || **byte == b'-').count();
                    let follows = rest.get(length).copied();
                    let word = &source[at + 1..at + 1 + length];
                    // A digit, a dotted name and a call can only follow a minus.
                    if word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                        && !matches!(follows, Some(b'.' | b'(' | b'['))
                    {
                        let (group, last) = name.rsplit_once('.').unwrap_or((name, ""));
                        return Err(format!(
                            "{name}-{word} may be one name or a subtraction; write {group}[\"{last}-{word}\"] for the \
                             attribute, or {name} - {word} to subtract"
                        ));
                    }
                }
            }
            _ => at += 1,
        }
    }
    Ok(match out {
        None => Cow::Borrowed(source),
        Some(mut out) => {
            out.push_str(&source[copied..]);
            Cow::Owned(out)
        }
    })
}

/// Returns the end of a quoted text; the end of the source if it is not closed, which the parser reports.
fn after_text(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_written_as_in_by() {
        for (source, read) in [
            ("int(request.header.x-cost)", "int(request.header[\"x-cost\"])"),
            ("request.header.x-a-b*2 + request.header.n", "request.header[\"x-a-b\"]*2 + request.header.n"),
            ("request.header.a - 1", "request.header.a - 1"),
            ("has(request.header.x-é) ? 1 : 2", "has(request.header.x-é) ? 1 : 2"),
            ("llm.input-llm.cached", "llm.input-llm.cached"),
            ("llm.input-1", "llm.input-1"),
            ("llm.input-int(llm.cached)", "llm.input-int(llm.cached)"),
            ("user.id == 'request.header.x-y' ? 1 : 2", "user.id == 'request.header.x-y' ? 1 : 2"),
            ("1.5-2", "1.5-2"),
            ("'\\'", "'\\'"),
        ] {
            assert_eq!(bracketed(source).as_deref(), Ok(read));
        }
    }

    #[test]
    fn what_may_be_a_minus_is_told_with_both_forms() {
        assert_eq!(
            bracketed("2 * llm.max-tokens").unwrap_err(),
            "llm.max-tokens may be one name or a subtraction; write llm[\"max-tokens\"] for the attribute, or llm.max - \
             tokens to subtract"
        );
    }
}
