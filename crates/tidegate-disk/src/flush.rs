//! One write: what has changed, and a part of the table, so that what is older can go.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use tidegate::store::Recorder;

use crate::file::{FileError, Journal, StoreFile};
use crate::identity::Identity;
use crate::opening;

/// The least that is written of the table with each write, in bytes: a page of the engine, which is written anyway.
const LEAST: u64 = 4096;

/// Lines of the table that are looked at with each write, at most, beside those that hold keys: under a millisecond, however large and empty
/// the table is.
const LINES: usize = 16_384;

/// Of so many bytes of changes, one more line is looked at: a line of four slots holds a key of 36 bytes at least, or little is lost.
const BYTES_PER_LINE: u64 = 16;

/// Writes what changes to the file, and opens it anew where that has failed.
#[derive(Debug)]
pub(crate) struct Flush {
    folder: PathBuf,
    identity: Identity,
    recorder: Recorder,
    /// `None` after a write that failed.
    file: Option<StoreFile>,
    /// The number of the first piece of this round through the table.
    round: u64,
}

impl Flush {
    pub(crate) fn new(folder: PathBuf, file: StoreFile, recorder: Recorder) -> Self {
        Self { folder, identity: file.identity.clone(), recorder, round: file.next, file: Some(file) }
    }

    /// Writes all that has changed so far, and returns how many bytes that were: 0 where nothing has changed that matters. When it returns,
    /// they are on disk. `slack` says within which time a key has to be full again to be left out.
    ///
    /// # Errors
    /// Why it could not. Nothing is forgotten: what has changed is written the next time.
    pub(crate) fn write(&mut self, slack: impl Fn() -> Duration) -> Result<u64, String> {
        // The engine has no panics that are known; if it has one, checks go on, and the file is opened anew.
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
            // What has changed does not matter.
            recorder.kept();
            return Ok(0);
        };
        let mut ended = None;
        let bytes = file.write(|journal| {
            journal.add(&first)?;
            while let Some(piece) = recorder.changes(&slack) {
                journal.add(&piece)?;
            }
            ended = part_of_table(journal, recorder, *round, &slack)?;
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

/// Adds as much of the table as has changed, and forgets what is older than a round that has ended. Returns where the next round begins then.
fn part_of_table(
    journal: &mut Journal<'_>,
    recorder: &mut Recorder,
    round: u64,
    slack: &impl Fn() -> Duration,
) -> Result<Option<u64>, redb::Error> {
    let changed = journal.bytes.max(LEAST);
    let most =
        usize::try_from(changed / BYTES_PER_LINE).map_or(usize::MAX, |more| more.saturating_add(LINES));
    let (mut written, mut lines) = (0, 0);
    // A part is at least a line, so that this ends.
    while written < changed && lines < most {
        let rest = usize::try_from(changed - written).unwrap_or(usize::MAX);
        let part = recorder.lines(most - lines, rest, slack);
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
