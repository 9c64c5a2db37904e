//! The table of all keys of the file: name, kind of value, default and purpose.
//!
//! The validator, the JSON Schema, the manual's tables and `config show` use it. Keys that are not available are listed
//! too, so that a file with one is told that.

mod breaker;
mod limit;
#[cfg(all(test, not(tidegate_loom)))]
mod manual;
mod policy;
mod store;

use super::forward_auth::OriginalHeaders;
use super::grammars::{Grammar, SWITCH_NAME};
use super::server::{self, DoorName};
pub(super) use breaker::{BREAKER, Profile};
pub(super) use limit::{
    ADAPTIVE, ALGORITHMS, AlgorithmKeys, CANARY_LIMIT, CONCURRENCY, LIMIT, LawWords, PLACE_TTL, RATED,
    SHADOW_LIMIT,
};
use policy::{ACCESS, DURABLE, LEVELS, MODE, ON_STORE_ERROR, POLICY, SHARE, SWITCH};
pub(super) use policy::{CANARY, CANARY_GUARD, INHERITED, SHARES};
use store::STORE;
pub(super) use store::{AGREE_THROUGH, KINDS, OWN, REGIONS_PREFIX};

pub(crate) const TICKET_TTL: &str = "10min";

const SERVER: Table = Table {
    name: "server",
    keys: &[
        key("http", Kind::Socket, Some("127.0.0.1:8080"), "The address of the HTTP API"),
        key(
            "admin",
            Kind::Socket,
            None,
            "The address for operators (metrics, policies, keys and more), which then have no other; default: that of http",
        ),
        key("grpc", Kind::Socket, None, "The address of Envoy's rate limit service; default: none"),
        key("resp", Kind::Socket, None, "The address for Redis clients; default: none"),
        key(
            "tls",
            Kind::Table(&TLS),
            None,
            "The certificate with which all of these addresses, except Unix sockets, use TLS; default: no TLS",
        ),
        key(
            "otlp",
            Kind::Table(&OTLP),
            None,
            "Spans of decisions are sent to a collector, the one that OpenTelemetry's variables name; default: if they name one",
        ),
        key(
            "sight",
            Kind::Either(&Kind::Word(&["on", "off"], &[]), &Kind::Table(&SIGHT)),
            Some("on"),
            "Whether the server keeps counts, busy keys and changes, and shows them to operators, also on pages; a map turns it on",
        ),
    ],
    required: &[],
};

const SIGHT: Table = Table {
    name: "sight",
    keys: &[key(
        "alerts",
        Kind::Table(&ALERTS),
        None,
        "Whom the server tells that something is wrong; default: whoever looks at /ui/alerts",
    )],
    required: &[],
};

const ALERTS: Table = Table {
    name: "alerts",
    keys: &[
        key("to", Kind::List(&Kind::Table(&RECEIVER)), None, "The receivers, up to 8; each gets all alerts"),
        key(
            "link",
            Kind::Text,
            None,
            "Where people reach the pages, as https://tidegate-admin.example, for links in messages; default: no links",
        ),
    ],
    required: &["to"],
};

const RECEIVER: Table = Table {
    name: "receiver",
    keys: &[
        key(
            "alertmanager",
            Kind::Text,
            None,
            "The URL of an Alertmanager, as http://127.0.0.1:9093: https, or http to this machine",
        ),
        key(
            "webhook",
            Kind::Text,
            None,
            "Instead: the URL that gets the JSON of Alertmanager's webhooks, version 4; at most 12 messages an hour",
        ),
        key(
            "secret_file",
            Kind::Text,
            None,
            "With webhook: the file with the secret, 16 bytes or more, of the HMAC-SHA256 in x-tidegate-signature",
        ),
    ],
    required: &[],
};

const TLS: Table = Table {
    name: "tls",
    keys: &[
        key(
            "cert_file",
            Kind::Text,
            None,
            "The file with the server's certificate, in PEM, followed by its intermediates",
        ),
        key(
            "key_file",
            Kind::Text,
            None,
            "The file with the certificate's private key, in PEM without a passphrase: RSA, ECDSA P-256 or P-384, Ed25519",
        ),
        key(
            "ca_file",
            Kind::Text,
            None,
            "The file with the authorities, in PEM, that must have signed callers' certificates (mutual TLS); default: callers need none",
        ),
        key(
            "plain",
            Kind::List(&Kind::Word(&DoorName::WORDS, &[])),
            None,
            "The addresses that stay without TLS, for callers on the same machine",
        ),
    ],
    required: &["cert_file", "key_file"],
};

