//! The log formats and their names. Recognises the format of a log from its first lines, and what surrounds them.
//!
//! Each line is tried as each format, bare and without some words before it. What fits the most lines wins, so that
//! scanners' garbage or a line of another program does not decide.

use std::borrow::Cow;
use std::fmt;

use super::clf::Clf;
use super::client::{self, Clients};
use super::columns::{self, ALB, CLOUDFRONT, Columns, W3C, fields_line};
use super::csv;
use super::envelope::{Envelope, HOLDERS, MAX_WORDS, behind, held};
use super::fields::Tail;
use super::json::Json;
use super::log_format::{Cutter, LogFormat};
use super::reader::{Reader, is_blank};
use super::record::{Malformed, excerpt};

/// The format of a log's lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Recognised from the first lines of each file.
    #[default]
    Auto,
    /// Common log format: without referer and user agent.
    Common,
    /// Combined log format, the default of Apache and nginx.
    Combined,
    /// Combined format preceded by `host:port`, as in Debian's `other_vhosts_access.log`.
    Vhost,
    /// One JSON object per line.
    Json,
    /// Separated by commas or tabs, with a header line.
    Csv,
    /// The access log format of AWS Application Load Balancers.
    Alb,
    /// The standard log format of Amazon CloudFront.
    CloudFront,
    /// W3C extended log files, as IIS writes them: a `#Fields` line names the fields.
    W3c,
    /// The default text format of Envoy.
    Envoy,
    /// The default text format of Istio's proxies.
    Istio,
    /// The HTTP log format of HAProxy.
    HaProxy,
    /// A format given as an nginx `log_format`. It has no name of its own.
    LogFormat(LogFormat),
}

const WORDS: [(&str, Format); 12] = [
    ("auto", Format::Auto),
    ("common", Format::Common),
    ("combined", Format::Combined),
    ("vhost", Format::Vhost),
    ("json", Format::Json),
    ("csv", Format::Csv),
    ("alb", Format::Alb),
    ("cloudfront", Format::CloudFront),
    ("w3c", Format::W3c),
    ("envoy", Format::Envoy),
    ("istio", Format::Istio),
    ("haproxy", Format::HaProxy),
];

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.iter().find(|(_, format)| format == self).map_or("log_format", |(word, _)| *word);
        f.write_str(word)
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let words = WORDS.each_ref().map(|(word, _)| *word);
        let found = WORDS.into_iter().find(|(have, _)| *have == word);
        found.map(|(_, format)| format).ok_or_else(|| {
            let near = crate::unknown::nearest(word, &words);
            format!("`{word}` is not a log format{near}; use one of {}", words.join(", "))
        })
    }
}

/// The error if no known format fits the first lines of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Nothing is known of the lines.
    #[error(
        "the format cannot be told from its first lines; name it with --format, or describe the lines, as --log-format '$remote_addr [$time_local] \"$request\" $status'; it begins: {excerpt}"
    )]
    Unknown {
        /// The beginning of the first line.
        excerpt: String,
    },
    /// The lines are those of an access log, but for what they begin with.
    #[error("{why}; name the fields with {flags}; the line: {excerpt}")]
    Client {
        /// What is wrong with the field that stands where the client does.
        why: String,
        /// Flags that read such lines.
        flags: String,
        /// The beginning of the line.
        excerpt: String,
    },
}

/// The most lines examined, besides the bytes of the sample. Access logs may begin with malformed lines from scanners;
/// the header of a table must be the first line.
const LINES: usize = 200;

pub(super) struct Detected {
    pub(super) format: Format,
    pub(super) reader: Reader,
    pub(super) envelope: Envelope,
    /// What the envelope takes off; `None` if it is empty.
    pub(super) told: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    format: Format,
    clients: Clients,
    envelope: Envelope,
}

