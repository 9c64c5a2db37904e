//! Tables with a header line: comma- or tab-separated.
//!
//! Cutting and unquoting are the `csv-core` crate's. A quoted field does not span lines: a log has one request per line.

use std::fmt;

use super::fields::Fields;
use super::malformed::Malformed;
use super::record::Record;
use super::roles::means_time;

/// Reads the lines of one table; the first line read is the header.
pub(super) struct Csv {
    cut: csv_core::Reader,
    /// The number of each column's name, once the header is known; `None` for a name too many.
    columns: Vec<Option<u32>>,
    is_open: bool,
    fields: Fields,
    /// The fields of the line at hand, one after another, and where each ends.
    out: Vec<u8>,
    ends: Vec<usize>,
}

impl fmt::Debug for Csv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Csv").field("columns", &self.columns.len()).finish_non_exhaustive()
    }
}

/// More columns than this are no table of requests.
const MAX_COLUMNS: usize = 1_024;

impl Csv {
    pub(super) fn new(delimiter: u8, columns: &[(String, String)]) -> Self {
        // Tab-separated traces hold bare quotes in their paths and never quote.
        let cut = csv_core::ReaderBuilder::new().delimiter(delimiter).quoting(delimiter != b'\t').build();
        Self {
            cut,
            columns: Vec::new(),
            is_open: false,
            fields: Fields::new(columns),
            out: vec![0; crate::source::MAX_LINE + 1],
            ends: vec![0; MAX_COLUMNS],
        }
    }

    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Cuts a line; returns how many fields it has.
    fn cut(&mut self, line: &[u8]) -> Result<usize, Malformed> {
        use csv_core::ReadRecordResult as Step;
        self.cut.reset();
        let (mut read, mut written, mut count) = (0, 0, 0);
        loop {
            // An empty input is the end of the line.
            let (step, from, to, ends) =
                self.cut.read_record(&line[read..], &mut self.out[written..], &mut self.ends[count..]);
            (read, written, count) = (read + from, written + to, count + ends);
            match step {
                Step::InputEmpty => {}
                Step::Record => return Ok(count),
                Step::End | Step::OutputFull | Step::OutputEndsFull => return Err(Malformed::Columns),
            }
        }
    }

    /// Returns where a field of the line at hand lies in `out`.
    fn field(&self, index: usize) -> std::ops::Range<usize> {
        (if index == 0 { 0 } else { self.ends[index - 1] })..self.ends[index]
    }

    /// Reads a line; `None` for the header.
    pub(super) fn read(&mut self, line: &[u8]) -> Result<Option<Record<'_>>, Malformed> {
        let count = self.cut(line)?;
        if !self.is_open {
            for index in 0..count {
                let name = &self.out[self.field(index)];
                let name = super::text(name.trim_ascii()).into_owned();
                self.columns.push(self.fields.number(&name));
            }
            self.fields.host_may_be_client();
            self.is_open = true;
            return if self.fields.know_time() { Ok(None) } else { Err(Malformed::Header) };
        }
        if count != self.columns.len() {
            return Err(Malformed::Columns);
        }
        self.fields.clear();
        for index in 0..count {
            if let Some(name) = self.columns[index] {
                let field = self.field(index);
                self.fields.push(name, &self.out[field]);
            }
        }
        self.fields.record().map(Some)
    }
}

/// Returns the delimiter of a header line, if it is one: a time column tells.
pub(super) fn header(line: &[u8], columns: &[(String, String)]) -> Option<u8> {
    let line = std::str::from_utf8(line).ok()?;
    let is_time = |name: &str| {
        let name = name.trim().trim_matches('"');
        means_time(name) || columns.iter().any(|(attribute, column)| attribute == "time" && column == name)
    };
    ['\t', ',']
        .into_iter()
        .find(|delimiter| line.contains(*delimiter) && line.split(*delimiter).any(is_time))
        .map(|delimiter| delimiter as u8)
}
