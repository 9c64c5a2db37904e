//! Extracts what a module's code refers to: the paths in it, the macros it calls, the names it imports.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprLit, ImplItem, Item, ItemMod, ItemUse, Lit, LitStr, Macro, Meta, Path, Token,
    TraitItem, UseTree, Visibility,
};

/// Returns the text that an expression is.
pub(crate) fn literal(expression: &Expr) -> Option<&LitStr> {
    match expression {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text),
        _ => None,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
    pub(crate) test: bool,
    pub(crate) is_macro: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// The name in this module; `*` for a glob import.
    pub(crate) name: String,
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
    pub(crate) test: bool,
    /// Whether it is a re-export: `pub use`, `pub(crate) use`.
    pub(crate) handed_on: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Code {
    pub(crate) mentions: Vec<Mention>,
    pub(crate) imports: Vec<Import>,
    test: bool,
}

impl Code {
    /// Reads the items of a module; `test` says whether the module is test-only.
    pub(crate) fn of(items: &[Item], test: bool) -> Self {
        let mut code = Self { test, ..Self::default() };
        items.iter().for_each(|item| code.visit_item(item));
        code
    }

    /// Expands a path by the imports of this module: `fs::read` after `use std::fs` becomes `std::fs::read`.
    pub(crate) fn whole(&self, path: &[String]) -> String {
        let import = path.first().and_then(|first| self.imports.iter().find(|import| import.name == *first));
        match import {
            Some(import) => [&import.path[..], &path[1..]].concat().join("::"),
            None => path.join("::"),
        }
    }

    fn within(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let before = self.test;
        self.test = before || test_only(attributes);
        visit(self);
        self.test = before;
    }

    fn import(&mut self, tree: &UseTree, lead: &[String], handed_on: bool) {
        let (name, called) = match tree {
            UseTree::Path(path) => {
                return self.import(&path.tree, &[lead, &[path.ident.to_string()]].concat(), handed_on);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, lead, handed_on));
            }
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                let (name, path) = ("*".to_owned(), lead.to_vec());
                return self.imports.push(Import { name, path, line, test: self.test, handed_on });
            }
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(rename) => (&rename.ident, &rename.rename),
        };
        // `use a::b::{self}` imports `b`.
        let (path, called) = match lead.last() {
            Some(last) if name == "self" && called == "self" => (lead.to_vec(), last.clone()),
            Some(_) if name == "self" => (lead.to_vec(), called.to_string()),
            _ => ([lead, &[name.to_string()]].concat(), called.to_string()),
        };
        let line = name.span().start().line;
        self.imports.push(Import { name: called, path, line, test: self.test, handed_on });
    }

    /// Reads paths from a macro's arguments, which need not be Rust.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons, mut after_dot) = (0, 0, false);
        for token in tokens {
            match &token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.spoken(&mut path, line);
                        line = name.span().start().line;
                    }
                    if !after_dot {
                        path.push(name.to_string());
                    }
                    (colons, after_dot) = (0, false);
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => (colons, after_dot) = (colons + 1, false),
                TokenTree::Punct(mark) if mark.as_char() == '!' && colons == 0 && !path.is_empty() => {
                    let path = std::mem::take(&mut path);
                    self.mentions.push(Mention { path, line, test: self.test, is_macro: true });
                }
                other => {
                    self.spoken(&mut path, line);
                    after_dot =
                        matches!(other, TokenTree::Punct(mark) if matches!(mark.as_char(), '.' | '\''));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        // Attributes are not code.
                        if group.delimiter() != Delimiter::None {
                            self.tokens(group.stream());
                        }
                    }
                }
            }
        }
        self.spoken(&mut path, line);
    }

    /// Records a path inside a macro. A single lower-case word may be a field, a binding or a keyword.
    fn spoken(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        let told = match &path[..] {
            [] => false,
            [one] => one.starts_with(char::is_uppercase),
            _ => true,
        };
        if told {
            self.mentions.push(Mention { path, line, test: self.test, is_macro: false });
        }
    }
}

fn names(path: &Path) -> (Vec<String>, usize) {
    let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
    (path.segments.iter().map(|segment| segment.ident.to_string()).collect(), line)
}

impl<'ast> Visit<'ast> for Code {
    fn visit_item(&mut self, item: &'ast Item) {
        self.within(attributes(item), |code| visit::visit_item(code, item));
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        self.within(attributes_in_impl(item), |code| visit::visit_impl_item(code, item));
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        self.within(attributes_in_trait(item), |code| visit::visit_trait_item(code, item));
    }

    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let handed_on = !matches!(item.vis, Visibility::Inherited);
        self.import(&item.tree, &[], handed_on);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast Path) {
        let (names, line) = names(path);
        self.mentions.push(Mention { path: names, line, test: self.test, is_macro: false });
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        let (path, line) = names(&called.path);
        self.mentions.push(Mention { path, line, test: self.test, is_macro: true });
        self.tokens(called.tokens.clone());
    }
}

