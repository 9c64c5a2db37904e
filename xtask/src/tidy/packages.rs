//! Reads the packages of the repository from their manifests, with the root files of their targets.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::tree::Tree;

#[derive(Debug)]
pub(crate) struct Package<'t> {
    pub(crate) name: String,
    pub(crate) dir: &'t str,
    pub(crate) manifest: Table,
    /// The root files of libraries, programs, tests, benches and examples.
    pub(crate) roots: BTreeSet<&'t str>,
}

impl<'t> Package<'t> {
    pub(crate) fn sources(&self) -> impl Iterator<Item = &'t str> {
        let src = format!("{}src/", self.dir);
        self.roots.iter().copied().filter(move |root| root.starts_with(&src))
    }

    pub(crate) fn test_programs(&self) -> usize {
        let inside = self.roots.iter().filter(|root| root[self.dir.len()..].starts_with("tests/"));
        let named = targets(&self.manifest, "test").iter().filter_map(|test| test.get("path")?.as_str());
        inside.count() + named.filter(|path| !path.starts_with("tests/")).count()
    }
}

/// Lists all packages. A manifest that cannot be read is skipped: cargo reports it.
pub(crate) fn packages(tree: &Tree) -> Vec<Package<'_>> {
    let manifests = tree.paths().filter_map(|path| Some((path, path.strip_suffix("Cargo.toml")?)));
    manifests
        .filter(|(_, dir)| dir.is_empty() || dir.ends_with('/'))
        .filter_map(|(path, dir)| package(tree, path, dir))
        .collect()
}

fn package<'t>(tree: &'t Tree, path: &str, dir: &'t str) -> Option<Package<'t>> {
    let manifest: Table = tree.text(path)?.parse().ok()?;
    let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
    let inside = tree.rust().filter(|file| {
        file.strip_prefix(dir).is_some_and(|file| begins_a_target(file, manifest.get("package")))
    });
    let named = [
        ("lib", "src"),
        ("bin", "src/bin"),
        ("test", "tests"),
        ("bench", "benches"),
        ("example", "examples"),
    ];
    let named = named.into_iter().flat_map(|(kind, folder)| {
        targets(&manifest, kind).iter().filter_map(move |target| root(tree, dir, folder, target))
    });
    let roots = inside.chain(named).collect();
    Some(Package { name, dir, manifest, roots })
}

fn targets<'m>(manifest: &'m Table, kind: &str) -> &'m [Value] {
    let targets = manifest.get(kind);
    targets.map_or(&[], |targets| targets.as_array().map_or(std::slice::from_ref(targets), Vec::as_slice))
}

/// Finds the root file of a target that a manifest names: at its path, or else in the folder of its kind by its name.
fn root<'t>(tree: &'t Tree, dir: &str, folder: &str, target: &Value) -> Option<&'t str> {
    let text = |key| target.get(key).and_then(Value::as_str);
    match (text("path"), text("name")) {
        (Some(path), _) => tree.path(&format!("{dir}{path}")),
        (None, Some(name)) => {
            let places = [format!("{dir}{folder}/{name}.rs"), format!("{dir}{folder}/{name}/main.rs")];
            places.iter().find_map(|place| tree.path(place))
        }
        (None, None) => None,
    }
}

/// Returns whether a file of a package is the root of a target by cargo's conventions, as far as its manifest leaves
/// them in force (`autotests = false`).
fn begins_a_target(file: &str, package: Option<&Value>) -> bool {
    let finds = |key: &str| package.and_then(|package| package.get(key)?.as_bool()) != Some(false);
    let parts: Vec<&str> = file.split('/').collect();
    let (rest, found) = match parts[..] {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => return true,
        ["src", "bin", ref rest @ ..] => (rest, finds("autobins")),
        ["tests", ref rest @ ..] => (rest, finds("autotests")),
        ["benches", ref rest @ ..] => (rest, finds("autobenches")),
        ["examples", ref rest @ ..] => (rest, finds("autoexamples")),
        _ => return false,
    };
    found && (rest.len() == 1 || rest.len() == 2 && rest[1] == "main.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_begin_where_cargo_looks_and_where_the_manifest_says() {
        let manifest = "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"one\"\npath = \"targets/one.rs\"\n";
        let tree = Tree::made(&[
            ("Cargo.toml", "[workspace]\n"),
            ("fuzz/Cargo.toml", manifest),
            ("fuzz/src/lib.rs", ""),
            ("fuzz/src/other.rs", ""),
            ("fuzz/targets/one.rs", ""),
            ("fuzz/targets/two.rs", ""),
            ("fuzz/tests/long/main.rs", ""),
            ("fuzz/tests/long/part.rs", ""),
        ]);
        let packages = packages(&tree);
        let [package] = &packages[..] else { panic!("{packages:?}") };
        assert_eq!(package.name, "fuzz");
        let roots: Vec<&str> = package.roots.iter().copied().collect();
        assert_eq!(roots, ["fuzz/src/lib.rs", "fuzz/targets/one.rs", "fuzz/tests/long/main.rs"]);
        assert_eq!(package.sources().collect::<Vec<_>>(), ["fuzz/src/lib.rs"]);
    }

    #[test]
    fn without_automatic_tests_only_the_named_ones_are_targets() {
        let manifest = "[package]\nname = \"a\"\nautotests = false\n[[test]]\nname = \"all\"\npath = \"tests/main.rs\"\n\
                        [[test]]\nname = \"long\"\n[[test]]\nname = \"far\"\npath = \"far.rs\"\n";
        let tree = Tree::made(&[
            ("a/Cargo.toml", manifest),
            ("a/examples/one.rs", ""),
            ("a/far.rs", ""),
            ("a/tests/main.rs", ""),
            ("a/tests/part.rs", ""),
            ("a/tests/long/main.rs", ""),
            ("a/tests/other/main.rs", ""),
            ("b/Cargo.toml", "[package]\nname = \"b\"\n"),
            ("b/tests/one.rs", ""),
            ("b/tests/two/main.rs", ""),
            ("b/tests/two/part.rs", ""),
        ]);
        let packages = packages(&tree);
        let roots: Vec<&str> = packages[0].roots.iter().copied().collect();
        assert_eq!(roots, ["a/examples/one.rs", "a/far.rs", "a/tests/long/main.rs", "a/tests/main.rs"]);
        assert_eq!(packages.iter().map(Package::test_programs).collect::<Vec<_>>(), [3, 2]);
    }
}