const OTLP: Table = Table {
    name: "otlp",
    keys: &[key(
        "keys",
        Kind::Word(&server::OTLP_KEYS, &[]),
        Some("digest"),
        "How spans contain keys: as digests, or revealed",
    )],
    required: &[],
};

const CLIENT_IP: Table = Table {
    name: "client_ip",
    keys: &[
        key(
            "trusted_proxies",
            Kind::List(&Kind::Network),
            None,
            "Networks of your own proxies; an empty list if there are none",
        ),
        key(
            "header",
            Kind::Header,
            Some("x-forwarded-for"),
            "x-forwarded-for, forwarded, or a header with one address, as x-real-ip",
        ),
        key(
            "ipv6_prefix",
            Kind::Whole(1, 128),
            Some("64"),
            "IPv6 addresses with the same first so many bits count as one caller; less for networks that give each customer 56 or 48",
        ),
    ],
    required: &[],
};

const FORWARD_AUTH: Table = Table {
    name: "forward_auth",
    keys: &[
        key(
            "proxy",
            Kind::Word(&OriginalHeaders::NAMES, &[]),
            None,
            "The proxy that calls /v1/forward-auth: nginx (x-original-method, -uri, -host), caddy or traefik (x-forwarded-method, -uri, -host)",
        ),
        key(
            "method",
            Kind::Header,
            None,
            "Instead of proxy, with path and host: the header with the original method",
        ),
        key("path", Kind::Header, None, "Instead of proxy: the header with the original path and query"),
        key("host", Kind::Header, None, "Instead of proxy: the header with the original host"),
        key(
            "status",
            Kind::Whole(400, 599),
            None,
            "The status of all refusals; default: 403 for nginx, else that of each policy",
        ),
        key(
            "options",
            Kind::Word(&["pass", "charge"], &[]),
            Some("pass"),
            "Whether a browser's preflight request passes without charge or is limited like other requests, for services that a flood of preflights can hurt",
        ),
        key(
            "priority_header",
            Kind::Header,
            None,
            "The header in which the proxy sends the request's priority, instead of the header of the caller; read only from trusted_proxies",
        ),
        key(
            "default_priority",
            Kind::Word(&LEVELS, &[]),
            Some("critical"),
            "The priority of a request whose priority_header is missing, empty or not believed; use the lowest one if callers can make the header go missing",
        ),
    ],
    required: &[],
};

const ENVOY: Table = Table {
    name: "envoy",
    keys: &[
        key(
            "priority_entry",
            Kind::Attribute,
            None,
            "The key of the entry in which Envoy sends the request's priority; default: no entry does",
        ),
        key(
            "default_priority",
            Kind::Word(&LEVELS, &[]),
            Some("critical"),
            "The priority of Envoy's requests whose priority_entry is missing or empty",
        ),
    ],
    required: &[],
};

const TICKETS: Table = Table {
    name: "tickets",
    keys: &[
        key(
            "key_file",
            Kind::Text,
            None,
            "The file with the keys that seal tickets, one per line: 32 random bytes in hexadecimal or base64. The first seals, up to 7 older ones still open; default: a random key, kept beside counters on disk, else lost with the process",
        ),
        key(
            "ttl",
            Kind::Span,
            Some(TICKET_TTL),
            "How long a ticket can be settled, up to 30 days; less than the ttl of places is a warning",
        ),
        key(
            "name",
            Kind::Name,
            None,
            "The name of this node, which other nodes answer for a ticket that only it can settle; default: the address that it listens on",
        ),
    ],
    required: &[],
};

pub(super) const DEFAULTS: Table = Table {
    name: "defaults",
    keys: &[
        key("mode", MODE, Some("enforce"), "The mode of policies without a mode"),
        key(
            "near_limit",
            Kind::Percent(1, 100),
            Some("80%"),
            "The used share of a limit from which a key is reported as near it",
        ),
        key(
            "on_store_error",
            ON_STORE_ERROR,
            Some("local"),
            "What happens when the store cannot decide: a store of this process does (local), requests pass (allow), or are refused with 503 (deny)",
        ),
        key(
            "durable",
            DURABLE,
            Some("interval"),
            "When a charge is written to disk, if counters are there: shortly after the answer (interval), or before it (strict)",
        ),
        key(
            "share",
            SHARE,
            None,
            "Where limits are decided when several nodes enforce them; default: local in a store of one process, leased in a shared store",
        ),
        key(
            "headers",
            Kind::Word(&["draft-11", "draft-03", "x-ratelimit", "none"], &[]),
            Some("draft-11"),
            "Which rate limit headers answers have",
        ),
        key(
            "priority_header",
            Kind::Header,
            Some("x-tidegate-priority"),
            "The header of answers with the lowered priority of a request that a policy demotes",
        ),
    ],
    required: &[],
};

