//! How much of what this process may use is in use: processor time and memory, as laws and switches want to know it.
//!
//! A process in a container may use less than the machine has, and the machine's figures then say nothing: half of the processors busy may
//! be all that the container may have. So the figures are taken against the least allowance that applies: the quota or limit of this
//! process's control group (version 1 or 2) or of any group around it that can be seen, and the machine's processors and memory where there is none.
//! Memory that the kernel would give back when asked, as files it keeps a copy of, does not count.
//!
//! [`Meter`] is read by hand; [`Watch`] is a thread that reads one four times a second, for all of the process, and ends when nobody holds
//! it. Linux only: elsewhere both say that they are [`Unavailable`].

mod average;
mod control_groups;
mod files;
mod meter;
mod parse;
mod watch;

pub use meter::{Meter, Reading, Unavailable};
pub use watch::Watch;

/// For fuzz targets: reads everything as if it were each of the kernel's files.
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
