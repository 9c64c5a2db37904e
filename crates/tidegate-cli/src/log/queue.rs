//! Lines on their way to standard error: handed over without waiting, written by a thread of their own.
//!
//! Standard error may be a pipe that nobody reads, a full disk, or a reader that went away. Whoever writes there directly
//! waits for as long as the reader pleases, and a program whose log fails must not fail with it. So a line that finds no room
//! is dropped, as is one that cannot be written, and both are counted; once writing works again the log says how many are
//! missing.
//!
//! `tracing-appender` has such a queue. It is not used because it does not count what cannot be written, bounds lines and
//! not bytes, and prints to standard output when it cannot be flushed at the end, which panics where that is closed.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidegate::{Limiter, Quota};

/// The most bytes that wait to be written: some thousand lines, a fraction of a second of a slow reader.
const MOST_BYTES: usize = 1 << 20;
/// What a line costs beside its bytes.
const LINE_BYTES: usize = 64;
/// How long the writer waits for a line before it sees whether lines are missing that it has not told of.
const QUIET: Duration = Duration::from_secs(10);
/// Why lines are missing, in the log's own words.
const WHY: &str = "nobody read the log, it could not be written, or one place logged too often";

/// A bounded queue of lines with one writer.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// Lines were put in.
    more: Condvar,
    /// All lines were written or dropped.
    idle: Condvar,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    /// Of all lines not yet written, those in the writer's hands included.
    bytes: usize,
}

impl Queue {
    /// Starts a writer to `out`, one whole line a call. It runs as long as the process.
    pub(crate) fn start(out: impl Write + Send + 'static) -> Arc<Self> {
        let queue = Arc::new(Self {
            waiting: Mutex::default(),
            more: Condvar::new(),
            idle: Condvar::new(),
            dropped: Arc::default(),
        });
        let writer = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("tidegate-log".to_owned());
        // Without a thread the queue fills, and lines are dropped and counted as with any log that is not read.
        let _ = thread.spawn(move || writer.write(out));
        queue
    }

    /// Puts a line in, its end included, or drops and counts it when there is no room. Never waits for the writer.
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

    /// Counts a line that was dropped.
    pub(crate) fn drop_one(&self) {
        // Relaxed: a number for people.
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the count of dropped lines.
    pub(crate) fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.dropped)
    }

    /// Waits until nothing is left to write, at most so long.
    pub(crate) fn flush(&self, most: Duration) {
        let mut waiting = self.waiting.lock();
        self.idle.wait_while_for(&mut waiting, |waiting| waiting.bytes > 0, most);
    }

    fn write(&self, mut out: impl Write) {
        let mut told = 0;
        // A line that was cut by a failure is ended before the next one begins.
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
            // Not while lines wait: there may be no room for this one.
            if works && dropped > told && self.waiting.lock().lines.is_empty() && often.admit() {
                let lines = dropped - told;
                told = dropped;
                tracing::warn!(lines, in_all = dropped, "log lines are missing: {WHY}");
            }
        }
    }

    /// Waits for the next line; `None` when none came for a while.
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

/// Standard error without the lock that everybody shares: whoever waits in a write must not hold up those who only ask.
pub(crate) fn standard_error() -> Box<dyn Write + Send> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd as _;
        if let Ok(own) = std::io::stderr().as_fd().try_clone_to_owned() {
            return Box::new(std::fs::File::from(own));
        }
    }
    Box::new(std::io::stderr())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A reader that takes a line only when told to, and fails when told so.
    struct Reader {
        may: mpsc::Receiver<bool>,
        got: mpsc::Sender<String>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            match self.may.recv() {
                Ok(true) => {
                    let _ = self.got.send(String::from_utf8_lossy(bytes).into_owned());
                    Ok(bytes.len())
                }
                _ => Err(std::io::ErrorKind::StorageFull.into()),
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
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
