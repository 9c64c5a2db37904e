//! Rule: no dependency cycle ("ring") between the files of a crate.
//!
//! File A *uses* file B if non-test code of A names an item that is *defined* in B: in a `use`, or in a path in the
//! code. The name is followed to its definition. A `pub use` of a parent is not a definition, and neither is `mod x;`,
//! so a parent that lists its children forms no ring with children that import each other through it. A re-export (`pub
//! use`) counts only where the name is used. Methods are not followed, because a caller of a method need not know its
//! file.
//!
//! A ring is a set of files each of which uses every other one, directly or indirectly. Such files can only be read
//! together. They should be one file, or lack a third file (an error, a span, a trait) that both can depend on.
//!
//! Not every use in a tangle of rings is reported, only uses whose removal opens all rings. See `cut`.
//!
//! An exception is named `A -> B`, both from the root of the workspace; that use is then ignored.

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
    // First without the excepted uses. Then each of them is added back alone; it is needed if it closes a ring.
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
        "a ring: uses {} of {}, {steps}; move what both need to a file that uses neither, or make them one",
        items(found),
        edge.1
    );
    Fault::new(edge.0, line, what)
}

#[cfg(test)]
mod tests;
