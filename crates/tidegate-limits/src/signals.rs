//! Signals of the machine for laws and switches: the processor time and memory in use, as a share of what this
//! process may use.
//!
//! A process in a container may use less than the machine has. The machine's figures then say little: half of its
//! processors may be all that the container gets. So use is measured against the least allowance that applies: the
//! quota or limit of this process's control group (version 1 or 2) or of any visible group around it, or else the
//! machine's processors and memory. Memory that the kernel can reclaim at once, such as cached files, does not count.
//!
//! [`Meter`] takes readings on request. [`Watch`] is a thread that reads four times a second for the whole process,
//! and ends when no handle is left. Linux only: elsewhere both return [`Unavailable`].

mod average;
mod control_groups;
mod files;
mod meter;
mod parse;
mod watch;

pub use meter::{Meter, Reading, Unavailable};
pub use watch::Watch;

/// For fuzz targets: reads `text` as if it were each of the kernel's files.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn read_as_every_file(text: &str) {
    let text = text.to_owned();
    let everything = move |_: &str| Some(text.clone());
    if let Ok(mut meter) = Meter::of(everything) {
        for second in [0, 1, 1, 2, u64::MAX] {
            let _ = meter.sample(tidegate_core::Tick::from_secs(second));
        }
    }
}
