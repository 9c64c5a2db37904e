//! Quotas for limits that callers bring along.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::Quota;

/// How many different limits are remembered. Beyond that, quotas are made anew.
const REMEMBERED: usize = 256;

/// The quotas of limits that callers brought along lately: making one costs more than deciding by it.
#[derive(Debug, Default)]
pub(crate) struct InlineQuotas {
    slots: Mutex<Vec<(InlineLimit, Arc<Quota>)>>,
}

/// A limit as the caller states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InlineLimit {
    /// The units that are granted at once.
    pub(crate) burst: u64,
    /// The units that come back in each period.
    pub(crate) count: u64,
    /// In seconds, the length of the period.
    pub(crate) period: u64,
}

impl InlineQuotas {
    /// Returns the quota of a limit.
    ///
    /// # Errors
    /// A message that names the number that is out of range.
    pub(crate) fn of(&self, limit: InlineLimit) -> Result<Arc<Quota>, String> {
        let mut slots = self.slots.lock();
        if let Some(at) = slots.iter().position(|(known, _)| *known == limit) {
            let quota = Arc::clone(&slots[at].1);
            // Moves limits in use towards the front.
            if at > 0 {
                slots.swap(at, at / 2);
            }
            return Ok(quota);
        }
        let builder = Quota::per(limit.count, Duration::from_secs(limit.period));
        let quota = builder.burst(limit.burst).gcra().map_err(|error| error.to_string())?;
        let quota = Arc::new(quota);
        if slots.len() >= REMEMBERED {
            slots.pop();
        }
        slots.push((limit, Arc::clone(&quota)));
        Ok(quota)
    }
}
