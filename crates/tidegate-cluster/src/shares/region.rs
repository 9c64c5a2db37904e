//! Combines the nodes of a region, which share one part and are one node in the document of shares.
//!
//! All nodes of a region use its part, each by the document that it has read. So the region follows a turn when the
//! last of its nodes does, and only then what it gave up goes to others. A node that joins later reads at least what
//! was written before it joined, so nothing older than the turn that the leader counts. A node that the engine has
//! forgotten has no part any more, and is not waited for.

use std::collections::BTreeMap;

use twox_hash::XxHash64;

use crate::MemberReport;

/// A bit that is set in the numbers of regions. The engine counts nodes up from 1, so their numbers never reach it.
const REGION: u64 = 1 << 63;

/// Returns the number of a region in the document: the same in every process.
pub(super) fn number(region: &str) -> u64 {
    XxHash64::oneshot(0, region.as_bytes()) | REGION
}

/// Returns whether a number in the document is that of a region.
pub(super) const fn is_one(number: u64) -> bool {
    number & REGION != 0
}

/// What one node, or all nodes of a region together, report.
#[derive(Debug)]
pub(super) struct Reported {
    /// Its number in the document: that of the node, or of the region.
    pub(super) number: u64,
    pub(super) report: MemberReport,
}

/// Combines the nodes of each region into one: its demand is their sum, and its turn is the least that they follow. A
/// node without a region stays alone. The result is ordered by number.
pub(super) fn gathered(nodes: impl IntoIterator<Item = Reported>) -> Vec<Reported> {
    let mut regions: BTreeMap<u64, MemberReport> = BTreeMap::new();
    for node in nodes {
        let report = node.report;
        let at = if report.region.is_empty() { node.number } else { number(&report.region) };
        match regions.get_mut(&at) {
            None => drop(regions.insert(at, report)),
            Some(all) => {
                all.demand = all.demand.saturating_add(report.demand);
                (all.line, all.turn) =
                    if all.line == report.line { (all.line, all.turn.min(report.turn)) } else { (0, 0) };
            }
        }
    }
    regions.into_iter().map(|(number, report)| Reported { number, report }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_asks_for_what_its_nodes_do_and_goes_by_what_all_of_them_go_by() {
        let node = |number, region: &str, demand, line, turn| {
            let region = region.to_owned();
            Reported {
                number,
                report: MemberReport { region, demand, line, turn, ..MemberReport::default() },
            }
        };
        let all = gathered([
            node(1, "a", 10, 7, 5),
            node(2, "b", 1, 7, 5),
            node(3, "a", 20, 7, 4),
            node(4, "", 3, 7, 1),
            node(5, "b", u64::MAX, 0, 0),
            node(6, "b", 1, 7, 9),
        ]);
        let of = |at: u64| {
            let report = &all.iter().find(|node| node.number == at).unwrap().report;
            (report.demand, report.line, report.turn)
        };
        assert_eq!(all.len(), 3);
        assert_eq!(of(number("a")), (30, 7, 4));
        assert_eq!(of(number("b")), (u64::MAX, 0, 0), "one of them has not seen the line");
        assert_eq!(of(4), (3, 7, 1));
    }

    #[test]
    fn the_number_of_a_region_is_the_same_in_every_release() {
        assert_eq!(number("eu-west"), 12_937_010_392_400_517_884);
    }
}
