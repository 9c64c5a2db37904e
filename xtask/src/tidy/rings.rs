//! No ring of files inside a crate.
//!
//! File A *uses* file B when code of A that is not for tests alone names an item that is *defined* in B: in a `use`, or in a
//! path in the code. The name is followed to its definition: a `pub use` of a parent is no definition, and neither is
//! `mod x;`, so a parent that lists its children is in no ring with children that take from each other by its name. A `use`
//! that hands a name on (`pub use`) counts only where the name is used. Methods are not followed: whoever calls a method of
//! a value need not know its file.
//!
//! A ring is a set of files in which each uses each other one, directly or through others. Such files can only be read
//! together. They are one file, or miss a third one below them (an error, a span, a trait) that both can stand on.
//!
//! Of a knot of rings not every use is told: those are, that open all rings when they go. See `cut`.
//!
//! An exception is called `A -> B`, both from the root of the workspace; it takes that one use out of the picture.

mod cut;
mod names;
mod uses;

use std::collections::{BTreeMap, BTreeSet};

use super::allowed::Allowed;
use super::fault::Fault;
use super::modules::Modules;
use super::packages::{Package, packages};
use super::tree::Tree;
use uses::{Edge, Uses, uses};

pub(crate) fn check(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let packages = packages(tree);
    let roots = packages.iter().flat_map(Package::sources);
    let mut graph: Uses<'_> = BTreeMap::new();
    for root in roots {
        for (edge, found) in uses(&Modules::of(tree, root, false)) {
            graph.entry(edge).or_default().extend(found);
        }
    }
    let excepted =
        |edge: &(&str, &str)| allowed.names().find(|name| *name == format!("{} -> {}", edge.0, edge.1));
    // First without the excepted uses; then each of them comes back alone, and is needed if it closes a ring.
    let (aside, kept): (Uses<'_>, Uses<'_>) =
        graph.into_iter().partition(|(edge, _)| excepted(edge).is_some());
    let edges: BTreeSet<Edge<'_>> = kept.keys().copied().collect();
    for (from, to) in aside.keys() {
        if cut::way(&edges, to, from).is_some() {
            allowed.allows(&format!("{from} -> {to}"));
        }
    }
    cut::cuts(&kept).iter().map(|(edge, back)| fault(edge, &kept[edge], &kept, back)).collect()
}

/// Describes one use in a ring; `back` is the way from the file used to the file that uses it, both included.
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
        "a ring: uses {} of {}, {steps}; move what both need to a file that uses neither, or make them one",
        items(found),
        edge.1
    );
    Fault::new(edge.0, line, what)
}

#[cfg(test)]
mod tests;
