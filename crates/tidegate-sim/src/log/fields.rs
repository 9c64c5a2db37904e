//! Named fields, as CSV and JSON logs have them: which name means what, and a record made of them.
//!
//! Names are looked up once and remembered, because the same few come on every line. A name given by the user always wins;
//! among well-known names the one earlier in its list does.

use std::collections::HashMap;

use super::Malformed;
use super::clf::Tail;
use super::record::{Record, RequestLine, known, target};
use super::span::Unit;
use super::time::{Timestamps, digits};

/// What a field can be, besides an extra.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Time,
    Client,
    User,
    Method,
    Path,
    Request,
    Host,
    Status,
    Bytes,
    Agent,
    Referer,
    Duration,
}

const ROLES: usize = 12;

/// The attribute that names each role to users, and the names other systems have for it, lower case, best first.
const WELL_KNOWN: [(Role, &str, &[&str]); ROLES] = [
    (
        Role::Time,
        "time",
        &[
            "@timestamp",
            "timestamp",
            "time",
            "ts",
            "time_iso8601",
            "time_local",
            "msec",
            "datetime",
            "date_time",
            "starttime",
            "startutc",
            "start_time",
            "event_time",
            "eventtime",
        ],
    ),
    (
        Role::Client,
        "client.ip",
        &[
            "client.ip",
            "client_ip",
            "clientip",
            "remote_addr",
            "remote_ip",
            "remoteip",
            "remoteaddr",
            "remote_host",
            "request.client_ip",
            "request.remote_ip",
            "source.ip",
            "source.address",
            "client.address",
            "src_ip",
            "clienthost",
            "clientaddr",
            "client_addr",
            "c-ip",
            "ip",
            "client",
        ],
    ),
    (
        Role::User,
        "user.id",
        &[
            "user.id",
            "user_id",
            "userid",
            "remote_user",
            "user.name",
            "username",
            "enduser.id",
            "authuser",
            "user",
        ],
    ),
    (
        Role::Method,
        "request.method",
        &[
            "request.method",
            "method",
            "request_method",
            "http_method",
            "http.request.method",
            "http.method",
            "requestmethod",
            "cs-method",
            "verb",
        ],
    ),
    (
        Role::Path,
        "request.path",
        &[
            "request.path",
            "path",
            "request_path",
            "uri",
            "request_uri",
            "request.uri",
            "url.path",
            "http.target",
            "url",
            "requestpath",
            "cs-uri-stem",
            "http.url",
            "url.full",
            "url.original",
            "target",
        ],
    ),
    (Role::Request, "request", &["request", "request_line", "requestline"]),
    (
        Role::Host,
        "request.host",
        &[
            "request.host",
            "http_host",
            "server_name",
            "vhost",
            "url.domain",
            "requesthost",
            "http.host",
            ":authority",
            "authority",
            "server.address",
            "host",
        ],
    ),
    (
        Role::Status,
        "response.status",
        &[
            "response.status",
            "status",
            "status_code",
            "statuscode",
            "response_code",
            "http.response.status_code",
            "http.status_code",
            "downstreamstatus",
            "sc-status",
            "response",
        ],
    ),
    (
        Role::Bytes,
        "response.bytes",
        &[
            "response.bytes",
            "bytes_sent",
            "body_bytes_sent",
            "bytes",
            "response_size",
            "size",
            "http.response.body.bytes",
            "downstreamcontentsize",
            "bytes_out",
            "sc-bytes",
        ],
    ),
    (
        Role::Agent,
        "request.header.user-agent",
        &[
            "request.header.user-agent",
            "user_agent",
            "useragent",
            "http_user_agent",
            "user_agent.original",
            "request.headers.user-agent.0",
            "agent",
        ],
    ),
    (
        Role::Referer,
        "request.header.referer",
        &["request.header.referer", "referer", "http_referer", "referrer", "request.headers.referer.0"],
    ),
    (
        Role::Duration,
        "request.duration",
        &[
            "request.duration",
            "request_time",
            "request_time_ms",
            "duration_ms",
            "duration_us",
            "duration_ns",
            "response_time_ms",
            "latency_ms",
            "elapsed_ms",
            "took_ms",
            "time-taken",
            "duration",
        ],
    ),
];

/// Says whether a name means a time; how a header line of CSV is told from data.
pub(super) fn means_time(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    WELL_KNOWN[0].2.contains(&name.as_str())
}

/// Names that are remembered; a log that makes up a new one per line does not fill the memory.
const MAX_NAMES: usize = 4_096;

/// A name that was seen, and what it means.
#[derive(Clone, Debug)]
struct Name {
    /// As extras show it: the log's name, or the attribute the user gave it.
    shown: String,
    role: Option<Role>,
    /// Place in the list of its role; 0 when the user named it.
    rank: usize,
    /// What one is, of a duration.
    unit: Unit,
}

/// One (name, value) pair of the line at hand: the name by number, the value in [`Fields::text`].
#[derive(Clone, Copy, Debug)]
struct Pair {
    name: u32,
    start: u32,
    end: u32,
}

/// Collects the fields of one line and makes a record of them. Memory is kept from line to line.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    /// What the user said: (attribute, the log's name).
    columns: Vec<(String, String)>,
    names: Vec<Name>,
    numbers: HashMap<String, u32, foldhash::fast::RandomState>,
    pairs: Vec<Pair>,
    text: Vec<u8>,
    times: Timestamps,
}

