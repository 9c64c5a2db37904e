//! Reads the packages of the repository from their manifests, with the root files of their targets.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::tree::Tree;

/// A package: a `Cargo.toml` with a name.
#[derive(Debug)]
pub(crate) struct Package<'t> {
    pub(crate) name: String,
    /// Its folder, with a slash at the end.
    pub(crate) dir: &'t str,
    pub(crate) manifest: Table,
    /// The root files of libraries, programs, tests, benches and examples.
    pub(crate) roots: BTreeSet<&'t str>,
}

impl<'t> Package<'t> {
    /// Lists the roots of its library and its programs.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &'t str> {
        let src = format!("{}src/", self.dir);
        self.roots.iter().copied().filter(move |root| root.starts_with(&src))
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
    // With `autotests = false` only the manifest names programs of tests.
    let finds_tests = manifest["package"].get("autotests").and_then(Value::as_bool) != Some(false);
    let begins = |file: &str| begins_a_target(file) && (finds_tests || !file.starts_with("tests/"));
    let inside = tree.rust().filter(|file| file.strip_prefix(dir).is_some_and(begins));
    let targets =
        ["lib", "bin", "test", "bench", "example"].into_iter().filter_map(|kind| manifest.get(kind));
    let targets =
        targets.flat_map(|target| target.as_array().map_or(std::slice::from_ref(target), Vec::as_slice));
    let named = targets.filter_map(|target| target.get("path").and_then(Value::as_str));
    let named = named.filter_map(|file| tree.path(&format!("{dir}{file}")));
    let roots = inside.chain(named).collect();
    Some(Package { name, dir, manifest, roots })
}

/// Returns whether a file of a package is the root of a target by cargo's conventions.
fn begins_a_target(file: &str) -> bool {
    let parts: Vec<&str> = file.split('/').collect();
    match parts[..] {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
        ["src", "bin", ref rest @ ..] | ["tests" | "benches" | "examples", ref rest @ ..] => {
            rest.len() == 1 || rest.len() == 2 && rest[1] == "main.rs"
        }
        _ => false,
    }
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
    fn tests_begin_where_the_manifest_says_if_cargo_does_not_look() {
        let manifest = "[package]\nname = \"a\"\nautotests = false\n[[test]]\nname = \"all\"\npath = \"tests/main.rs\"\n";
        let tree =
            Tree::made(&[("Cargo.toml", manifest), ("tests/main.rs", "mod one;"), ("tests/one.rs", "")]);
        let packages = packages(&tree);
        assert_eq!(packages[0].roots.iter().copied().collect::<Vec<_>>(), ["tests/main.rs"]);
    }
}
