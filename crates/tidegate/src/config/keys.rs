//! The table of all keys of the file: name, kind of value, default and purpose.
//!
//! The table has three users: the validator learns which keys are allowed where, the JSON Schema is generated from it,
//! and `config show` prints its defaults. Planned keys are listed too and marked as unavailable, so that a file with
//! such a key gets that message instead of "unknown key".

mod adaptive;
mod breaker;
mod limit;
mod policy;
mod store;

pub(super) use adaptive::{ADAPTIVE, LawWords};
pub(super) use breaker::{BREAKER, JUDGED_BY_NAMES, Profile};
pub(super) use limit::{ALGORITHMS, AlgorithmKeys, CONCURRENCY, LIMIT, PLACE_TTL, RATED, SHADOW_LIMIT};
pub(super) use policy::INHERITED;
use policy::{ACCESS, DURABLE, LEVELS, MODE, ON_STORE_ERROR, POLICY, SHARE};
use store::STORE;
pub(super) use store::{AGREE_THROUGH, KINDS, OWN, REGIONS_PREFIX};

use super::forward_auth::OriginalHeaders;
use super::kind::{Kind, Table, key};
use super::otlp;
use super::tls::DoorName;

/// How long a ticket can be settled if the file does not set `tickets.ttl`.
pub(in crate::config) const TICKET_TTL: &str = "10min";

const SERVER: Table = Table {
    name: "server",
    keys: &[
        key("http", Kind::Socket, Some("127.0.0.1:8080"), "Where checks are answered over HTTP"),
        key(
            "admin",
            Kind::Socket,
            None,
            "Where metrics and administration are answered over HTTP, and then nowhere else; at http unless given",
        ),
        key("grpc", Kind::Socket, None, "Where Envoy's rate limit service is answered; nowhere unless given"),
        key("resp", Kind::Socket, None, "Where Redis clients are answered; nowhere unless given"),
        key(
            "tls",
            Kind::Table(&TLS),
            None,
            "What encrypts all of these but Unix sockets; nothing unless given",
        ),
        key(
            "otlp",
            Kind::Table(&OTLP),
            None,
            "Where spans of decisions are sent, by the protocol of OpenTelemetry; where the environment says unless given",
        ),
    ],
    required: &[],
};

const TLS: Table = Table {
    name: "tls",
    keys: &[
        key(
            "cert",
            Kind::Text,
            None,
            "The file with the server's certificate and those between it and a root, in PEM, its own first",
        ),
        key("key", Kind::Text, None, "The file with the certificate's private key, in PEM"),
        key(
            "client_ca",
            Kind::Text,
            None,
            "The file with the certificates, in PEM, that a caller's own must come from; callers need none unless given",
        ),
        key(
            "plain",
            Kind::List(&Kind::Word(&DoorName::WORDS, &[])),
            None,
            "The doors that are not encrypted all the same",
        ),
    ],
    required: &["cert", "key"],
};

const OTLP: Table = Table {
    name: "otlp",
    keys: &[
        key(
            "endpoint",
            Kind::Read(&otlp::ENDPOINT),
            None,
            "The collector that takes OTLP; the one of OTEL_EXPORTER_OTLP_ENDPOINT unless given",
        ),
        key(
            "protocol",
            Kind::Word(&otlp::PROTOCOLS, &[]),
            Some("grpc"),
            "How the collector is spoken to; OTEL_EXPORTER_OTLP_PROTOCOL wins over it",
        ),
        key(
            "sample",
            Kind::Read(&otlp::SAMPLE),
            None,
            "Which part of the calls is sent whose caller says nothing about it; by OTEL_TRACES_SAMPLER unless given, else all",
        ),
        key(
            "keys",
            Kind::Word(&otlp::KEYS, &[]),
            Some("digest"),
            "How the keys of decisions are sent: as digests, or revealed as they are",
        ),
    ],
    required: &[],
};

const CLIENT_IP: Table = Table {
    name: "client_ip",
    keys: &[
        key(
            "trusted_proxies",
            Kind::List(&Kind::Network),
            None,
            "Networks of our own proxies; an empty list says that there are none",
        ),
        key(
            "header",
            Kind::Header,
            Some("x-forwarded-for"),
            "x-forwarded-for, forwarded, or a header with one address",
        ),
        key(
            "ipv6_prefix",
            Kind::Whole(1, 128),
            Some("64"),
            "How many bits of an IPv6 address make one caller",
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
            "The proxy that asks: nginx (x-original-method, -uri, -host), caddy or traefik (x-forwarded-method, -uri, -host)",
        ),
        key("method", Kind::Header, None, "In place of proxy: the header that holds the original method"),
        key(
            "uri",
            Kind::Header,
            None,
            "In place of proxy: the header that holds the original path and query",
        ),
        key("host", Kind::Header, None, "In place of proxy: the header that holds the original host"),
        key(
            "deny_status",
            Kind::Whole(400, 599),
            None,
            "The status of every refusal; 403 for nginx, else each policy's own unless given",
        ),
        key(
            "options",
            Kind::Word(&["pass", "charge"], &[]),
            Some("pass"),
            "Whether a browser's preflight passes uncharged or is limited like any request",
        ),
        key(
            "priority_header",
            Kind::Header,
            None,
            "The header in which the proxy tells the request's priority, in place of what its caller sent; read of trusted_proxies alone",
        ),
        key(
            "default_priority",
            Kind::Word(&LEVELS, &[]),
            Some("critical"),
            "The priority of a request whose priority_header is missing, empty or not believed; the least important one where a caller can make it go missing",
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
            "The file with the keys that seal tickets, one a line and the current one first; random unless given",
        ),
        key("ttl", Kind::Span, Some(TICKET_TTL), "How long a ticket can be settled, up to 30 days"),
        key("issuer", Kind::Name, None, "The name of this node; the address it listens on unless given"),
    ],
    required: &[],
};

pub(super) const DEFAULTS: Table = Table {
    name: "defaults",
    keys: &[
        key("mode", MODE, Some("enforce"), "The mode of policies that do not say"),
        key(
            "near_limit",
            Kind::Percent,
            Some("80%"),
            "From which share of a limit a key is reported as near it",
        ),
        key("on_store_error", ON_STORE_ERROR, Some("local"), "What happens when the store cannot decide"),
        key(
            "durable",
            DURABLE,
            Some("interval"),
            "When what a request changes is on disk, where the store is: shortly after the answer, or before it",
        ),
        key(
            "share",
            SHARE,
            None,
            "Where limits are decided when several nodes enforce them: local in a store of this process, leased in a shared one, unless given",
        ),
        key(
            "headers",
            Kind::Word(&["draft-11", "draft-03", "x-ratelimit", "none"], &[]),
            Some("draft-11"),
            "Which rate limit headers answers carry",
        ),
        key(
            "priority_header",
            Kind::Header,
            Some("x-tidegate-priority"),
            "The header in which answers tell the priority that is left of a request which a policy demotes",
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
            "Which proxy asks /v1/forward-auth, and in which headers it tells of the original request",
        ),
        key("store", Kind::Table(&STORE), None, "Where counters live"),
        key("tickets", Kind::Table(&TICKETS), None, "How decisions are settled later"),
        key("defaults", Kind::Table(&DEFAULTS), None, "What policies do not say themselves"),
        key("access", Kind::Table(&ACCESS), None, "Who is not limited, who is refused, by any policy"),
        key(
            "policies",
            Kind::List(&Kind::Table(&POLICY)),
            None,
            "All that match are tried in this order; a refusal charges none of them",
        ),
    ],
    required: &["version", "policies"],
};
