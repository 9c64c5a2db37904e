//! Named fields of CSV and JSON logs: the meaning of each name, whatever system wrote it, and the record made from the
//! fields.
//!
//! Each name is looked up once, because the same few appear on every line. A name given by the user always wins; among
//! the well-known names of a role the earlier one wins.

use std::borrow::Cow;
use std::collections::HashMap;

use tidegate::policy::Named;

use super::client;
use super::csv::{known, quoted, undone};
use super::record::{Malformed, Record, RequestLine, target};
use super::time::{Timestamps, Unit, digits};

/// The most names remembered, so that a log with a new name on each line does not fill the memory.
const MAX_NAMES: usize = 4_096;

/// Collects the fields of one line and makes a record from them. Its memory is reused for each line.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    /// Given by the user: (attribute, the log's name).
    columns: Vec<(String, String)>,
    /// One of these is the client, whose values must then be addresses or host names.
    checks_client: bool,
    names: Vec<Name>,
    numbers: HashMap<String, u32, foldhash::fast::RandomState>,
    pairs: Vec<Pair>,
    text: Vec<u8>,
    times: Timestamps,
    /// The unit of durations whose name does not tell it: known once another name tells what wrote the log.
    unsaid: Unit,
}

impl Fields {
    pub(super) fn new(columns: &[(String, String)]) -> Self {
        Self {
            columns: columns.to_vec(),
            checks_client: columns.iter().any(|(attribute, _)| attribute == "client.ip"),
            names: Vec::new(),
            numbers: HashMap::default(),
            pairs: Vec::new(),
            text: Vec::new(),
            times: Timestamps::default(),
            unsaid: Unit::Unsaid,
        }
    }

    /// The reader checks clients itself.
    pub(super) const fn any_client(&mut self) {
        self.checks_client = false;
    }

