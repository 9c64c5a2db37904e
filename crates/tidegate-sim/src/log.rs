//! Reads access logs, JSON lines and tables as one stream of requests in time order.
//!
//! Files are recognised by their content: packing by the first bytes, format by the first lines. Several files are
//! merged by reading from the file that lags behind most. So `access.log*` works although the shell lists the newest
//! file first, and so do the logs of several servers. A malformed line is counted; it never stops the reading.
//!
//! The stream is pushed to a closure: a record borrows the line it came from, and nothing is copied for it.

mod clf;
mod client;
mod columns;
mod csv;
mod detect;
mod envelope;
mod fields;
mod json;
mod log_format;
mod reader;
mod record;
mod time;

use std::ops::ControlFlow;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::Tick;
use tidegate::policy::Match;

use crate::order::{Clamp, OrderedLine, Reorder};
use crate::source::{Lines, Opened, total_bytes};

pub use crate::order::{Order, OrderTally};
pub use crate::source::{Input, Progress, SourceError};

use detect::Detected;
pub use detect::{Format, FormatError};
use envelope::Envelope;
pub(crate) use fields::Wanted;
pub use log_format::{LogFormat, LogFormatError};
use reader::{LINE_BITS, Reader, TOGETHER, hand_out, is_blank};
pub use reader::{MAX_DURATION, Tally};
use record::Malformed;
pub use record::{MalformedLine, Record, text};

/// Options for reading a log.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// The format of every file.
    pub format: Format,
    /// The meanings of columns and JSON fields: `("client.ip", "host")` says that `host` is the client. The
    /// attributes with a fixed meaning are `time`, `client.ip`, `user.id`, `request`, `request.method`,
    /// `request.path`, `request.host`, `request.header.user-agent`, `request.header.referer`, `response.status` and
    /// `response.bytes`; any other attribute renames an extra.
    pub columns: Vec<(String, String)>,
    /// What happens to lines that go back in time.
    pub order: Order,
    /// Which requests are handed out. Matching describes each request once more.
    pub matching: Match,
}

/// An error that makes a log unreadable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A file could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The format of a file was not recognised.
    #[error("{file}: {error}")]
    Format {
        /// The file.
        file: String,
        /// What its first lines look like.
        error: FormatError,
    },
}

/// A log of one or more files. Memory is bounded by [`Order`] and two buffers.
#[derive(Debug)]
pub struct Log {
    inputs: Vec<Input>,
    /// Unknown if one of the files is standard input: then each file is begun after the end of the one before.
    firsts: Vec<Option<u64>>,
    options: LogOptions,
    /// One for each file begun, since lines held back belong to them.
    readers: Vec<Reader>,
    tally: Tally,
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

/// Reports the progress of a log being read, from the closure or from another thread.
#[derive(Clone, Debug)]
pub struct Watch {
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

impl Watch {
    /// Returns how much has been read.
    #[must_use]
    pub fn progress(&self) -> Progress {
        // Relaxed: the number is only shown.
        Progress { read: self.read.load(Ordering::Relaxed), total: self.total }
    }
}

impl Log {
    /// Opens a log. Several files are sorted by their first times, unless one is standard input.
    ///
    /// # Errors
    /// [`LogError`] if a file cannot be opened or its format is not recognised.
    pub fn open(mut inputs: Vec<Input>, options: LogOptions) -> Result<Self, LogError> {
        let total = total_bytes(&inputs);
        let mut tally = Tally::default();
        let mut firsts = vec![None; inputs.len()];
        if inputs.len() > 1 && !inputs.contains(&Input::Stdin) {
            let mut timed = Vec::with_capacity(inputs.len());
            for input in inputs {
                timed.push((first_time(&input, &options)?, input));
            }
            tally.files_sorted = !timed.is_sorted_by_key(|(time, _)| *time);
            timed.sort_by_key(|(time, _)| *time);
            firsts = timed.iter().map(|(time, _)| Some(*time)).collect();
            inputs = timed.into_iter().map(|(_, input)| input).collect();
        }
        Ok(Self { inputs, firsts, options, readers: Vec::new(), tally, read: Arc::default(), total })
    }

