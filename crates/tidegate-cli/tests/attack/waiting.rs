//! Bounded waits for other programs.

use std::time::{Duration, Instant};

/// Long enough for a busy machine; a test that passes never waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Repeats a check until it holds, at most for `most`.
#[track_caller]
pub(crate) fn within(most: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    #[allow(clippy::disallowed_methods, reason = "real processes take their own time; the wait is bounded")]
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < most, "not within {most:?}: {what}");
        // The program that is waited for needs the processor.
        std::thread::park_timeout(Duration::from_millis(2));
    }
}
