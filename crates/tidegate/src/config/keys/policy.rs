//! The keys of a policy.

use tidegate_core::Criticality;

use super::limit::{LIMIT, MAX_COUNT, SHADOW_LIMIT};
use crate::config::kind::{Key, Kind, Table, key};
use crate::config::share;

const WANT: Kind = Kind::Either(&Kind::Glob, &Kind::List(&Kind::Glob));

const METHOD: Key = key("method", Kind::OneOrMany(&Kind::Method), None, "The method, or several");
const PATH: Key = key("path", Kind::OneOrMany(&Kind::Path), None, "/login, /api/**, /v?/{users,teams}/*");
const HOST: Key = key("host", Kind::OneOrMany(&Kind::Host), None, "api.example.com, *.example.com");
const HEADER: Key = key(
    "header",
    Kind::Map(&Kind::Header, &WANT),
    None,
    "Headers by name: a value, a pattern, a list; true for there, false for not there",
);
const ATTRIBUTES: Key =
    key("attributes", Kind::Map(&Kind::Attribute, &WANT), None, "Other attributes by name, as headers");

const NOT: Table = Table { name: "not", keys: &[METHOD, PATH, HOST, HEADER, ATTRIBUTES], required: &[] };

const MATCH: Table = Table {
    name: "match",
    keys: &[
        METHOD,
        PATH,
        HOST,
        HEADER,
        ATTRIBUTES,
        key(
            "not",
            Kind::OneOrMany(&Kind::Table(&NOT)),
            None,
            "Requests that are left out; a list leaves out what any of it fits",
        ),
    ],
    required: &[],
};

const DENY: Table = Table {
    name: "deny",
    keys: &[
        key(
            "status",
            Kind::Whole(400, 599),
            None,
            "The HTTP status of a refusal; 429 unless given, and 503 by a concurrency limit, an adaptive one, a breaker or a deadline: then we are short ourselves",
        ),
        key(
            "problem",
            Kind::Problem,
            None,
            "quota-exceeded, temporary-reduced-capacity, abnormal-usage-detected, or a URI",
        ),
    ],
    required: &[],
};

pub(super) const ACCESS: Table = Table {
    name: "access",
    keys: &[
        key("allow", Kind::List(&Kind::Entry), None, "Networks and attribute values that are not limited"),
        key("deny", Kind::List(&Kind::Entry), None, "Networks and attribute values that are refused"),
        key("status", Kind::Whole(400, 599), Some("403"), "The HTTP status of those refused"),
    ],
    required: &[],
};

const BY: Key = key("by", Kind::Attribute, None, "The attribute that chooses");
const VALUES: Key =
    key("values", Kind::Map(&Kind::Text, &Kind::Whole(1, MAX_COUNT)), None, "The cost of each value");
const OTHERWISE: Key =
    key("otherwise", Kind::Whole(1, MAX_COUNT), Some("1"), "The cost of every other value, and of none");

const ESTIMATE: Table =
    Table { name: "estimate", keys: &[BY, VALUES, OTHERWISE], required: &["by", "values"] };

const COST: Table = Table {
    name: "cost",
    keys: &[
        BY,
        VALUES,
        OTHERWISE,
        key(
            "estimate",
            Kind::Either(&Kind::Cost, &Kind::Table(&ESTIMATE)),
            None,
            "What the check takes: a number, an attribute, an expression, a table, or learned",
        ),
        key("start", Kind::Whole(1, MAX_COUNT), None, "What is taken until enough was learned"),
        key(
            "quantile",
            Kind::Percent,
            Some("90%"),
            "Which share of requests costs at most what is estimated",
        ),
        key(
            "caller",
            Kind::Word(&["ignored", "believed"], &[]),
            Some("ignored"),
            "Whether a cost that the caller sends with the check goes before the estimate",
        ),
        key(
            "settle",
            Kind::Settle,
            None,
            "What it really cost, of what its settlement tells: llm.total, llm.input + 3 * llm.output; the told cost unless given",
        ),
        key(
            "missing",
            Kind::Map(&Kind::Usage, &Kind::Whole(0, MAX_COUNT)),
            None,
            "What counts for values that a settlement does not tell",
        ),
    ],
    required: &[],
};

