use std::fmt;

use super::record::text;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Malformed {
    /// No time, or an invalid one.
    #[error("no readable time")]
    Time,
    /// None of the line's fields is a time.
    #[error("no field is known as the time; name it with --column time=NAME")]
    NoTime,
    /// The field of the client is no address, in a log whose clients are addresses; or the column that the user named
    /// for it has neither an address nor a host name.
    #[error("no client before the time")]
    Client,
    /// The field of the client is no address, in a log whose clients are addresses; or the column that the user named
    /// for it has neither an address nor a host name.
    #[error(
        "the field taken for the client is no address; name another with --column client.ip=NAME, describe the lines with --log-format, or \
         give --format combined if clients are host names"
    )]
    NoAddress,
    /// Something stands between the first field and the user that is an address itself.
    #[error(
        "the second field is an address too, so it is unclear which is the client; name the fields with --log-format"
    )]
    TwoAddresses,
    /// The line lacks what the first lines have before the client, or the text that they hold.
    #[error("does not begin as the first lines do")]
    Otherwise,
    /// No quoted request after the time.
    #[error("no request in quotes after the time")]
    Request,
    /// The status is not three digits.
    #[error("the status is not three digits")]
    Status,
    /// The size is not a number.
    #[error("the size is not a number")]
    Bytes,
    /// More or fewer fields than in the header.
    #[error("not as many fields as the header line has")]
    Columns,
    #[error("the header line names no time column; name it with --column time=NAME")]
    Header,
    /// Not a single JSON object.
    #[error("not one JSON object")]
    Json,
    /// The text that follows this variable in the `log_format` is missing.
    #[error("does not match the log format: {}", misfit(*.variable))]
    LogFormat {
        /// The number of the variable, from 1; 0 for the text that the format begins with.
        variable: u16,
    },
    /// Fewer fields than an Application Load Balancer writes.
    #[error("fewer fields than a line of an Application Load Balancer has")]
    Alb,
    /// More or fewer fields than in the `#Fields` line.
    #[error("not as many fields as the #Fields line has")]
    Fields,
    /// The line follows another `#Fields` line that names other fields.
    #[error("the #Fields line before it differs from the first one; give the files one by one")]
    OtherFields,
    /// Longer than 64 KiB.
    #[error("longer than 64 KiB")]
    TooLong,
}

fn misfit(variable: u16) -> String {
    match variable {
        0 => "it begins otherwise".to_owned(),
        number => format!("variable {number} and the text after it are missing"),
    }
}

/// A malformed line, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedLine {
    pub(crate) file: String,
    pub(crate) line: u64,
    pub(crate) why: Malformed,
    pub(crate) excerpt: String,
}

impl fmt::Display for MalformedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.why, self.excerpt)
    }
}

/// The most characters of a line that are shown.
const EXCERPT: usize = 120;

/// Returns the beginning of a line, with `·` in place of control characters.
pub(super) fn excerpt(line: &[u8]) -> String {
    text(line).chars().take(EXCERPT).map(|char| if char.is_control() { '·' } else { char }).collect()
}
