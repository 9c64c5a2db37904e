//! Bounds the rate of log lines from each place in the program.
//!
//! Hostile requests may cause a log line each, and disks are finite. Each place in the program that logs has its own
//! limit, enforced by Tidegate's own limiter. Lines beyond it are dropped and counted with the other missing lines.
//! Lines below the level `info` are not limited: they are written only when the user asks for them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::{Limiter, Quota};
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::queue::Queue;

/// The lines per second that one place may write continuously: 86,400 a day.
const RATE: u64 = 1;
/// The lines it may write at once: each mistake in a file takes a line.
const BURST: u64 = 100;

/// Makes a writer for each line that may be written.
#[derive(Debug)]
pub(crate) struct RateLimitedWriter {
    queue: Arc<Queue>,
    /// One limiter for each place that has logged; bounded by the number of places in the program.
    places: Mutex<HashMap<Identifier, Limiter>>,
}

impl RateLimitedWriter {
    pub(crate) fn new(queue: Arc<Queue>) -> Self {
        Self { queue, places: Mutex::default() }
    }

    fn may_speak(&self, about: &Metadata<'_>) -> bool {
        if *about.level() > Level::INFO {
            return true;
        }
        let limiter = || {
            let quota = Quota::per_second(RATE).burst(BURST).gcra();
            Limiter::new(quota.expect("a rate in range")).expect("a quota in range")
        };
        self.places.lock().entry(about.callsite()).or_insert_with(limiter).admit()
    }
}

impl<'a> MakeWriter<'a> for RateLimitedWriter {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter(Some(&self.queue))
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> LineWriter<'a> {
        if self.may_speak(about) {
            return LineWriter(Some(&self.queue));
        }
        self.queue.drop_one();
        LineWriter(None)
    }
}

/// A writer for one line, or for none.
#[derive(Debug)]
pub(crate) struct LineWriter<'a>(Option<&'a Queue>);

impl io::Write for LineWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(queue) = self.0 {
            queue.push(bytes.to_vec());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
