//! Rule: no dependency cycle ("ring") between the files of a crate.
//!
//! File A *uses* file B if non-test code of A names an item that is *defined* in B: in a `use`, or in a path in the
//! code. The name is followed to its definition. A `pub use` of a parent and `mod x;` are no definitions: a parent that
//! lists its children forms no ring with them. Methods are not followed, because a caller of a method need not know its
//! file.
//!
//! A ring is a set of files each of which uses every other one, directly or indirectly. Such files can only be read
//! together. Files of one folder may form one, because a reader has it open; a file belongs to the folder with its
//! children (`foo.rs` to `foo/`), and without any to its own. A ring that leaves a folder is a fault: two rooms of it
//! should be one, or lack a third (an error, a span, a trait) that both can depend on.
//!
//! Not every use in a tangle of rings is reported, only uses from folder to folder whose removal opens all rings that
//! leave one. See `cut`.
//!
//! An exception is named `A -> B`, both from the root of the workspace; that use is then ignored.

mod cut;
mod names;

use std::collections::BTreeSet;

use super::fault::{Allowed, Fault};
use super::modules::Modules;
use super::packages::{Package, packages};
use super::tree::Tree;
use names::{Edge, uses};

pub(crate) use names::Uses;

pub(crate) fn check(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let (graph, folders) = graph(tree);
    let excepted =
        |edge: &(&str, &str)| allowed.names().find(|name| *name == format!("{} -> {}", edge.0, edge.1));
    let leaves = |edge: &Edge<'_>| folder(edge.0, &folders) != folder(edge.1, &folders);
    // First without the excepted uses. Then each of them is added back alone; it is needed if it closes a ring.
    let (aside, kept): (Uses<'_>, Uses<'_>) =
        graph.into_iter().partition(|(edge, _)| excepted(edge).is_some());
    let edges: BTreeSet<Edge<'_>> = kept.keys().copied().collect();
    for (from, to) in aside.keys() {
        // On its way back there is a use from folder to folder, or it is one itself.
        let leads = |from, to: &str| cut::way(&edges, from, to).is_some();
        let mut leaving = edges.iter().filter(|edge| leaves(edge));
        if leaves(&(from, to)) && leads(to, from)
            || leaving.any(|(out, there)| leads(to, out) && leads(there, from))
        {
            allowed.allows(&format!("{from} -> {to}"));
        }
    }
    cut::cuts(&kept, leaves).iter().map(|(edge, back)| fault(edge, &kept[edge], &kept, back)).collect()
}

pub(crate) fn graph(tree: &Tree) -> (Uses<'_>, BTreeSet<&str>) {
    let packages = packages(tree);
    let (mut graph, mut folders) = (Uses::new(), BTreeSet::new());
    for root in packages.iter().flat_map(Package::sources) {
        let modules = Modules::of(tree, root, false);
        for (edge, found) in uses(&modules) {
            graph.entry(edge).or_default().extend(found);
        }
        let files = modules.all.iter().filter(|module| !module.test);
        folders.extend(files.filter_map(|module| Some(module.file.rsplit_once('/')?.0)));
    }
    (graph, folders)
}

fn folder<'t>(file: &'t str, folders: &BTreeSet<&str>) -> &'t str {
    match file.strip_suffix(".rs") {
        Some(own) if folders.contains(own) => own,
        _ => file.rsplit_once('/').map_or("", |(folder, _)| folder),
    }
}

/// Describes one use in a ring; `back` is the path from the used file to the using one, both included.
fn fault(edge: &Edge<'_>, found: &BTreeSet<(usize, String)>, graph: &Uses<'_>, back: &[&str]) -> Fault {
    let items = |found: &BTreeSet<(usize, String)>| {
        let names: BTreeSet<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    let line = found.iter().map(|(line, _)| *line).min().unwrap_or(1);
    let steps = back.windows(2).map(|step| {
        let taken = graph.get(&(step[0], step[1])).map(&items).unwrap_or_default();
        let whose = if step[1] == edge.0 { "this file" } else { step[1] };
        format!("which uses {taken} of {whose}")
    });
    let steps = steps.collect::<Vec<_>>().join(", ");
    let what = format!(
        "a ring: uses {} of {}, {steps}; move what both need to a file that uses neither, or make them one folder",
        items(found),
        edge.1
    );
    Fault::new(edge.0, line, what)
}

#[cfg(test)]
mod tests;
