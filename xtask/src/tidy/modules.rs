//! Finds the modules of a target like the compiler: from its root file along `mod x;`.

use std::path::{Component, Path, PathBuf};

use syn::{Attribute, Item, LitStr, Meta};

use super::code::{literal, test_only};
use super::tree::Tree;

pub(crate) struct Module<'t> {
    pub(crate) file: &'t str,
    pub(crate) items: &'t [Item],
    pub(crate) test: bool,
    pub(crate) parent: Option<usize>,
    pub(crate) children: Vec<(String, usize)>,
}

/// A `mod x;` whose file is not tracked.
#[derive(Debug)]
pub(crate) struct Missing<'t> {
    pub(crate) file: &'t str,
    pub(crate) line: usize,
    pub(crate) name: String,
}

/// All modules of a target; the first one is its root.
pub(crate) struct Modules<'t> {
    pub(crate) all: Vec<Module<'t>>,
    pub(crate) missing: Vec<Missing<'t>>,
}

impl<'t> Modules<'t> {
    pub(crate) fn of(tree: &'t Tree, root: &'t str, test: bool) -> Self {
        let mut modules = Self { all: Vec::new(), missing: Vec::new() };
        let folder = Path::new(root).parent().unwrap_or(Path::new("")).to_owned();
        modules.add(
            tree,
            Module { file: root, items: tree.items(root), test, parent: None, children: Vec::new() },
            &folder,
        );
        modules
    }

    fn add(&mut self, tree: &'t Tree, module: Module<'t>, folder: &Path) -> usize {
        let (index, file, items, in_test) = (self.all.len(), module.file, module.items, module.test);
        self.all.push(module);
        for item in items {
            let Item::Mod(item) = item else { continue };
            let name = item.ident.to_string();
            let test = in_test || test_only(&item.attrs);
            let found = match &item.content {
                Some((_, items)) => Some((file, items.as_slice(), folder.join(&name))),
                None => beside(tree, file, folder, &name, &item.attrs)
                    .map(|(file, folder)| (file, tree.items(file), folder)),
            };
            let Some((file, items, folder)) = found else {
                let line = item.ident.span().start().line;
                self.missing.push(Missing { file, line, name });
                continue;
            };
            let child = Module { file, items, test, parent: Some(index), children: Vec::new() };
            let child = self.add(tree, child, &folder);
            self.all[index].children.push((name, child));
        }
        index
    }
}

/// Finds the file of `mod name;`, and the folder of its own children.
fn beside<'t>(
    tree: &'t Tree,
    file: &str,
    folder: &Path,
    name: &str,
    attributes: &[Attribute],
) -> Option<(&'t str, PathBuf)> {
    if let Some(path) = told(attributes) {
        let place = plain(&Path::new(file).parent()?.join(path))?;
        return Some((tree.path(place.to_str()?)?, place.parent()?.to_owned()));
    }
    let own = folder.join(name);
    let places = [folder.join(format!("{name}.rs")), own.join("mod.rs")];
    places.iter().find_map(|place| Some((tree.path(place.to_str()?)?, own.clone())))
}

fn told(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => literal(&pair.value).map(LitStr::value),
        _ => None,
    })
}

/// Resolves `..` and `.` in a path without accessing the file system; `None` if it leaves the workspace.
pub(crate) fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => plain.pop().then_some(())?,
            Component::Normal(name) => plain.push(name),
            _ => {}
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_as_the_compiler_finds_them() {
        let tree = Tree::made(&[
            ("a/src/lib.rs", "mod one; mod two; mod inner { mod deep; } #[cfg(test)] mod tests; mod gone;"),
            ("a/src/one.rs", "mod half;"),
            ("a/src/one/half.rs", ""),
            ("a/src/two/mod.rs", "#[path = \"../../b/far.rs\"] mod far;"),
            ("a/b/far.rs", "mod near;"),
            ("a/b/near.rs", ""),
            ("a/src/inner/deep.rs", ""),
            ("a/src/tests.rs", "mod helper { }"),
        ]);
        let modules = Modules::of(&tree, "a/src/lib.rs", false);
        let files: Vec<(&str, bool)> = modules.all.iter().map(|module| (module.file, module.test)).collect();
        let expected = [
            ("a/src/lib.rs", false),
            ("a/src/one.rs", false),
            ("a/src/one/half.rs", false),
            ("a/src/two/mod.rs", false),
            ("a/b/far.rs", false),
            ("a/b/near.rs", false),
            ("a/src/lib.rs", false),
            ("a/src/inner/deep.rs", false),
            ("a/src/tests.rs", true),
            ("a/src/tests.rs", true),
        ];
        assert_eq!(files, expected);
        assert_eq!(modules.missing.len(), 1);
        assert_eq!((modules.missing[0].name.as_str(), modules.missing[0].line), ("gone", 1));
    }
}
