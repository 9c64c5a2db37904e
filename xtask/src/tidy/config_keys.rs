//! No key of the policy file that the manual does not name.
//!
//! Keys are read from the tables that the JSON Schema is made of: calls of `key("name", Kind, default, "what for")`. A key
//! that is known and not to be had yet (`Kind::Unavailable`) need not be on a page. The other way round, the examples of the
//! manual are read by tests of the library, which refuse an unknown key.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprLit, Lit};

use super::allowed::Allowed;
use super::fault::Fault;
use super::markdown::{code, is_page, words};
use super::tree::Tree;

/// How many arguments the function has that makes a key.
const ARGUMENTS: usize = 4;

/// An exception is called by the name of a key.
pub(crate) fn check(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let mut keys = Keys::default();
    for path in tree.rust().filter(|path| path.starts_with("crates/") && path.contains("/src/")) {
        keys.path = path.to_owned();
        tree.items(path).iter().for_each(|item| keys.visit_item(item));
    }
    let pages = tree.texts().filter(|(path, _)| is_page(path));
    let pieces = pages.flat_map(|(_, text)| code(text));
    let told: BTreeSet<&str> = pieces.flat_map(|(_, piece)| words(piece, &['_', '-'])).collect();
    let missing =
        keys.found.into_iter().filter(|(name, _)| !told.contains(name.as_str()) && !allowed.allows(name));
    let fault = |(name, (path, line)): (String, (String, usize))| {
        Fault::new(
            path,
            line,
            format!("key `{name}` of the policy file is on no page under docs/; say there what it does"),
        )
    };
    missing.map(fault).collect()
}

/// The keys that the file may have, each with the first place that defines it.
#[derive(Debug, Default)]
struct Keys {
    path: String,
    found: BTreeMap<String, (String, usize)>,
}

impl<'ast> Visit<'ast> for Keys {
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        let last = |expression: &Expr| match expression {
            Expr::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        let makes_a_key = call.args.len() == ARGUMENTS && last(&call.func).is_some_and(|name| name == "key");
        let unavailable = call.args.get(1).and_then(last).is_some_and(|kind| kind == "Unavailable");
        if let (true, false, Some(Expr::Lit(ExprLit { lit: Lit::Str(name), .. }))) =
            (makes_a_key, unavailable, call.args.first())
        {
            let place = (self.path.clone(), name.span().start().line);
            self.found.entry(name.value()).or_insert(place);
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
        let path = "crates/tidegate/src/policy/config/keys.rs";
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
}
