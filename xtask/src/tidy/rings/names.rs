//! Follows the names in a target to the files that define them.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::Item;

use crate::tidy::code::{Code, Import, attributes, test_only};
use crate::tidy::modules::Modules;

pub(crate) struct Names<'m, 't> {
    modules: &'m Modules<'t>,
    scopes: Vec<Scope>,
}

#[derive(Debug)]
struct Scope {
    code: Code,
    /// The items defined in the module itself, without child modules.
    items: BTreeSet<String>,
}

enum Place {
    Module(usize),
    /// The module that defines an item, and the item.
    Item(usize, String),
}

impl<'m, 't> Names<'m, 't> {
    pub(crate) fn of(modules: &'m Modules<'t>) -> Self {
        let scope = |module: &super::super::modules::Module<'_>| {
            let plain = module.items.iter().filter(|item| !test_only(attributes(item)));
            Scope { code: Code::of(module.items, module.test), items: plain.flat_map(names).collect() }
        };
        Self { modules, scopes: modules.all.iter().map(scope).collect() }
    }

    pub(crate) fn code(&self, module: usize) -> &Code {
        &self.scopes[module].code
    }

    /// Returns the defining files and the item's name for a path in a module. Empty for a module, a local binding or an
    /// item of another crate; several if a name means a type here and a function there.
    pub(crate) fn definitions(&self, module: usize, path: &[String]) -> Vec<(&'t str, String)> {
        let mut places = Vec::new();
        self.follow(module, path, &mut BTreeSet::new(), &mut places);
        let item = |place| match place {
            Place::Item(module, name) => Some((self.modules.all[module].file, name)),
            Place::Module(_) => None,
        };
        places.into_iter().filter_map(item).collect()
    }

    fn follow(&self, from: usize, path: &[String], seen: &mut Seen, places: &mut Vec<Place>) {
        let Some((first, rest)) = path.split_first() else { return };
        match first.as_str() {
            "crate" => self.inside(0, rest, seen, places),
            "self" => self.inside(from, rest, seen, places),
            "super" => {
                let parent = self.modules.all[from].parent;
                // `super::super` continues from the parent; `super::name` is looked up in it.
                match (parent, rest.first().map(String::as_str)) {
                    (Some(parent), Some("super")) => self.follow(parent, rest, seen, places),
                    (Some(parent), _) => self.inside(parent, rest, seen, places),
                    (None, _) => {}
                }
            }
            "Self" => {}
            _ => self.inside(from, path, seen, places),
        }
    }

    /// This ends the recursion if `use a::a` imports itself, or two modules glob-import each other.
    fn imports(&self, module: usize, name: &str, seen: &mut Seen) -> Vec<&Import> {
        let imports = self.scopes[module].code.imports.iter().enumerate();
        let fitting = imports.filter(|(_, import)| import.name == name && !import.test);
        fitting.filter(|(place, _)| seen.insert((module, *place))).map(|(_, import)| import).collect()
    }

    fn inside(&self, module: usize, path: &[String], seen: &mut Seen, places: &mut Vec<Place>) {
        let Some((first, rest)) = path.split_first() else {
            return places.push(Place::Module(module));
        };
        let scope = &self.scopes[module];
        if scope.items.contains(first) {
            places.push(Place::Item(module, first.clone()));
        }
        let children = self.modules.all[module].children.iter().filter(|(name, _)| name == first);
        children.for_each(|(_, child)| self.inside(*child, rest, seen, places));
        let before = places.len();
        for import in self.imports(module, first, seen) {
            self.follow(module, &[&import.path[..], rest].concat(), seen, places);
        }
        if places.len() > before || scope.items.contains(first) {
            return;
        }
        for import in self.imports(module, "*", seen) {
            let mut all = Vec::new();
            self.follow(module, &import.path, seen, &mut all);
            for place in all {
                if let Place::Module(all) = place {
                    self.inside(all, path, seen, places);
                }
            }
        }
    }
}

/// The imports already followed: a module, and the import's index in it.
type Seen = BTreeSet<(usize, usize)>;

/// Returns the names that an item defines in its module: one, or the types that a macro defines.
fn names(item: &Item) -> Vec<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        Item::Macro(item) => {
            let own = item.ident.iter().map(ToString::to_string);
            return own.chain(types(item.mac.tokens.clone())).collect();
        }
        _ => return Vec::new(),
    };
    vec![name.to_string()]
}

/// Finds the types in a macro's tokens: `enum Quota` in a `macro_rules!` that is called in the same file.
fn types(tokens: TokenStream) -> Vec<String> {
    let (mut types, mut defines) = (Vec::new(), false);
    for token in tokens {
        match token {
            TokenTree::Ident(name) if defines => types.push(name.to_string()),
            TokenTree::Group(group) => types.extend(self::types(group.stream())),
            TokenTree::Ident(word) => {
                defines = ["struct", "enum", "trait"].iter().any(|kind| word == kind);
                continue;
            }
            _ => {}
        }
        defines = false;
    }
    types
}

// Finds which files of a target use which others, and which items.

/// The using file, and the used file.
pub(crate) type Edge<'t> = (&'t str, &'t str);

/// For each use, the lines and the items named there.
pub(crate) type Uses<'t> = BTreeMap<Edge<'t>, BTreeSet<(usize, String)>>;

pub(crate) fn uses<'t>(modules: &Modules<'t>) -> Uses<'t> {
    let names = Names::of(modules);
    let mut uses = Uses::new();
    for (index, module) in modules.all.iter().enumerate().filter(|(_, module)| !module.test) {
        let code = names.code(index);
        let imports = code.imports.iter().filter(|import| !import.test && !import.handed_on);
        let imports = imports.map(|import| (&import.path, import.line));
        let mentions = code.mentions.iter().filter(|mention| !mention.test);
        let mentions = mentions.map(|mention| (&mention.path, mention.line));
        for (path, line) in imports.chain(mentions) {
            for (file, item) in names.definitions(index, path) {
                if file != module.file {
                    uses.entry((module.file, file)).or_default().insert((line, item));
                }
            }
        }
    }
    uses
}
