//! Priorities in headers.

use tidegate_core::Priority;

/// The header in which services pass on the importance of a request, written as a [`Priority`]: `sheddable`, or with
/// a cohort `sheddable/17`.
pub const TIDEGATE_PRIORITY: &str = "x-tidegate-priority";

/// Reads the value of a [`TIDEGATE_PRIORITY`] header; `None` if it is not valid. The caller decides whose header to
/// trust.
///
/// # Examples
/// ```
/// use tidegate::priority::{Criticality, Priority};
/// use tidegate::priority::header::read_priority;
///
/// assert_eq!(read_priority(b"sheddable/17"), Priority::of(Criticality::Sheddable).in_cohort(17));
/// assert_eq!(read_priority(b"Sheddable"), None);
/// assert_eq!(read_priority(b"critical, critical-plus"), None);
/// ```
#[must_use]
pub fn read_priority(value: &[u8]) -> Option<Priority> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Criticality;

    use super::*;

    #[test]
    fn what_is_no_priority_is_not_read() {
        let huge = [b"critical/".as_slice(), &[b'1'; 65_536]].concat();
        for value in [
            &b""[..],
            b" critical",
            b"critical ",
            b"CRITICAL",
            b"critical/128",
            b"critical/-1",
            b"critical-plus-plus",
            b"critical\0",
            b"critical\xff",
            &huge,
        ] {
            assert_eq!(read_priority(value), None, "{:?}", value.get(..30).unwrap_or(value));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not_and_what_is_written_is_read(
            bytes: Vec<u8>, level in 0..4_usize, cohort in 0..128_u8,
        ) {
            if let Some(read) = read_priority(&bytes) {
                prop_assert_eq!(read_priority(read.to_string().as_bytes()), Some(read));
            }
            let priority = Priority::of(Criticality::ALL[level]).in_cohort(cohort).unwrap();
            prop_assert_eq!(read_priority(priority.to_string().as_bytes()), Some(priority));
        }
    }
}
