use std::time::Duration;

/// How much a replay remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// The most live keys in each gate's store.
    pub store_keys: usize,
    /// The most keys whose peaks are kept, per policy and per shadow limit; about 200 bytes each.
    pub peak_keys: usize,
    /// Whether requests and paths are counted for each of these keys: up to 2 KiB more each, usually about 200 bytes.
    pub details: bool,
    /// The bins of each curve, raised to an even number of at least two.
    pub bins: usize,
    /// The width of a bin at first, and the resolution of its peaks.
    pub bin_width: Duration,
    /// The IPv6 prefix by which clients are named, 1 to 128.
    pub ipv6_prefix: u8,
    /// How long a request is in flight if the log does not have its duration; `None`: it is over at once.
    pub hold: Option<Duration>,
}

impl Default for ReplayOptions {
    /// A million keys in the store, a hundred thousand in the tables, and 240 bins of one second at first.
    fn default() -> Self {
        Self {
            store_keys: 1_000_000,
            peak_keys: 100_000,
            details: false,
            // Each bin is three pixels wide in a chart: a single step is still visible.
            bins: 240,
            bin_width: Duration::from_secs(1),
            ipv6_prefix: 64,
            hold: None,
        }
    }
}
