//! Waiting for real processes, and other helpers for tests with servers.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

/// The time limit for anything that a real process does, long enough for a busy machine. A passing test never waits for
/// it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between checks.
const PAUSE: Duration = Duration::from_millis(10);

/// Checks a condition repeatedly until it holds.
///
/// # Panics
/// If it does not hold within [`PATIENCE`].
#[track_caller]
pub fn within(what: &str, mut holds: impl FnMut() -> bool) {
    #[expect(clippy::disallowed_methods, reason = "real processes take their own time; the wait is bounded")]
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::park_timeout(PAUSE);
    }
}

/// Returns a loopback port that is free, as is the one 10,000 above, which a Redis cluster uses for its bus.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        if port < 50_000 && TcpListener::bind((Ipv4Addr::LOCALHOST, port + 10_000)).is_ok() {
            return port;
        }
    }
}

/// Returns a runtime with two threads.
///
/// # Panics
/// If the system cannot provide one.
#[must_use]
pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("two threads")
}
