//! tokio's semaphore: borrowed permits, and owned ones, which tasks need.

use std::sync::Arc;

use anyhow::Result;
use tokio::sync::Semaphore;

use crate::workloads::permits::{PLACES, Permits};

pub(crate) fn semaphore(run: &mut Permits<'_>) -> Result<()> {
    let semaphore = Arc::new(Semaphore::new(PLACES as usize));
    run.shared(|| Arc::clone(&semaphore).try_acquire_owned().is_ok())
}

pub(crate) fn semaphore_borrowed(run: &mut Permits<'_>) -> Result<()> {
    let semaphore = Semaphore::new(PLACES as usize);
    run.shared(|| semaphore.try_acquire().is_ok())
}
