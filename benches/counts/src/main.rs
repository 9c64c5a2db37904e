//! Runs each hot path a known number of times, for valgrind to count its instructions.
//!
//! Time on a shared machine proves nothing; the instructions of a check are the same on each run. `cargo xtask counts` runs this
//! under callgrind, which collects only inside [`counted::collected`] and writes one profile whenever [`counted::profiled`] returns. Each path is
//! run twice, [`counted::CHECKS`] times and twice as often, so that the difference is the checks and nothing else; the names of the paths
//! are printed in the order of the profiles.
//!
//! Most limiters live by a [`counted::Stepping`] clock: what a system's clock costs depends on the machine. The fast paths of the shared tick
//! are the exception, for they know the system's clock only: before each run a tick is shared by hand, since the thread that
//! does it otherwise wants a number of checks a second, which a slow machine does not reach under valgrind. Reading it is a
//! load on any machine.

mod counted;
mod layers;
mod paths;

use std::process::ExitCode;

fn main() -> ExitCode {
    match paths::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-counts: {error:#}");
            ExitCode::FAILURE
        }
    }
}
