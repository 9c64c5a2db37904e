//! What was read of a log, and which of its lines were no request.

use tidegate::Tick;

use super::format::Format;
use super::malformed::{Malformed, MalformedLine, excerpt};
use crate::order::OrderTally;

/// Malformed lines kept to show.
const SHOWN: usize = 5;

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Lines, blank ones and comments included.
    pub lines: u64,
    /// Requests handed out.
    pub records: u64,
    /// Requests left out, because [`LogOptions::matching`](crate::log::LogOptions::matching) does not fit them.
    pub unmatched: u64,
    /// Attributes that [`LogOptions::matching`](crate::log::LogOptions::matching) goes by and that no request had so far.
    pub unmet: Vec<String>,
    /// Lines that are no request.
    pub malformed: u64,
    /// The first of them.
    pub first_malformed: Vec<MalformedLine>,
    /// How the log kept to time.
    pub order: OrderTally,
    /// The files, in the order they were read, with their formats.
    pub files: Vec<(String, Format)>,
    /// Whether the files were put into the order of their first times.
    pub files_sorted: bool,
    /// The time of the first request.
    pub first: Option<Tick>,
    /// The time of the last request.
    pub last: Option<Tick>,
}

/// Entries held back carry file and line in one number: 2²⁴ files of 2⁴⁰ lines.
pub(super) const LINE_BITS: u32 = 40;

impl Tally {
    /// Counts a line that is no request; `mark` says which file and line.
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
