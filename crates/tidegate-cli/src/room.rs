//! What is said where the system has no memory for the keys that were asked for.

use tidegate_sim::thousands::grouped;

/// What a table takes for each key that there is room for, in bytes; twice that where keys are kept in full.
const BYTES: u64 = 24;
/// Room for a day's visitors of a large site.
const USUAL: usize = 1_000_000;

/// Says which word asked for room for so many keys, and how much memory it takes; `tables` of that size are made.
pub(crate) fn no_room(word: &str, keys: usize, tables: usize) -> anyhow::Error {
    let bytes = (keys as u64).saturating_mul(BYTES).saturating_mul(tables as u64);
    let tables = if tables == 1 { "a table".to_owned() } else { format!("{tables} tables") };
    let fewer = USUAL.min(keys / 10).max(1);
    anyhow::anyhow!(
        "{word} {keys}: the system has no memory for {tables} of so many keys, some {} MB or more; use fewer, such as {fewer}",
        grouped(bytes.div_ceil(1_000_000))
    )
}
