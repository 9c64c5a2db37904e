//! Which keys a limit may have, and which of them belong to each algorithm.

use tidegate_core::Criticality;
use tidegate_core::concurrency::Concurrency;

use super::breaker::{self, BREAKER};
use crate::grammars::FACTOR;
use crate::keys::{Key, Kind, Table, key};

#[derive(Debug)]
pub(crate) struct AlgorithmKeys {
    pub(crate) name: &'static str,
    /// The keys that it shares with other algorithms of its kind.
    pub(crate) common: &'static [&'static str],
    pub(crate) takes: &'static [&'static str],
    pub(crate) needs: &'static [&'static str],
}

impl AlgorithmKeys {
    pub(crate) fn has(&self, key: &str) -> bool {
        self.common.contains(&key) || self.takes.contains(&key)
    }
}

/// The keys of every limit that has a rate, whatever its algorithm.
pub(crate) const RATED: &[&str] = &["algorithm", "rate", "overrides", "replace", "follows"];

/// The common keys of guards, which have no rate.
const GUARDING: &[&str] = &["algorithm", "replace"];

pub(crate) const CONCURRENCY: &str = "concurrency";

/// How long a place is held unless the file says otherwise: the usual read timeout of proxies, after which no caller
/// waits for the answer.
pub(crate) const PLACE_TTL: &str = "60s";

