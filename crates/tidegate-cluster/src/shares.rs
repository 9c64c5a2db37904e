//! Divides limits among the nodes, by the demand on each node.
//!
//! The [whole](Part::WHOLE) is split in two. A thirty-second of it is divided evenly among the most nodes there may
//! ever be: each node always has that much, with an engine and without. The rest, the pool, is divided by one document
//! that all nodes read. The node that joined first leads and writes it; each other node uses what the document gives it
//! for as long as it [renews](super::Coordinator::renew).
//!
//! # Never more than the whole
//! For each node, the document states what it may use (`part`) and what it may still be using (`held`). Only `held`
//! counts, and its sum never exceeds the pool: the engine accepts each version once, even if several nodes believe that
//! they lead. A part grows only by a part of the pool that no node holds. A part that shrinks does so at once, and the
//! difference stays held until one of these is true:
//!
//! * its node reports that it follows this document, or a later one
//! * its node is not a member any more: it has left, or was silent for as long as the engine
//!   [keeps](super::Coordinator::keeps) members
//! * the leading node has seen the document for that long
//!
//! The last two are safe because a node uses its part only for four fifths of that time after its last round began. All
//! that a leader has to know is in the document, so a new leader waits only for nodes that do not answer.
//!
//! A node that leaves stops using its part, and then writes that it holds nothing. One that has joined writes that it
//! holds an even part, as far as nobody holds it. Neither need lead: both replace exactly the document that they read,
//! and keep the sum of `held` within the pool. The first node in a document looks whether it is to lead, so a leader
//! that leaves is followed at once.
//!
//! If the document is gone, or cannot be read, the next leader begins a new line: an empty document, which divides
//! nothing until all members have seen it, or the same time has passed. Each line has a random number, and a report
//! about one line does not count for another.
//!
//! # Regions
//! Nodes that report the same [region](Driver::in_region) share one part, for an engine of their own
//! ([`Regional`](crate::Regional)). In the document they are one node, and a part that shrinks stays held until the
//! last of them follows the document.
//!
//! # What may go wrong
//! * A node that cannot reach the engine keeps its part for up to four fifths of that time, and then only its permanent
//!   part.
//! * There may be more nodes, or regions, than the stated maximum ([`Status::too_many`]). The sum exceeds the whole by
//!   their permanent parts until the leader has shrunk the pool.
//! * The monotonic clock of a paused virtual machine may stand still: such a node uses its part too long.

mod driver;
#[cfg(test)]
mod model;
mod protocol;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use twox_hash::XxHash64;

use crate::{MemberReport, Part};

pub use driver::{Driver, Status};

/// The time over which a node's demand is averaged: a burst of one second moves the average by a fifth.
const AVERAGED_OVER: Duration = Duration::from_secs(5);

/// The part of the whole that is divided evenly as each node's permanent part, with an engine or without: small,
/// because what idle nodes have of it is not used.
const ALWAYS: u32 = Part::WHOLE / 32;

/// One part in this many of the pool is divided evenly among the members, so that a node that was idle can begin:
/// small, for the same reason.
const EVENLY: u64 = 32;

/// Changes up to this percentage of a part are not made, so that shares do not follow every fluctuation.
const SLACK: u64 = 10;

/// A change must exceed this many standard deviations of the counted demand, so that shares do not follow chance.
const BEYOND: u128 = 2;

/// Changes smaller than this are not made: a 256th of the whole.
const SMALL: u32 = Part::WHOLE / 256;

/// The rules by which the whole is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    most: u32,
}

impl Division {
    /// Divides among at most `most` nodes, 1 to 32,768; other numbers count as the nearest. The deployment must never
    /// have more nodes: a node that cannot ask the engine relies on that.
    #[must_use]
    pub fn among(most: u64) -> Self {
        Self { most: u32::try_from(most).unwrap_or(u32::MAX).clamp(1, ALWAYS) }
    }

    /// Returns the permanent part of each node, as a number out of [`Part::WHOLE`].
    #[must_use]
    pub const fn permanent_part(&self) -> u32 {
        ALWAYS / self.most
    }

