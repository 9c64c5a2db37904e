//! Access logs of AWS Application Load Balancers: fields in a fixed order, separated by spaces, some in quotes.
//!
//! AWS adds fields at the end of the line from time to time, so lines may have more fields than are known here; old
//! lines have fewer. The time is when the request arrived (`request_creation_time`) or, in logs without that field,
//! when it was answered.
//!
//! Source: Elastic Load Balancing, "Access logs for your Application Load Balancer", syntax of access log entries.

use std::fmt;
use std::time::Duration;

use super::fields::Fields;
use super::malformed::Malformed;
use super::quoting::{known, quoted};
use super::record::Record;
use super::roles::Role;

/// A field: its documented name, the name that is shown, and its role in a record.
type Field = (&'static str, &'static str, Option<(Role, usize)>);

/// The fields in their order.
const FIELDS: [Field; 33] = [
    ("type", "type", None),
    ("time", "time", Some((Role::Time, 2))),
    ("elb", "elb", None),
    ("client:port", "client", Some((Role::Client, 1))),
    ("target:port", "target", None),
    ("request_processing_time", "request_processing_time", None),
    ("target_processing_time", "target_processing_time", None),
    ("response_processing_time", "response_processing_time", None),
    ("elb_status_code", "elb_status_code", Some((Role::Status, 1))),
    ("target_status_code", "target_status_code", None),
    ("received_bytes", "received_bytes", None),
    ("sent_bytes", "sent_bytes", Some((Role::Bytes, 1))),
    ("request", "request", Some((Role::Request, 1))),
    ("user_agent", "user_agent", Some((Role::Agent, 1))),
    ("ssl_cipher", "ssl_cipher", None),
    ("ssl_protocol", "ssl_protocol", None),
    ("target_group_arn", "target_group_arn", None),
    ("trace_id", "trace_id", None),
    ("domain_name", "domain_name", None),
    ("chosen_cert_arn", "chosen_cert_arn", None),
    ("matched_rule_priority", "matched_rule_priority", None),
    ("request_creation_time", "request_creation_time", Some((Role::Time, 1))),
    ("actions_executed", "actions_executed", None),
    ("redirect_url", "redirect_url", None),
    ("error_reason", "error_reason", None),
    ("target:port_list", "target_list", None),
    ("target_status_code_list", "target_status_code_list", None),
    ("classification", "classification", None),
    ("classification_reason", "classification_reason", None),
    ("conn_trace_id", "conn_trace_id", None),
    ("transformed_host", "transformed_host", None),
    ("transformed_uri", "transformed_uri", None),
    ("request_transform_status", "request_transform_status", None),
];

/// The fewest fields of a line: up to and including the user agent. Even the oldest lines have four more.
const LEAST: usize = 14;

/// The kinds of request that are documented.
const TYPES: [&[u8]; 6] = [b"http", b"https", b"h2", b"grpcs", b"ws", b"wss"];

const CLIENT: usize = 3;
/// The fields that add up to the duration of a request: until it was sent on, until the answer began, until the
/// answer was passed on.
const TOOK: std::ops::RangeInclusive<usize> = 5..=7;

/// Reads the lines of one log.
pub(super) struct Alb {
    /// The number of each field's name.
    columns: [Option<u32>; FIELDS.len()],
    fields: Fields,
}

impl fmt::Debug for Alb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alb").finish_non_exhaustive()
    }
}

impl Alb {
    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    pub(super) fn new(columns: &[(String, String)]) -> Self {
        let mut fields = Fields::new(columns);
        let columns = FIELDS.map(|(name, shown, role)| fields.define(name, shown.to_owned(), role));
        Self { columns, fields }
    }

    pub(super) fn read(&mut self, line: &[u8]) -> Result<Record<'_>, Malformed> {
        self.fields.clear();
        let (mut rest, mut count, mut took) = (line, 0, Some(Duration::ZERO));
        while count < FIELDS.len() && !rest.is_empty() {
            let (value, after) = if rest.starts_with(b"\"") { quoted(rest) } else { word(rest) };
            rest = after.strip_prefix(b" ").unwrap_or(after);
            if count == 0 && !TYPES.contains(&value) {
                return Err(Malformed::Alb);
            }
            if TOOK.contains(&count) {
                took = took.zip(seconds(value)).and_then(|(sum, part)| sum.checked_add(part));
            }
            let value = known(if count == CLIENT { address(value) } else { value });
            if let Some(name) = self.columns[count]
                && !value.is_empty()
            {
                self.fields.push(name, value);
            }
            count += 1;
        }
        if count < LEAST {
            return Err(Malformed::Alb);
        }
        let mut record = self.fields.record()?;
        record.duration = record.duration.or(took);
        Ok(record)
    }
}