/// The algorithms, in the order of the manual.
pub(crate) const ALGORITHMS: &[AlgorithmKeys] = &[
    AlgorithmKeys { name: "gcra", common: RATED, takes: &["burst", "max_wait", "keep_for"], needs: &[] },
    AlgorithmKeys {
        name: "token-bucket",
        common: RATED,
        takes: &["burst", "refill", "start", "max_wait", "keep_for"],
        needs: &[],
    },
    AlgorithmKeys {
        name: "leaky-bucket",
        common: RATED,
        takes: &["burst", "queue", "max_wait", "slack", "keep_for"],
        needs: &[],
    },
    AlgorithmKeys { name: "fixed-window", common: RATED, takes: &["calendar", "keep_for"], needs: &[] },
    AlgorithmKeys { name: "sliding-window", common: RATED, takes: &["buckets", "keep_for"], needs: &[] },
    AlgorithmKeys { name: "sliding-counter", common: RATED, takes: &["keep_for"], needs: &[] },
    AlgorithmKeys { name: "sliding-log", common: RATED, takes: &["keep_for"], needs: &[] },
    AlgorithmKeys {
        name: "warm-up",
        common: RATED,
        takes: &["warm_up", "burst", "max_wait"],
        needs: &["warm_up"],
    },
    AlgorithmKeys { name: "x-time", common: RATED, takes: &["burst", "max_wait", "keep_for"], needs: &[] },
    AlgorithmKeys {
        name: "uber-pacer",
        common: RATED,
        takes: &["slack", "max_wait", "keep_for"],
        needs: &[],
    },
    AlgorithmKeys { name: "guava-bursty", common: RATED, takes: &["max_wait"], needs: &[] },
    AlgorithmKeys {
        name: "guava-warming",
        common: RATED,
        takes: &["warm_up", "max_wait"],
        needs: &["warm_up"],
    },
    AlgorithmKeys {
        name: CONCURRENCY,
        common: GUARDING,
        takes: &["max", "ttl", "keep_for"],
        needs: &["max"],
    },
    AlgorithmKeys { name: ADAPTIVE, common: GUARDING, takes: ADAPTIVE_TAKES, needs: &[] },
    AlgorithmKeys { name: BREAKER, common: GUARDING, takes: breaker::TAKES, needs: &[] },
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

pub(super) const MAX_COUNT: u64 = tidegate_core::Rate::MAX_COUNT;

const RATES: Table = Table {
    name: "rate",
    keys: &[
        key("by", Kind::Attribute, None, "The attribute that selects one of the rates"),
        key("values", Kind::Map(&Kind::Text, &Kind::Rate), None, "The rate of each value of the attribute"),
        key(
            "otherwise",
            Kind::Rate,
            None,
            "The rate of every other value, and of requests without the attribute",
        ),
    ],
    required: &["by", "values", "otherwise"],
};

const OVERRIDE: Table = Table {
    name: "override",
    keys: &[
        key(
            "key",
            Kind::Map(&Kind::Attribute, &Kind::Text),
            None,
            "The key that has this limit, as user.id: vip",
        ),
        key("rate", Kind::Rate, None, "The rate of this key"),
        key("burst", Kind::Whole(1, MAX_COUNT), None, "The burst of this key"),
    ],
    required: &["key", "rate"],
};

/// The levels that a part of a limit is kept for: all but the lowest.
const LEVELS_KEPT_FOR: [&str; 3] =
    [Criticality::CriticalPlus.as_str(), Criticality::Critical.as_str(), Criticality::SheddablePlus.as_str()];

const PLAIN_KEYS: &[Key] = &[
    key("algorithm", Kind::Word(ALGORITHM_NAMES, &[]), Some("gcra"), "The algorithm that counts"),
    key(
        "rate",
        Kind::Either(&Kind::Rate, &Kind::Table(&RATES)),
        None,
        "How fast capacity returns, or the count of a window, as 100/s, 60/min, 100/10min, or unlimited, or a table of rates by an attribute, for plans; for sliding-log at most 16,384",
    ),
    key(
        "burst",
        Kind::Whole(1, MAX_COUNT),
        None,
        "The most units granted at once; not with queue; default: the count of the rate",
    ),
    key(
        "calendar",
        Kind::Zone,
        None,
        "The time zone, as Europe/Paris, whose seconds to years are the windows, for a rate per one unit (5/day); or epoch: equal windows since 1970, weeks from Thursday; default: a window opens with the first request",
    ),
    key(
        "buckets",
        Kind::Whole(1, 1024),
        Some("10"),
        "The number of parts of the window, of a breaker up to 256, for limits whose edges matter: more are more exact and take more memory",
    ),
    key(
        "refill",
        Kind::Word(&["continuous", "interval", "aligned"], &[]),
        Some("continuous"),
        "Whether tokens return one by one (continuous), or all at once: a period after the first use of a full bucket and after each further one (interval), or at each multiple of the period since 1970 in UTC (aligned), for quotas that a price list counts by the clock; kept up to burst",
    ),
    key(
        "start",
        Kind::Whole(0, MAX_COUNT),
        None,
        "How many tokens a key has when it is first seen, at most the burst (default), for fleets that restart and callers who make up keys; such keys, also refused ones, stay until the store needs room; for adaptive, the limit before the first sample, by default 20",
    ),
    key(
        "queue",
        Kind::Whole(1, 1_000_000),
        None,
        "How many requests may wait, within max_wait (then required): the bucket delays instead of refusing, for services that need an even pace",
    ),
    key("max_wait", Kind::Span, None, "The longest delay; default: requests are refused at once"),
    key(
        "slack",
        Kind::Whole(0, MAX_COUNT),
        None,
        "How many unused requests a pause may save up, for services that bear a short burst after it; default: 10 for uber-pacer, 0 with queue",
    ),
    key(
        "warm_up",
        Kind::Span,
        None,
        "The time from a cold start, at a third of the rate, to the full rate, up to 13 days, for services that fill caches first",
    ),
    key("overrides", Kind::List(&Kind::Table(&OVERRIDE)), None, "Rates of single keys"),
    key(
        "replace",
        Kind::Word(&["as-is", "proportional", "reset"], &[]),
        Some("as-is"),
        "What happens to units already spent when the limit changes, for plans that callers move between",
    ),
    key(
        "max",
        Kind::Whole(1, Concurrency::MAX_PLACES),
        None,
        "The most requests in flight at once; for adaptive, the largest value of the limit, by default that of the law",
    ),
    key(
        "ttl",
        Kind::Span,
        Some(PLACE_TTL),
        "A place, or the probe of a breaker, that nobody returned is free again after this time (at most a thousandth later); set it longer than any work takes, or extend places, else more than max run; below 1ms it limits nothing",
    ),
    key(
        "keep_for",
        Kind::Map(&Kind::Word(&LEVELS_KEPT_FOR, &[]), &Kind::Kept),
        None,
        "The part of the limit, a share or units, that only requests of at least a level of priority may use; it includes the parts of higher levels",
    ),
    key(
        "follows",
        Kind::Source,
        None,
        "The number that the rate follows, the range over which the rate falls, and the rate at its upper end, as memory 70%..90% to 100/s",
    ),
    key(
        "adaptive",
        Kind::Elsewhere("algorithm: adaptive, and its law as law: hill-climb"),
        None,
        "An adaptive limit is an algorithm, with a law that moves it",
    ),
    key("bandwidths", Kind::Unavailable, None, "Several rates of one bucket; write several limits instead"),
];

const PARTS: [&[Key]; 3] = [PLAIN_KEYS, &ADAPTIVE_KEYS, &breaker::KEYS];

const KEY_COUNT: usize = {
    let (mut count, mut part) = (0, 0);
    while part < PARTS.len() {
        count += PARTS[part].len();
        part += 1;
    }
    count
};

/// All keys of a limit; those of a single guard come last.
const LIMIT_KEYS: &[Key] = &{
    let mut keys = [PLAIN_KEYS[0]; KEY_COUNT];
    let (mut at, mut part) = (0, 0);
    while part < PARTS.len() {
        let mut own = 0;
        while own < PARTS[part].len() {
            keys[at] = PARTS[part][own];
            (at, own) = (at + 1, own + 1);
        }
        part += 1;
    }
    keys
};

pub(crate) const LIMIT: Table = Table { name: "limit", keys: LIMIT_KEYS, required: &[] };

pub(crate) const SHADOW_LIMIT: Table = Table { name: "shadow_limit", keys: LIMIT_KEYS, required: &[] };

pub(crate) const CANARY_LIMIT: Table = Table { name: "canary.limit", keys: LIMIT_KEYS, required: &[] };

pub(crate) const ADAPTIVE: &str = "adaptive";

/// The keys that only adaptive limits have, beside those that they [share](SHARED).
const ADAPTIVE_KEYS: [Key; 5] = [
    key(
        "law",
        Kind::Word(&LAW_NAMES, &[]),
        Some("hill-climb"),
        "The law that moves the limit: by how much work is quick, by reported overload, by latency (vegas, gradient), or by the use of the processor",
    ),
    key(
        "min",
        Kind::Whole(1, Concurrency::MAX_PLACES),
        None,
        "The smallest value of the limit; default: that of the law",
    ),
    key("backoff", Kind::Percent(10, 99), None, "The share that the limit falls to after an overload"),
    key(
        "tolerance",
        Kind::Read(&FACTOR),
        None,
        "How many times longer than usual calls may take, 1 to 10; more for services whose calls vary much",
    ),
    key(
        "busy_from",
        Kind::Percent(1, 100),
        None,
        "The use of the processor from which the limit holds, for machines that other programs share",
    ),
];

/// The keys that adaptive limits share with other algorithms.
const SHARED: [&str; 5] = ["start", "max", "ttl", "keep_for", "slow_after"];

/// All keys that belong to `algorithm: adaptive`.
const ADAPTIVE_TAKES: &[&str] = &{
    let mut names = [""; ADAPTIVE_KEYS.len() + SHARED.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] =
            if at < ADAPTIVE_KEYS.len() { ADAPTIVE_KEYS[at].name } else { SHARED[at - ADAPTIVE_KEYS.len()] };
        at += 1;
    }
    names
};