    /// Returns a handle that reports the progress.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch { read: Arc::clone(&self.read), total: self.total }
    }

    /// Returns the counts of what was read so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Passes every request to `each`, in time order as far as [`Order`] allows, until it breaks or the log ends.
    ///
    /// # Errors
    /// [`LogError`] if a file cannot be read to its end.
    pub fn read(&mut self, mut each: impl FnMut(&Record<'_>) -> ControlFlow<()>) -> Result<&Tally, LogError> {
        self.read_by(1, &mut |records| records.iter().try_for_each(&mut each))
    }

    /// Like [`Log::read`], but passes up to 16 requests at once where possible, and exactly one where records borrow
    /// from the reader of their format. A caller can prefetch memory for the requests that follow.
    ///
    /// This holds up to 64 KiB of lines beyond the bound of [`Order::Sort`].
    ///
    /// # Errors
    /// As [`Log::read`].
    pub fn read_together(
        &mut self,
        mut each: impl FnMut(&[Record<'_>]) -> ControlFlow<()>,
    ) -> Result<&Tally, LogError> {
        self.read_by(TOGETHER, &mut each)
    }

    /// Hands out at most [`TOGETHER`] requests at once. `each` is a trait object, so that this is compiled once; the
    /// indirect call costs little compared with reading a line.
    fn read_by(
        &mut self,
        together: usize,
        each: &mut dyn FnMut(&[Record<'_>]) -> ControlFlow<()>,
    ) -> Result<&Tally, LogError> {
        let matching = (self.options.matching != Match::any()).then(|| self.options.matching.clone());
        self.tally.unmet.clear();
        self.options.matching.names(&mut |name| self.tally.unmet.push(name.to_owned()));
        let mut is_wanted = |tally: &mut Tally, record: &mut Record<'_>| {
            if let Some(matching) = &matching {
                let request = record.describe();
                tally.unmet.retain(|name| request.value(name).is_none());
                if !matching.matches(&request) {
                    tally.unmatched += 1;
                    return false;
                }
            }
            tally.records += 1;
            tally.note_odd(record);
            tally.first.get_or_insert(record.time);
            tally.last = Some(record.time);
            true
        };
        match self.options.order {
            Order::Clamp => {
                let mut clamp = Clamp::default();
                let _ = self.lines(|readers, tally, mark, line| {
                    let file = (mark >> LINE_BITS) as usize;
                    match readers[file].read(line) {
                        Ok(None) => ControlFlow::Continue(()),
                        Ok(Some(mut record)) => {
                            record.time = Tick::from_nanos(clamp.time(record.time.as_nanos()));
                            if !is_wanted(tally, &mut record) {
                                return ControlFlow::Continue(());
                            }
                            each(slice::from_ref(&record))
                        }
                        Err(why) => {
                            tally.note(mark, line, why);
                            ControlFlow::Continue(())
                        }
                    }
                })?;
                self.tally.order = clamp.tally();
            }
            Order::Sort { window, bytes } => {
                let mut order = Reorder::new(window, bytes);
                let flow = self.lines(|readers, tally, mark, line| {
                    match readers[(mark >> LINE_BITS) as usize].time(line) {
                        Ok(None) => return ControlFlow::Continue(()),
                        Ok(Some((time, time_at))) => {
                            order.push(time, OrderedLine { mark, time_at, bytes: line });
                        }
                        Err(why) => tally.note(mark, line, why),
                    }
                    while order.are_ready(together) {
                        hand_out(&mut order, together, readers, tally, &mut is_wanted, each)?;
                    }
                    ControlFlow::Continue(())
                })?;
                if flow.is_continue() {
                    let (readers, tally) = (&mut self.readers, &mut self.tally);
                    while order.finish(together)
                        && hand_out(&mut order, together, readers, tally, &mut is_wanted, each).is_continue()
                    {
                    }
                }
                self.tally.order = order.tally();
            }
        }
        Ok(&self.tally)
    }

    /// Returns the columns of [`LogOptions::columns`] that no line read so far has had, as (attribute, column).
    pub fn unmet_columns(&self) -> impl Iterator<Item = &(String, String)> {
        let is_met = |column: &str| self.readers.iter().any(|reader| reader.has_met(column));
        self.options.columns.iter().filter(move |(_, column)| !is_met(column))
    }

    /// Passes every line of every file to `each`, with the readers and a mark of file and line.
    fn lines(
        &mut self,
        mut each: impl FnMut(&mut [Reader], &mut Tally, u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, LogError> {
        let several = self.inputs.len() > 1;
        let mut open: Vec<OpenFile> = Vec::new();
        let mut next = 0;
        loop {
            // So that the logs of several servers are merged by time.
            let lagging = open.iter().enumerate().min_by_key(|(_, file)| file.reached);
            let lagging = lagging.map(|(place, file)| (place, file.reached));
            let due = |first: Option<u64>| {
                lagging.is_none_or(|(_, reached)| first.is_some_and(|first| first <= reached))
            };
            if next < self.inputs.len() && due(self.firsts[next]) {
                open.push(self.begin(next)?);
                next += 1;
                continue;
            }
            let Some((place, _)) = lagging else { break };
            let OpenFile { lines, file, reached, fits, envelope, room } = &mut open[place];
            // One file is read to its end; of several, another may lag behind after each line.
            loop {
                let Some(line) = lines.next_line()? else {
                    open.swap_remove(place);
                    break;
                };
                self.tally.lines += 1;
                let mark = ((*file as u64) << LINE_BITS) | line.number;
                if line.too_long {
                    self.tally.note(mark, b"", Malformed::TooLong);
                } else if is_blank(line.bytes) {
                    if line.bytes.starts_with(b"#") {
                        *fits = self.readers[*file].goes_on_below(line.bytes, *fits);
                    }
                } else if !*fits {
                    self.tally.note(mark, line.bytes, Malformed::OtherFields);
                } else if let Some(bytes) = envelope.open(line.bytes, room) {
                    if several && let Ok(Some((time, _))) = self.readers[*file].time(bytes) {
                        *reached = time.max(*reached);
                    }
                    if each(&mut self.readers, &mut self.tally, mark, bytes).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                } else {
                    self.tally.note(mark, line.bytes, Malformed::Otherwise);
                }
                if several {
                    break;
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The number of its reader is part of the marks of its lines.
    fn begin(&mut self, place: usize) -> Result<OpenFile, LogError> {
        let input = &self.inputs[place];
        let mut lines = Lines::new(Opened::new(input, &self.read)?);
        let Detected { format, reader, envelope, told } = detect(&mut lines, input, &self.options)?;
        self.tally.files.push((input.name(), format));
        self.tally.surrounded.extend(told.map(|told| (input.name(), told)));
        self.readers.push(reader);
        let reached = self.firsts[place].unwrap_or(0);
        Ok(OpenFile { lines, file: self.readers.len() - 1, reached, fits: true, envelope, room: Vec::new() })
    }
}

#[derive(Debug)]
struct OpenFile {
    lines: Lines,
    file: usize,
    /// The latest time in the file so far.
    reached: u64,
    /// Whether the reader fits the lines that follow. It does not after a comment that names other fields.
    fits: bool,
    envelope: Envelope,
    /// The text of a line that a JSON object holds.
    room: Vec<u8>,
}

fn detect(lines: &mut Lines, input: &Input, options: &LogOptions) -> Result<Detected, LogError> {
    let sample = lines.sample()?;
    detect::reader(&options.format, &options.columns, sample)
        .map_err(|error| LogError::Format { file: input.name(), error })
}

/// Returns the time of the first line that has one; `u64::MAX` for a file without any.
fn first_time(input: &Input, options: &LogOptions) -> Result<u64, LogError> {
    let mut lines = Lines::new(Opened::new(input, &Arc::default())?);
    let Detected { mut reader, envelope, .. } = detect(&mut lines, input, options)?;
    let mut room = Vec::new();
    while let Some(line) = lines.next_line()? {
        if !is_blank(line.bytes)
            && let Some(bytes) = envelope.open(line.bytes, &mut room)
            && let Ok(Some((time, _))) = reader.time(bytes)
        {
            return Ok(time);
        }
    }
    Ok(u64::MAX)
}

#[cfg(test)]
mod tests;
