//! How much a replay remembers.

use std::time::Duration;

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// Live keys in each gate's store.
    pub store_keys: usize,
    /// Keys whose peaks are kept per policy and per shadow limit; about 200 bytes each.
    pub peak_keys: usize,
    /// Whether requests and paths are counted for each of these keys, too: up to 2 KiB more each, most often some 200 bytes.
    pub details: bool,
    /// Bins of each curve.
    pub bins: usize,
    /// Width of a bin at first, and the resolution of its peaks.
    pub bin_width: Duration,
    /// IPv6 prefix by which clients are named, as the policies key them.
    pub ipv6_prefix: u8,
    /// How long a request stays in a place of a guard, where the log does not say how long it took.
    pub hold: Option<Duration>,
}

impl Default for ReplayOptions {
    /// A million keys in the store, a hundred thousand in the tables, 240 bins from one second up.
    fn default() -> Self {
        Self {
            store_keys: 1_000_000,
            peak_keys: 100_000,
            details: false,
            // A bin is three pixels of a chart, one of its steps still a visible one.
            bins: 240,
            bin_width: Duration::from_secs(1),
            ipv6_prefix: 64,
            hold: None,
        }
    }
}