    /// Makes the part of a node: its permanent part, until it is given more.
    fn part(&self) -> Part {
        Part::permanent(self.permanent_part())
    }

    /// Returns the pool that the document divides, with the given number of members.
    #[must_use]
    fn pool(&self, members: usize) -> u32 {
        let nodes = u32::try_from(members).unwrap_or(u32::MAX).max(self.most);
        Part::WHOLE.saturating_sub(self.permanent_part().saturating_mul(nodes))
    }

    /// Returns whether there are more members than the stated maximum.
    #[must_use]
    fn is_exceeded(&self, members: usize) -> bool {
        members > self.most as usize
    }

    /// Divides a pool by demand, each part rounded down: a small piece of it evenly, the rest in proportion. Without
    /// any demand, all of it evenly.
    #[must_use]
    fn divide(&self, pool: u32, demands: &[u64]) -> Vec<u32> {
        let nodes = demands.len().max(1) as u128;
        let all: u128 = demands.iter().map(|demand| u128::from(*demand)).sum();
        let pool = u128::from(pool);
        let evenly = if all == 0 { pool } else { pool / u128::from(EVENLY) };
        let part = |demand: &u64| {
            let by_demand = ((pool - evenly) * u128::from(*demand)).checked_div(all).unwrap_or(0);
            // The conversion is exact: at most the pool.
            u32::try_from(evenly / nodes + by_demand).unwrap_or(0)
        };
        demands.iter().map(part).collect()
    }

    /// Returns whether parts are far enough from their targets to be changed. `pairs` are the part that each member has
    /// and the part that it should have; `counted` units were counted: the fewer, the larger a difference may be by
    /// chance.
    #[must_use]
    fn is_worth_it(&self, pool: u32, counted: u64, pairs: impl Iterator<Item = (u32, u32)>) -> bool {
        // A part of `want/pool` of n units drawn at random varies by the square root of `want/pool · (1 − want/pool) / n`.
        let by_chance = |apart: u32, want: u32| {
            let variance = u128::from(want) * u128::from(pool.saturating_sub(want));
            u128::from(apart).pow(2) * u128::from(counted) <= BEYOND.pow(2) * variance
        };
        let (mut used, mut far) = (0u32, false);
        for (have, want) in pairs {
            used = used.saturating_add(have);
            let apart = have.abs_diff(want);
            let matters = apart >= SMALL && u64::from(apart) * 100 > SLACK * u64::from(have.max(want));
            far |= matters && (have == 0 || !by_chance(apart, want));
        }
        far || pool.saturating_sub(used) > pool / 16
    }
}

// The document that divides the pool, as text for an engine's own tools.

