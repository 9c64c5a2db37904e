//! Reads the lines of one file, in whichever format it has.

use super::clf::Clf;
use super::csv::Csv;
use super::json::Json;
use super::malformed::Malformed;
use super::record::Record;

/// Reads the lines of one file.
#[derive(Debug)]
pub(super) enum Reader {
    Clf(Clf),
    Json(Json),
    Csv(Box<Csv>),
}

/// Says whether a line is blank or a comment, which is not counted.
pub(super) fn is_blank(line: &[u8]) -> bool {
    matches!(line, [] | [b'#', ..]) || line.trim_ascii().is_empty()
}

impl Reader {
    /// Reads a line; `None` for a header.
    #[inline]
    pub(super) fn read<'a>(&'a mut self, line: &'a [u8]) -> Result<Option<Record<'a>>, Malformed> {
        match self {
            Self::Clf(clf) => clf.read(line).map(Some),
            Self::Json(json) => json.read(line).map(Some),
            Self::Csv(csv) => csv.read(line),
        }
    }

    /// Says whether the log has had a column or field of this name; the columns of access logs have none.
    pub(super) fn has_met(&self, column: &str) -> bool {
        match self {
            Self::Clf(_) => false,
            Self::Json(json) => json.fields().have_met(column),
            Self::Csv(csv) => csv.fields().have_met(column),
        }
    }

    /// Reads the time of a line and as little else as the format allows.
    #[inline]
    pub(super) fn time(&mut self, line: &[u8]) -> Result<Option<u64>, Malformed> {
        match self {
            Self::Clf(clf) => clf.time(line).map(Some),
            other => Ok(other.read(line)?.map(|record| record.time.as_nanos())),
        }
    }
}
