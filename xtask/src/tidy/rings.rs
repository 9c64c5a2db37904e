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
//! An exception is called `A -> B`, both from the root of the workspace; it takes that one use out of the picture.

mod names;
mod uses;

use std::collections::{BTreeMap, BTreeSet};

use super::allowed::Allowed;
use super::fault::Fault;
use super::modules::Modules;
use super::packages::packages;
use super::tree::Tree;
use uses::{Uses, uses};

pub(crate) fn check(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let packages = packages(tree);
    let roots = packages.iter().flat_map(|package| package.sources());
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
    let edges: BTreeSet<(&str, &str)> = kept.keys().copied().collect();
    for (from, to) in aside.keys() {
        if way(&edges, to, from).is_some() {
            allowed.allows(&format!("{from} -> {to}"));
        }
    }
    kept.iter()
        .filter_map(|(edge, found)| Some(fault(edge, found, &kept, &way(&edges, edge.1, edge.0)?)))
        .collect()
}

/// Describes one use in a ring; `back` is the way from the file used to the file that uses it, both included.
fn fault(edge: &(&str, &str), found: &BTreeSet<(usize, String)>, graph: &Uses<'_>, back: &[&str]) -> Fault {
    let items = |found: &BTreeSet<(usize, String)>| {
        let names: BTreeSet<String> = found.iter().map(|(_, name)| format!("`{name}`")).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
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

/// Finds a shortest way from one file to another along uses, both ends included.
fn way<'t>(edges: &BTreeSet<(&'t str, &'t str)>, from: &'t str, to: &str) -> Option<Vec<&'t str>> {
    let mut ways = vec![vec![from]];
    let mut seen = BTreeSet::from([from]);
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let end = *way.last()?;
            if end == to {
                return Some(way);
            }
            for (_, next) in edges.range((end, "")..).take_while(|(file, _)| *file == end) {
                if seen.insert(next) {
                    longer.push([&way[..], &[*next]].concat());
                }
            }
        }
        ways = longer;
    }
    None
}

#[cfg(test)]
mod tests;