    /// Returns the number of a name; `None` if too many names are remembered already.
    pub(super) fn number(&mut self, name: &str) -> Option<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = u32::try_from(self.names.len()).ok().filter(|_| self.names.len() < MAX_NAMES)?;
        let meaning = self.meaning(name);
        // Only Envoy has this field, and it writes its `duration` in milliseconds.
        if name.eq_ignore_ascii_case("response_flags") {
            self.unsaid = Unit::Nanos(1_000_000);
        }
        self.names.push(meaning);
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    /// A name with a meaning given by the log format: the name to show, its role, and its rank among the names of that
    /// role, lower first. A meaning given by the user wins.
    pub(super) fn define(&mut self, name: &str, shown: String, role: Option<(Role, usize)>) -> Option<u32> {
        if self.numbers.contains_key(name) || self.columns.iter().any(|(_, column)| column == name) {
            return self.number(name);
        }
        let number = u32::try_from(self.names.len()).ok().filter(|_| self.names.len() < MAX_NAMES)?;
        let (role, rank) = role.unzip();
        self.names.push(Name { shown, role, rank: rank.unwrap_or(0), unit: Unit::of(name) });
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    pub(super) fn is_well_known(name: &str) -> bool {
        well_known(&name.to_ascii_lowercase()).is_some()
    }

    fn meaning(&self, name: &str) -> Name {
        if let Some((attribute, _)) = self.columns.iter().find(|(_, column)| column == name) {
            let role = WELL_KNOWN.iter().find(|(_, have, _)| have == attribute).map(|(role, ..)| *role);
            return Name { shown: attribute.clone(), role, rank: 0, unit: Unit::of(name) };
        }
        let lower = name.to_ascii_lowercase();
        let found = well_known(&lower);
        Name {
            shown: name.to_owned(),
            role: found.map(|(role, _)| role),
            rank: found.map_or(0, |(_, rank)| rank),
            unit: Unit::of(&lower),
        }
    }

    /// Makes a column called `host` the client, as in server traces of the nineties, unless the log or the user has
    /// another one.
    pub(super) fn host_may_be_client(&mut self) {
        let is = |role| move |name: &Name| name.role == Some(role);
        if !self.names.iter().any(is(Role::Client))
            && let Some(host) =
                self.names.iter_mut().find(|name| name.rank > 0 && name.shown.eq_ignore_ascii_case("host"))
        {
            host.role = Some(Role::Client);
        }
    }

    pub(super) fn have_met(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    pub(super) fn know_time(&self) -> bool {
        self.names.iter().any(|name| matches!(name.role, Some(Role::Time | Role::Date)))
    }

    pub(super) fn clear(&mut self) {
        self.pairs.clear();
        self.text.clear();
    }

    pub(super) fn push(&mut self, name: u32, value: &[u8]) {
        // Positions fit 32 bits: the values of a line take no more than the line's 64 KiB.
        let start = self.text.len() as u32;
        self.text.extend_from_slice(value);
        self.pairs.push(Pair { name, start, end: self.text.len() as u32 });
    }

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
        let mut joined = [0; MOMENT];
        let moment = match (value(Role::Date), value(Role::Time)) {
            (b"", b"") => return Err(Malformed::NoTime),
            (b"", time) => time,
            (date, b"") => date,
            (date, clock) if is_clock(clock) => join(&mut joined, date, clock).ok_or(Malformed::Time)?,
            (_, time) => time,
        };
        let time = self.times.any(moment).ok_or(Malformed::Time)?;
        let request = RequestLine::read(value(Role::Request));
        let (host, path) = target(value(Role::Path));
        let or = |a, b| if <[u8]>::is_empty(a) { b } else { a };
        let status = match value(Role::Status) {
            // HAProxy writes -1 if there was no answer.
            b"" | b"-1" => None,
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
        let client = client::bare(value(Role::Client));
        // The rank of a column that the user named is 0.
        let is_named = self.checks_client && best[Role::Client as usize].is_some_and(|(rank, _)| rank == 0);
        if is_named && !client.is_empty() && !client::is_client(client) {
            return Err(Malformed::NoAddress);
        }
        Ok(Record {
            client,
            user: value(Role::User),
            method: or(value(Role::Method), request.method),
            path: or(path, request.path),
            host: or(value(Role::Host), or(host, request.host)),
            status,
            bytes,
            duration: best[Role::Duration as usize].and_then(|(_, pair)| {
                let unit = self.names[pair.name as usize].unit;
                let unit = if unit == Unit::Unsaid { self.unsaid } else { unit };
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

#[derive(Clone, Debug)]
struct Name {
    /// The log's name, or the attribute that the user gave it.
    shown: String,
    role: Option<Role>,
    /// Its position among the names of its role; lower wins. 0: the user named it.
    rank: usize,
    /// The unit of its values, if they are durations.
    unit: Unit,
}

/// The number of a name, and the range of its value in the text of all values.
#[derive(Clone, Copy, Debug)]
struct Pair {
    name: u32,
    start: u32,
    end: u32,
}

/// The fields of a line that have no role, and the duration of the request.
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
            // The duration is an extra too, under the log's name, so that policies can count by it.
            let extra = name.role.is_none_or(|role| role == Role::Duration);
            extra.then(|| (name.shown.as_str(), value()))
        })
    }
}

/// The text after the byte count, or the values that other formats found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tail<'a> {
    /// `"referer" "agent" ...`, not parsed yet.
    Unread(&'a [u8]),
    /// Parsed values.
    Read { referer: &'a [u8], agent: &'a [u8] },
}

impl Default for Tail<'_> {
    fn default() -> Self {
        Self::Unread(b"")
    }
}

impl<'a> Tail<'a> {
    pub(super) fn referer(&self) -> Cow<'a, [u8]> {
        match *self {
            Self::Unread(rest) => undone(known(quoted(rest).0)),
            Self::Read { referer, .. } => Cow::Borrowed(referer),
        }
    }

    pub(super) fn agent(&self) -> Cow<'a, [u8]> {
        match *self {
            Self::Unread(rest) => undone(known(quoted(quoted(rest).1).0)),
            Self::Read { agent, .. } => Cow::Borrowed(agent),
        }
    }
}

const MOMENT: usize = 48;

/// Says whether a text is a time of day, without a date: `09:14:00`.
fn is_clock(text: &[u8]) -> bool {
    matches!(text, [_, _, b':', _, _, b':', ..])
}

/// Writes a date and a time of day as one; `None` if they are too long to be such.
fn join<'m>(joined: &'m mut [u8; MOMENT], date: &[u8], clock: &[u8]) -> Option<&'m [u8]> {
    let length = date.len() + 1 + clock.len();
    let into = joined.get_mut(..length)?;
    into[..date.len()].copy_from_slice(date);
    into[date.len()] = b'T';
    into[date.len() + 1..].copy_from_slice(clock);
    Some(into)
}

/// The attributes of a record that a policy or a count uses. Each one left out saves about 20 ns per line.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(super) method: bool,
    pub(super) path: bool,
    pub(super) host: bool,
    pub(super) client: bool,
    pub(super) user: bool,
    pub(super) agent: bool,
    pub(super) referer: bool,
    pub(super) status: bool,
    pub(super) bytes: bool,
    /// The extras that are described; `None` for all.
    extras: Option<Vec<Named>>,
}

impl Wanted {
    pub(crate) const ALL: Self = Self {
        method: true,
        path: true,
        host: true,
        client: true,
        user: true,
        agent: true,
        referer: true,
        status: true,
        bytes: true,
        extras: None,
    };

