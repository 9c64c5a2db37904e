//! Splits the lines of a log by its format.

use std::fmt;
use std::sync::Arc;

use memchr::memmem::Finder;

use super::super::client;
use super::super::fields::{Fields, Role};
use super::super::record::{Malformed, Record};
use super::super::time::Timestamps;
use super::{Kind, Parts, role};

pub(in super::super) struct Cutter {
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
    pub(in super::super) fn fields(&self) -> &Fields {
        &self.fields
    }

    pub(super) fn new(format: Arc<Parts>, columns: &[(String, String)]) -> Self {
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

    pub(in super::super) fn only_addresses(self) -> Self {
        Self { only_addresses: true, ..self }
    }

    /// Reads the line only up to the time.
    pub(in super::super) fn time(&mut self, line: &[u8]) -> Result<u64, Malformed> {
        let Some(wanted) = self.time else { return self.read(line).map(|record| record.time.as_nanos()) };
        let mut found = None;
        for value in Values::of(&self.format, &self.columns, line)?.take(wanted + 1) {
            found = Some(value?);
        }
        found.and_then(|value| self.times.any(value)).ok_or(Malformed::Time)
    }

    pub(in super::super) fn read(&mut self, line: &[u8]) -> Result<Record<'_>, Malformed> {
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
