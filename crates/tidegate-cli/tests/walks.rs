//! The first hour of new users, as scripts: what they type, in order, and what they must see.
//!
//! | walk | who | with |
//! |---|---|---|
//! | `platform_engineer` | puts one server beside a proxy | the real nginx and the real Caddy, configured as the manual says |
//! | `on_call` | has a log, and a service that somebody floods | the sample log |
//! | `clients` | asks from a program in another language | plain HTTP, as all clients do |
//! | `own_log_format` | has an nginx that logs in a format of its own | the real nginx |
//!
//! The Rust engineer's walk is the README's program, built and run unchanged: `verbs/readme.rs`. The report in a
//! browser is tested by `tests/report/`.

#![cfg(unix)]

mod clients;
mod on_call;
mod own_log_format;
mod platform_engineer;
use crate::attack::{proxy, raw, serving, waiting};
use crate::walks::serving::Desk;

/// Runs a command line of `tidegate`. Returns its exit code and all its output.
#[track_caller]
fn run(desk: &Desk, line: &str) -> (i32, String) {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let output = serving::ended(desk.command(&arguments));
    (output.status.code().unwrap(), serving::words(&output))
}
