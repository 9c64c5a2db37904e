//! The keys of a policy.

use tidegate_core::Criticality;

use super::limit::{CANARY_LIMIT, LIMIT, MAX_COUNT, SHADOW_LIMIT};
use crate::grammars::{KEY_SHARE, MORE, OVER};
use crate::keys::{Key, Kind, Table, key};
use tidegate_gate::policy::{OnCostError, Share};

const WANT: Kind = Kind::Either(&Kind::Glob, &Kind::List(&Kind::Glob));

const METHOD: Key = key("method", Kind::OneOrMany(&Kind::Method), None, "Methods, as POST, in any case");

const PATH: Key = key(
    "path",
    Kind::OneOrMany(&Kind::Path),
    None,
    "Path patterns, as /login, /api/**, /v?/{users,teams}/*; case-sensitive",
);

const HOST: Key = key(
    "host",
    Kind::OneOrMany(&Kind::Host),
    None,
    "Hosts, as api.example.com, or *.example.com (not the domain itself), in lower case without port",
);

const HEADER: Key = key(
    "header",
    Kind::Map(&Kind::Header, &WANT),
    None,
    "Headers by name: a case-sensitive value, a pattern or a list; true: present; false: absent",
);

const ATTRIBUTES: Key = key(
    "attributes",
    Kind::Map(&Kind::Attribute, &WANT),
    None,
    "Other attributes by name, in the same form as header",
);

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
            "Requests that do not match; of a list, up to 16, requests that match any of its elements",
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
            "The HTTP status of a refusal; default: 429, and 503 if a concurrency limit, an adaptive limit, a breaker or a deadline refuses, since the service is then overloaded",
        ),
        key(
            "problem",
            Kind::Problem,
            None,
            "The type of the problem in a refusal: quota-exceeded (default), temporary-reduced-capacity (default from status 500), abnormal-usage-detected, or a URI",
        ),
    ],
    required: &[],
};

pub(super) const ACCESS: Table = Table {
    name: "access",
    keys: &[
        key(
            "allow",
            Kind::List(&Kind::Entry),
            None,
            "Callers that are neither limited nor charged: networks or addresses of client.ip, or attribute=value",
        ),
        key(
            "deny",
            Kind::List(&Kind::Entry),
            None,
            "Callers that are refused whatever the limits say, in the same form; wins over allow of its section",
        ),
        key("status", Kind::Whole(400, 599), Some("403"), "The HTTP status of these refusals"),
    ],
    required: &[],
};

const BY: Key = key("by", Kind::Attribute, None, "The attribute that selects the cost");

const VALUES: Key =
    key("values", Kind::Map(&Kind::Text, &Kind::Whole(1, MAX_COUNT)), None, "The cost of each value");

const OTHERWISE: Key = key(
    "otherwise",
    Kind::Whole(1, MAX_COUNT),
    None,
    "The cost of every other value, and of requests without the attribute",
);

