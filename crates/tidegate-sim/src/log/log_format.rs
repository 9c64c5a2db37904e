//! Log lines in a format given as an nginx `log_format`, as it stands in `nginx.conf`.
//!
//! A format is text with variables. A value in a line ends at the first occurrence of the text that follows its
//! variable in the format. There is no backtracking, so a hostile line costs at most its length for each variable.

mod directive;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use memchr::memmem::Finder;

use self::directive::{Directive, Escape};
use super::client;
use super::fields::{Fields, Role};
use super::record::{Malformed, Record};
use super::time::Timestamps;

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
        let (head, variables) = cut(text, &format)?;
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

const MAX_VARIABLES: usize = 256;

/// A format as it is read: its variables, their positions and their meanings.
#[derive(Debug, PartialEq, Eq)]
struct Parts {
    escape: Escape,
    head: Vec<u8>,
    variables: Vec<Variable>,
}

impl Parts {
    fn has(&self, name: &str) -> bool {
        self.variables.iter().any(|variable| variable.name == name)
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Variable {
    name: String,
    kind: Kind,
    /// The text between this variable and the next, or the end of the line.
    after: Vec<u8>,
}

/// How the end of a variable's value is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// At the first occurrence of the text that follows the variable.
    Plain,
    /// `$time_local`: contains a space and has a fixed length.
    LocalTime,
    /// `$request`: contains spaces and usually ends in `HTTP/` and a version.
    Request,
    /// Values of several upstream servers, separated by `, ` or ` : `.
    List,
    /// `$remote_addr`: contains colons if it is an IPv6 address, so that a port after it begins at the last colon of the
    /// word.
    Address,
    /// `$request_uri`: contains no space. A space in it means that an earlier value contained unexpected spaces.
    Target,
}

impl Kind {
    fn of(name: &str) -> Self {
        match name {
            "time_local" => Self::LocalTime,
            "request" => Self::Request,
            "request_uri" => Self::Target,
            "remote_addr" | "realip_remote_addr" => Self::Address,
            "http_x_forwarded_for" | "proxy_add_x_forwarded_for" => Self::List,
            _ if name.starts_with("upstream_") => Self::List,
            _ => Self::Plain,
        }
    }
}

/// The variables that hold the time, best first: `$msec` has the finest resolution.
const TIMES: [&str; 3] = ["msec", "time_iso8601", "time_local"];

fn is_time(name: &str) -> bool {
    TIMES.contains(&name)
}

/// Returns the role of a variable in a record, and its rank among the variables of that role, lower first.
fn role(name: &str) -> Option<(Role, usize)> {
    Some(match name {
        "msec" => (Role::Time, 1),
        "time_iso8601" => (Role::Time, 2),
        "time_local" => (Role::Time, 3),
        "remote_addr" => (Role::Client, 1),
        "remote_user" => (Role::User, 1),
        "request" => (Role::Request, 1),
        "request_method" => (Role::Method, 1),
        "request_uri" => (Role::Path, 1),
        "uri" | "document_uri" => (Role::Path, 2),
        "host" => (Role::Host, 1),
        "http_host" => (Role::Host, 2),
        "server_name" => (Role::Host, 3),
        "status" => (Role::Status, 1),
        "body_bytes_sent" => (Role::Bytes, 1),
        "bytes_sent" => (Role::Bytes, 2),
        "http_user_agent" => (Role::Agent, 1),
        "http_referer" => (Role::Referer, 1),
        "request_time" => (Role::Duration, 1),
        _ => return None,
    })
}

/// Splits a format into the text before the first variable and the variables, each with the text after it. `text` is
/// the original, for the positions of errors.
fn cut(text: &str, format: &[(u8, usize)]) -> Result<(Vec<u8>, Vec<Variable>), LogFormatError> {
    let (mut head, mut variables) = (Vec::new(), Vec::<Variable>::new());
    let mut at = 0;
    while let Some(&(byte, place)) = format.get(at) {
        if byte != b'$' {
            variables.last_mut().map_or(&mut head, |variable| &mut variable.after).push(byte);
            at += 1;
            continue;
        }
        let braced = matches!(format.get(at + 1), Some((b'{', _)));
        let from = at + 1 + usize::from(braced);
        let is_name = |(byte, _): &&(u8, usize)| byte.is_ascii_alphanumeric() || *byte == b'_';
        let length = format[from..].iter().take_while(is_name).count();
        let name: String = format[from..from + length].iter().map(|(byte, _)| char::from(*byte)).collect();
        at = from + length;
        if name.is_empty() {
            return Err(LogFormatError::at(text, place, "a $ without a variable's name behind it"));
        }
        if braced {
            if !matches!(format.get(at), Some((b'}', _))) {
                return Err(LogFormatError::at(text, place, format!("${{{name} has no closing brace")));
            }
            at += 1;
        }
        if let Some(before) = variables.last()
            && before.after.is_empty()
        {
            let what = format!(
                "there is no text between ${} and ${name}, so it is unclear where one ends",
                before.name
            );
            return Err(LogFormatError::at(text, place, what));
        }
        if variables.len() == MAX_VARIABLES {
            return Err(LogFormatError::at(text, place, format!("more than {MAX_VARIABLES} variables")));
        }
        variables.push(Variable { kind: Kind::of(&name), name, after: Vec::new() });
    }
    if variables.is_empty() {
        return Err(LogFormatError::whole(
            "has no variable; write it as nginx does: '$time_iso8601 $remote_addr …' (in single quotes, or the shell replaces the variables)"
                .to_owned(),
        ));
    }
    Ok((head, variables))
}

/// Splits the lines of a log by its format.
pub(super) struct Cutter {
    format: Arc<Parts>,
    /// The number of each variable's name among the fields, and a searcher for the text that ends its value.
    columns: Vec<(Option<u32>, Finder<'static>)>,
    /// The position of the variable that holds the time; `None` if the user named another one.
    time: Option<usize>,
    /// Whether a client that is no address is an error: in a format that is known by name it is.
    only_addresses: bool,
    fields: Fields,
    times: Timestamps,
}

impl fmt::Debug for Cutter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cutter").field("format", &self.format).finish_non_exhaustive()
    }
}

