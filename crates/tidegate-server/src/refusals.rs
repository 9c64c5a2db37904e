//! What is kept of refusals, for each policy and for the lists of no policy. A flood of refusals must become neither a
//! flood of log lines nor one of time series, so both are bounded; the metrics count all.
//!
//! The log: each policy may log a few lines at once and then one every ten seconds; all together may log one a second.
//! A line says how many denials of its policy were left out before it.
//!
//! The keys: a metrics label per key would make as many time series as an attacker has addresses. So metrics name only
//! policies, and keys are counted here, in one sketch per policy. Only refusals and passes near the limit are
//! counted, so an allowed request far from its limit costs nothing here.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use tidegate::gate::hot_keys::{Counted, HotKeys};
use tidegate::policy::AccessEntry;
use tidegate::{Limiter, Quota, QuotaError, Tick};

use crate::metrics::Metrics;

/// How many lines one policy may log at once. Requests that are tried by hand are all logged.
const BURST: u64 = 5;
/// Lines of one policy a minute after that.
const PER_MINUTE: u64 = 6;
const BURST_OF_ALL: u64 = 50;
/// Lines of all policies a second after that: as many as the log accepts from one place in the program. With more,
/// the log itself would drop lines.
const PER_SECOND_OF_ALL: u64 = 1;

/// Limits the denials that are logged for one policy, or for all together.
#[derive(Debug)]
pub(crate) struct DenialLog {
    often: Limiter,
    left_out: AtomicU64,
}

impl Default for DenialLog {
    fn default() -> Self {
        Self::new(Quota::per_minute(PER_MINUTE).burst(BURST).gcra())
    }
}

impl DenialLog {
    fn new(quota: Result<Quota, QuotaError>) -> Self {
        let often = Limiter::new(quota.expect("a rate in range")).expect("a quota in range");
        Self { often, left_out: AtomicU64::new(0) }
    }

    /// Makes the limit for all policies together.
    pub(crate) fn of_all() -> Self {
        Self::new(Quota::per_second(PER_SECOND_OF_ALL).burst(BURST_OF_ALL).gcra())
    }

    #[cfg(test)]
    fn with_clock(self, clock: impl tidegate::clock::Clock + 'static) -> Self {
        Self { often: self.often.with_clock(clock), ..self }
    }

    /// Returns whether to log a denial: the number left out before this one; `None` if it is left out and counted.
    pub(crate) fn turn(&self, of_all: &Self) -> Option<u64> {
        // Relaxed: only people read the count.
        if self.often.admit() && of_all.often.admit() {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

// The keys that a policy refuses most.

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

// The lists that belong to no policy: the deny list of the whole file, and the blocks for all policies.

/// In place of a policy's name.
pub(crate) const DENY_LIST: &str = "(access.deny)";
/// In place of a policy's name.
pub(crate) const BLOCKS: &str = "(blocked)";

/// The counts of one such list. They survive reloads.
#[derive(Debug)]
pub(crate) struct GlobalDenyList {
    /// Stands in place of a policy's name in metrics, in the log and in the list of top keys.
    pub(crate) name: &'static str,
    /// Made with the first refusal: a list that is not used has no series.
    refused: OnceLock<Counter>,
    /// The entries that refused, as keys: as many as the file has.
    pub(crate) keys: TopKeys,
    /// The log limit for its denials.
    pub(crate) denials: DenialLog,
}

impl GlobalDenyList {
    pub(crate) fn new(name: &'static str) -> Self {
        let refused = OnceLock::new();
        Self { name, refused, keys: TopKeys::default(), denials: DenialLog::default() }
    }

    /// Makes the series of the list.
    pub(crate) fn show(&self, metrics: &Metrics) -> &Counter {
        self.refused.get_or_init(|| metrics.refused_by_file(self.name))
    }

    /// Counts a refusal by an entry of the list.
    pub(crate) fn count(&self, metrics: &Metrics, entry: &AccessEntry) {
        self.show(metrics).inc();
        self.keys.add(&entry_key(entry));
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
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate::clock::ManualClock;

    use super::*;

    #[test]
    fn a_flood_is_some_lines_that_say_how_many_there_were() {
        let clock = Arc::new(ManualClock::default());
        let log = |log: DenialLog| log.with_clock(Arc::clone(&clock));
        let (one, other, all) =
            (log(DenialLog::default()), log(DenialLog::default()), log(DenialLog::of_all()));
        let told: Vec<u64> = (0..1000).filter_map(|_| one.turn(&all)).collect();
        assert_eq!(told, [0; 5], "the first are told whole");
        assert_eq!(other.turn(&all), Some(0), "another policy's flood takes nothing from this one");
        clock.advance(Duration::from_secs(10));
        assert_eq!(one.turn(&all), Some(995));
        assert_eq!(one.turn(&all), None);
    }

    #[test]
    fn many_policies_have_a_line_a_second_together() {
        let clock = Arc::new(ManualClock::default());
        let log = |log: DenialLog| log.with_clock(Arc::clone(&clock));
        let all = log(DenialLog::of_all());
        let policies: Vec<DenialLog> = (0..100).map(|_| log(DenialLog::default())).collect();
        let told = || policies.iter().filter_map(|policy| policy.turn(&all)).count();
        assert_eq!(told(), 50);
        clock.advance(Duration::from_secs(3));
        assert_eq!(told(), 3);
    }

    #[test]
    fn a_long_key_is_cut_between_characters() {
        let sketch = TopKeys::default();
        sketch.add(&"é".repeat(1000));
        sketch.add(&format!("x{}", "é".repeat(1000)));
        assert!(sketch.largest(2).0.iter().all(|counted| counted.key.len() <= MAX_KEY));
    }
}
