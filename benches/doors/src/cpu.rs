//! Reads the processor time of a process from the scheduler.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Returns the processor time of all threads of a process so far.
pub(crate) fn of(process: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task")).context("the server has ended")? {
        // A thread may end in the meantime.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let ran = text.split(' ').next().context("schedstat is empty")?;
        nanoseconds += ran.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}
