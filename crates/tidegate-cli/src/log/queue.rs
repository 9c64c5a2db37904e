//! A queue of log lines for standard error: pushing never blocks, and a thread of its own writes.
//!
//! Standard error may be a pipe without a reader, a full disk, or a reader that is gone. A direct write would block for
//! as long as the reader takes, and a program must not fail because its log does. So a line that does not fit the queue
//! is dropped, as is one that cannot be written. Both are counted, and once writing works again, the log reports how
//! many are missing.
//!
//! `tracing-appender` does not count lines that cannot be written and bounds lines instead of bytes. If it cannot be
//! flushed at the end, it prints to standard output, which panics if that is closed.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidegate::{Limiter, Quota};
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// A few thousand lines, a fraction of a second of a slow reader.
const MOST_BYTES: usize = 1 << 20;
/// The overhead of each line.
const LINE_BYTES: usize = 64;
/// How long the writer waits for a line before it checks for missing lines that are not reported yet.
const QUIET: Duration = Duration::from_secs(10);
const WHY: &str = "nobody read the log, it could not be written, or one place logged too often";

#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<WaitingLines>,
    /// Lines were pushed.
    more: Condvar,
    /// All lines are written or dropped.
    idle: Condvar,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct WaitingLines {
    lines: VecDeque<Vec<u8>>,
    /// The bytes of all lines not yet written, including the one that is being written.
    bytes: usize,
}

impl Queue {
    /// Writes to `out`, one whole line per call, as long as the process runs.
    pub(crate) fn start(out: impl Write + Send + 'static) -> Arc<Self> {
        let queue = Arc::new(Self {
            waiting: Mutex::default(),
            more: Condvar::new(),
            idle: Condvar::new(),
            dropped: Arc::default(),
        });
        let writer = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("tidegate-log".to_owned());
        // Without a thread, the queue fills, and lines are dropped and counted.
        let _ = thread.spawn(move || writer.write(out));
        queue
    }

    /// A line has its line end. Dropped and counted if there is no room; never waits for the writer.
    pub(crate) fn push(&self, line: Vec<u8>) {
        let size = line.len() + LINE_BYTES;
        {
            let mut waiting = self.waiting.lock();
            if waiting.bytes + size > MOST_BYTES {
                drop(waiting);
                return self.drop_one();
            }
            waiting.bytes += size;
            waiting.lines.push_back(line);
        }
        self.more.notify_one();
    }

    pub(crate) fn drop_one(&self) {
        // Relaxed: the count is only shown.
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.dropped)
    }

    /// Waits until all lines are written, at most for `most`.
    pub(crate) fn flush(&self, most: Duration) {
        let mut waiting = self.waiting.lock();
        self.idle.wait_while_for(&mut waiting, |waiting| waiting.bytes > 0, most);
    }

    fn write(&self, mut out: impl Write) {
        let mut told = 0;
        // A failed write may have cut the line before.
        let mut cut = false;
        let often = Quota::per_minute(6).burst(1).gcra();
        let often = Limiter::new(often.expect("a rate in range")).expect("a quota in range");
        loop {
            let mut works = true;
            if let Some(line) = self.next() {
                let end: &[u8] = if cut { b"\n" } else { b"" };
                let wrote = out.write_all(end).and_then(|()| out.write_all(&line)).and_then(|()| out.flush());
                works = wrote.is_ok();
                cut = !works;
                if !works {
                    self.drop_one();
                }
                self.done(&line);
            }
            let dropped = self.dropped.load(Ordering::Relaxed);
            // While lines wait there may be no room for this one.
            if works && dropped > told && self.waiting.lock().lines.is_empty() && often.admit() {
                let lines = dropped - told;
                told = dropped;
                tracing::warn!(lines, in_all = dropped, "log lines are missing: {WHY}");
            }
        }
    }

    /// Waits for the next line; `None` if none came for a while.
    fn next(&self) -> Option<Vec<u8>> {
        let mut waiting = self.waiting.lock();
        if waiting.lines.is_empty() {
            self.more.wait_while_for(&mut waiting, |waiting| waiting.lines.is_empty(), QUIET);
        }
        waiting.lines.pop_front()
    }

    fn done(&self, line: &[u8]) {
        let mut waiting = self.waiting.lock();
        waiting.bytes -= line.len() + LINE_BYTES;
        if waiting.bytes == 0 {
            self.idle.notify_all();
        }
    }
}

/// Returns standard error without its global lock, so that a blocked write does not hold up threads that only query it.
pub(crate) fn standard_error() -> Box<dyn Write + Send> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd as _;
        if let Ok(own) = io::stderr().as_fd().try_clone_to_owned() {
            return Box::new(std::fs::File::from(own));
        }
    }
    Box::new(io::stderr())
}

// Bounds the rate of log lines from each place in the program, by Tidegate's own limiter. Lines beyond it are dropped
// and counted with the other missing lines. Lines below the level `info` are not limited: they are written only when
// the user asks for them.

/// 86,400 a day.
const RATE: u64 = 1;
/// Each mistake in a file takes a line.
const BURST: u64 = 100;

#[derive(Debug)]
pub(crate) struct RateLimitedWriter {
    queue: Arc<Queue>,
    /// Bounded by the number of places in the program.
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

impl Write for LineWriter<'_> {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A reader that takes a line, or fails, only when told to.
    struct Reader {
        may: mpsc::Receiver<bool>,
        got: mpsc::Sender<String>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.may.recv() {
                Ok(true) => {
                    let _ = self.got.send(String::from_utf8_lossy(bytes).into_owned());
                    Ok(bytes.len())
                }
                _ => Err(io::ErrorKind::StorageFull.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start() -> (Arc<Queue>, mpsc::Sender<bool>, mpsc::Receiver<String>) {
        let (let_through, may) = mpsc::channel();
        let (tell, got) = mpsc::channel();
        (Queue::start(Reader { may, got: tell }), let_through, got)
    }

    #[test]
    fn a_line_that_finds_no_room_is_dropped_and_counted_and_nobody_waits() {
        let (queue, may, got) = start();
        let line = vec![b'x'; 1000 - LINE_BYTES];
        for _ in 0..2 * MOST_BYTES / 1000 {
            queue.push(line.clone());
        }
        let fits = MOST_BYTES / 1000;
        assert_eq!(queue.dropped().load(Ordering::Relaxed), (2 * MOST_BYTES / 1000 - fits) as u64);
        queue.flush(Duration::ZERO);
        for _ in 0..fits {
            may.send(true).unwrap();
        }
        queue.flush(Duration::from_secs(60));
        assert_eq!(got.try_iter().count(), fits);
    }

    #[test]
    fn a_line_that_cannot_be_written_is_counted_and_the_next_begins_on_its_own() {
        let (queue, may, got) = start();
        queue.push(b"lost\n".to_vec());
        may.send(false).unwrap();
        queue.flush(Duration::from_secs(60));
        assert_eq!(queue.dropped().load(Ordering::Relaxed), 1);
        queue.push(b"told\n".to_vec());
        may.send(true).unwrap();
        may.send(true).unwrap();
        queue.flush(Duration::from_secs(60));
        assert_eq!(got.try_iter().collect::<String>(), "\ntold\n");
    }
}
