//! Reads the memory of the process from the kernel.

use anyhow::{Context, Result};

/// Returns the resident bytes of the process, without pages of program files, which are loaded when code first runs.
pub(crate) fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let mut fields = text.split_whitespace().skip(1).map(str::parse::<u64>);
    let mut field = || fields.next().context("statm has fewer fields than three")?.context("statm has words");
    let (resident, of_files) = (field()?, field()?);
    Ok((resident - of_files) * rustix::param::page_size() as u64)
}