// Recognises test-only code: code that exists only in builds for tests or model checks.

/// The conditions that only tests, documentation tests and loom's models enable.
const TEST_BUILDS: [&str; 3] = ["test", "doctest", "tidegate_loom"];

/// Returns whether these attributes make an item test-only. `#[test]`, `#[cfg(test)]` and `#[cfg(all(test, unix))]` do;
/// `#[cfg(any(test, unix))]` and `#[cfg(not(test))]` do not.
pub(crate) fn test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let test = path.segments.last().is_some_and(|last| last.ident == "test");
        test || path.is_ident("cfg")
            && attribute.parse_args::<Meta>().is_ok_and(|meta| holds(&meta) == Some(false))
    })
}

/// Evaluates a condition outside of test builds; `None` if it depends on something else.
fn holds(condition: &Meta) -> Option<bool> {
    match condition {
        Meta::Path(path) if TEST_BUILDS.iter().any(|build| path.is_ident(build)) => Some(false),
        Meta::List(list) => {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
            let parts: Vec<Option<bool>> = parts.iter().map(holds).collect();
            let decides = |part: bool| {
                if parts.contains(&Some(part)) {
                    return Some(part);
                }
                parts.iter().all(|known| *known == Some(!part)).then_some(!part)
            };
            if list.path.is_ident("all") {
                decides(false)
            } else if list.path.is_ident("any") {
                decides(true)
            } else {
                parts.first().copied().flatten().map(|part| !part)
            }
        }
        _ => None,
    }
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

pub(crate) fn attributes_in_impl(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Const(item) => &item.attrs,
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Type(item) => &item.attrs,
        ImplItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

pub(crate) fn attributes_in_trait(item: &TraitItem) -> &[Attribute] {
    match item {
        TraitItem::Const(item) => &item.attrs,
        TraitItem::Fn(item) => &item.attrs,
        TraitItem::Type(item) => &item.attrs,
        TraitItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Code {
        Code::of(&syn::parse_file(text).unwrap().items, false)
    }

    #[test]
    fn imports_are_told_one_by_one() {
        let code =
            code("use a::{self, b::C as D, e::*};\npub(crate) use self::f::G;\n#[cfg(test)] use h::I;");
        let told: Vec<String> = code
            .imports
            .iter()
            .map(|import| {
                let marks = (import.handed_on, import.test);
                format!("{} = {} {marks:?} {}", import.name, import.path.join("::"), import.line)
            })
            .collect();
        let expected = [
            "a = a (false, false) 1",
            "D = a::b::C (false, false) 1",
            "* = a::e (false, false) 1",
            "G = self::f::G (true, false) 2",
            "I = h::I (false, true) 3",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn paths_are_read_in_types_bodies_and_macros_and_tests_are_marked() {
        let text = "fn f(x: a::B) -> C<d::E> { g::h(); println!(\"{}\", m::n(x.o, P).q::<r::S>()) }\n\
                #[cfg(test)] mod tests { use z::Y; }\n#[test] fn t() { fs::read(1) }";
        let code = code(text);
        let told = |test: bool| {
            let told = code.mentions.iter().filter(|mention| mention.test == test);
            told.map(|mention| mention.path.join("::")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(false), "a::B C d::E g::h println m::n P r::S");
        assert_eq!(told(true), "fs::read");
        assert!(code.imports.is_empty());
    }

    #[test]
    fn a_path_is_written_out_by_the_imports() {
        let code = code("use std::fs;\nuse tokio::time::sleep;\n");
        assert_eq!(code.whole(&["fs".to_owned(), "read".to_owned()]), "std::fs::read");
        assert_eq!(code.whole(&["sleep".to_owned()]), "tokio::time::sleep");
        assert_eq!(code.whole(&["other".to_owned()]), "other");
    }

    #[test]
    fn a_condition_that_only_tests_meet_is_told_from_one_that_others_meet_too() {
        for (condition, only) in [
            ("#[test]", true),
            ("#[tokio::test(start_paused = true)]", true),
            ("#[cfg(test)]", true),
            ("#[cfg(tidegate_loom)]", true),
            ("#[cfg(all(test, not(tidegate_loom)))]", true),
            ("#[cfg(any(test, tidegate_loom))]", true),
            ("#[cfg(any(test, feature = \"config\"))]", false),
            ("#[cfg(not(test))]", false),
            ("#[cfg(all(unix, not(test)))]", false),
            ("#[cfg(unix)]", false),
            ("#[must_use]", false),
        ] {
            let item: Item = syn::parse_str(&format!("{condition} fn subject() {{}}")).unwrap();
            assert_eq!(test_only(attributes(&item)), only, "{condition}");
        }
    }
}
