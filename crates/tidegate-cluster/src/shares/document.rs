//! The document that divides the pool, as text, so that an engine's own tools can show it.

use std::fmt::Write as _;

/// The first line: the type of the document, and its format.
const HEAD: &str = "tidegate-shares 1";

/// The document: how the pool is divided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Shares {
    /// Counts the versions of this document: one more with each version.
    pub(super) turn: u64,
    /// Distinguishes this document from an earlier one that was deleted: a random number drawn when a document is
    /// begun.
    pub(super) line: u64,
    /// Whether anything is divided. Only after all members have seen the line, because what an earlier document divided
    /// is not known.
    pub(super) open: bool,
    /// The share of each node, by [`Member::joined`](crate::Member::joined), ascending.
    pub(super) nodes: Vec<NodeShare>,
}

/// One node's share of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeShare {
    /// Its number.
    pub(super) joined: u64,
    /// The part that it may use.
    pub(super) part: u32,
    /// The part that it may still be using: at least `part`.
    pub(super) held: u32,
    /// The turn at which its part was last made smaller.
    pub(super) since: u64,
}

impl Shares {
    /// Returns how much of the pool may be in use.
    pub(super) fn held(&self) -> u32 {
        self.nodes.iter().fold(0, |held, node| held.saturating_add(node.held))
    }

    /// Returns the share of a node.
    pub(super) fn of(&self, joined: u64) -> Option<&NodeShare> {
        self.nodes.binary_search_by_key(&joined, |node| node.joined).ok().map(|at| &self.nodes[at])
    }

    /// Encodes the document: about 40 bytes a node.
    pub(super) fn encode(&self) -> Vec<u8> {
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
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
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

#[cfg(test)]
mod tests {
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