/// The whole file.
pub(super) const FILE: Table = Table {
    name: "file",
    keys: &[
        key("version", Kind::Whole(1, 1), None, "The version of this format: 1"),
        key(
            "server",
            Kind::Table(&SERVER),
            None,
            "Where the server listens; flags and TIDEGATE_ variables win over it",
        ),
        key("client_ip", Kind::Table(&CLIENT_IP), None, "How the client's address is found behind proxies"),
        key(
            "forward_auth",
            Kind::Table(&FORWARD_AUTH),
            None,
            "The proxy that calls /v1/forward-auth, and the headers that describe the original request",
        ),
        key(
            "envoy",
            Kind::Table(&ENVOY),
            None,
            "How calls of Envoy's rate limit service say which priority their requests have",
        ),
        key("store", Kind::Table(&STORE), None, "Where counters are stored"),
        key("tickets", Kind::Table(&TICKETS), None, "The tickets with which decisions are settled later"),
        key("defaults", Kind::Table(&DEFAULTS), None, "Defaults for all policies"),
        key(
            "access",
            Kind::Table(&ACCESS),
            None,
            "Callers that no policy limits, and callers that are always refused",
        ),
        key(
            "switches",
            Kind::Map(&Kind::Read(&SWITCH_NAME), &Kind::OneOrMany(&Kind::Table(&SWITCH))),
            None,
            "What turns degrade switches off, by the name of the switch: a number beyond a value, or a list of such",
        ),
        key(
            "policies",
            Kind::List(&Kind::Table(&POLICY)),
            None,
            "The policies; all that match are tried in this order, and a refusal charges none of them but those with charge: always; an empty list limits nothing",
        ),
    ],
    required: &["version", "policies"],
};

/// The kind of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// The name of a policy.
    Name,
    /// The name of an attribute, such as `user.id`.
    Attribute,
    /// The name of a header.
    Header,
    /// `GET`
    Method,
    /// `quota-exceeded`, or a URI
    Problem,
    /// `llm.tokens`, or an expression
    Cost,
    /// `llm.output`, or an expression over the values that a settlement reports
    Settle,
    /// The name of a value that a settlement reports, such as `llm.output`.
    Usage,
    /// A whole number in a range.
    Whole(u64, u64),
    /// `100/s`
    Rate,
    /// `200ms`
    Span,
    /// `80%`. The range is for the advice; a share outside it is refused later, with the reason.
    Percent(u8, u8),
    /// `20%`, or a number of units
    Kept,
    /// `cpu above 80%, until 70%`
    Condition,
    /// `memory 70%..90% to 100/s`
    Source,
    /// `127.0.0.1:8080`
    Socket,
    /// `10.0.0.0/8`
    Network,
    /// `Asia/Shanghai`
    Zone,
    /// `/api/**`
    Path,
    /// `*.example.com`
    Host,
    /// `*json*`
    Glob,
    /// `10.0.0.0/8` or `user.id=42`
    Entry,
    /// One of the words of the first list. Words of the second list are not available in this version.
    Word(&'static [&'static str], &'static [&'static str]),
    /// A list.
    List(&'static Kind),
    /// A single value or a list.
    OneOrMany(&'static Kind),
    /// A map with keys of the author's choice. The first kind is that of the keys, the second that of the values.
    Map(&'static Kind, &'static Kind),
    /// A map with these keys.
    Table(&'static Table),
    /// A scalar of the first kind, or a map or list of the second.
    Either(&'static Kind, &'static Kind),
    /// A value whose grammar only one or two keys use.
    Read(&'static Grammar),
    /// A key that is known but not available in this version.
    Unavailable,
    /// Not a key here, though authors may expect it: what to write instead.
    Elsewhere(&'static str),
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The default, as a file would write it.
    pub(super) default: Option<&'static str>,
    pub(super) doc: &'static str,
}

/// A map with known keys.
#[derive(Debug)]
pub(super) struct Table {
    /// The name of the section in messages.
    pub(super) name: &'static str,
    pub(super) keys: &'static [Key],
    pub(super) required: &'static [&'static str],
}

impl Table {
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

pub(super) const fn key(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    doc: &'static str,
) -> Key {
    Key { name, kind, default, doc }
}