impl Fields {
    pub(super) fn new(columns: &[(String, String)]) -> Self {
        Self {
            columns: columns.to_vec(),
            names: Vec::new(),
            numbers: HashMap::default(),
            pairs: Vec::new(),
            text: Vec::new(),
            times: Timestamps::default(),
        }
    }

    /// Returns the number of a name; `None` when too many are remembered already.
    pub(super) fn number(&mut self, name: &str) -> Option<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = u32::try_from(self.names.len()).ok().filter(|_| self.names.len() < MAX_NAMES)?;
        let meaning = self.meaning(name);
        self.names.push(meaning);
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    fn meaning(&self, name: &str) -> Name {
        if let Some((attribute, _)) = self.columns.iter().find(|(_, column)| column == name) {
            let role = WELL_KNOWN.iter().find(|(_, have, _)| have == attribute).map(|(role, ..)| *role);
            return Name { shown: attribute.clone(), role, rank: 0, unit: Unit::of(name) };
        }
        let lower = name.to_ascii_lowercase();
        let found = WELL_KNOWN.iter().find_map(|(role, _, names)| {
            names.iter().position(|have| *have == lower).map(|rank| (*role, rank + 1))
        });
        Name {
            shown: name.to_owned(),
            role: found.map(|(role, _)| role),
            rank: found.map_or(0, |(_, rank)| rank),
            unit: Unit::of(&lower),
        }
    }

    /// Says that a column called `host` is the client, as in server traces of the nineties, if no other column is and the
    /// user did not say otherwise.
    pub(super) fn host_may_be_client(&mut self) {
        let is = |role| move |name: &Name| name.role == Some(role);
        if !self.names.iter().any(is(Role::Client))
            && let Some(host) =
                self.names.iter_mut().find(|name| name.rank > 0 && name.shown.eq_ignore_ascii_case("host"))
        {
            host.role = Some(Role::Client);
        }
    }

    /// Says whether any name seen is the time.
    pub(super) fn know_time(&self) -> bool {
        self.names.iter().any(|name| name.role == Some(Role::Time))
    }

    pub(super) fn clear(&mut self) {
        self.pairs.clear();
        self.text.clear();
    }

    /// Adds the value of a name.
    pub(super) fn push(&mut self, name: u32, value: &[u8]) {
        // Lines are at most 64 KiB, so are their values: positions fit.
        let start = self.text.len() as u32;
        self.text.extend_from_slice(value);
        self.pairs.push(Pair { name, start, end: self.text.len() as u32 });
    }

    /// Makes the record.
    pub(super) fn record(&mut self) -> Result<Record<'_>, Malformed> {
        let mut best: [Option<(usize, Pair)>; ROLES] = [None; ROLES];
        for pair in &self.pairs {
            let name = &self.names[pair.name as usize];
            let Some(role) = name.role else { continue };
            let have = &mut best[role as usize];
            if pair.start < pair.end && have.is_none_or(|(rank, _)| name.rank < rank) {
                *have = Some((name.rank, *pair));
            }
        }
        let text = &self.text;
        let value = |role: Role| {
            best[role as usize]
                .map_or(&b""[..], |(_, pair)| known(&text[pair.start as usize..pair.end as usize]))
        };
        let time = self.times.any(value(Role::Time)).ok_or(Malformed::Time)?;
        let request = RequestLine::read(value(Role::Request));
        let (host, path) = target(value(Role::Path));
        let or = |a, b| if <[u8]>::is_empty(a) { b } else { a };
        let status = match value(Role::Status) {
            b"" => None,
            status => Some(
                digits(status)
                    .and_then(|status| u16::try_from(status).ok())
                    .filter(|status| *status < 1_000)
                    .ok_or(Malformed::Status)?,
            ),
        };
        let bytes = match value(Role::Bytes) {
            b"" => None,
            bytes => Some(digits(bytes).ok_or(Malformed::Bytes)?),
        };
        Ok(Record {
            client: value(Role::Client),
            user: value(Role::User),
            method: or(value(Role::Method), request.method),
            path: or(path, request.path),
            host: or(value(Role::Host), or(host, request.host)),
            status,
            bytes,
            duration: best[Role::Duration as usize].and_then(|(_, pair)| {
                let unit = self.names[pair.name as usize].unit;
                unit.read(&text[pair.start as usize..pair.end as usize])
            }),
            status_text: value(Role::Status),
            bytes_text: value(Role::Bytes),
            tail: Tail::Read { referer: value(Role::Referer), agent: value(Role::Agent) },
            extras: Extras { names: &self.names, pairs: &self.pairs, text },
            ..Record::at(time)
        })
    }
}

/// The fields of a line that have no role, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extras<'a> {
    names: &'a [Name],
    pairs: &'a [Pair],
    text: &'a [u8],
}

impl<'a> Extras<'a> {
    pub(super) fn iter(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.pairs.iter().filter_map(move |pair| {
            let name = &self.names[pair.name as usize];
            let value = || &self.text[pair.start as usize..pair.end as usize];
            // How long it took is told beside the record's own, under the log's name: policies may count by it.
            let extra = name.role.is_none_or(|role| role == Role::Duration);
            extra.then(|| (name.shown.as_str(), value()))
        })
    }
}