/// The words for levels of priority.
pub(super) const LEVELS: [&str; Criticality::ALL.len()] = [
    Criticality::CriticalPlus.as_str(),
    Criticality::Critical.as_str(),
    Criticality::SheddablePlus.as_str(),
    Criticality::Sheddable.as_str(),
];

/// The keys of a policy that fall back to `defaults`.
pub(in crate::config) const INHERITED: &[&str] =
    &["mode", "near_limit", "on_store_error", "durable", "share"];

pub(super) const MODE: Kind = Kind::Word(&["off", "shadow", "enforce"], &[]);
pub(super) const SHARE: Kind = Kind::Word(share::WORDS, &[]);
pub(super) const DURABLE: Kind = Kind::Word(&["interval", "strict"], &[]);
pub(super) const ON_STORE_ERROR: Kind = Kind::Word(&["allow", "deny", "local"], &[]);

pub(in crate::config) const POLICY: Table = Table {
    name: "policy",
    keys: &[
        key(
            "name",
            Kind::Name,
            None,
            "Distinct in the file: counters are kept by it, answers and metrics carry it",
        ),
        key(
            "direction",
            Kind::Word(&["inbound", "outbound"], &[]),
            Some("inbound"),
            "Requests that come to us, or that we send",
        ),
        key("match", Kind::Table(&MATCH), None, "Whom it speaks of; everyone unless given"),
        key(
            "when",
            Kind::OneOrMany(&Kind::Condition),
            None,
            "Conditions that must all hold, as cpu above 80%, until 70%; while one does not, nothing is charged",
        ),
        key(
            "by",
            Kind::OneOrMany(&Kind::Attribute),
            None,
            "The attributes that make the key, as client.ip; one key for all unless given",
        ),
        key(
            "absent",
            Kind::Word(&["skip-if-none", "charge", "skip"], &[]),
            Some("skip-if-none"),
            "What happens when the request lacks attributes of the key",
        ),
        key("limit", Kind::Table(&LIMIT), None, "The limit"),
        key("limits", Kind::List(&Kind::Table(&LIMIT)), None, "Several limits; all must have room"),
        key(
            "shadow_limit",
            Kind::Table(&SHADOW_LIMIT),
            None,
            "A limit that is measured beside the real one; what it does not say it takes from that",
        ),
        key(
            "cost",
            Kind::Either(&Kind::Cost, &Kind::Table(&COST)),
            None,
            "A number, an attribute as llm.tokens, an expression, a table, or an estimate that is settled",
        ),
        key(
            "charge",
            Kind::Word(&["on-check", "on-failure"], &[]),
            Some("on-check"),
            "Whether what a check takes stays, or only where no success is reported",
        ),
        key("mode", MODE, None, "off, shadow (measured, never refusing) or enforce"),
        key("deny", Kind::Table(&DENY), None, "How a refusal is answered"),
        key("access", Kind::Table(&ACCESS), None, "Who is not limited, who is refused"),
        key("near_limit", Kind::Percent, None, "From which share of the limit a key is reported as near it"),
        key("on_store_error", ON_STORE_ERROR, None, "What happens when the store cannot decide"),
        key("share", SHARE, None, "Where the limit is decided when several nodes enforce it"),
        key(
            "durable",
            DURABLE,
            None,
            "When what a request changes is on disk: interval (shortly after the answer) or strict (before it)",
        ),
        key(
            "breaker",
            Kind::Elsewhere("limit: { algorithm: breaker, ... }"),
            None,
            "A breaker is a limit: it refuses what goes to a service that fails",
        ),
        key(
            "deadline",
            Kind::Span,
            None,
            "The least time that a request needs; one whose caller waits for less is refused uncharged, with 503 unless deny.status says another",
        ),
        key(
            "over",
            Kind::Word(&["deny", "wait", "mark", "demote"], &[]),
            Some("deny"),
            "What becomes of a request over the limit: refused, delayed up to max_wait, or let through marked or with less priority",
        ),
        key(
            "demote_to",
            Kind::Word(&LEVELS, &[]),
            None,
            "The level that over: demote lowers a request to; one below its own unless given",
        ),
    ],
    required: &["name"],
};
