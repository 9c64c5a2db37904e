//! What is counted about the deny list of the whole file, which belongs to no policy: refusals, the entries that refuse
//! most, and how often they are logged.

use prometheus_client::metrics::counter::Counter;
use tidegate::policy::AccessEntry;

use crate::denial_log::DenialLog;
use crate::metrics::Metrics;
use crate::top_keys::TopKeys;

/// Stands in place of a policy's name in metrics, in the log and in the list of top keys.
pub(crate) const NAME: &str = "(access.deny)";

/// The counts of the deny list of the whole file. They survive reloads.
#[derive(Debug)]
pub(crate) struct FileList {
    refused: Counter,
    /// The entries that refused, as keys: as many as the file has.
    pub(crate) keys: TopKeys,
    /// The log limit for its denials.
    pub(crate) denials: DenialLog,
}

impl FileList {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let refused = metrics.refused_by_file(NAME);
        Self { refused, keys: TopKeys::default(), denials: DenialLog::default() }
    }

    /// Counts a refusal by an entry of the list.
    pub(crate) fn count(&self, entry: &AccessEntry) {
        self.refused.inc();
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
