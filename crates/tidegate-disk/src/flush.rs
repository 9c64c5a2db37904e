//! One write: the changes, and a part of the table, so that older pieces can be deleted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate::store::Recorder;

use crate::file::{FileError, Identity, Journal, StoreFile};
use crate::health::HealthWatch;
use crate::opening;
use crate::orders::Orders;

/// The least that each write adds of the table, in bytes: one page of the engine, which is written anyway.
const LEAST: u64 = 4096;

/// The most lines without keys that each write scans, in under a millisecond.
const LINES: usize = 16_384;

/// One more line may be scanned per this many bytes of changes: a line of four slots holds at least one key of 36
/// bytes, or little is lost.
const BYTES_PER_LINE: u64 = 16;

#[derive(Debug)]
pub(crate) struct Flush {
    folder: PathBuf,
    identity: Identity,
    recorder: Recorder,
    /// `None` after a failed write.
    file: Option<StoreFile>,
    /// The first piece of the current round through the table.
    round: u64,
}

impl Flush {
    pub(crate) fn new(folder: PathBuf, file: StoreFile, recorder: Recorder) -> Self {
        Self { folder, identity: file.identity.clone(), recorder, round: file.next, file: Some(file) }
    }

    /// Writes all changes so far, and returns their bytes after they are on disk; 0 if none is relevant. A change is
    /// left out if its key is full again within `slack`.
    ///
    /// # Errors
    /// The reason of a failure. The changes are written the next time.
    pub(crate) fn write(&mut self, slack: impl Fn() -> Duration) -> Result<u64, String> {
        // The engine has no known panics; after one, checks continue, and the file is reopened.
        let written = catch_unwind(AssertUnwindSafe(|| self.try_write(slack)));
        let failed = match written {
            Ok(Ok(bytes)) => return Ok(bytes),
            Ok(Err(error)) => error.reason(),
            Err(_) => "the engine that writes the file has failed".to_owned(),
        };
        self.file = None;
        self.recorder.lost();
        Err(failed)
    }

    fn try_write(&mut self, slack: impl Fn() -> Duration) -> Result<u64, FileError> {
        if self.file.is_none() {
            let (file, new) = opening::again(&self.folder, &self.identity)?;
            self.round = file.next;
            if new {
                self.recorder.all_again();
            }
            self.file = Some(file);
        }
        let Self { recorder, round, .. } = self;
        let Some(file) = &mut self.file else { return Ok(0) };
        if !file.is_in_place() {
            return Err(FileError::Foreign("the file was moved away or deleted".to_owned()));
        }
        if !recorder.has_changes() {
            return Ok(0);
        }
        let Some(first) = recorder.changes(&slack) else {
            // None of the changes is relevant.
            recorder.kept();
            return Ok(0);
        };
        let mut ended = None;
        let bytes = file.write(|journal| {
            journal.add(&first)?;
            while let Some(piece) = recorder.changes(&slack) {
                journal.add(&piece)?;
            }
            ended = part_of_table(journal, recorder, *round)?;
            Ok(())
        })?;
        recorder.kept();
        *round = ended.unwrap_or(*round);
        Ok(bytes)
    }

    pub(crate) fn close(mut self) -> Result<(), String> {
        let Some(file) = self.file.take() else { return Ok(()) };
        catch_unwind(AssertUnwindSafe(|| file.close().map_err(|error| error.reason())))
            .unwrap_or_else(|_| Err("the engine that writes the file has failed".to_owned()))
    }
}

/// Adds about as much of the table as has changed. At the end of a round, deletes the pieces from before it, and
/// returns where the next begins.
fn part_of_table(
    journal: &mut Journal<'_>,
    recorder: &mut Recorder,
    round: u64,
) -> Result<Option<u64>, redb::Error> {
    let changed = journal.bytes.max(LEAST);
    let most =
        usize::try_from(changed / BYTES_PER_LINE).map_or(usize::MAX, |more| more.saturating_add(LINES));
    let (mut written, mut lines) = (0, 0);
    // Each part has at least one line, so the loop ends.
    while written < changed && lines < most {
        let rest = usize::try_from(changed - written).unwrap_or(usize::MAX);
        // Without slack: keys that the round leaves out are deleted at its end, and a strict charge must be kept until
        // its key is full.
        let part = recorder.lines(most - lines, rest, || Duration::ZERO);
        lines += part.lines;
        if let Some(piece) = part.piece {
            journal.add(&piece)?;
            written += piece.len() as u64;
        }
        if part.ends {
            journal.forget_before(round)?;
            return Ok(Some(journal.next));
        }
    }
    Ok(None)
}

// The writer thread.

#[derive(Debug)]
pub(crate) struct WriterState {
    pub(crate) orders: Orders,
    pub(crate) watch: HealthWatch,
    /// The number of strict steps in progress: while there are any, no change is left out.
    pub(crate) strict: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushPace {
    pub(crate) interval: Duration,
    pub(crate) retry: Duration,
    pub(crate) bytes_per_second: u64,
}

/// Returns the present by the machine's clock, which only paces writes.
#[allow(
    clippy::disallowed_methods,
    reason = "writes are paced by the machine's time, whatever clock decides"
)]
pub(crate) fn present() -> Instant {
    Instant::now()
}

