//! The layout of nodes: their paths, and what a cell's node holds: how long to keep it, and the state.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// The length of a cell's name: 192 bits of the key's SHA-256, for which no collision can be found.
const NAME: usize = 24;

/// The number of buckets of cells. ZooKeeper lists all children in one answer of at most a megabyte, and a name takes
/// 52 bytes of it, so a bucket holds 20,000 cells, and all buckets five million.
pub(crate) const BUCKETS: usize = 256;

/// The length of the head: how long to keep the cell, in milliseconds.
const HEAD: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) cells: String,
    pub(crate) members: String,
    pub(crate) documents: String,
    pub(crate) sweep: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CellPath {
    pub(crate) bucket: String,
    pub(crate) cell: String,
}

impl Paths {
    pub(crate) fn below(path: &str) -> Self {
        let name = |name: &str| format!("{path}/{name}");
        Self {
            cells: name("cells"),
            members: name("members"),
            documents: name("documents"),
            sweep: name("sweep"),
        }
    }

    pub(crate) fn bucket(&self, number: u8) -> String {
        format!("{}/{number:02x}", self.cells)
    }

    /// Returns the place of a cell. Keys are hashed: names have to be short text.
    pub(crate) fn place(&self, key: &[u8]) -> CellPath {
        let digest = Sha256::digest(key);
        let bucket = self.bucket(digest[0]);
        let name: String = digest[1..=NAME].iter().map(|byte| format!("{byte:02x}")).collect();
        CellPath { cell: format!("{bucket}/{name}"), bucket }
    }

    pub(crate) fn member(&self, session: i64) -> String {
        format!("{}/{session:016x}", self.members)
    }

    /// Returns a document's path: letters, digits, `-` and `_` as they are, other bytes as `%` and hex, because node
    /// names may not contain every character.
    pub(crate) fn document(&self, name: &str) -> String {
        let mut path = format!("{}/", self.documents);
        for byte in name.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("%{byte:02x}"));
            }
        }
        path
    }
}

pub(crate) fn encode_cell(keep: Option<Duration>, state: &[u8]) -> Vec<u8> {
    // Rounded up. A cell without an end is never deleted.
    let millis = |keep: Duration| u64::try_from(keep.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    [&keep.map_or(u64::MAX, millis).to_be_bytes(), state].concat()
}

/// Returns the state of a cell; empty if the data are not of this layout.
pub(crate) fn cell_state(data: &[u8]) -> &[u8] {
    data.get(HEAD..).unwrap_or_default()
}

/// Returns whether a cell's time is over, in milliseconds of ZooKeeper's clock.
pub(crate) fn is_over(data: &[u8], written: i64, now: i64) -> bool {
    // Data without a head are left alone.
    let Some(head) = data.first_chunk::<HEAD>() else { return false };
    let keep = u64::from_be_bytes(*head);
    keep != u64::MAX && u64::try_from(now.saturating_sub(written)).is_ok_and(|age| age > keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ones_that_nodes_may_have() {
        let paths = Paths::below("/t");
        assert_eq!(paths.document("policies-1"), "/t/documents/policies-1");
        assert_eq!(paths.document("../a/é"), "/t/documents/%2e%2e%2fa%2f%c3%a9");
        assert_ne!(paths.document("a%2fb"), paths.document("a/b"));
        let place = paths.place(b"\0/..");
        assert!(place.cell.starts_with(&format!("{}/", place.bucket)));
        assert_eq!(place.cell.len(), "/t/cells/00/".len() + 2 * NAME);
        assert_ne!(paths.place(b"a"), paths.place(b"b"));
    }

    #[test]
    fn a_cell_is_over_when_its_time_is_and_not_where_there_is_none() {
        let second = encode_cell(Some(Duration::from_millis(1000)), b"x");
        assert_eq!(cell_state(&second), b"x");
        assert!(!is_over(&second, 5000, 6000));
        assert!(is_over(&second, 5000, 6001));
        assert!(!is_over(&second, 5000, 1000), "a clock that went back");
        assert!(!is_over(&encode_cell(None, b"x"), 0, i64::MAX));
        assert!(!is_over(b"short", 0, i64::MAX));
    }
}
