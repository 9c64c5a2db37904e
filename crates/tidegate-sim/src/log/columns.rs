//! Logs whose fields have places and names: those of AWS Application Load Balancers and of Amazon CloudFront, and W3C
//! extended log files, as IIS writes them.
//!
//! A `#Fields` line names the fields; without it, the documented order holds. Logs without names may have more fields
//! than are known here, since AWS adds some at the end from time to time, or fewer, if they are old. The path is left
//! encoded, because policies decode it themselves.
//!
//! Sources: Elastic Load Balancing, "Access logs for your Application Load Balancer"; Amazon CloudFront developer
//! guide, "Standard logging reference"; W3C, "Extended Log File Format"; IIS, "W3C logging".

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode;

use super::csv::{known, quoted};
use super::fields::{Fields, Role};
use super::record::{Malformed, Record};

pub(super) struct Layout {
    /// In the documented order, with spaces between them; empty if only a `#Fields` line tells it.
    names: &'static str,
    /// The fewest fields of a line without a `#Fields` line.
    least: usize,
    /// What the first field may be; empty: anything.
    first: &'static [&'static [u8]],
    /// The byte between fields; `None`: a tab if the line has one, else a space.
    between: Option<u8>,
    /// The fields that add up to the duration of a request.
    took: &'static [&'static str],
    wrong: Malformed,
}

/// Of the three processing times: until the request was sent on, until the answer began, until it was passed on.
pub(super) const ALB: Layout = Layout {
    names: "type time elb client:port target:port request_processing_time target_processing_time \
            response_processing_time elb_status_code target_status_code received_bytes sent_bytes request \
            user_agent ssl_cipher ssl_protocol target_group_arn trace_id domain_name chosen_cert_arn \
            matched_rule_priority request_creation_time actions_executed redirect_url error_reason \
            target:port_list target_status_code_list classification classification_reason conn_trace_id \
            transformed_host transformed_uri request_transform_status",
    // Up to and including the user agent. Even the oldest lines have four more.
    least: 14,
    first: &[b"http", b"https", b"h2", b"grpcs", b"ws", b"wss"],
    between: Some(b' '),
    took: &["request_processing_time", "target_processing_time", "response_processing_time"],
    wrong: Malformed::Alb,
};

pub(super) const CLOUDFRONT: Layout = Layout {
    names: "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) \
            cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header \
            cs-protocol cs-bytes time-taken x-forwarded-for ssl-protocol ssl-cipher \
            x-edge-response-result-type cs-protocol-version fle-status fle-encrypted-fields c-port \
            time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len sc-range-start \
            sc-range-end",
    // The oldest logs end with the query.
    least: 12,
    first: &[],
    between: Some(b'\t'),
    took: &[],
    wrong: Malformed::Fields,
};

pub(super) const W3C: Layout =
    Layout { names: "", least: 1, first: &[], between: None, took: &[], wrong: Malformed::Fields };

/// A line with more fields than this is not a log of requests.
const MAX_FIELDS: usize = 256;

/// What a field is in a record, and how certainly.
type Meaning = Option<(Role, usize)>;

/// The fields whose names do not say what they mean: the name shown, and the role.
const MEANINGS: [(&str, &str, Meaning); 7] = [
    ("client:port", "client", Some((Role::Client, 1))),
    ("target:port", "target", None),
    ("target:port_list", "target_list", None),
    ("elb_status_code", "elb_status_code", Some((Role::Status, 1))),
    ("sent_bytes", "sent_bytes", Some((Role::Bytes, 1))),
    ("request_creation_time", "request_creation_time", Some((Role::Time, 1))),
    ("x-forwarded-for", "request.header.x-forwarded-for", None),
];

#[derive(Clone, Copy)]
enum Use {
    Keep,
    /// URL-encoded.
    Decode,
    /// An address with its port.
    Port,
    /// A part of the duration, in seconds.
    Took,
}

pub(super) struct Columns {
    layout: &'static Layout,
    columns: Vec<(Option<u32>, Use)>,
    /// The names in the log's `#Fields` line; empty without that line.
    named: Vec<u8>,
    fields: Fields,
}

impl fmt::Debug for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Columns").field("columns", &self.columns.len()).finish_non_exhaustive()
    }
}