const ESTIMATE: Table =
    Table { name: "estimate", keys: &[BY, VALUES, OTHERWISE], required: &["by", "values", "otherwise"] };

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
            "The units that a check charges: a number, an attribute, an expression, a table, or learned from settlements: what 90% of the requests cost at most, or as learned 99%; default: the caller's cost, else 1",
        ),
        key(
            "start",
            Kind::Whole(1, MAX_COUNT),
            None,
            "With estimate: learned, required: the units that a check charges until 20 are settled",
        ),
        key(
            "caller",
            Kind::Word(&["ignored", "believed"], &[]),
            Some("ignored"),
            "Whether a cost in the check wins over the estimate (believed), for gateways that count tokens themselves",
        ),
        key(
            "settle",
            Kind::Settle,
            None,
            "The real cost, from the values in the settlement: llm.total, llm.input + 3 * llm.output; default: the cost in the settlement",
        ),
        key(
            "missing",
            Kind::Map(&Kind::Usage, &Kind::Whole(0, MAX_COUNT)),
            None,
            "Defaults for up to 16 values that a settlement leaves out, unless it sends none at all, for services that report some only if they are not zero; without them the estimate stands",
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
pub(crate) const INHERITED: &[&str] = &["mode", "near_limit", "on_store_error", "durable", "share"];

pub(super) const MODE: Kind = Kind::Word(&["off", "shadow", "enforce"], &[]);

pub(super) const SHARE: Kind = Kind::Word(SHARES, &[]);
/// Where limits are decided, as written in the file.
pub(crate) const SHARES: &[&str] =
    &[Share::ALL[0].word(), Share::ALL[1].word(), Share::ALL[2].word(), Share::ALL[3].word()];

pub(super) const DURABLE: Kind = Kind::Word(&["interval", "strict"], &[]);

pub(super) const ON_STORE_ERROR: Kind = Kind::Word(&["allow", "deny", "local"], &[]);

pub(crate) const CANARY_GUARD: Table = Table {
    name: "canary.guard",
    keys: &[
        key(
            "denied",
            Kind::Read(&MORE),
            Some("+1%"),
            "How much more of its requests may be refused than of other keys'",
        ),
        key("keys_refused", Kind::Whole(1, 1_000_000), Some("20"), "How many of its keys may be refused"),
        key(
            "failures",
            Kind::Read(&MORE),
            Some("+2%"),
            "How much more of its calls may fail, for services that report how calls end",
        ),
    ],
    required: &[],
};

pub(crate) const CANARY: Table = Table {
    name: "canary",
    keys: &[
        key(
            "limit",
            Kind::Table(&CANARY_LIMIT),
            None,
            "The limit, in place of the first one; keys that it lacks are that one's",
        ),
        key(
            "share",
            Kind::Read(&KEY_SHARE),
            None,
            "The share of the keys, 0.1% to 50%; the same ones on every node",
        ),
        key("for", Kind::Span, None, "How long, 1min to 30d"),
        key("guard", Kind::Table(&CANARY_GUARD), None, "What ends it early: its share is then 0"),
        key(
            "then",
            Kind::Word(&["hold", "enforce"], &[]),
            Some("hold"),
            "Whether its share stays afterwards (hold), or all keys have its limit (enforce)",
        ),
    ],
    required: &["limit", "share", "for"],
};

pub(crate) const POLICY: Table = Table {
    name: "policy",
    keys: &[
        key(
            "name",
            Kind::Name,
            None,
            "The name, unique in the file, up to 128 printable bytes, not . or ..; counters are kept by name, and answers and metrics have it",
        ),
        key(
            "direction",
            Kind::Word(&["inbound", "outbound"], &[]),
            Some("inbound"),
            "Whether the policy limits requests that you receive, or requests that you send: those whose request.direction is outbound",
        ),
        key("match", Kind::Table(&MATCH), None, "The requests that the policy applies to; default: all"),
        key(
            "when",
            Kind::OneOrMany(&Kind::Condition),
            None,
            "Conditions that must all hold, as cpu above 80%, until 70%; otherwise the policy is not in force and charges nothing",
        ),
        key(
            "by",
            Kind::OneOrMany(&Kind::Attribute),
            None,
            "Up to 16 attributes that make the key, as client.ip; default: one key for all requests",
        ),
        key(
            "absent",
            Kind::Word(&["skip-if-none", "charge", "skip"], &[]),
            Some("skip-if-none"),
            "What happens when the request lacks attributes of the key",
        ),
        key(
            "limit",
            Kind::OneOrMany(&Kind::Table(&LIMIT)),
            None,
            "The limit, or a list of up to 16 limits that must all allow a request, else none is charged",
        ),
        key(
            "shadow_limit",
            Kind::Table(&SHADOW_LIMIT),
            None,
            "A limit that is only measured, in addition to the real one; keys that it lacks are taken from the real one",
        ),
        key("canary", Kind::Table(&CANARY), None, "A limit that is tried for real on a share of the keys"),
        key(
            "cost",
            Kind::Either(&Kind::Cost, &Kind::Table(&COST)),
            None,
            "The cost of a request: a number, an attribute as llm.tokens, an expression, a table, or an estimate that is settled; default: the caller's cost, else 1",
        ),
        key(
            "on_cost_error",
            Kind::Word(&OnCostError::WORDS, &[]),
            None,
            "What happens to a request whose cost cannot be worked out: deny (default) refuses it, whole-limit charges all that the limit grants at once, for services that prefer an unknown cost to a refusal",
        ),
        key(
            "charge",
            Kind::Word(&["on-check", "on-failure", "always"], &[]),
            Some("on-check"),
            "What is charged: requests that pass; only those for which no success is reported; or also refused ones, as a debt where there is no room, for units that Envoy reports when a response ends",
        ),
        key(
            "mode",
            MODE,
            None,
            "Whether the policy does nothing (off), is measured and never refuses (shadow), or refuses (enforce)",
        ),
        key("deny", Kind::Table(&DENY), None, "How a refusal is answered"),
        key(
            "access",
            Kind::Table(&ACCESS),
            None,
            "Callers that the policy does not limit, and callers that it always refuses",
        ),
        key(
            "near_limit",
            Kind::Percent(1, 100),
            None,
            "The used share of the limit from which a key is reported as near it",
        ),
        key(
            "on_store_error",
            ON_STORE_ERROR,
            None,
            "What happens when the store cannot decide: a store of this process does (local), requests pass (allow), or are refused with 503 (deny)",
        ),
        key("share", SHARE, None, "Where the limit is decided when several nodes enforce it"),
        key(
            "durable",
            DURABLE,
            None,
            "When a charge is written to disk: interval (shortly after the answer) or strict (before it)",
        ),
        key(
            "concurrency",
            Kind::Elsewhere("limit: { algorithm: concurrency, max: ... }"),
            None,
            "The number of places is a limit: it refuses requests while as many are in flight",
        ),
        key(
            "breaker",
            Kind::Elsewhere("limit: { algorithm: breaker, ... }"),
            None,
            "A breaker is a limit: it refuses requests to a service that fails",
        ),
        key(
            "deadline",
            Kind::Span,
            None,
            "The shortest time that a request needs; a request with less time left is refused without charge, with 503 unless deny.status is set",
        ),
        key(
            "over",
            Kind::Read(&OVER),
            Some("deny"),
            "What happens to a request over the limit: it is refused, delayed up to max_wait, refused and its key blocked for a time (block 10min), marked and allowed, or allowed with a lower priority (demote, one level below its own, or demote to sheddable)",
        ),
    ],
    required: &["name"],
};

// The keys of what turns a degrade switch off.

/// The shortest time off, as [`Trigger::HOLD`](tidegate_gate::policy::Trigger::HOLD).
const HOLD: &str = "10s";

pub(crate) const SWITCH: Table = Table {
    name: "switch",
    keys: &[
        key(
            "off_when",
            Kind::Condition,
            None,
            "The condition under which the switch is off, as cpu above 80%, until 70%; not on a switch; stale after 10min (default, at most a day) says how long it stays off after the last reading",
        ),
        key(
            "below",
            Kind::Word(&LEVELS, &[]),
            None,
            "The switch is off only for requests below this priority; default: for all",
        ),
        key(
            "hold",
            Kind::Span,
            Some(HOLD),
            "The shortest time that the switch is off, up to 30 days; longer than the number takes to follow",
        ),
    ],
    required: &["off_when"],
};

#[cfg(test)]
mod tests {
    use super::HOLD;
    use tidegate_gate::policy::{Trigger, span};

    #[test]
    fn the_default_is_that_of_a_trigger() {
        assert_eq!(span(HOLD), Ok(Trigger::HOLD));
    }
}
