//! How often one place in the program may speak.
//!
//! What strangers send may have something logged each time, and a disk is finite. Each place in the program that logs has
//! its own limit, by Tidegate's own means; what is over it is dropped and counted with the other lines that are missing.
//! Lines below `info` are left alone: they are written only when somebody asked for them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::{Limiter, Quota};
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::queue::Queue;

/// Lines a second that one place may go on writing: 86,400 a day.
const RATE: u64 = 1;
/// Lines it may write at once: the mistakes of a file are one line each.
const BURST: u64 = 100;

/// Makes a writer for each line that may be written.
#[derive(Debug)]
pub(crate) struct Seldom {
    queue: Arc<Queue>,
    /// One per place that has spoken; there are as many as the program has.
    places: Mutex<HashMap<Identifier, Limiter>>,
}

impl Seldom {
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

impl<'a> MakeWriter<'a> for Seldom {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(Some(&self.queue))
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Line<'a> {
        if self.may_speak(about) {
            return Line(Some(&self.queue));
        }
        self.queue.drop_one();
        Line(None)
    }
}

/// One line, or nothing.
#[derive(Debug)]
pub(crate) struct Line<'a>(Option<&'a Queue>);

impl io::Write for Line<'_> {
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
