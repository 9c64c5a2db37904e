//! The series of one policy, which decisions and settlements count into without a look-up by name.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::labels::Decided;
use super::peak::Peak;

/// The counters of one policy in one mode, in the order of [`Decided`].
#[derive(Clone, Debug)]
pub(crate) struct Tally(pub(super) [Counter; 4]);

impl Tally {
    pub(crate) fn count(&self, decided: Decided) {
        self.0[decided as usize].inc();
    }
}

/// The series of one policy.
#[derive(Debug)]
pub(crate) struct PolicySeries {
    pub(crate) enforce: Tally,
    pub(crate) shadow: Tally,
    pub(crate) near: Counter,
    /// Units that settlements gave back.
    pub(crate) returned: Counter,
    /// Units that settlements booked beyond what was charged.
    pub(crate) owed: Counter,
    pub(crate) utilization: Peak,
    /// The gauge that shows the utilization; set when the metrics are read.
    pub(super) shown: Gauge<f64, AtomicU64>,
}
