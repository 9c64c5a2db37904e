//! One write: the changes, and a part of the table, so that older pieces can be deleted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use tidegate::store::Recorder;

use crate::file::{FileError, Journal, StoreFile};
use crate::identity::Identity;
use crate::opening;

/// The least that each write adds of the table, in bytes: one page of the engine, which is written anyway.
const LEAST: u64 = 4096;

/// The most lines without keys that each write scans: takes under a millisecond, however large and empty the table is.
const LINES: usize = 16_384;

/// One more line may be scanned per this many bytes of changes: a line of four slots holds at least one key of 36
/// bytes, or little is lost.
const BYTES_PER_LINE: u64 = 16;

/// Writes changes to the file, and reopens the file after a failed write.
#[derive(Debug)]
pub(crate) struct Flush {
    folder: PathBuf,
    identity: Identity,
    recorder: Recorder,
    /// `None` after a failed write.
    file: Option<StoreFile>,
    /// The number of the first piece of the current round through the table.
    round: u64,
}

impl Flush {
    pub(crate) fn new(folder: PathBuf, file: StoreFile, recorder: Recorder) -> Self {
        Self { folder, identity: file.identity.clone(), recorder, round: file.next, file: Some(file) }
    }

    /// Writes all changes so far, and returns their bytes after they are on disk; 0 if there are no relevant changes. A
    /// change is left out if its key is full again within `slack`.
    ///
    /// # Errors
    /// The reason of a failure. Nothing is lost: the changes are written the next time.
    pub(crate) fn write(&mut self, slack: impl Fn() -> Duration) -> Result<u64, String> {
        // The engine has no known panics. If it panics all the same, checks continue, and the file is reopened.
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

    /// Closes the file.
    pub(crate) fn close(mut self) -> Result<(), String> {
        let Some(file) = self.file.take() else { return Ok(()) };
        catch_unwind(AssertUnwindSafe(|| file.close().map_err(|error| error.reason())))
            .unwrap_or_else(|_| Err("the engine that writes the file has failed".to_owned()))
    }
}

/// Adds about as much of the table as has changed. At the end of a round it deletes all pieces from before the round,
/// and returns the number at which the next round begins.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use tidegate::store::{Charge, Op, Step, Store as _, TrackedStore};
    use tidegate::{Cost, Quota, Tick};

    use super::*;
    use crate::options::DiskOptions;

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
            table.blocking_settle(&Step::new(NOW, op, &charges)).unwrap().lines[0].decision.standing
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
