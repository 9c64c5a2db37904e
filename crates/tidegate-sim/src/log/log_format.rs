//! Log lines in a format given as an nginx `log_format`, as it stands in `nginx.conf`.
//!
//! A format is text with variables. A value in a line ends at the first occurrence of the text that follows its
//! variable in the format. There is no backtracking, so a hostile line costs at most its length for each variable.

mod directive;
mod lines;
mod variables;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use self::directive::Directive;
use self::variables::{Parts, is_time};

pub(super) use self::lines::Cutter;

/// Far longer than any in use.
const MAX_TEXT: usize = 16 << 10;

/// A `log_format` of nginx. Cheap to clone.
///
/// Parsed from the text in `nginx.conf`: the whole directive, `log_format main '$remote_addr …' '…';`, or the format
/// alone, `$time_iso8601 $remote_addr …`, preceded by `escape=json` if it has that. Backslashes mean the same as
/// there.
///
/// Variables for the time, the client and the request become the record's fields; `$http_NAME` becomes
/// `request.header.NAME` with `-` for `_`; any other variable becomes an extra under its own name, without the `$`.
/// Values that are `-` or empty are left out.
///
/// # Examples
/// ```
/// use tidegate_sim::log::LogFormat;
///
/// let format: LogFormat = "log_format timed '$remote_addr [$time_local] '\n '\"$request\" $status $request_time';".parse()?;
/// assert!(format.tells_time(&[]));
/// let error = "$remote_addr$status $msec".parse::<LogFormat>().unwrap_err();
/// assert_eq!(error.to_string(), "column 13: there is no text between $remote_addr and $status, so it is unclear where one ends");
/// # Ok::<(), tidegate_sim::log::LogFormatError>(())
/// ```
///
/// # Source
/// <https://nginx.org/en/docs/http/ngx_http_log_module.html#log_format>
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFormat {
    parts: Arc<Parts>,
}

impl LogFormat {
    pub(super) fn cutter(&self, columns: &[(String, String)]) -> Cutter {
        Cutter::new(Arc::clone(&self.parts), columns)
    }

    /// Says whether lines of this format contain the time of a request: by `$msec`, `$time_iso8601` or `$time_local`,
    /// or by a variable that `columns` maps to the attribute `time`, as in [`super::LogOptions::columns`].
    #[must_use]
    pub fn tells_time(&self, columns: &[(String, String)]) -> bool {
        let named =
            |name: &str| columns.iter().any(|(attribute, column)| attribute == "time" && column == name);
        self.parts.variables.iter().any(|variable| is_time(&variable.name) || named(&variable.name))
    }
}

impl FromStr for LogFormat {
    type Err = LogFormatError;

    fn from_str(text: &str) -> Result<Self, LogFormatError> {
        if text.len() > MAX_TEXT {
            return Err(LogFormatError::whole(format!(
                "is longer than {} KiB; give one log_format, not the whole file",
                MAX_TEXT >> 10
            )));
        }
        let Directive { escape, format } = Directive::read(text)?;
        let (head, variables) = variables::cut(text, &format)?;
        if head.starts_with(b"#") {
            return Err(LogFormatError::whole(
                "begins with #, and lines that do are comments in a log".to_owned(),
            ));
        }
        Ok(Self { parts: Arc::new(Parts { escape, head, variables }) })
    }
}

/// Prints the format without a directive around it.
impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes);
        write!(f, "{}", text(&self.parts.head))?;
        for variable in &self.parts.variables {
            write!(f, "${{{}}}{}", variable.name, text(&variable.after))?;
        }
        Ok(())
    }
}

/// An error in a `log_format`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFormatError {
    /// The line and the column in characters, both from 1; `None` for the format as a whole.
    place: Option<(usize, usize)>,
    /// The message then names the line.
    several: bool,
    what: String,
}

impl LogFormatError {
    fn whole(what: String) -> Self {
        Self { place: None, several: false, what }
    }

    fn at(text: &str, byte: usize, what: impl Into<String>) -> Self {
        // Errors are at ASCII characters, which are character boundaries.
        let before = text.get(..byte).unwrap_or(text);
        let line = before.rsplit('\n').next().unwrap_or("");
        let place = (before.matches('\n').count() + 1, line.chars().count() + 1);
        Self { place: Some(place), several: text.contains('\n'), what: what.into() }
    }
}

impl fmt::Display for LogFormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) if self.several => write!(f, "line {line}, column {column}: ")?,
            Some((_, column)) => write!(f, "column {column}: ")?,
            None => f.write_str("the format ")?,
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for LogFormatError {}

#[cfg(test)]
mod tests;