const FIELDS_LINE: &[u8] = b"#Fields:";

/// The `#Fields` line among the comments at the beginning of a log.
pub(super) fn fields_line(sample: &[u8]) -> Option<&[u8]> {
    let sample = sample.strip_prefix(b"\xef\xbb\xbf").unwrap_or(sample);
    let mut comments = sample.split(|byte| *byte == b'\n').take_while(|line| line.starts_with(b"#"));
    comments.find_map(names_of)
}

fn names_of(comment: &[u8]) -> Option<&[u8]> {
    comment.strip_prefix(FIELDS_LINE).map(<[u8]>::trim_ascii)
}

fn split(names: &[u8]) -> impl Iterator<Item = &[u8]> {
    names.split(u8::is_ascii_whitespace).filter(|name| !name.is_empty())
}

/// Says whether the names of a `#Fields` line are those of CloudFront rather than of another server with W3C logs.
pub(super) fn is_of_cloudfront(names: &[u8]) -> bool {
    let has = |wanted: &[u8]| split(names).any(|name| name == wanted);
    has(b"c-ip") && (has(b"x-edge-location") || has(b"x-edge-request-id") || has(b"x-edge-result-type"))
}

impl Columns {
    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Makes a reader for the names of a `#Fields` line; `None` stands for the documented names.
    pub(super) fn new(layout: &'static Layout, named: Option<&[u8]>, columns: &[(String, String)]) -> Self {
        let mut fields = Fields::new(columns);
        let names = split(named.unwrap_or(layout.names.as_bytes())).take(MAX_FIELDS);
        let names: Vec<Cow<'_, str>> = names.map(super::text).collect();
        let found = names.iter().map(|name| {
            let number = match MEANINGS.iter().find(|(have, ..)| have == name) {
                Some((_, shown, role)) => fields.define(name, (*shown).to_owned(), *role),
                None => match header(name) {
                    Some(header) if !Fields::is_well_known(name) => {
                        fields.define(name, format!("request.header.{}", header.to_ascii_lowercase()), None)
                    }
                    _ => fields.number(name),
                },
            };
            let handled = match &**name {
                "client:port" => Use::Port,
                name if header(name).is_some() => Use::Decode,
                name if layout.took.contains(&name) => Use::Took,
                _ => Use::Keep,
            };
            (number, handled)
        });
        let found = found.collect();
        Self { layout, columns: found, named: named.unwrap_or_default().to_vec(), fields }
    }

    /// Says whether the lines after a comment have the same fields. Concatenated files repeat the `#Fields` line, which
    /// need not change the fields.
    pub(super) fn goes_on_below(&self, comment: &[u8], so_far: bool) -> bool {
        match names_of(comment) {
            Some(names) if self.named.is_empty() => split(names).eq(split(self.layout.names.as_bytes())),
            Some(names) => split(names).eq(split(&self.named)),
            None => so_far,
        }
    }

    pub(super) fn read(&mut self, line: &[u8]) -> Result<Record<'_>, Malformed> {
        self.fields.clear();
        let layout = self.layout;
        let between = match layout.between {
            Some(between) => between,
            None if memchr::memchr(b'\t', line).is_some() => b'\t',
            None => b' ',
        };
        let mut took = (!layout.took.is_empty()).then_some(Duration::ZERO);
        let (mut rest, mut count) = (Some(line), 0);
        while let Some(text) = rest {
            let Some((number, handled)) = self.columns.get(count) else {
                if self.named.is_empty() && !layout.names.is_empty() {
                    break;
                }
                return Err(layout.wrong);
            };
            let (value, after) = cut(text, between);
            if count == 0 && !layout.first.is_empty() && !layout.first.contains(&value) {
                return Err(layout.wrong);
            }
            (rest, count) = (after, count + 1);
            let value = match handled {
                Use::Port => Cow::Borrowed(without_port(value)),
                Use::Decode => decoded(value, between),
                Use::Took => {
                    took = took.zip(seconds(value)).and_then(|(sum, part)| sum.checked_add(part));
                    Cow::Borrowed(value)
                }
                Use::Keep => Cow::Borrowed(value),
            };
            if let Some(name) = number
                && !known(&value).is_empty()
            {
                self.fields.push(*name, &value);
            }
        }
        let least = if self.named.is_empty() { layout.least } else { self.columns.len() };
        if count < least {
            return Err(layout.wrong);
        }
        let mut record = self.fields.record()?;
        record.duration = record.duration.or(took);
        Ok(record)
    }
}

