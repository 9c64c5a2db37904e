//! Reads the lines of one file in any of the formats.

use super::clf::Clf;
use super::columns::Columns;
use super::csv::Csv;
use super::json::Json;
use super::log_format::Cutter;
use super::malformed::Malformed;
use super::record::Record;

/// A reader for the lines of one file.
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

    /// Says whether the log has had a column or field of this name. The columns of access logs have no names.
    pub(super) fn has_met(&self, column: &str) -> bool {
        match self {
            Self::Clf(_) => false,
            Self::Json(json) => json.fields().have_met(column),
            Self::Csv(csv) => csv.fields().have_met(column),
            Self::Columns(columns) => columns.fields().have_met(column),
            Self::LogFormat(cutter) => cutter.fields().have_met(column),
        }
    }

    /// Says whether records borrow only from their lines and not from the reader, so that several can exist at once.
    #[inline]
    pub(super) fn borrows_lines_alone(&self) -> bool {
        matches!(self, Self::Clf(_))
    }

    /// Fills a new record, whose time is already parsed, with the rest of its line. Leaves it unchanged unless
    /// [`Reader::borrows_lines_alone`]. `time_at` is the position of the time.
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

    /// Parses the time of a line, and as little else as the format allows. Returns it with its position where that
    /// avoids a second search.
    #[inline]
    pub(super) fn time(&mut self, line: &[u8]) -> Result<Option<(u64, u32)>, Malformed> {
        match self {
            Self::Clf(clf) => clf.time(line).map(Some),
            Self::LogFormat(cutter) => cutter.time(line).map(|time| Some((time, 0))),
            other => Ok(other.read(line)?.map(|record| (record.time.as_nanos(), 0))),
        }
    }
}
