//! The keys that are refused most, or pass near their limit, for each policy and for the lists of no policy.
//!
//! A metrics label per key would make as many time series as an attacker has addresses. So metrics name only policies,
//! and keys are counted here, in one sketch per policy. Only refusals and passes near the limit are counted, so an
//! allowed request far from its limit costs nothing here.

use tidegate::Tick;
use tidegate::gate::hot_keys::{Counted, HotKeys};
use tidegate::policy::AccessEntry;

/// Counters per sketch, which finds every key with more than 0.2 % of the refusals, in about 100 KB.
pub(crate) const KEYS: usize = 512;
/// The longest key that is kept, in bytes. Longer ones are cut.
pub(crate) const MAX_KEY: usize = 256;

/// The sketch of one policy.
#[derive(Debug)]
pub(crate) struct TopKeys(HotKeys);

impl Default for TopKeys {
    fn default() -> Self {
        Self(HotKeys::new(KEYS).expect("a number of counters in range"))
    }
}

impl TopKeys {
    /// Counts a key once more.
    pub(crate) fn add(&self, key: &str) {
        let mut cut = key.len().min(MAX_KEY);
        while !key.is_char_boundary(cut) {
            cut -= 1;
        }
        // The counts do not decay, so the time does not matter.
        self.0.add(&key[..cut], 1, Tick::EPOCH);
    }

    /// Returns the `most` largest counts, and the total.
    pub(crate) fn largest(&self, most: usize) -> (Vec<Counted<String>>, u64) {
        self.0.largest(most)
    }
}

/// Returns an entry in the form of a key.
pub(crate) fn entry_key(entry: &AccessEntry) -> String {
    match entry {
        AccessEntry::Network(network) => format!("client.ip={network}"),
        entry @ AccessEntry::Attribute { .. } => entry.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_is_cut_between_characters() {
        let sketch = TopKeys::default();
        sketch.add(&"é".repeat(1000));
        sketch.add(&format!("x{}", "é".repeat(1000)));
        assert!(sketch.largest(2).0.iter().all(|counted| counted.key.len() <= MAX_KEY));
    }
}
