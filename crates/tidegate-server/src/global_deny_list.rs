//! What is counted about lists that belong to no policy: the deny list of the whole file, and the blocks for all
//! policies.

use std::sync::OnceLock;

use prometheus_client::metrics::counter::Counter;
use tidegate::policy::AccessEntry;

use crate::denial_log::DenialLog;
use crate::metrics::Metrics;
use crate::top_keys::TopKeys;

/// In place of a policy's name.
pub(crate) const NAME: &str = "(access.deny)";
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
        self.keys.add(&key(entry));
    }
}

/// Returns an entry in the form of a key.
pub(crate) fn key(entry: &AccessEntry) -> String {
    match entry {
        AccessEntry::Network(network) => format!("client.ip={network}"),
        entry @ AccessEntry::Attribute { .. } => entry.to_string(),
    }
}
