//! How much memory the process has, as the kernel counts it.

use anyhow::{Context, Result};

/// Returns the resident bytes of the process now.
pub(crate) fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split_whitespace().nth(1).context("statm has no second field")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
