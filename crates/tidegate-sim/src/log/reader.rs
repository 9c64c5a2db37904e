//! Reads the lines of one file in any of the formats.

use std::ops::ControlFlow;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::Tick;

use super::clf::Clf;
use super::columns::Columns;
use super::csv::Csv;
use super::detect::Format;
use super::json::Json;
use super::log_format::Cutter;
use super::record::{Malformed, MalformedLine, Record, excerpt};
use crate::order::{OrderTally, OrderedLine, Reorder};

#[derive(Debug)]
pub(super) enum Reader {
    Clf(Clf),
    Json(Json),
    Csv(Box<Csv>),
    Columns(Box<Columns>),
    LogFormat(Box<Cutter>),
}

/// Says whether a line is blank or a comment. Such lines are not counted as malformed.
pub(super) fn is_blank(line: &[u8]) -> bool {
    matches!(line, [] | [b'#', ..]) || line.trim_ascii().is_empty()
}

impl Reader {
    /// Parses a line; `None` for a header.
    #[inline]
    pub(super) fn read<'a>(&'a mut self, line: &'a [u8]) -> Result<Option<Record<'a>>, Malformed> {
        match self {
            Self::Clf(clf) => clf.read(line).map(Some),
            Self::Json(json) => json.read(line).map(Some),
            Self::Csv(csv) => csv.read(line),
            Self::Columns(columns) => columns.read(line).map(Some),
            Self::LogFormat(cutter) => cutter.read(line).map(Some),
        }
    }

    /// Says whether this reader fits the lines after a comment; `so_far` says whether it fitted the lines before it.
    #[cold]
    pub(super) fn goes_on_below(&self, comment: &[u8], so_far: bool) -> bool {
        match self {
            Self::Columns(columns) => columns.goes_on_below(comment, so_far),
            _ => true,
        }
    }

    /// The columns of access logs have no names.
    pub(super) fn has_met(&self, column: &str) -> bool {
        match self {
            Self::Clf(_) => false,
            Self::Json(json) => json.fields().have_met(column),
            Self::Csv(csv) => csv.fields().have_met(column),
            Self::Columns(columns) => columns.fields().have_met(column),
            Self::LogFormat(cutter) => cutter.fields().have_met(column),
        }
    }

    /// Records borrow only from their lines, so that several can exist at once.
    #[inline]
    pub(super) fn borrows_lines_alone(&self) -> bool {
        matches!(self, Self::Clf(_))
    }

    /// Fills a new record, whose time is already parsed. Leaves it unchanged unless [`Reader::borrows_lines_alone`].
    #[inline]
    pub(super) fn fill_apart<'a>(
        &self,
        line: &'a [u8],
        time_at: u32,
        record: &mut Record<'a>,
    ) -> Result<(), Malformed> {
        match self {
            Self::Clf(clf) => clf.fill(line, time_at, record),
            _ => Ok(()),
        }
    }

    /// Parses the time of a line, and as little else as the format allows. Returns its position where that avoids a
    /// second search.
    #[inline]
    pub(super) fn time(&mut self, line: &[u8]) -> Result<Option<(u64, u32)>, Malformed> {
        match self {
            Self::Clf(clf) => clf.time(line).map(Some),
            Self::LogFormat(cutter) => cutter.time(line).map(|time| Some((time, 0))),
            other => Ok(other.read(line)?.map(|record| (record.time.as_nanos(), 0))),
        }
    }
}

const SHOWN: usize = 5;