/// The first line: the type of the document, and its format.
const HEAD: &str = "tidegate-shares 1";

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Shares {
    turn: u64,
    /// A random number that distinguishes this document from an earlier one that was deleted.
    line: u64,
    /// Whether anything is divided: only after all members have seen the line, because what an earlier document
    /// divided is not known.
    open: bool,
    /// The share of each node, by [`Member::joined`](crate::Member::joined), ascending.
    nodes: Vec<NodeShare>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NodeShare {
    joined: u64,
    /// The part that it may use.
    part: u32,
    /// The part that it may still be using: at least `part`.
    held: u32,
    since: u64,
}

impl Shares {
    fn held(&self) -> u32 {
        self.nodes.iter().fold(0, |held, node| held.saturating_add(node.held))
    }

    fn of(&self, joined: u64) -> Option<&NodeShare> {
        self.nodes.binary_search_by_key(&joined, |node| node.joined).ok().map(|at| &self.nodes[at])
    }

    /// Returns the document without a node that has stopped using its part; `None` if it is not in it.
    fn without(mut self, joined: u64) -> Option<Self> {
        let before = self.nodes.len();
        self.nodes.retain(|node| node.joined != joined);
        self.turn += 1;
        (self.nodes.len() < before).then_some(self)
    }

    /// Returns the document with a node that is not in it, and that gets what is free, up to an even part; `None` if it
    /// would get nothing.
    fn with(mut self, joined: u64, pool: u32, members: usize) -> Option<Self> {
        let at = self.nodes.binary_search_by_key(&joined, |node| node.joined).err().filter(|_| self.open)?;
        let even = pool / u32::try_from(members).unwrap_or(u32::MAX).max(1);
        let part = pool.saturating_sub(self.held()).min(even);
        self.turn += 1;
        self.nodes.insert(at, NodeShare { joined, part, held: part, since: self.turn });
        (part >= SMALL).then_some(self)
    }

    /// Encodes the document: about 40 bytes a node.
    fn encode(&self) -> Vec<u8> {
        let mut text = format!("{HEAD}\nturn {}\nline {}\nopen {}\n", self.turn, self.line, self.open);
        for node in &self.nodes {
            let _ = writeln!(
                text,
                "node {} part {} held {} since {}",
                node.joined, node.part, node.held, node.since
            );
        }
        text.into_bytes()
    }

    /// Decodes a document; `None` for bytes that are not a document, or that contradict themselves.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines();
        if lines.next()? != HEAD {
            return None;
        }
        // The largest number is rejected because it has no successor; no program writes it.
        let turn = lines.next()?.strip_prefix("turn ")?.parse().ok().filter(|turn| *turn < u64::MAX)?;
        let line = lines.next()?.strip_prefix("line ")?.parse().ok()?;
        let open = lines.next()?.strip_prefix("open ")?.parse().ok()?;
        let mut nodes: Vec<NodeShare> = Vec::new();
        for text in lines {
            let words: Vec<&str> = text.split(' ').collect();
            let ["node", joined, "part", part, "held", held, "since", since] = words[..] else { return None };
            let node = NodeShare {
                joined: joined.parse().ok()?,
                part: part.parse().ok()?,
                held: held.parse().ok()?,
                since: since.parse().ok()?,
            };
            if node.part > node.held || nodes.last().is_some_and(|last| last.joined >= node.joined) {
                return None;
            }
            nodes.push(node);
        }
        Some(Self { turn, line, open, nodes })
    }
}

// Combines the nodes of a region, which share one part and are one node in the document of shares.
//
// A region follows a turn when the last of its nodes does, and only then what it gave up goes to others. A node that
// joins later reads at least what was written before it joined, so nothing older than the turn that the leader counts.
// A node that the engine has forgotten has no part any more, and is not waited for.

/// A bit of the numbers of regions: the engine counts nodes up from 1.
const REGION: u64 = 1 << 63;

/// Returns the number of a region in the document: the same in every process.
fn region_number(region: &str) -> u64 {
    XxHash64::oneshot(0, region.as_bytes()) | REGION
}

const fn is_region(number: u64) -> bool {
    number & REGION != 0
}

#[derive(Debug)]
struct Reported {
    number: u64,
    report: MemberReport,
}

