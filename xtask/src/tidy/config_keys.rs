//! Rule: the manual names every key of the policy file, and its tables name none that does not exist.
//!
//! Keys are read from the tables from which the JSON Schema is generated: calls of `key("name", Kind, default, "what
//! for")`. A key that is not yet available (`Kind::Unavailable`) need not be on a page. On the page of the policy file,
//! the first column of each table that begins with `| key |` is compared with the keys; its examples are not.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, LitStr};

use super::code::literal;
use super::fault::{Allowed, Fault};
use super::markdown::{code, is_page, words};
use super::tree::Tree;

const PAGE: &str = "docs/policy-file.md";

const ARGUMENTS: usize = 4;

/// An exception is named by a key.
pub(crate) fn check(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let mut keys = Keys::default();
    for path in tree.rust().filter(|path| path.starts_with("crates/") && path.contains("/src/")) {
        keys.path = path.to_owned();
        tree.items(path).iter().for_each(|item| keys.visit_item(item));
    }
    let pages = tree.texts().filter(|(path, _)| is_page(path));
    let pieces = pages.flat_map(|(_, text)| code(text));
    let told: BTreeSet<&str> = pieces.flat_map(|(_, piece)| words(piece, &['_', '-'])).collect();
    let mut faults = Vec::new();
    for (name, key) in
        keys.found.iter().filter(|(name, key)| !key.unavailable && !told.contains(name.as_str()))
    {
        if !allowed.allows(name) {
            let what =
                format!("key `{name}` of the policy file is on no page under docs/; say there what it does");
            faults.push(Fault::new(key.path.clone(), key.line, what));
        }
    }
    for (line, name) in rows(tree.text(PAGE).unwrap_or_default()) {
        if !keys.found.contains_key(name) && !allowed.allows(name) {
            let what = format!("the policy file has no key `{name}`; take it out or correct it");
            faults.push(Fault::new(PAGE, line, what));
        }
    }
    faults
}

/// Lists the keys in the first column of the page's key tables: `client_ip.header` counts as two.
fn rows(page: &str) -> Vec<(usize, &str)> {
    let (mut rows, mut of_keys) = (Vec::new(), false);
    for (index, line) in page.lines().enumerate() {
        of_keys = line.starts_with("| key |") || of_keys && line.starts_with('|');
        let first = line.split('|').nth(1).filter(|_| of_keys).unwrap_or_default();
        let names = code(first).into_iter().flat_map(|(_, span)| words(span, &['_', '-']));
        rows.extend(names.map(|name| (index + 1, name)));
    }
    rows
}

#[derive(Debug, Default)]
struct Keys {
    path: String,
    found: BTreeMap<String, Key>,
}

#[derive(Debug)]
struct Key {
    path: String,
    line: usize,
    unavailable: bool,
}

/// Returns the name and the kind of the key that a call defines; `None` for any other call.
pub(crate) fn definition(call: &ExprCall) -> Option<(&LitStr, String)> {
    let last = |expression: &Expr| match expression {
        Expr::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        _ => None,
    };
    // `Kind::Text`, or `Kind::Whole(1, 2)`.
    let kind = |expression: &Expr| match expression {
        Expr::Call(kind) => last(&kind.func),
        kind => last(kind),
    };
    let defines = call.args.len() == ARGUMENTS && last(&call.func).is_some_and(|name| name == "key");
    let name = call.args.first().filter(|_| defines).and_then(literal)?;
    Some((name, kind(&call.args[1]).unwrap_or_default()))
}

impl<'ast> Visit<'ast> for Keys {
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Some((name, kind)) = definition(call) {
            let unavailable = kind == "Unavailable";
            let key = Key { path: self.path.clone(), line: name.span().start().line, unavailable };
            let known = self.found.entry(name.value()).or_insert(key);
            // A key may be available in one table and not yet in another.
            known.unavailable &= unavailable;
        }
        visit::visit_expr_call(self, call);
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::found;

    const KEYS: &str = "const KEYS: &[Key] = &[\n    key(\"burst\", Kind::Whole(1, 2), None, \"The most\"),\n    \
                        key(\"key_file\", Kind::Text, None, \"A file\"),\n    \
                        key(\"later\", Kind::Unavailable, None, \"Not yet\"),\n];\nfn f() { map.key(\"other\"); key(\"two\", 2) }";

    #[test]
    fn a_key_that_no_page_names_in_code_is_found() {
        let path = "crates/tidegate-gate/src/keys.rs";
        let check = |page: &str| found("config-keys", &[(path, KEYS), ("docs/policy-file.md", page)], "");
        assert_eq!(check("`limit.burst`\n```yaml\nkey_file: a\n```\n"), [""; 0]);
        let found = check("a burst in prose, `key_file_name`, `.key_file`");
        assert_eq!(
            found,
            [format!(
                "{path}:2: key `burst` of the policy file is on no page under docs/; say there what it does"
            )]
        );
    }
    #[test]
    fn a_row_of_a_key_that_does_not_exist_is_found() {
        let page = "| key | default |\n|---|---|\n| `burst`, `.key_file` | `none` |\n| `burst.brust` or `later` | |\n\n\
                    | value | note |\n|---|---|\n| `other` | |\n";
        let path = "crates/tidegate-config/src/keys.rs";
        let found = found("config-keys", &[(path, KEYS), ("docs/policy-file.md", page)], "");
        let expected = "docs/policy-file.md:4: the policy file has no key `brust`; take it out or correct it";
        assert_eq!(found, [expected]);
    }
}
