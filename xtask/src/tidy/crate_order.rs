//! Rule: no upward dependency between crates: each depends only on crates of a lower storey (ARCHITECTURE.md,
//! "Crates").
//!
//! Development dependencies count too: a test that needs a crate of a higher storey belongs in that crate.

use toml::{Table, Value};

use super::fault::{Allowed, Fault};
use super::packages::{Package, packages};
use super::tree::Tree;

/// The rooms of `tidegate`, whose documentation tests use it.
const ROOMS: [&str; 4] = ["tidegate-limits", "tidegate-gate", "tidegate-cluster", "tidegate-config"];

/// The storeys (layers) from the lowest up; crates of one storey do not depend on each other.
const STOREYS: [&[&str]; 10] = [
    &["tidegate-core", "tidegate-testkit"],
    &["tidegate-limits"],
    &["tidegate-gate", "tidegate-cluster"],
    &["tidegate-config"],
    &["tidegate"],
    &["tidegate-disk", "tidegate-redis", "tidegate-etcd", "tidegate-zookeeper"],
    &["tidegate-sim", "tidegate-server"],
    &["tidegate-sight"],
    &["tidegate-tower", "tidegate-cli"],
    &["tidegate-lab"],
];

pub(crate) fn check(tree: &Tree, _: &Allowed<'_>) -> Vec<Fault> {
    let crates = packages(tree)
        .into_iter()
        .filter(|package| package.dir.starts_with("crates/") || package.dir == "lab/");
    crates.flat_map(|package| arrows(tree, &package)).collect()
}

fn storey(name: &str) -> Option<usize> {
    STOREYS.iter().position(|crates| crates.contains(&name))
}

fn arrows(tree: &Tree, package: &Package<'_>) -> Vec<Fault> {
    let path = format!("{}Cargo.toml", package.dir);
    let text = tree.text(&path).unwrap_or_default();
    let fault = |word: &str, what: String| {
        let line = text.lines().position(|line| line.starts_with(word)).unwrap_or(0) + 1;
        Fault::new(path.clone(), line, what)
    };
    let Some(own) = storey(&package.name) else {
        let what = format!(
            "crate `{}` is not in STOREYS of xtask/src/tidy/crate_order.rs; add it there to say which crates it may depend on",
            package.name
        );
        return vec![fault("name", what)];
    };
    let known = dependencies(&package.manifest);
    let is_shown = |known: &str| known == "tidegate" && ROOMS.contains(&&*package.name);
    let up =
        known.iter().filter(|known| storey(known).is_some_and(|theirs| theirs >= own) && !is_shown(known));
    let what = |known: &String| {
        let what = format!(
            "an upward dependency: {} depends on {known}, which is not below it; move the shared code to a crate below both",
            package.name
        );
        fault(known, what)
    };
    up.map(what).collect()
}

fn dependencies(manifest: &Table) -> Vec<String> {
    const TABLES: [&str; 3] = ["dependencies", "build-dependencies", "dev-dependencies"];
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let tables = std::iter::once(manifest).chain(targets.filter_map(Value::as_table));
    let tables =
        tables.flat_map(|tables| TABLES.into_iter().filter_map(|table| tables.get(table)?.as_table()));
    let name = |(name, value): (&String, &Value)| {
        value.get("package").and_then(Value::as_str).map_or_else(|| name.clone(), str::to_owned)
    };
    tables.flatten().map(name).collect()
}

#[cfg(test)]
mod tests {
    use crate::tidy::found;

    #[test]
    fn an_arrow_up_or_sideways_is_found_however_it_is_written() {
        let found = found(
            "crate-order",
            &[
                (
                    "crates/tidegate/Cargo.toml",
                    "[package]\nname = \"tidegate\"\n[dev-dependencies]\ntidegate-sim.workspace = true\n",
                ),
                (
                    "crates/tidegate-sim/Cargo.toml",
                    "[package]\nname = \"tidegate-sim\"\n[target.'cfg(unix)'.dependencies]\nserver = { package = \"tidegate-server\", version = \"1\" }\n",
                ),
                (
                    "crates/tidegate-cli/Cargo.toml",
                    "[package]\nname = \"tidegate-cli\"\n[dependencies]\ntidegate.workspace = true\n[dev-dependencies]\n\
                     tidegate-lab.workspace = true\n",
                ),
            ],
            "",
        );
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found[0].starts_with(
            "crates/tidegate-cli/Cargo.toml:6: an upward dependency: tidegate-cli depends on tidegate-lab"
        ));
        assert!(found[1].starts_with(
            "crates/tidegate-sim/Cargo.toml:1: an upward dependency: tidegate-sim depends on tidegate-server"
        ));
        assert!(found[2].starts_with(
            "crates/tidegate/Cargo.toml:4: an upward dependency: tidegate depends on tidegate-sim"
        ));
    }

    #[test]
    fn a_crate_without_a_storey_is_named() {
        let found =
            found("crate-order", &[("crates/new/Cargo.toml", "[package]\nname = \"tidegate-new\"\n")], "");
        assert!(
            found[0].starts_with("crates/new/Cargo.toml:2: crate `tidegate-new` is not in STOREYS"),
            "{found:?}"
        );
    }
}