pub(super) fn reader(
    format: &Format,
    users: &[(String, String)],
    sample: &[u8],
) -> Result<Detected, FormatError> {
    let named = fields_line(sample);
    let lines =
        sample.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).filter(|line| !is_blank(line));
    let mut lines: Vec<Cow<'_, [u8]>> = lines.take(LINES).map(Cow::Borrowed).collect();
    if let Some(Cow::Borrowed(first)) = lines.first_mut() {
        *first = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
    }
    let first = lines.first().map_or(&b""[..], |line| line);
    let plain = |format| Look { format, clients: Clients::Names, envelope: Envelope::default() };
    let mut tries = Tries::new(users);
    let look = match format {
        Format::Auto if named.is_some_and(columns::is_of_cloudfront) => plain(Format::CloudFront),
        Format::Auto if named.is_some() => plain(Format::W3c),
        Format::Auto if first.is_empty() => plain(Format::Combined),
        Format::Auto if !first.starts_with(b"{") && csv::header(first, users).is_some() => plain(Format::Csv),
        Format::Csv | Format::CloudFront | Format::W3c | Format::LogFormat(_) => plain(format.clone()),
        format => match tries.look(format, &lines) {
            Some(look) => look,
            None => match tries.unclear(format, &lines) {
                Some(error) => return Err(error),
                None if *format == Format::Auto => {
                    return Err(FormatError::Unknown { excerpt: excerpt(first) });
                }
                None => plain(format.clone()),
            },
        },
    };
    let told =
        lines.iter().find_map(|line| look.envelope.told(line)).or_else(|| proxied(&look, users, &lines));
    let behind = look.envelope.words > 0;
    let reader = match &look.format {
        Format::Json => Reader::Json(Json::new(users)),
        Format::Csv => {
            let guess = if first.contains(&b'\t') { b'\t' } else { b',' };
            Reader::Csv(Box::new(csv::Csv::new(csv::header(first, users).unwrap_or(guess), users)))
        }
        Format::Alb => Reader::Columns(Box::new(Columns::new(&ALB, None, users))),
        Format::CloudFront => Reader::Columns(Box::new(Columns::new(&CLOUDFRONT, named, users))),
        Format::W3c => Reader::Columns(Box::new(Columns::new(&W3C, named, users))),
        Format::LogFormat(format) => Reader::LogFormat(Box::new(format.cutter(users))),
        Format::Vhost => Reader::Clf(Clf::new(true, look.clients, behind)),
        format => match Shape::of(format) {
            Some(shape) => Reader::LogFormat(Box::new(shape.cutter(users))),
            None => Reader::Clf(Clf::new(false, look.clients, behind)),
        },
    };
    Ok(Detected { format: look.format, reader, envelope: look.envelope, told })
}