/// Combines the nodes of each region: its demand is their sum, and its turn the least that they follow. Ordered by
/// number.
fn by_region(nodes: impl IntoIterator<Item = Reported>) -> Vec<Reported> {
    let mut regions: BTreeMap<u64, MemberReport> = BTreeMap::new();
    for node in nodes {
        let report = node.report;
        let at = if report.region.is_empty() { node.number } else { region_number(&report.region) };
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_node_has_nearly_all_and_an_idle_one_can_begin() {
        let division = Division::among(10);
        let pool = division.pool(10);
        let parts = division.divide(pool, &[1000, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let hundredths =
            |part: u32| u64::from(part + division.permanent_part()) * 100 / u64::from(Part::WHOLE);
        assert!(hundredths(parts[0]) >= 93, "{}", hundredths(parts[0]));
        assert!(parts[1] > 0);
        assert_eq!(division.divide(pool, &[0, 0]), [pool / 2, pool / 2]);
        assert!(division.divide(pool, &[]).is_empty());
    }

    #[test]
    fn small_changes_are_left() {
        let division = Division::among(4);
        let whole = Part::WHOLE;
        let counted =
            |counted, pairs: &[(u32, u32)]| division.is_worth_it(whole, counted, pairs.iter().copied());
        let worth = |pairs: &[(u32, u32)]| counted(1_000_000, pairs);
        assert!(!worth(&[(whole / 2, whole / 2), (whole / 2, whole / 2)]));
        assert!(!worth(&[(whole / 20 * 10, whole / 20 * 9), (whole / 20 * 10, whole / 20 * 11)]));
        assert!(worth(&[(whole / 20 * 12, whole / 20 * 10), (whole / 20 * 8, whole / 20 * 10)]));
        assert!(worth(&[(0, whole / 2), (whole, whole / 2)]), "a new member");
        assert!(worth(&[(whole / 2, whole / 2)]), "half of it is nobody's");
        assert!(!worth(&[(whole, whole - 1), (0, 1)]));
        let even_to_uneven = [(whole / 2, whole / 10 * 6), (whole / 2, whole / 10 * 4)];
        assert!(!counted(90, &even_to_uneven), "54 and 36 of 90 may be chance");
        assert!(counted(100, &even_to_uneven));
        assert!(
            counted(4, &[(whole / 32, whole / 32 * 31), (whole / 32 * 31, whole / 32)]),
            "four of four elsewhere"
        );
        assert!(counted(1, &[(0, whole / 2), (whole, whole / 2)]), "a new member");
    }

    proptest! {
        #[test]
        fn parts_never_add_up_to_more(most in 1u64..40_000, demands in prop::collection::vec(any::<u64>(), 0..50)) {
            let division = Division::among(most);
            let pool = division.pool(demands.len());
            let parts = division.divide(pool, &demands);
            let pool_used: u64 = parts.iter().map(|part| u64::from(*part)).sum();
            prop_assert!(pool_used <= u64::from(pool));
            let own = u64::from(division.permanent_part()) * u64::from(division.most).max(demands.len() as u64);
            prop_assert!(u64::from(pool) + own <= u64::from(Part::WHOLE) || pool == 0);
        }
    }
}

#[cfg(test)]
mod document_tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_what_contradicts_itself_is_none() {
        let node = |joined, part, held| NodeShare { joined, part, held, since: 3 };
        let shares =
            Shares { turn: 7, line: 2, open: true, nodes: vec![node(4, 10, 10), node(9, 0, u32::MAX)] };
        assert_eq!(Shares::decode(&shares.encode()), Some(shares.clone()));
        assert_eq!(Shares::decode(&Shares::default().encode()), Some(Shares::default()));
        assert_eq!((shares.held(), shares.of(9).unwrap().part, shares.of(5)), (u32::MAX, 0, None));
        for (from, to) in [
            ("shares 1", "shares 2"),
            ("turn 7", "turn -7"),
            ("turn 7", "turn 18446744073709551615"),
            ("line 2\n", ""),
            ("open true", "open yes"),
            ("part 10 held 10", "part 11 held 10"),
            ("node 9", "node 4"),
            ("node 9", "node 9 "),
            ("since 3", "since"),
        ] {
            let text = String::from_utf8(shares.encode()).unwrap();
            assert!(text.contains(from), "{from}");
            assert_eq!(Shares::decode(text.replace(from, to).as_bytes()), None, "{from} -> {to}");
        }
        for other in [&b""[..], b"\xff", b"tidegate-shares 1"] {
            assert_eq!(Shares::decode(other), None);
        }
    }
}

#[cfg(test)]
mod region_tests {
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
        let all = by_region([
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
        assert_eq!(of(region_number("a")), (30, 7, 4));
        assert_eq!(of(region_number("b")), (u64::MAX, 0, 0), "one of them has not seen the line");
        assert_eq!(of(4), (3, 7, 1));
    }

    #[test]
    fn the_number_of_a_region_is_the_same_in_every_release() {
        assert_eq!(region_number("eu-west"), 12_937_010_392_400_517_884);
    }
}