/// The longest pause after a write, however low the byte rate: no point in time is out of range.
const LONGEST_PAUSE: Duration = Duration::from_secs(366 * 86_400);

/// Fails all waiting callers if the thread ends by a panic.
struct UntilClosed<'s>(&'s WriterState);

impl Drop for UntilClosed<'_> {
    fn drop(&mut self) {
        let reason = "the thread that writes the file has ended";
        if self.0.orders.end(reason) {
            self.0.watch.failed(reason.to_owned(), present());
        }
    }
}

pub(crate) fn run_writer(mut flush: Flush, shared: &Arc<WriterState>, pace: FlushPace) {
    let FlushPace { interval, retry, bytes_per_second } = pace;
    shared.orders.begin();
    let _until_closed = UntilClosed(shared);
    let (mut earliest, mut due) = (present(), present() + interval);
    loop {
        let order = shared.orders.next(earliest, due, present);
        let began = present();
        // Relaxed: read for each slot after its mark was taken, and a strict step counts itself before it sets the
        // mark.
        let strict = || order.waited_for || order.last || shared.strict.load(Ordering::Relaxed) > 0;
        let written = flush.write(|| if strict() { Duration::ZERO } else { interval });
        let ended = present();
        let result = match written {
            Ok(bytes) => {
                shared.watch.saved(began, ended, bytes);
                // The pause that keeps the byte rate, if the next write is as large.
                let pause =
                    Duration::from_secs_f64(bytes as f64 / bytes_per_second as f64).min(LONGEST_PAUSE);
                (earliest, due) = (began + pause, began + interval.max(pause));
                Ok(())
            }
            Err(reason) => {
                shared.watch.failed(reason.clone(), ended);
                (earliest, due) = (ended + retry, ended + retry);
                Err(reason)
            }
        };
        if !order.last {
            shared.orders.answer(order, &result);
            continue;
        }
        let closed = result.and(flush.close());
        shared.orders.answer(order, &closed);
        return;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use tidegate::store::{Charge, Op, Step, Store as _, TrackedStore};
    use tidegate::{Cost, Quota, Tick};

    use super::*;
    use crate::opening::DiskOptions;

    const NOW: Tick = Tick::from_secs(1_000_000);

    /// A strict charge is on disk before it is answered. Periodic writes used to leave its key out of the round,
    /// because it would soon be full, and then deleted what had been written of it before.
    #[test]
    fn a_key_that_is_soon_full_is_in_the_file_until_it_is_full() {
        #[allow(clippy::disallowed_methods, reason = "how long opening takes is told")]
        let present = Instant::now;
        let folder = tempfile::tempdir().unwrap();
        let options = || DiskOptions::new(folder.path()).keys(100);
        let minute = Arc::new(Quota::per_minute(10).gcra().unwrap());
        let day = Arc::new(Quota::per_day(20).gcra().unwrap());
        let ask = |table: &TrackedStore, op: Op<'_>, key: &[u8], quota: &Arc<Quota>| {
            let charges = [Charge::new(key, quota, Cost::ONE)];
            table.blocking_execute(&Step::new(NOW, op, &charges)).unwrap().lines[0].decision.standing
        };
        let ready = opening::open(&options(), present).unwrap();
        let table = ready.table;
        let mut flush = Flush::new(folder.path().to_owned(), ready.file, ready.recorder);
        ask(&table, Op::Take, b"strict", &minute);
        assert!(flush.write(|| Duration::ZERO).unwrap() > 0, "as somebody waits for it");
        for _ in 0..20 {
            ask(&table, Op::Take, b"other", &day);
            assert!(flush.write(|| Duration::from_secs(3600)).unwrap() > 0);
        }
        flush.close().unwrap();
        let again = opening::open(&options(), present).unwrap();
        assert_eq!(ask(&again.table, Op::Peek, b"strict", &minute).remaining, 9);
        assert_eq!(ask(&again.table, Op::Peek, b"other", &day).remaining, 0);
    }
}

#[cfg(test)]
mod writer_tests {
    use super::*;

    /// A thread that ended by a panic used to leave all its waiting callers blocked.
    #[test]
    fn a_thread_that_panics_answers_whoever_waits() {
        let shared =
            WriterState { orders: Orders::new(), watch: HealthWatch::new(None, present()), strict: 0.into() };
        let number = shared.orders.take();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                shared.orders.begin();
                let _until_closed = UntilClosed(&shared);
                panic!("as a mistake would");
            });
            assert!(writer.join().is_err());
        });
        assert!(shared.orders.wait(number).is_err() && shared.orders.close().is_err());
        assert!(shared.watch.error().unwrap().contains("has ended"));
    }
}