/// A reader of each format, to try lines with.
struct Tries {
    alb: Columns,
    cloudfront: Columns,
    shapes: [(&'static Shape, Cutter); SHAPES.len()],
    json: Json,
    clf: Clf,
}

impl Tries {
    fn new(users: &[(String, String)]) -> Self {
        // A wrong column for the client does not hide which format the lines have.
        let others: Vec<_> = users.iter().filter(|(name, _)| name != "client.ip").cloned().collect();
        Self {
            alb: Columns::new(&ALB, None, &others),
            cloudfront: Columns::new(&CLOUDFRONT, None, &others),
            shapes: SHAPES.each_ref().map(|shape| (shape, shape.cutter(users))),
            json: Json::new(users),
            clf: Clf::new(false, Clients::Names, false),
        }
    }

    /// Returns what most of the lines look like, among looks of the wanted format.
    fn look(&mut self, wanted: &Format, lines: &[Cow<'_, [u8]>]) -> Option<Look> {
        let bare = self.bare(wanted, lines);
        // An object that says nothing of a request may hold the line of a server as text.
        if bare.as_ref().is_none_or(|look| look.format == Format::Json)
            && lines.iter().all(|line| !self.is_request(line))
        {
            for holder in HOLDERS {
                let inner: Vec<_> = lines
                    .iter()
                    .filter_map(|line| Some(Cow::Owned(held(holder, line)?.trim_end().as_bytes().to_vec())))
                    .collect();
                if inner.len() * 2 >= lines.len()
                    && let Some(mut look) = self.bare(wanted, &inner)
                {
                    look.envelope.holder = Some(holder);
                    return Some(look);
                }
            }
        }
        bare
    }

    fn is_request(&mut self, line: &[u8]) -> bool {
        line.starts_with(b"{")
            && self.json.read(line).is_ok_and(|record| {
                !record.client.is_empty()
                    || !record.path.is_empty()
                    || !record.method.is_empty()
                    || record.status.is_some()
            })
    }

    fn bare(&mut self, wanted: &Format, lines: &[Cow<'_, [u8]>]) -> Option<Look> {
        let mut counts: Vec<(Look, usize)> = Vec::new();
        for words in 0..=MAX_WORDS {
            for line in lines {
                let Some((before, rest)) = behind(line, words) else { continue };
                let Some(look) = self.look_of(before, rest, words).filter(|look| fits(wanted, &look.format))
                else {
                    continue;
                };
                match counts.iter_mut().find(|(have, _)| is_alike(have, &look)) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((look, 1)),
                }
            }
            if counts.iter().any(|(_, count)| *count == lines.len()) {
                break;
            }
        }
        // Of equal counts the first wins: fewer words, and addresses before names.
        counts.sort_by_key(|(look, _)| (look.envelope.words, look.clients == Clients::Names));
        let (mut best, _) = counts.into_iter().rev().max_by_key(|(_, count)| *count)?;
        if matches!(wanted, Format::Common | Format::Combined) {
            // Whoever names the format says that clients may be host names.
            (best.format, best.clients) =
                (if best.format == Format::Vhost { Format::Vhost } else { wanted.clone() }, Clients::Names);
        }
        Some(best)
    }

    /// Recognises one line, without the words before it.
    fn look_of(&mut self, before: &[u8], line: &[u8], words: usize) -> Option<Look> {
        let look = |format| Look {
            format,
            clients: Clients::Addresses,
            envelope: Envelope { words, ..Envelope::default() },
        };
        if line.starts_with(b"{") {
            let is_object = words == 0 || !matches!(self.json.read(line), Err(Malformed::Json));
            return is_object.then(|| look(Format::Json));
        }
        if self.alb.read(line).is_ok() {
            return Some(look(Format::Alb));
        }
        if words == 0 && self.cloudfront.read(line).is_ok() {
            return Some(look(Format::CloudFront));
        }
        let Ok(record) = self.clf.read(line) else {
            return self
                .shapes
                .iter_mut()
                .find_map(|(shape, cutter)| cutter.read(line).is_ok().then(|| look(shape.format.clone())));
        };
        if is_headed(line) {
            return None;
        }
        let format = if matches!(record.tail, Tail::Unread(b"")) { Format::Common } else { Format::Combined };
        let clients = if record.client.is_empty() || client::is_address(record.client) {
            Clients::Addresses
        } else {
            Clients::Names
        };
        if words == 0 {
            return Some(Look { clients, ..look(format) });
        }
        let last = before.rsplit(|byte| *byte == b' ').next().unwrap_or(before);
        // Of two addresses side by side, or of a list, either may be the client.
        if record.client.is_empty() || last.ends_with(b",") || client::is_address(last) {
            return None;
        }
        if client::is_host(last) {
            let envelope = Envelope { words: words - 1, ..Envelope::default() };
            return Some(Look { format: Format::Vhost, clients, envelope });
        }
        (clients == Clients::Addresses).then(|| look(format))
    }

    /// Returns an error for lines that are those of an access log but for their client.
    fn unclear(&mut self, wanted: &Format, lines: &[Cow<'_, [u8]>]) -> Option<FormatError> {
        if !matches!(wanted, Format::Auto | Format::Common | Format::Combined) {
            return None;
        }
        lines.iter().filter(|line| !line.starts_with(b"{")).find_map(|line| {
            let why = self.clf.read(line).err()?;
            let word = excerpt(line.split(|byte| *byte == b' ').next().unwrap_or(line));
            let why = match why {
                Malformed::NoAddress => format!(
                    "the lines are those of an access log, but the first field, taken for the client, is neither an address nor a host \
                     name: {word}"
                ),
                Malformed::TwoAddresses => format!(
                    "the lines are those of an access log, but either the first field, {word}, or the second may be the client"
                ),
                _ => return None,
            };
            Some(FormatError::Client { why, flags: flags(line), excerpt: excerpt(line) })
        })
    }
}

/// The fewest lines that tell whether a proxy stands before the server.
const PROXIED: usize = 5;

/// All requests seem to come from one proxy; says how to name the field that has the clients instead.
fn proxied(look: &Look, users: &[(String, String)], lines: &[Cow<'_, [u8]>]) -> Option<String> {
    const FORWARDED: &str = "http_x_forwarded_for";
    if look.envelope != Envelope::default() || users.iter().any(|(name, _)| name == "client.ip") {
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let of = |line: &[u8]| match &look.format {
        Format::LogFormat(format) => {
            let client = text(format.cutter(users).read(line).ok()?.client);
            let forwarded = [users, &[("client.ip".to_owned(), FORWARDED.to_owned())]].concat();
            Some((client, text(format.cutter(&forwarded).read(line).ok()?.client)))
        }
        Format::Common | Format::Combined => {
            let client = text(Clf::new(false, look.clients, false).read(line).ok()?.client);
            let quoted = line.strip_suffix(b"\"")?;
            Some((client, text(&quoted[memchr::memrchr(b'"', quoted)? + 1..])))
        }
        _ => None,
    };
    let pairs: Vec<(String, String)> = lines.iter().filter_map(|line| of(line)).collect();
    let (proxy, first) = pairs.first()?;
    let is_behind = pairs.len() >= PROXIED.max(lines.len() / 2)
        && pairs
            .iter()
            .all(|(client, behind)| client == proxy && client::is_address(client::bare(behind.as_bytes())))
        && pairs.iter().any(|(_, behind)| behind != first && behind != proxy);
    let flags = match look.format {
        Format::LogFormat(_) => String::new(),
        _ => format!(
            "--log-format '$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \
             \"$http_user_agent\" \"${FORWARDED}\"' "
        ),
    };
    is_behind.then(|| {
        format!(
            "all of the first requests come from {proxy}, which looks like a proxy, and a later field has other addresses: \
             {flags}--column client.ip={FORWARDED} takes those for the clients"
        )
    })
}

fn fits(wanted: &Format, format: &Format) -> bool {
    match wanted {
        Format::Auto => true,
        Format::Common | Format::Combined => {
            matches!(format, Format::Common | Format::Combined | Format::Vhost)
        }
        wanted => wanted == format,
    }
}

/// Words of syslog stand between the first word and the time of an access log: a time of day, or a tag with its colon
/// right before an address. So the month or the machine that such a line begins with is no client.
fn is_headed(line: &[u8]) -> bool {
    let is_time_of_day = |word: &[u8]| {
        word.len() == 8
            && word.iter().enumerate().all(|(at, byte)| match at {
                2 | 5 => *byte == b':',
                _ => byte.is_ascii_digit(),
            })
    };
    let words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).skip(1).take(MAX_WORDS);
    let mut is_behind_tag = false;
    for word in words.take_while(|word| !word.starts_with(b"[")) {
        if is_time_of_day(word) || (is_behind_tag && client::is_address(word)) {
            return true;
        }
        is_behind_tag = word.ends_with(b":");
    }
    false
}

/// Says whether two lines look alike: some of one log have no referer and agent.
fn is_alike(one: &Look, other: &Look) -> bool {
    let is_plain = |look: &Look| matches!(look.format, Format::Common | Format::Combined);
    (one.clients, one.envelope) == (other.clients, other.envelope)
        && (one.format == other.format || is_plain(one) && is_plain(other))
}

/// The flags that read an access log whose client does not stand first: its head field by field.
fn flags(line: &[u8]) -> String {
    let quote = memchr::memchr(b'"', line).unwrap_or(line.len());
    let head = &line[..memchr::memrchr(b'[', &line[..quote]).unwrap_or(quote)];
    let words: Vec<&[u8]> = head.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
    let tail = if line.ends_with(b"\"") || line.iter().filter(|byte| **byte == b'"').count() >= 6 {
        "[$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"$more"
    } else {
        "[$time_local] \"$request\" $status $body_bytes_sent"
    };
    let listed = words.iter().position(|word| !word.ends_with(b",")).unwrap_or(0);
    if listed > 0 {
        // A list of proxies, whose length differs from line to line.
        return format!(
            "--log-format '$http_x_forwarded_for - $remote_user {tail}' --column client.ip=http_x_forwarded_for (which takes the last of \
             the list)"
        );
    }
    let clients: Vec<usize> = (0..words.len()).filter(|at| client::is_address(words[*at])).collect();
    let named = (0..words.len().saturating_sub(2)).map(|at| match clients.last() {
        Some(last) if last == &at => "$remote_addr".to_owned(),
        _ => format!("$field_{}", at + 1),
    });
    let named: Vec<String> = named.collect();
    let remark = match clients.len() {
        0 => " --column client.ip=field_1 (if that is the client)",
        1 => "",
        _ => " (with the names exchanged if the client stands first)",
    };
    format!("--log-format '{} $ident $remote_user {tail}'{remark}", named.join(" "))
}

// Text formats of proxies that are known by name. Their lines are read by the same reader as a format given by hand.

#[derive(Debug)]
pub(super) struct Shape {
    pub(super) format: Format,
    text: &'static str,
    /// The meanings of its variables, beside those that nginx's have: (attribute, variable).
    columns: &'static [(&'static str, &'static str)],
}

/// The longer before those that they begin like.
///
/// Sources: Istio, "Envoy access logs", default format; Envoy, "Access logging", default format string; HAProxy
/// configuration manual, "HTTP log format".
pub(super) static SHAPES: [Shape; 3] = [
    Shape {
        format: Format::Istio,
        text: "[$time_iso8601] \"$request\" $status $response_flags $response_code_details $connection_termination_details \
               \"$upstream_transport_failure_reason\" $bytes_received $bytes_sent $duration_ms $service_ms \"$http_x_forwarded_for\" \
               \"$http_user_agent\" \"$request_id\" \"$host\" \"$upstream_host\" $upstream_cluster $upstream_local_address \
               $downstream_local_address $downstream_remote_address $requested_server_name $route_name",
        columns: &[("client.ip", "downstream_remote_address"), ("request.duration", "duration_ms")],
    },
    Shape {
        format: Format::Envoy,
        text: "[$time_iso8601] \"$request\" $status $response_flags $bytes_received $bytes_sent $duration_ms $service_ms \
               \"$http_x_forwarded_for\" \"$http_user_agent\" \"$request_id\" \"$host\" \"$upstream_host\"$more",
        columns: &[("client.ip", "http_x_forwarded_for"), ("request.duration", "duration_ms")],
    },
    Shape {
        format: Format::HaProxy,
        text: "$remote_addr:$remote_port [$time_local] $frontend $backend/$server $request_ms/$queue_ms/$connect_ms/$response_ms/$active_ms \
               $status $bytes_sent $request_cookie $response_cookie $termination_state $connections $queues \"$request\"$more",
        columns: &[("request.duration", "active_ms")],
    },
];

impl Shape {
    /// Returns the shape of a format; `None` for formats with a reader of their own.
    pub(super) fn of(format: &Format) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| shape.format == *format)
    }

    /// The columns that the user named win over those of the shape.
    pub(super) fn cutter(&self, users: &[(String, String)]) -> Cutter {
        let own =
            self.columns.iter().filter(|(attribute, _)| users.iter().all(|(have, _)| have != attribute));
        let own = own.map(|(attribute, column)| ((*attribute).to_owned(), (*column).to_owned()));
        let columns: Vec<_> = users.iter().cloned().chain(own).collect();
        self.log_format().cutter(&columns).only_addresses()
    }

    fn log_format(&self) -> LogFormat {
        self.text.parse().expect("the texts of the table are valid, as their test shows")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_a_format_with_its_time_and_its_columns() {
        for shape in &SHAPES {
            let format = shape.log_format();
            assert!(format.tells_time(&[]), "{shape:?}");
            let text = format.to_string();
            for (_, variable) in shape.columns {
                assert!(text.contains(&format!("${{{variable}}}")), "{variable} in {text}");
            }
        }
    }
}
