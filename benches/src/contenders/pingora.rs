//! pingora-limits: counts per interval in a sketch of fixed size; the caller compares with the limit.

use std::time::Duration;

use anyhow::Result;
use pingora_limits::rate::Rate;

use crate::workloads::{Keyed, One};

pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    let (count, period) = run.limit();
    let limit = count as isize;
    let rate = Rate::new(period);
    run.shared(|| rate.observe(&"user:0", 1) <= limit)
}

pub(crate) fn keyed(run: &mut Keyed<'_>) -> Result<()> {
    let rate = Rate::new(Duration::from_secs(1));
    run.shared(|key| rate.observe(key, 1) < isize::MAX)
}