impl Cutter {
    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    fn new(format: Arc<Parts>, columns: &[(String, String)]) -> Self {
        let mut fields = Fields::new(columns);
        // The requested path wins over the rewritten one.
        let asked = format.has("request_uri") || format.has("request");
        let mut found: Vec<(Option<u32>, Finder<'static>)> = Vec::new();
        let mut time: Option<(usize, usize)> = None;
        for (place, variable) in format.variables.iter().enumerate() {
            let name = variable.name.as_str();
            let meant = role(name).filter(|_| !(asked && matches!(name, "uri" | "document_uri")));
            let shown = match name.strip_prefix("http_") {
                Some(header) => format!("request.header.{}", header.replace('_', "-")),
                None => name.to_owned(),
            };
            found.push((fields.define(name, shown, meant), Finder::new(&variable.after).into_owned()));
            if let Some((Role::Time, rank)) = meant
                && time.is_none_or(|(have, _)| rank < have)
            {
                time = Some((rank, place));
            }
        }
        // Who describes the line may take any field for the client.
        fields.any_client();
        let is_users = columns.iter().any(|(attribute, _)| attribute == "time");
        let time = time.map(|(_, place)| place).filter(|_| !is_users);
        Self { format, columns: found, time, only_addresses: false, fields, times: Timestamps::default() }
    }

    pub(super) fn only_addresses(self) -> Self {
        Self { only_addresses: true, ..self }
    }

    /// Reads the line only up to the time.
    pub(super) fn time(&mut self, line: &[u8]) -> Result<u64, Malformed> {
        let Some(wanted) = self.time else { return self.read(line).map(|record| record.time.as_nanos()) };
        let mut found = None;
        for value in Values::of(&self.format, &self.columns, line)?.take(wanted + 1) {
            found = Some(value?);
        }
        found.and_then(|value| self.times.any(value)).ok_or(Malformed::Time)
    }

    pub(super) fn read(&mut self, line: &[u8]) -> Result<Record<'_>, Malformed> {
        self.fields.clear();
        let escape = self.format.escape;
        let mut values = Values::of(&self.format, &self.columns, line)?;
        for (name, _) in &self.columns {
            let Some(value) = values.next() else { break };
            let value = value?;
            if let Some(name) = name
                && !escape.is_nothing(value)
            {
                self.fields.push(*name, &escape.undo(value));
            }
        }
        let record = self.fields.record()?;
        if self.only_addresses && !record.client.is_empty() && !client::is_address(record.client) {
            return Err(Malformed::NoAddress);
        }
        Ok(record)
    }
}

