//! What a cell's node holds: how long it has to be kept, and the state.

use std::time::Duration;

/// How long a cell has to be kept stands in front of it, in milliseconds.
const HEAD: usize = 8;

/// Returns what is written.
pub(crate) fn encode(keep: Option<Duration>, state: &[u8]) -> Vec<u8> {
    // Rounded up; what has no end, or one beyond what the head holds, is never deleted.
    let millis = |keep: Duration| u64::try_from(keep.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    [&keep.map_or(u64::MAX, millis).to_be_bytes(), state].concat()
}

/// Returns the state in what was read; nothing where it is no cell of this layout.
pub(crate) fn state(data: &[u8]) -> &[u8] {
    data.get(HEAD..).unwrap_or_default()
}

/// Says whether a cell's time is over, at a time and last written at one, both in milliseconds of ZooKeeper's clock.
pub(crate) fn is_over(data: &[u8], written: i64, now: i64) -> bool {
    // Without a head it is no cell of this layout, and left alone.
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
