//! Every key of the file: its name, what it holds, its default, what it is for.
//!
//! One table, three readers: the validator knows from it what is allowed where, the JSON Schema is made of it, and so are the
//! defaults that `config show` prints. What cannot be had yet stands here too, marked, so that it is refused honestly instead
//! of being called unknown.

use tidegate_core::concurrency::Concurrency;

use super::forward_auth::FORWARD_AUTH;
use super::share;

/// Words that were called something else in earlier versions, with what they are called now.
pub(super) const RENAMED: [(&str, &str); 1] = [("whole", "full")];

/// What a value may be.
#[derive(Debug)]
pub(super) enum Kind {
    /// A value, compared as it is.
    Text,
    /// The name of a policy.
    Name,
    /// The name of an attribute, as `user.id`.
    Attribute,
    /// The name of a header.
    Header,
    /// `GET`
    Method,
    /// `quota-exceeded`, or a URI
    Problem,
    /// `llm.tokens`, or an expression
    Cost,
    /// `llm.output`, or an expression over what a settlement tells
    Settle,
    /// The name of a value that a settlement tells, as `llm.output`.
    Usage,
    /// A whole number in a range.
    Whole(u64, u64),
    /// `100/s`
    Rate,
    /// `200ms`
    Span,
    /// `80%`
    Percent,
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
    /// One of these words.
    Word(&'static [&'static str], &'static [&'static str]),
    /// A list.
    List(&'static Kind),
    /// One, or a list.
    OneOrMany(&'static Kind),
    /// A map with keys of the author's choice: of the first kind, with values of the second.
    Map(&'static Kind, &'static Kind),
    /// A map with these keys.
    Table(&'static Table),
    /// A scalar of the first kind, or a map or list of the second.
    Either(&'static Kind, &'static Kind),
    /// Known, and not in this version.
    Unavailable,
}

/// One key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// As it would be written.
    pub(super) default: Option<&'static str>,
    pub(super) doc: &'static str,
}

/// A map with known keys.
#[derive(Debug)]
pub(super) struct Table {
    /// What it is called in messages.
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

/// One algorithm: which of the limit's keys are its own.
#[derive(Debug)]
pub(super) struct AlgorithmKeys {
    pub(super) name: &'static str,
    /// Those that it shares with others of its kind.
    pub(super) common: &'static [&'static str],
    pub(super) takes: &'static [&'static str],
    pub(super) needs: &'static [&'static str],
}

/// Every limit that has a rate takes these, whatever its algorithm.
pub(super) const RATED: &[&str] =
    &["algorithm", "rate", "rate_by", "rates", "otherwise", "overrides", "replace"];

/// A guard has no rate: what it counts ends, and is not given back by time.
pub(super) const GUARDING: &[&str] = &["algorithm", "replace"];

/// The algorithm of a fixed number in flight.
pub(super) const CONCURRENCY: &str = "concurrency";

/// How long a place is held unless given: the usual read timeout of proxies, after which nobody waits for the answer any more.
pub(super) const PLACE_TTL: &str = "60s";

/// How long a ticket can be settled, unless the file says otherwise.
pub(super) const TICKET_TTL: &str = "10min";

/// The algorithms, in the order of the manual.
pub(super) const ALGORITHMS: &[AlgorithmKeys] = &[
    AlgorithmKeys { name: "gcra", common: RATED, takes: &["burst", "max_wait"], needs: &[] },
    AlgorithmKeys {
        name: "token-bucket",
        common: RATED,
        takes: &["burst", "refill", "max_wait"],
        needs: &[],
    },
    AlgorithmKeys {
        name: "leaky-bucket",
        common: RATED,
        takes: &["burst", "queue", "max_wait", "slack"],
        needs: &[],
    },
    AlgorithmKeys { name: "fixed-window", common: RATED, takes: &["calendar"], needs: &[] },
    AlgorithmKeys { name: "sliding-window", common: RATED, takes: &["buckets"], needs: &[] },
    AlgorithmKeys { name: "sliding-counter", common: RATED, takes: &[], needs: &[] },
    AlgorithmKeys { name: "sliding-log", common: RATED, takes: &[], needs: &[] },
    AlgorithmKeys {
        name: "warm-up",
        common: RATED,
        takes: &["warm_up", "cold_factor", "burst", "max_wait"],
        needs: &["warm_up"],
    },
    AlgorithmKeys { name: "x-time", common: RATED, takes: &["burst", "max_wait"], needs: &[] },
    AlgorithmKeys { name: "uber-pacer", common: RATED, takes: &["slack", "max_wait"], needs: &[] },
    AlgorithmKeys { name: "guava-bursty", common: RATED, takes: &["max_wait"], needs: &[] },
    AlgorithmKeys {
        name: "guava-warming",
        common: RATED,
        takes: &["warm_up", "cold_factor", "max_wait"],
        needs: &["warm_up"],
    },
    AlgorithmKeys { name: CONCURRENCY, common: GUARDING, takes: &["max", "ttl"], needs: &["max"] },
];

const ALGORITHM_NAMES: &[&str] = &{
    let mut names = [""; ALGORITHMS.len()];
    let mut place = 0;
    while place < names.len() {
        names[place] = ALGORITHMS[place].name;
        place += 1;
    }
    names
};

const MAX_COUNT: u64 = tidegate_core::Rate::MAX_COUNT;