/// Returns the header in the name of a field, such as `Host` in `cs(Host)`.
fn header(name: &str) -> Option<&str> {
    name.strip_prefix("cs(")?.strip_suffix(')')
}

/// Fields between spaces may be quoted. The rest is `None` after the last field.
fn cut(text: &[u8], between: u8) -> (&[u8], Option<&[u8]>) {
    if between == b' ' && text.starts_with(b"\"") {
        let (value, after) = quoted(text);
        let after = after.strip_prefix(b" ").unwrap_or(after);
        return (value, (!after.is_empty()).then_some(after));
    }
    match memchr::memchr(between, text) {
        // A space at the end separates nothing.
        Some(at) if between == b' ' && at + 1 == text.len() => (&text[..at], None),
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

/// Undoes the encoding of a header. Between spaces, a plus stands for a space.
fn decoded(value: &[u8], between: u8) -> Cow<'_, [u8]> {
    if between == b' ' && value.contains(&b'+') {
        let spaced: Vec<u8> = value.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        return Cow::Owned(percent_decode(&spaced).collect());
    }
    Cow::from(percent_decode(value))
}

/// Removes the port, and the brackets of an IPv6 address.
fn without_port(client: &[u8]) -> &[u8] {
    let address = memchr::memrchr(b':', client).map_or(client, |colon| &client[..colon]);
    address.strip_prefix(b"[").and_then(|inner| inner.strip_suffix(b"]")).unwrap_or(address)
}

/// Parses a span in seconds; `None` for -1, which marks a request that did not get that far.
fn seconds(value: &[u8]) -> Option<Duration> {
    Duration::try_from_secs_f64(std::str::from_utf8(value).ok()?.parse().ok()?).ok()
}

/// Lines of load balancers, of CloudFront with and without the `#Fields` line, and of IIS.
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A line with all fields, with spaces in place of tabs.
    const LINE: &str = "2026-03-02 09:14:29 FRA56-P1 2390 2001:db8::7 GET d111111abcdef8.cloudfront.net /view/a%20b.html 200 \
    https://www.example/a%2520b Mozilla/5.0%20(X11;%20Linux) q=1 - Hit SOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ== \
    shop.example https 23 0.250 203.0.113.9 TLSv1.2 ECDHE-RSA-AES128-GCM-SHA256 Hit HTTP/2.0 - - 11040 0.001 Hit text/html 78 - -";

    const SHOWN: &str = "1772442869 2001:db8::7|GET|shop.example|/view/a%20b.html|Some(200)|Some(2390)|Some(250ms)|\
    https://www.example/a%20b|Mozilla/5.0 (X11; Linux)";

    fn tabs(line: &str) -> String {
        line.replace(' ', "\t")
    }

    fn show(log: &mut Columns, line: &str) -> String {
        match log.read(line.as_bytes()) {
            Err(error) => format!("malformed: {error}"),
            Ok(r) => {
                let t = |bytes: &[u8]| crate::log::text(bytes).into_owned();
                format!(
                    "{} {}|{}|{}|{}|{:?}|{:?}|{:?}|{}|{}",
                    r.time.as_nanos() / 1_000_000_000,
                    t(r.client),
                    t(r.method),
                    t(r.host),
                    t(r.path),
                    r.status,
                    r.bytes,
                    r.duration,
                    t(&r.referer()),
                    t(&r.agent())
                )
            }
        }
    }

    #[test]
    fn lines_without_their_names_are_read_in_the_documented_order() {
        let mut log = Columns::new(&CLOUDFRONT, None, &[]);
        let line = tabs(LINE);
        assert_eq!(show(&mut log, &line), SHOWN);
        let record = log.read(line.as_bytes()).unwrap();
        assert_eq!(record.extra("request.header.x-forwarded-for"), Some(&b"203.0.113.9"[..]));
        assert_eq!(record.extra("x-edge-result-type"), Some(&b"Hit"[..]));
        assert!(record.extra("fle-status").is_none() && record.extra("date").is_none());
        let few: Vec<&str> = line.split('\t').take(12).collect();
        let want = "1772442869 2001:db8::7|GET|d111111abcdef8.cloudfront.net|/view/a%20b.html|Some(200)|Some(2390)|None|\
                https://www.example/a%20b|Mozilla/5.0 (X11; Linux)";
        assert_eq!(show(&mut log, &few.join("\t")), want);
        let wrong = "malformed: not as many fields as the #Fields line has";
        assert_eq!(show(&mut log, &few[..11].join("\t")), wrong);
        assert_eq!(show(&mut log, ""), wrong);
        assert_eq!(show(&mut log, &line.replace("2026-03-02", "yesterday")), "malformed: no readable time");
    }

    #[test]
    fn the_fields_line_says_what_comes() {
        let names = fields_line(
            b"#Version: 1.0\n#Fields: timestamp(ms) c-ip x-edge-location cs-method cs-uri-stem\r\nx",
        )
        .unwrap();
        assert!(is_of_cloudfront(names));
        let mut log = Columns::new(&CLOUDFRONT, Some(names), &[]);
        let line = "1772442869250\t203.0.113.9\tFRA56-P1\tGET\t/";
        assert_eq!(show(&mut log, line), "1772442869 203.0.113.9|GET||/|None|None|None||");
        let wrong = "malformed: not as many fields as the #Fields line has";
        assert_eq!(show(&mut log, &format!("{line}\tmore")), wrong);
        assert_eq!(show(&mut log, "1772442869250\t203.0.113.9"), wrong);
        assert!(
            log.goes_on_below(b"#Fields: timestamp(ms)  c-ip x-edge-location cs-method cs-uri-stem ", false)
        );
        assert!(!log.goes_on_below(b"#Fields: timestamp(ms) c-ip", true));
        assert!(log.goes_on_below(b"#Version: 1.0", true) && !log.goes_on_below(b"#", false));
        // The fields of another server.
        assert!(!is_of_cloudfront(
            fields_line(b"#Fields: date time s-ip cs-method cs-uri-stem c-ip").unwrap()
        ));
        assert!(fields_line(b"date\ttime\n#Fields: date time").is_none());
    }

    /// A line of IIS: date and time in two fields, spaces in the agent as plus signs.
    #[test]
    fn w3c_lines_are_read_by_their_names() {
        let names = b"date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken cs(X-Plan)";
        let mut log = Columns::new(&W3C, Some(names), &[]);
        let line = "2026-03-02 09:14:29 10.0.0.4 GET /api/items page=0 443 ann 2001:db8::7 Mozilla/5.0+(X11;+Linux) - 200 0 0 12 pro";
        assert_eq!(
            show(&mut log, line),
            "1772442869 2001:db8::7|GET||/api/items|Some(200)|None|Some(12ms)||Mozilla/5.0 (X11; Linux)"
        );
        let record = log.read(line.as_bytes()).unwrap();
        assert_eq!((record.user, record.extra("s-ip")), (&b"ann"[..], Some(&b"10.0.0.4"[..])));
        assert_eq!(record.extra("request.header.x-plan"), Some(&b"pro"[..]));
        let wrong = "malformed: not as many fields as the #Fields line has";
        assert_eq!(show(&mut log, "2026-03-02 09:14:29 10.0.0.4 GET /"), wrong);
        assert_eq!(show(&mut log, &format!("{line} more")), wrong);
        assert_eq!(show(&mut Columns::new(&W3C, None, &[]), line), wrong);
        // With tabs between the fields, a space belongs to its value.
        let mut log = Columns::new(&W3C, Some(b"date time c-ip cs(User-Agent)"), &[]);
        assert_eq!(
            show(&mut log, "2026-03-02\t09:14:29.5\th\ta+b c"),
            "1772442869 h||||None|None|None||a+b c"
        );
    }

    /// A line of an HTTPS listener, with all fields.
    const BALANCED: &str = "https 2026-03-02T09:14:30.186641Z app/shop/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 503 \
    57 1024 \"GET https://shop.example:443/cart?item=4 HTTP/1.1\" \"curl/8.5 \\\"x\\\"\" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 \
    arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/shop/73e2d6bc24d8a067 \
    \"Root=1-58337281-1d84f3d73c47ec4e58577259\" \"shop.example\" \"arn:aws:acm:eu-west-1:123456789012:certificate/1\" 1 \
    2026-03-02T09:14:29.500000Z \"forward\" \"-\" \"-\" \"10.0.0.1:80\" \"503\" \"-\" \"-\" TID_1234abcd5678ef90";

    fn balanced(line: &str) -> String {
        match Columns::new(&ALB, None, &[]).read(line.as_bytes()) {
            Err(error) => format!("malformed: {error}"),
            Ok(r) => {
                let t = |bytes: &[u8]| crate::log::text(bytes).into_owned();
                let at = r.time.as_nanos() / 1_000_000;
                format!(
                    "{at} {}|{}|{}|{}|{:?}|{:?}|{:?}|{}",
                    t(r.client),
                    t(r.method),
                    t(r.host),
                    t(r.path),
                    r.status,
                    r.bytes,
                    r.duration,
                    t(&r.agent())
                )
            }
        }
    }

    #[test]
    fn lines_of_load_balancers() {
        const FEW: &str = "malformed: fewer fields than a line of an Application Load Balancer has";
        let old = "http 2018-07-02T22:23:00.186641Z app/x/1 [2001:db8::7]:2817 - -1 -1 -1 460 - 34 366 \"- http://x.example:80- -\" \"-\" - - \
               arn \"Root=1\"";
        let rows = [
            (
                BALANCED,
                "1772442869500 192.0.2.7|GET|shop.example:443|/cart|Some(200)|Some(1024)|Some(171ms)|curl/8.5 \\\"x\\\"",
            ),
            (old, "1530570180186 2001:db8::7||||Some(460)|Some(366)|None|"),
            (
                &BALANCED[..BALANCED.find(" ECDHE").unwrap()],
                "1772442870186 192.0.2.7|GET|shop.example:443|/cart|Some(200)|Some(1024)|Some(171ms)|curl/8.5 \\\"x\\\"",
            ),
            (&BALANCED[..BALANCED.find(" \"curl").unwrap()], FEW),
            ("ftp 2018-07-02T22:23:00Z a b c d e f g h i j k l", FEW),
            ("http x a b c d e f 200 h i j k l", "malformed: no readable time"),
            ("http", FEW),
            ("", FEW),
        ];
        for (line, want) in rows {
            assert_eq!(balanced(line), want, "{line}");
        }
    }

    #[test]
    fn what_has_no_role_is_an_extra_and_columns_rename() {
        let columns = [("request.host".to_owned(), "domain_name".to_owned())];
        let mut alb = Columns::new(&ALB, None, &columns);
        let record = alb.read(BALANCED.as_bytes()).unwrap();
        assert_eq!((record.host, record.extra("target")), (&b"shop.example"[..], Some(&b"10.0.0.1:80"[..])));
        assert_eq!(record.extra("trace_id"), Some(&b"Root=1-58337281-1d84f3d73c47ec4e58577259"[..]));
        assert!(record.extra("redirect_url").is_none() && record.extra("request_creation_time").is_none());
    }

    proptest! {
        #[test]
        fn garbage_of_load_balancers_is_counted_without_panic(bytes: Vec<u8>, text in "(http|\"|\\\\| |:|\\]|-1|1e400|\\[|2018-07-02T22:23:00Z){0,60}") {
            let _ = Columns::new(&ALB, None, &[]).read(&bytes).map(drop);
            let _ = Columns::new(&ALB, None, &[]).read(format!("http {text}").as_bytes()).map(drop);
        }
    }

    proptest! {
        #[test]
        fn garbage_is_counted_without_panic(bytes: Vec<u8>, names in "(date|time|c-ip|cs\\(Cookie\\)| |\t){0,20}", text in "(\t|-|%|%2|%20|2026-03-02|09:14:29){0,60}") {
            for (named, layout) in [(None, &CLOUDFRONT), (Some(names.as_bytes()), &W3C), (Some(&bytes[..]), &CLOUDFRONT)] {
                let mut log = Columns::new(layout, named, &[]);
                let _ = log.read(&bytes).map(drop);
                let _ = log.read(text.as_bytes()).map(drop);
                let _ = log.goes_on_below(format!("#Fields: {names}").as_bytes(), true);
            }
        }
    }
}