fn word(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(memchr::memchr(b' ', text).unwrap_or(text.len()))
}

/// Removes the port, and the brackets of an IPv6 address.
fn address(client: &[u8]) -> &[u8] {
    let address = memchr::memrchr(b':', client).map_or(client, |colon| &client[..colon]);
    address.strip_prefix(b"[").and_then(|inner| inner.strip_suffix(b"]")).unwrap_or(address)
}

/// Parses a span in seconds; `None` for -1, which marks a request that did not get that far.
fn seconds(value: &[u8]) -> Option<Duration> {
    Duration::try_from_secs_f64(std::str::from_utf8(value).ok()?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A line of an HTTPS listener, with all fields.
    const LINE: &str = "https 2026-03-02T09:14:30.186641Z app/shop/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 503 \
        57 1024 \"GET https://shop.example:443/cart?item=4 HTTP/1.1\" \"curl/8.5 \\\"x\\\"\" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 \
        arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/shop/73e2d6bc24d8a067 \
        \"Root=1-58337281-1d84f3d73c47ec4e58577259\" \"shop.example\" \"arn:aws:acm:eu-west-1:123456789012:certificate/1\" 1 \
        2026-03-02T09:14:29.500000Z \"forward\" \"-\" \"-\" \"10.0.0.1:80\" \"503\" \"-\" \"-\" TID_1234abcd5678ef90";

    fn show(line: &str) -> String {
        match Alb::new(&[]).read(line.as_bytes()) {
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
    fn lines() {
        const FEW: &str = "malformed: fewer fields than a line of an Application Load Balancer has";
        let old = "http 2018-07-02T22:23:00.186641Z app/x/1 [2001:db8::7]:2817 - -1 -1 -1 460 - 34 366 \"- http://x.example:80- -\" \"-\" - - \
                   arn \"Root=1\"";
        let rows = [
            (
                LINE,
                "1772442869500 192.0.2.7|GET|shop.example:443|/cart|Some(200)|Some(1024)|Some(171ms)|curl/8.5 \\\"x\\\"",
            ),
            (old, "1530570180186 2001:db8::7||||Some(460)|Some(366)|None|"),
            (
                &LINE[..LINE.find(" ECDHE").unwrap()],
                "1772442870186 192.0.2.7|GET|shop.example:443|/cart|Some(200)|Some(1024)|Some(171ms)|curl/8.5 \\\"x\\\"",
            ),
            (&LINE[..LINE.find(" \"curl").unwrap()], FEW),
            ("ftp 2018-07-02T22:23:00Z a b c d e f g h i j k l", FEW),
            ("http x a b c d e f 200 h i j k l", "malformed: no readable time"),
            ("http", FEW),
            ("", FEW),
        ];
        for (line, want) in rows {
            assert_eq!(show(line), want, "{line}");
        }
    }

    #[test]
    fn what_has_no_role_is_an_extra_and_columns_rename() {
        let columns = [("request.host".to_owned(), "domain_name".to_owned())];
        let mut alb = Alb::new(&columns);
        let record = alb.read(LINE.as_bytes()).unwrap();
        assert_eq!((record.host, record.extra("target")), (&b"shop.example"[..], Some(&b"10.0.0.1:80"[..])));
        assert_eq!(record.extra("trace_id"), Some(&b"Root=1-58337281-1d84f3d73c47ec4e58577259"[..]));
        assert!(record.extra("redirect_url").is_none() && record.extra("request_creation_time").is_none());
    }

    proptest! {
        #[test]
        fn garbage_is_counted_without_panic(bytes: Vec<u8>, text in "(http|\"|\\\\| |:|\\]|-1|1e400|\\[|2018-07-02T22:23:00Z){0,60}") {
            let _ = Alb::new(&[]).read(&bytes).map(drop);
            let _ = Alb::new(&[]).read(format!("http {text}").as_bytes()).map(drop);
        }
    }
}
