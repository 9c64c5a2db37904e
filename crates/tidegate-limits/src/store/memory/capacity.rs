//! Checks how many keys a table may be made for.

use tidegate_core::QuotaError;

/// The most keys that a table has room for. Published as [`MemoryStore::MAX_KEYS`](super::MemoryStore::MAX_KEYS).
pub(super) const MAX_KEYS: u64 = 1 << 32;

/// Why a table for so many keys cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// Zero, or more than [`MemoryStore::MAX_KEYS`](super::MemoryStore::MAX_KEYS).
    #[error("a table cannot have room for {keys} keys; use 1 to {}", MAX_KEYS)]
    OutOfRange {
        /// The number of keys given.
        keys: usize,
    },
    /// The system has not enough memory.
    #[error("the system has no memory for a table of {keys} keys; use fewer")]
    NoMemory {
        /// The number of keys given.
        keys: usize,
    },
}

/// For limiters, which report all their parameters as a quota's.
impl From<CapacityError> for QuotaError {
    fn from(error: CapacityError) -> Self {
        let (keys, want) = match error {
            CapacityError::OutOfRange { keys } => (keys, "is not a number of keys; use 1 to 4294967296"),
            CapacityError::NoMemory { keys } => (keys, "takes more memory than the system has; use fewer"),
        };
        Self::Parameter { name: "capacity", value: keys.to_string(), want }
    }
}

/// Checks a number of keys; every table that a caller asks for goes through here.
pub(super) fn in_range(keys: usize) -> Result<usize, CapacityError> {
    match keys {
        0 => Err(CapacityError::OutOfRange { keys }),
        // The cast is exact: no platform has a `usize` of more than 64 bits.
        _ if keys as u64 > MAX_KEYS => Err(CapacityError::OutOfRange { keys }),
        _ => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_and_too_many_are_refused_with_what_would_work() {
        assert_eq!(in_range(1), Ok(1));
        for keys in [0, usize::MAX] {
            let error = in_range(keys).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("a table cannot have room for {keys} keys; use 1 to 4294967296")
            );
            let error = QuotaError::from(error).to_string();
            assert_eq!(error, format!("capacity {keys} is not a number of keys; use 1 to 4294967296"));
        }
    }
}