const OVERRIDE: Table = Table {
    name: "override",
    keys: &[
        key("key", Kind::Map(&Kind::Attribute, &Kind::Text), None, "The key it is for, as user.id: vip"),
        key("rate", Kind::Rate, None, "The rate of this key"),
        key("burst", Kind::Whole(1, MAX_COUNT), None, "The burst of this key"),
    ],
    required: &["key", "rate"],
};

const LIMIT_KEYS: &[Key] = &[
    key("algorithm", Kind::Word(ALGORITHM_NAMES, &[]), Some("gcra"), "How it counts"),
    key("rate", Kind::Rate, None, "How fast capacity returns, as 100/s, 60/min, 100/10min, or unlimited"),
    key(
        "burst",
        Kind::Whole(1, MAX_COUNT),
        None,
        "The most at once from a full limit; the count of the rate unless given",
    ),
    key(
        "calendar",
        Kind::Zone,
        None,
        "The time zone whose minutes, days or months are the windows; without it a window opens with the first request",
    ),
    key(
        "buckets",
        Kind::Whole(1, 1024),
        Some("10"),
        "Into how many parts the window is cut: more are more exact and take more memory",
    ),
    key(
        "refill",
        Kind::Word(&["continuous", "interval"], &[]),
        Some("continuous"),
        "Whether tokens come one by one or all at once per period",
    ),
    key("queue", Kind::Whole(1, 1_000_000), None, "How many may wait: the bucket delays instead of refusing"),
    key("max_wait", Kind::Span, None, "The longest delay; nothing refuses at once"),
    key("slack", Kind::Whole(0, MAX_COUNT), None, "How many unused places a pause may save up for later"),
    key("warm_up", Kind::Span, None, "How long it takes from cold to the full rate"),
    key("cold_factor", Kind::Whole(2, 1000), Some("3"), "How many times slower a cold start is"),
    key("rate_by", Kind::Attribute, None, "The attribute that chooses among rates"),
    key("rates", Kind::Map(&Kind::Text, &Kind::Rate), None, "The rate of each value of rate_by"),
    key("otherwise", Kind::Rate, None, "The rate of every other value, and of none"),
    key("overrides", Kind::List(&Kind::Table(&OVERRIDE)), None, "Rates of single keys"),
    key(
        "replace",
        Kind::Word(&["as-is", "proportional", "reset"], &[]),
        Some("as-is"),
        "What a changed limit does with what was spent",
    ),
    key("max", Kind::Whole(1, Concurrency::MAX_PLACES), None, "The most in flight at once"),
    key(
        "ttl",
        Kind::Span,
        Some(PLACE_TTL),
        "After which time a place is free again although nobody gave it back; longer than any work takes",
    ),
    key("adaptive", Kind::Unavailable, None, "The law that moves the limit"),
    key("bandwidths", Kind::Unavailable, None, "Several rates of one bucket; write several limits instead"),
];

pub(super) const LIMIT: Table = Table { name: "limit", keys: LIMIT_KEYS, required: &[] };
pub(super) const SHADOW_LIMIT: Table = Table { name: "shadow_limit", keys: LIMIT_KEYS, required: &[] };

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
        key("not", Kind::Table(&NOT), None, "Requests that are left out"),
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
            "The HTTP status of a refusal; 429 unless given, and 503 by a concurrency limit: then we are short ourselves",
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

const ACCESS: Table = Table {
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

/// The keys of a policy that fall back to `defaults`.
pub(super) const INHERITED: &[&str] = &["mode", "near_limit", "on_store_error", "share"];

const MODE: Kind = Kind::Word(&["off", "shadow", "enforce"], &[]);
const SHARE: Kind = Kind::Word(share::WORDS, &[]);
const ON_STORE_ERROR: Kind = Kind::Word(&["allow", "deny", "local"], &[]);

pub(super) const POLICY: Table = Table {
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
        key("durable", Kind::Unavailable, None, "Whether each charge is on disk before it is answered"),
        key("breaker", Kind::Unavailable, None, "When a failing upstream is left alone"),
        key("deadline", Kind::Unavailable, None, "Whether the caller's deadline is respected"),
    ],
    required: &["name"],
};

const SERVER: Table = Table {
    name: "server",
    keys: &[
        key("http", Kind::Socket, Some("127.0.0.1:8080"), "Where checks are answered over HTTP"),
        key(
            "admin",
            Kind::Socket,
            Some("127.0.0.1:9080"),
            "Where the dashboard, metrics and administration live",
        ),
        key("grpc", Kind::Unavailable, None, "Where Envoy's rate limit protocol is answered"),
        key("resp", Kind::Unavailable, None, "Where the Redis protocol is answered"),
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

const STORE: Table = Table {
    name: "store",
    keys: &[
        key(
            "kind",
            Kind::Word(&["memory"], &["disk", "redis", "etcd", "zookeeper"]),
            Some("memory"),
            "Where counters live",
        ),
        key(
            "keys",
            Kind::Whole(1, 1 << 32),
            Some("1000000"),
            "How many keys are held at most; the nearest to full is given up for a new one",
        ),
        key(
            "key_form",
            Kind::Word(&["fingerprint", "full"], &[]),
            Some("fingerprint"),
            "What is kept of a key: a fingerprint, in 24 bytes a key; or the key, in 48",
        ),
        key("path", Kind::Unavailable, None, "The folder of the disk store"),
        key("url", Kind::Unavailable, None, "The address of a shared store"),
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
        key("share", SHARE, Some("local"), "Where limits are decided when several nodes enforce them"),
        key(
            "headers",
            Kind::Word(&["draft-11", "draft-03", "x-ratelimit", "none"], &[]),
            Some("draft-11"),
            "Which rate limit headers answers carry",
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
