//! Counts what a library shows.
//!
//! A public item is a `pub` constant, function, module, static, struct, trait, type, enum or union; a `pub` field; a
//! variant of a public enum; a `pub` method, constant or type of an `impl`; an item of a public trait; an exported
//! macro; and a `pub` in the tokens of another macro, once, however many items it makes. The compiler's lint
//! `unreachable_pub` makes sure that users reach what is `pub`. `pub(crate)`, implementations of traits and tests do not
//! count, and neither does `pub use`: it shows by another path what counts where it is defined.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Field, ImplItem, Item, ItemImpl, ItemTrait, TraitItem, Type, Visibility};

use crate::tidy::code::{attributes, attributes_in_impl, attributes_in_trait, test_only};
use crate::tidy::modules::Modules;
use crate::tidy::tree::Tree;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Public {
    pub(super) items: usize,
    /// How many methods have a twin with `_async` at the end of its name.
    pub(super) twins: usize,
}

pub(super) fn count(tree: &Tree, library: &str) -> Public {
    let modules = Modules::of(tree, library, false);
    let mut found = Found::default();
    for module in modules.all.iter().filter(|module| !module.test) {
        module.items.iter().filter(|item| !test_only(attributes(item))).for_each(|item| found.item(item));
    }
    let paired = |methods: &BTreeSet<String>| {
        methods.iter().filter(|name| methods.contains(&format!("{name}_async"))).count()
    };
    Public { items: found.items, twins: found.methods.values().map(paired).sum() }
}

#[derive(Debug, Default)]
struct Found {
    items: usize,
    methods: BTreeMap<String, BTreeSet<String>>,
}

impl Found {
    fn item(&mut self, item: &Item) {
        let own = match item {
            Item::Const(item) => &item.vis,
            Item::Enum(item) => &item.vis,
            Item::Fn(item) => &item.vis,
            Item::Mod(item) => &item.vis,
            Item::Static(item) => &item.vis,
            Item::Struct(item) => &item.vis,
            Item::Trait(item) => &item.vis,
            Item::TraitAlias(item) => &item.vis,
            Item::Type(item) => &item.vis,
            Item::Union(item) => &item.vis,
            Item::Impl(item) => return self.implementation(item),
            Item::Macro(item) => {
                let exported = item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"));
                self.items += usize::from(exported) + written(item.mac.tokens.clone());
                return;
            }
            _ => return,
        };
        if !public(own) {
            return;
        }
        self.items += 1;
        match item {
            Item::Enum(item) => {
                self.items += item.variants.iter().filter(|variant| !test_only(&variant.attrs)).count();
            }
            Item::Struct(item) => self.items += fields(&item.fields),
            Item::Union(item) => self.items += fields(&item.fields.named),
            Item::Trait(item) => self.contract(item),
            _ => {}
        }
    }

    fn implementation(&mut self, item: &ItemImpl) {
        if item.trait_.is_some() {
            return;
        }
        let owner = match &*item.self_ty {
            Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        for item in item.items.iter().filter(|item| !test_only(attributes_in_impl(item))) {
            let shown = match item {
                ImplItem::Const(item) => public(&item.vis),
                ImplItem::Type(item) => public(&item.vis),
                ImplItem::Fn(item) => public(&item.vis),
                _ => false,
            };
            self.items += usize::from(shown);
            if let (ImplItem::Fn(method), true, Some(owner)) = (item, shown, &owner) {
                self.methods.entry(owner.clone()).or_default().insert(method.sig.ident.to_string());
            }
        }
    }

    fn contract(&mut self, item: &ItemTrait) {
        for part in item.items.iter().filter(|part| !test_only(attributes_in_trait(part))) {
            self.items += 1;
            if let TraitItem::Fn(method) = part {
                let methods = self.methods.entry(format!("trait {}", item.ident)).or_default();
                methods.insert(method.sig.ident.to_string());
            }
        }
    }
}

fn public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn fields<'f>(fields: impl IntoIterator<Item = &'f Field>) -> usize {
    fields.into_iter().filter(|field| public(&field.vis) && !test_only(&field.attrs)).count()
}

/// Counts each `pub` in a macro's tokens, but not `pub(crate)`.
fn written(tokens: TokenStream) -> usize {
    let mut tokens = tokens.into_iter().peekable();
    let mut count = 0;
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => count += written(group.stream()),
            TokenTree::Ident(word) if word == "pub" => {
                let restricted = tokens.peek().is_some_and(|next| {
                    matches!(next, TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis)
                });
                count += usize::from(!restricted);
            }
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_in(text: &str) -> (usize, usize) {
        let Public { items, twins } =
            count(&Tree::made(&[("a/src/lib.rs", text), ("a/src/b.rs", B)]), "a/src/lib.rs");
        (items, twins)
    }

    const B: &str = "pub fn b() {} fn private() {}";

    #[test]
    fn each_public_item_counts_once_and_nothing_else() {
        for (text, items) in [
            ("pub const A: u8 = 1; pub static B: u8 = 2; pub type C = u8; pub fn d() {}", 4),
            ("pub(crate) fn a() {} fn b() {} pub use c::D; use e::F; impl G for H { fn i() {} }", 0),
            ("pub struct A { pub b: u8, c: u8, pub(crate) d: u8 } pub struct E(pub u8, u8);", 4),
            ("pub enum A { B, C { d: u8 } } enum E { F }", 3),
            ("pub trait A { type B; const C: u8; fn d(); } trait E { fn f(); }", 4),
            ("impl A { pub const B: u8 = 1; pub fn c() {} fn d() {} pub(super) fn e() {} }", 2),
            (
                "#[cfg(test)] pub fn a() {} #[cfg(test)] mod t { pub fn b() {} } impl C { #[cfg(test)] pub fn d() {} }",
                0,
            ),
            ("macro_rules! a { ($n:ident) => { pub struct $n { pub(crate) b: u8 } } }", 1),
            ("#[macro_export] macro_rules! a { () => {} }", 1),
            ("pub mod b; mod c { pub mod d { pub fn e() {} } }", 4),
            ("mod b;", 1),
        ] {
            assert_eq!(count_in(text), (items, 0), "{text}");
        }
    }

    #[test]
    fn twins_are_pairs_of_public_methods_of_one_type() {
        for (text, twins) in [
            ("impl A { pub fn a() {} } impl A { pub async fn a_async() {} }", 1),
            ("impl A<'_> { pub fn a() {} pub fn a_async() {} pub fn b() {} pub fn c_async() {} }", 1),
            ("impl A { pub fn a() {} } impl B { pub fn a_async() {} }", 0),
            ("impl A { pub fn a() {} async fn a_async() {} }", 0),
            ("pub trait A { fn a(); fn a_async(); } trait B { fn b(); fn b_async(); }", 1),
        ] {
            assert_eq!(count_in(text).1, twins, "{text}");
        }
    }
}
