//! Runs each hot path a known number of times, for valgrind to count its instructions.
//!
//! Times on a shared machine prove nothing; the instructions of a check are the same on each run. `cargo xtask counts`
//! runs this under callgrind, which collects only inside [`counted::collected`] and writes one profile whenever
//! [`counted::profiled`] returns. Each path is run twice, with [`counted::CHECKS`] checks and with twice as many, so
//! that the difference is due to the checks alone. The names of the paths are printed in the order of the profiles.
//!
//! Most limiters use a [`counted::Stepping`] clock, because the cost of a system's clock depends on the machine. The
//! fast paths of the shared tick are the exception, since they only work with the system's clock. Before each of their
//! runs a tick is shared by hand: the thread that otherwise shares it starts only at a number of checks per second that
//! a slow machine does not reach under valgrind. Reading the tick is a load on any machine.

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