#[derive(Debug)]
pub(crate) struct LawWords {
    pub(crate) name: &'static str,
    pub(crate) words: &'static [(&'static str, Option<&'static str>)],
}

impl LawWords {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        LAWS.iter().find(|law| law.name == name)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.words.iter().any(|(name, _)| *name == key)
    }

    /// Returns the default of a parameter; `None` if it has none.
    pub(crate) fn word(&self, key: &str) -> Option<&'static str> {
        self.words.iter().find(|(name, _)| *name == key).and_then(|(_, word)| *word)
    }

    pub(crate) fn with(key: &str) -> impl Iterator<Item = &'static str> {
        LAWS.iter().filter(move |law| law.has(key)).map(|law| law.name)
    }
}

const LAWS: [LawWords; 5] = [
    LawWords { name: "hill-climb", words: &[] },
    LawWords { name: "aimd", words: &[("backoff", Some("90%")), ("slow_after", Some("5s"))] },
    LawWords { name: "vegas", words: &[] },
    LawWords {
        name: "gradient",
        words: &[("tolerance", Some("1.5")), ("backoff", Some("90%")), ("slow_after", None)],
    },
    LawWords { name: "bbr", words: &[("busy_from", Some("80%"))] },
];

const LAW_NAMES: [&str; LAWS.len()] = {
    let mut names = [""; LAWS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = LAWS[at].name;
        at += 1;
    }
    names
};
