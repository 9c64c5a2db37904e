//! Waiting for real processes, and other helpers for tests with servers.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
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
/// Both lie below the range from which Linux takes the ports of outgoing connections (32,768 and above by default), so no connection of another test takes
/// the port before the server listens. Each call returns another port, and each process begins at another place.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 10_000;
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let begin = process::id().wrapping_mul(7919);
    (0..COUNT)
        .map(|_| begin.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % COUNT + FIRST)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| is_free(*port) && is_free(*port + 10_000))
        .expect("a port is free")
}

/// Returns the loopback address of a [`free_port`].
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// Returns a runtime with two threads.
///
/// # Panics
/// If the system cannot provide one.
#[must_use]
pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("two threads")
}