    /// Wants the attributes that any of these policy sets names, and the path if paths are counted.
    pub(crate) fn by(sets: Vec<Named>, counts_paths: bool) -> Self {
        let named = |name: &str| sets.iter().any(|set| set.contains(name));
        Self {
            method: named("request.method"),
            path: counts_paths || named("request.path"),
            host: named("request.host"),
            client: named("client.ip"),
            user: named("user.id"),
            agent: named("request.header.user-agent"),
            referer: named("request.header.referer"),
            status: named("response.status"),
            bytes: named("response.bytes"),
            extras: Some(sets),
        }
    }

    pub(super) fn has_extra(&self, name: &str) -> bool {
        self.extras.as_ref().is_none_or(|sets| sets.iter().any(|set| set.contains(name)))
    }
}

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
    /// The day of a time that another field gives the clock of.
    Date,
}

const ROLES: usize = 13;

/// For each role, the attribute that names it to users, and the names that other systems use, in lower case, best
/// first.
const WELL_KNOWN: [(Role, &str, &str); ROLES] = [
    (
        Role::Time,
        "time",
        "@timestamp timestamp time ts time_iso8601 time_local msec datetime date_time starttime startutc \
         start_time event_time eventtime started_at edgestarttimestamp requesttime timestamp(ms)",
    ),
    (
        Role::Client,
        "client.ip",
        "client.ip client_ip clientip remote_addr remote_ip remoteip remoteaddr remote_host \
         request.client_ip request.remote_ip source.ip source.address client.address src_ip clienthost \
         clientaddr client_addr c-ip downstream_remote_address httprequest.remoteip httprequest.clientip \
         properties.clientip sourceip source_ip ip client",
    ),
    (
        Role::User,
        "user.id",
        "user.id user_id userid remote_user user.name username enduser.id authuser consumer.username \
         cs-username user",
    ),
    (
        Role::Method,
        "request.method",
        "request.method method request_method http_method http.request.method http.method requestmethod \
         cs-method httprequest.requestmethod httprequest.httpmethod httpmethod properties.httpmethod \
         clientrequestmethod verb",
    ),
    (
        Role::Path,
        "request.path",
        "request.path path request_path uri request_uri request.uri url.path http.target url requestpath \
         cs-uri-stem x-envoy-origin-path x-envoy-original-path httprequest.requesturl httprequest.uri \
         properties.originalrequesturiwithargs properties.requesturi clientrequesturi clientrequestpath \
         resourcepath http.url url.full url.original target",
    ),
    (Role::Request, "request", "request request_line requestline"),
    (
        Role::Host,
        "request.host",
        "request.host http_host server_name vhost url.domain requesthost http.host :authority authority \
         x-host-header cs(host) cs-host properties.originalhost properties.host properties.hostname \
         clientrequesthost request.headers.host domainname server.address host",
    ),
    (
        Role::Status,
        "response.status",
        "response.status status status_code statuscode response_code http.response.status_code \
         http.status_code downstreamstatus sc-status httprequest.status properties.httpstatus \
         properties.httpstatuscode edgeresponsestatus response",
    ),
    (
        Role::Bytes,
        "response.bytes",
        "response.bytes bytes_sent body_bytes_sent bytes response_size size http.response.body.bytes \
         downstreamcontentsize bytes_out response.size httprequest.responsesize properties.sentbytes \
         properties.responsebytes edgeresponsebytes responselength sc-bytes",
    ),
    (
        Role::Agent,
        "request.header.user-agent",
        "request.header.user-agent user_agent useragent http_user_agent user_agent.original \
         request.headers.user-agent.0 request.headers.user-agent user-agent httprequest.useragent \
         properties.useragent clientrequestuseragent cs(user-agent) agent",
    ),
    (
        Role::Referer,
        "request.header.referer",
        "request.header.referer referer http_referer referrer request.headers.referer.0 \
         request.headers.referer httprequest.referer properties.referer clientrequestreferer cs(referer)",
    ),
    (
        Role::Duration,
        "request.duration",
        "request.duration request_time request_time_ms duration_ms duration_us duration_ns \
         response_time_ms latency_ms elapsed_ms took_ms time-taken latencies.request httprequest.latency \
         properties.timetaken responselatency duration",
    ),
    (Role::Date, "date", "date"),
];

/// Returns the role that a name means, with its rank among the names of the role, from 1.
pub(super) fn well_known(lower: &str) -> Option<(Role, usize)> {
    WELL_KNOWN.iter().find_map(|(role, _, names)| {
        names.split(' ').position(|have| have == lower).map(|rank| (*role, rank + 1))
    })
}

/// A header line of CSV is recognised by such a name.
pub(super) fn means_time(name: &str) -> bool {
    matches!(well_known(&name.to_ascii_lowercase()), Some((Role::Time | Role::Date, _)))
}
