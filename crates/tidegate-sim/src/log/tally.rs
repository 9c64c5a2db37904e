//! Counts of what was read from a log, and its malformed lines.

use std::time::Duration;

use tidegate::Tick;

use super::detect::Format;
use super::malformed::{Malformed, MalformedLine, excerpt};
use super::record::Record;
use crate::order::OrderTally;

/// The most malformed lines kept to show.
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
    /// Requests whose status is outside 100 to 599. They are judged like any other: from 500 on as failed.
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

/// The longest duration of a request that is believed: 366 days, also the longest that generated traffic may have. A
/// longer one has another unit than its name tells.
pub const MAX_DURATION: Duration = Duration::from_secs(366 * 86_400);

/// The bits for the line in a mark, which is file and line in one number: 2²⁴ files of 2⁴⁰ lines.
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