/// Counts of what was read from a log.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Lines, including blank ones and comments.
    pub lines: u64,
    /// Requests handed out.
    pub records: u64,
    /// Requests left out because [`LogOptions::matching`](crate::log::LogOptions::matching) does not match them.
    pub unmatched: u64,
    /// Attributes that [`LogOptions::matching`](crate::log::LogOptions::matching) uses and that no request has had so
    /// far.
    pub unmet: Vec<String>,
    /// Malformed lines.
    pub malformed: u64,
    /// The first malformed lines, at most five.
    pub first_malformed: Vec<MalformedLine>,
    /// Requests whose status is outside 100 to 599; from 500 on they count as failed.
    pub odd_statuses: u64,
    /// The first status outside 100 to 599.
    pub first_odd_status: Option<u16>,
    /// Requests whose duration is longer than [`MAX_DURATION`]. It counts as unknown.
    pub overlong: u64,
    /// How far the log was in time order.
    pub order: OrderTally,
    /// The files, in the order they were read, with their formats.
    pub files: Vec<(String, Format)>,
    /// What surrounds each line of a file and is taken off, as (file, sentence).
    pub surrounded: Vec<(String, String)>,
    /// Whether the files were sorted by their first times.
    pub files_sorted: bool,
    /// The time of the first request.
    pub first: Option<Tick>,
    /// The time of the last request.
    pub last: Option<Tick>,
}

/// The longest duration of a request that is believed: 366 days. A longer one has another unit than its name tells.
pub const MAX_DURATION: Duration = Duration::from_secs(366 * 86_400);

/// A mark is file and line in one number: 2²⁴ files of 2⁴⁰ lines.
pub(super) const LINE_BITS: u32 = 40;

impl Tally {
    /// Counts a status that is none and a duration that cannot be, and drops that duration: a request that held its
    /// place for ages would make all that follow look refused.
    pub(super) fn note_odd(&mut self, record: &mut Record<'_>) {
        if let Some(status) = record.status.filter(|status| !(100..600).contains(status)) {
            self.odd_statuses += 1;
            self.first_odd_status.get_or_insert(status);
        }
        if record.duration.is_some_and(|took| took > MAX_DURATION) {
            self.overlong += 1;
            record.duration = None;
        }
    }

    /// Counts a malformed line; `mark` encodes its file and line.
    #[cold]
    pub(super) fn note(&mut self, mark: u64, line: &[u8], why: Malformed) {
        self.malformed += 1;
        if self.first_malformed.len() < SHOWN {
            let file = self.files.get((mark >> LINE_BITS) as usize).map_or("", |(name, _)| name).to_owned();
            let number = mark & ((1 << LINE_BITS) - 1);
            self.first_malformed.push(MalformedLine { file, line: number, why, excerpt: excerpt(line) });
        }
    }
}

/// The most requests handed out at once: about as many memory loads as a core can have in flight.
pub(super) const TOGETHER: usize = 16;

/// Hands out up to `together` of the next requests that are ready and wanted.
#[inline]
pub(super) fn hand_out(
    order: &mut Reorder,
    together: usize,
    readers: &mut [Reader],
    tally: &mut Tally,
    is_wanted: &mut impl FnMut(&mut Tally, &mut Record<'_>) -> bool,
    each: &mut dyn FnMut(&[Record<'_>]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut records: SmallVec<[Record<'_>; TOGETHER]> = SmallVec::new();
    let taken = if readers.iter().all(Reader::borrows_lines_alone) {
        let mut taken = 0;
        order.fetch(together);
        for held in order.ready().take(together) {
            let OrderedLine { mark, time_at, bytes } = held.line;
            // In place: a record is large, and there is one for each line.
            records.push(Record::at(held.time));
            let Some(record) = records.last_mut() else { break };
            let read = readers[(mark >> LINE_BITS) as usize].fill_apart(bytes, time_at, record);
            if let Err(why) = read {
                tally.note(mark, bytes, why);
                records.pop();
            } else if !is_wanted(tally, record) {
                records.pop();
            }
            taken += 1;
        }
        taken
    } else {
        let Some(held) = order.ready().next() else { return ControlFlow::Continue(()) };
        let OrderedLine { mark, bytes, .. } = held.line;
        match readers[(mark >> LINE_BITS) as usize].read(bytes) {
            Ok(Some(mut record)) => {
                record.time = Tick::from_nanos(held.time);
                if is_wanted(tally, &mut record) {
                    records.push(record);
                }
            }
            Ok(None) => {}
            Err(why) => tally.note(mark, bytes, why),
        }
        1
    };
    let flow = if records.is_empty() { ControlFlow::Continue(()) } else { each(&records) };
    drop(records);
    order.drop_first(taken);
    flow
}
