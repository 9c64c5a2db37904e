//! The content of a cell's node: how long it has to be kept, and the state.

use std::time::Duration;

/// The length of the head, which holds how long the cell has to be kept, in milliseconds.
const HEAD: usize = 8;

/// Encodes a cell.
pub(crate) fn encode(keep: Option<Duration>, state: &[u8]) -> Vec<u8> {
    // Rounded up. A cell without an end, or with one too far for the head, is never deleted.
    let millis = |keep: Duration| u64::try_from(keep.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    [&keep.map_or(u64::MAX, millis).to_be_bytes(), state].concat()
}

/// Returns the state of an encoded cell; empty if the data are not a cell of this layout.
pub(crate) fn state(data: &[u8]) -> &[u8] {
    data.get(HEAD..).unwrap_or_default()
}

/// Returns whether a cell's time is over at `now`, if it was last written at `written`, both in milliseconds of
/// ZooKeeper's clock.
pub(crate) fn is_over(data: &[u8], written: i64, now: i64) -> bool {
    // Data without a head are not a cell of this layout, and are left alone.
    let Some(head) = data.first_chunk::<HEAD>() else { return false };
    let keep = u64::from_be_bytes(*head);
    keep != u64::MAX && u64::try_from(now.saturating_sub(written)).is_ok_and(|age| age > keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_over_when_its_time_is_and_not_where_there_is_none() {
        let second = encode(Some(Duration::from_millis(1000)), b"x");
        assert_eq!(state(&second), b"x");
        assert!(!is_over(&second, 5000, 6000));
        assert!(is_over(&second, 5000, 6001));
        assert!(!is_over(&second, 5000, 1000), "a clock that went back");
        assert!(!is_over(&encode(None, b"x"), 0, i64::MAX));
        assert!(!is_over(b"short", 0, i64::MAX));
    }
}
