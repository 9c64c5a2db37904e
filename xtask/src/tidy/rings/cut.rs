//! Chooses the uses to remove so that no ring leaves a folder.
//!
//! One use in the wrong direction can tie fifty files into one tangle. So of the uses from folder to folder, the one on
//! most of the shortest rings is removed, then the next. Of two uses on equally many rings, the one whose items most
//! files use is removed: an error type rather than an algorithm. Removing the result opens all rings; it need not be
//! the smallest, which is hard to find.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{Edge, Uses};

/// Returns the uses to remove, each with a shortest path back from the used file to the using one, both included.
/// `leaves` says whether a use goes from folder to folder.
pub(crate) fn cuts<'t>(uses: &Uses<'t>, leaves: impl Fn(&Edge<'t>) -> bool) -> Vec<(Edge<'t>, Vec<&'t str>)> {
    let mut edges: BTreeSet<Edge<'t>> = uses.keys().copied().collect();
    let wanted = wanted(uses);
    let mut cuts = Vec::new();
    loop {
        let leaving = edges.iter().filter(|edge| leaves(edge));
        let rings: BTreeMap<Edge<'t>, Vec<&'t str>> =
            leaving.filter_map(|edge| Some((*edge, way(&edges, edge.1, edge.0)?))).collect();
        // Uses outside of rings are in no later ring either.
        edges.retain(|edge| rings.contains_key(edge) || !leaves(edge));
        let on = |edge: &Edge<'t>| {
            let through = |(own, back): (&Edge<'t>, &Vec<&'t str>)| {
                own == edge || back.windows(2).any(|step| (step[0], step[1]) == *edge)
            };
            rings.iter().filter(|ring| through(*ring)).count()
        };
        let least =
            |edge: &Edge<'t>| uses[edge].iter().map(|(_, item)| wanted[&(edge.1, item.as_str())]).min();
        let Some(cut) = rings.keys().copied().max_by_key(|edge| (on(edge), least(edge))) else { return cuts };
        edges.remove(&cut);
        cuts.push((cut, rings[&cut].clone()));
    }
}

fn wanted<'u>(uses: &'u Uses<'_>) -> BTreeMap<(&'u str, &'u str), usize> {
    let mut wanted = BTreeMap::new();
    for ((_, file), items) in uses {
        let items: BTreeSet<&str> = items.iter().map(|(_, item)| item.as_str()).collect();
        items.into_iter().for_each(|item| *wanted.entry((*file, item)).or_insert(0) += 1);
    }
    wanted
}

pub(crate) fn way<'t>(edges: &BTreeSet<Edge<'t>>, from: &'t str, to: &str) -> Option<Vec<&'t str>> {
    let mut came: BTreeMap<&'t str, &'t str> = BTreeMap::new();
    let mut ends = vec![from];
    while !ends.is_empty() {
        let mut next = Vec::new();
        for end in ends {
            if end == to {
                let mut way: Vec<&'t str> =
                    std::iter::successors(Some(end), |file| came.get(file).copied()).collect();
                way.reverse();
                return Some(way);
            }
            for (_, file) in edges.range((end, "")..).take_while(|(file, _)| *file == end) {
                if *file != from && !came.contains_key(file) {
                    came.insert(file, end);
                    next.push(*file);
                }
            }
        }
        ends = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(edges: &[(&'static str, &'static str, &str)]) -> Uses<'static> {
        let mut uses = Uses::new();
        for (from, to, item) in edges {
            uses.entry((*from, *to)).or_default().insert((1, (*item).to_owned()));
        }
        uses
    }

    #[test]
    fn of_a_knot_the_use_that_ties_it_is_cut() {
        // `time` is below all of them, and takes an error from the top.
        let uses = uses(&[
            ("top", "one", "One"),
            ("top", "two", "Two"),
            ("one", "time", "Tick"),
            ("two", "time", "Tick"),
            ("one", "two", "Two"),
            ("time", "top", "Error"),
        ]);
        assert_eq!(cuts(&uses, |_| true), [(("time", "top"), vec!["top", "one", "time"])]);
    }

    #[test]
    fn of_two_uses_the_one_goes_that_wants_what_others_want() {
        let uses =
            uses(&[("top", "a", "A"), ("a", "top", "Error"), ("top", "b", "B"), ("b", "top", "Error")]);
        let cut: Vec<Edge<'_>> = cuts(&uses, |_| true).into_iter().map(|(edge, _)| edge).collect();
        assert_eq!(cut, [("b", "top"), ("a", "top")]);
        let open = self::uses(&[("top", "a", "A"), ("a", "b", "B"), ("top", "b", "B")]);
        assert!(cuts(&open, |_| true).is_empty());
    }

    #[test]
    fn of_a_ring_only_what_leaves_a_folder_is_cut() {
        let uses = uses(&[("a/x", "a/y", "Y"), ("a/y", "a/x", "X"), ("a/y", "b", "B"), ("b", "a/x", "X")]);
        let leaves = |edge: &Edge<'_>| edge.0.starts_with("a/") != edge.1.starts_with("a/");
        // Two files want `X`, one wants `B`.
        assert_eq!(cuts(&uses, leaves), [(("b", "a/x"), vec!["a/x", "a/y", "b"])]);
        assert!(cuts(&uses, |_| false).is_empty());
    }
}
