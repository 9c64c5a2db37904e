//! The error for tables that do not fit the system's memory.

use tidegate_sim::thousands::grouped;

/// The bytes that a table takes for each key of its capacity; twice that if keys are stored in full.
const BYTES: u64 = 24;
/// A capacity for the visitors of a large site in a day.
const USUAL: usize = 1_000_000;

/// Returns an error that names the option and the memory needed by `tables` tables for this many keys.
pub(crate) fn no_room(word: &str, keys: usize, tables: usize) -> anyhow::Error {
    let bytes = (keys as u64).saturating_mul(BYTES).saturating_mul(tables as u64);
    let tables = if tables == 1 { "a table".to_owned() } else { format!("{tables} tables") };
    let fewer = USUAL.min(keys / 10).max(1);
    anyhow::anyhow!(
        "{word} {keys}: the system has no memory for {tables} of so many keys, some {} MB or more; use fewer, such as {fewer}",
        grouped(bytes.div_ceil(1_000_000))
    )
}
