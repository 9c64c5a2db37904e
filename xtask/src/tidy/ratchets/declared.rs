//! Counts what tables and clap's definitions declare: keys of the policy file, options of a verb.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{ExprCall, ExprPath, ExprStruct, Fields, Item, Member, Path, Type};

use crate::tidy::code::{Code, literal};
use crate::tidy::command_line::{flag, flattened};
use crate::tidy::config_keys::definition;
use crate::tidy::tree::Tree;

/// The kinds of keys that a file may not have: their definitions only say so.
const REFUSED: [&str; 2] = ["Unavailable", "Elsewhere"];

pub(super) fn policy_keys<'t>(tree: &'t Tree, sources: impl Iterator<Item = &'t str>) -> Option<usize> {
    let mut all = BTreeSet::new();
    for path in sources {
        let mut keys = Keys::default();
        tree.items(path).iter().for_each(|item| keys.visit_item(item));
        all.extend(keys.names);
    }
    (!all.is_empty()).then_some(all.len())
}

/// Counts the keys of the table `limit`: those defined in the constant of that table, and in the constants that it
/// refers to, but not in tables of tables.
pub(super) fn limit_keys<'t>(tree: &'t Tree, sources: impl Iterator<Item = &'t str>) -> Option<usize> {
    let (mut constants, mut next) = (BTreeMap::new(), None);
    for path in sources {
        let module = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
        let (mut found, mut defines_keys) = (Vec::new(), false);
        for item in tree.items(path) {
            let Item::Const(item) = item else { continue };
            let mut keys = Keys::default();
            keys.visit_expr(&item.expr);
            defines_keys |= !keys.names.is_empty() || keys.table;
            next = next.or_else(|| keys.limit.then(|| (module.to_owned(), item.ident.to_string())));
            found.push((item.ident.to_string(), keys));
        }
        // Only of the few files with tables are the imports read.
        if defines_keys {
            let code = Code::of(tree.items(path), false);
            for (name, mut keys) in found {
                let whole = |path: &Vec<String>| code.whole(path).split("::").map(str::to_owned).collect();
                keys.uses = keys.uses.iter().map(whole).collect();
                constants.insert((module.to_owned(), name), keys);
            }
        }
    }
    let (mut names, mut open) = (BTreeSet::new(), vec![next?]);
    while let Some(place) = open.pop() {
        // A constant is taken once.
        let Some(keys) = constants.remove(&place) else { continue };
        names.extend(keys.names);
        open.extend(keys.uses.into_iter().filter_map(|path| match &path[..] {
            [.., module, name] => Some((module.clone(), name.clone())),
            [name] => Some((place.0.clone(), name.clone())),
            [] => None,
        }));
    }
    Some(names.len())
}

#[derive(Debug, Default)]
struct Keys {
    names: BTreeSet<String>,
    uses: Vec<Vec<String>>,
    /// Whether it is a table, and the one of a limit.
    table: bool,
    limit: bool,
}

impl<'ast> Visit<'ast> for Keys {
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        match definition(call) {
            Some((_, kind)) if REFUSED.contains(&kind.as_str()) => {}
            // What a key's kind refers to is a table below it.
            Some((name, _)) => _ = self.names.insert(name.value()),
            None => visit::visit_expr_call(self, call),
        }
    }

    fn visit_expr_struct(&mut self, made: &'ast ExprStruct) {
        self.table |= made.path.is_ident("Table");
        self.limit |= made.path.is_ident("Table")
            && made.fields.iter().any(|field| {
                let named = matches!(&field.member, Member::Named(name) if name == "name");
                named && literal(&field.expr).is_some_and(|name| name.value() == "limit")
            });
        visit::visit_expr_struct(self, made);
    }

    fn visit_expr_path(&mut self, path: &'ast ExprPath) {
        let names = |path: &Path| path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.uses.push(names(&path.path));
    }
}

/// Counts the flags of a verb: those of its struct, and of the structs flattened into it.
pub(super) fn options(tree: &Tree, verb: &str) -> Option<usize> {
    let sources = tree.rust().filter(|path| path.starts_with("crates/tidegate-cli/src/"));
    let structs = sources.flat_map(|path| tree.items(path)).filter_map(|item| match item {
        Item::Struct(item) => Some((item.ident.to_string(), &item.fields)),
        _ => None,
    });
    let structs: BTreeMap<String, &Fields> = structs.collect();
    let (mut flags, mut open) = (BTreeSet::new(), vec![*structs.get(verb)?]);
    while let Some(fields) = open.pop() {
        flags.extend(fields.iter().filter_map(flag));
        open.extend(fields.iter().filter(|field| flattened(field)).filter_map(|field| match &field.ty {
            Type::Path(path) => structs.get(&path.path.segments.last()?.ident.to_string()).copied(),
            _ => None,
        }));
    }
    Some(flags.len())
}