struct Values<'v, 'l> {
    format: &'v Parts,
    columns: &'v [(Option<u32>, Finder<'static>)],
    next: usize,
    rest: &'l [u8],
}

impl<'v, 'l> Values<'v, 'l> {
    fn of(
        format: &'v Parts,
        columns: &'v [(Option<u32>, Finder<'static>)],
        line: &'l [u8],
    ) -> Result<Self, Malformed> {
        let rest = line.strip_prefix(&*format.head).ok_or(Malformed::LogFormat { variable: 0 })?;
        Ok(Self { format, columns, next: 0, rest })
    }

    /// Returns the length of the next value; `None` if the text that follows its variable is missing.
    fn length(&self) -> Option<usize> {
        let variable = &self.format.variables[self.next];
        let (rest, after) = (self.rest, variable.after.as_slice());
        if self.next + 1 == self.columns.len() {
            return rest.strip_suffix(after).map(<[u8]>::len);
        }
        let ends = || self.columns[self.next].1.find_iter(rest);
        let is_spaced = after.starts_with(b" ");
        match variable.kind {
            Kind::LocalTime if rest.get(LOCAL_TIME..).is_some_and(|rest| rest.starts_with(after)) => {
                Some(LOCAL_TIME)
            }
            Kind::Request if is_spaced => {
                ends().find(|end| has_version(&rest[..*end])).or_else(|| ends().next())
            }
            Kind::Address if after.starts_with(b":") => {
                let word = memchr::memchr(b' ', rest).unwrap_or(rest.len());
                let colon = memchr::memrchr(b':', &rest[..word])?;
                rest[colon..].starts_with(after).then_some(colon)
            }
            Kind::List if is_spaced => ends().find(|end| !goes_on(&rest[..*end], &rest[*end..])),
            _ if after.len() == 1 => memchr::memchr(after[0], rest),
            _ => self.columns[self.next].1.find(rest),
        }
    }
}

impl Values<'_, '_> {
    #[cold]
    fn misfit(&mut self) -> Malformed {
        // There are at most 256 variables.
        let variable = self.next as u16 + 1;
        self.next = self.columns.len();
        Malformed::LogFormat { variable }
    }
}

/// The length of `17/May/2015:10:05:03 +0000`.
const LOCAL_TIME: usize = 26;

/// Says whether a request line ends with its HTTP version.
fn has_version(request: &[u8]) -> bool {
    let word = memchr::memrchr(b' ', request).map_or(request, |space| &request[space + 1..]);
    word.starts_with(b"HTTP/")
}

/// A space that belongs to a list such as `0.1, 0.2` or `0.1 : 0.2`.
fn goes_on(before: &[u8], after: &[u8]) -> bool {
    before.ends_with(b",") || before.ends_with(b" :") || after.starts_with(b" : ")
}

impl<'l> Iterator for Values<'_, 'l> {
    type Item = Result<&'l [u8], Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let variable = self.format.variables.get(self.next)?;
        let Some(length) = self.length() else { return Some(Err(self.misfit())) };
        let (value, rest) = self.rest.split_at(length);
        let is_bare = !variable.after.starts_with(b"\"") && !variable.after.starts_with(b"'");
        if variable.kind == Kind::Target && is_bare && memchr::memchr(b' ', value).is_some() {
            return Some(Err(self.misfit()));
        }
        self.rest = &rest[variable.after.len()..];
        self.next += 1;
        Some(Ok(value))
    }
}

#[cfg(test)]
mod tests;
