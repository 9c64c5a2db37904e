//! The keys of `algorithm: breaker`, and the default parameters of each profile as a file would write them.

use tidegate_core::breaker::{CircuitBreaker, Window};
use tidegate_core::concurrency::Concurrency;

use crate::config::grammars::{EVALUATE, FACTOR, FAILURES, FORGET, SHARE, SLOW, WINDOW};
use crate::config::kind::{Key, Kind, key};

/// The algorithm of a circuit breaker.
pub(in crate::config) const BREAKER: &str = "breaker";

/// The keys that only breakers have; they share `ttl` with concurrency limits and `buckets` with windows.
pub(super) const KEYS: [Key; 18] = [
    key(
        "profile",
        Kind::Word(&PROFILE_NAMES, &[]),
        Some("tidegate"),
        "Whose defaults and arithmetic are used: Tidegate's, another library's, or those of sre and envoy, which shed",
    ),
    key(
        "window",
        Kind::Read(&WINDOW),
        None,
        "The calls that are judged: those within a span of up to a day, as 10s, or the last ones, up to 16,384, as 100 calls",
    ),
    key(
        "failures",
        Kind::Read(&FAILURES),
        None,
        "The breaker opens when this share of the calls in the window failed, as 50%, or this number, 1 to 16,384",
    ),
    key(
        "consecutive",
        Kind::Whole(1, MOST_CALLS),
        None,
        "The breaker opens after this many failures in a row",
    ),
    key("slow_after", Kind::Span, None, "A call that takes longer is slow"),
    key("slow_calls", Kind::Read(&SLOW), None, "The breaker opens when this share of the calls was slow"),
    key(
        "shed_at_most",
        Kind::Percent(1, 99),
        None,
        "Instead of opening, a breaker refuses what goes beyond its thresholds, and at most this share of the calls; default: 99% of sre, 80% of envoy",
    ),
    key(
        "min_calls",
        Kind::Whole(1, Window::MAX_CALLS as u64),
        None,
        "With fewer calls in the window, only consecutive opens the breaker; by default at most the window's calls",
    ),
    key(
        "trips",
        Kind::Word(&["at", "above"], &[]),
        None,
        "Whether a threshold opens the breaker when it is reached or only when it is exceeded",
    ),
    key(
        "overloaded",
        Kind::Word(&["fails", "ignored"], &[]),
        None,
        "Whether a call that ended as overloaded (503, 429) counts as failed or does not count",
    ),
    key(
        "evaluate",
        Kind::Read(&EVALUATE),
        None,
        "When the thresholds are compared: each-call, each-failure, or at an interval of 1ms (or a thousandth of the window) to 1h",
    ),
    key("open_for", Kind::Span, None, "How long the breaker is open the first time"),
    key(
        "open_at_most",
        Kind::Span,
        None,
        "The longest open time of a breaker that opens again and again, if open_for is not longer",
    ),
    key(
        "growth",
        Kind::Read(&FACTOR),
        None,
        "How many times longer each open time is than the one before, 1 to 1000",
    ),
    key(
        "jitter",
        Kind::Read(&SHARE),
        None,
        "Each open time is shortened at random by up to this share, 0% to 100%",
    ),
    key(
        "probes",
        Kind::Whole(1, Concurrency::MAX_PLACES),
        None,
        "The most calls that may probe the service at once",
    ),
    key(
        "steps",
        Kind::Whole(0, CircuitBreaker::MAX_STEPS as u64),
        None,
        "The number of recovery steps that follow, each with twice as many calls at once",
    ),
    key(
        "forget_after",
        Kind::Read(&FORGET),
        None,
        "The breaker or limit forgets everything after this time (1s or more) without a trip or a sample, or without use; never keeps the key for ever; default of adaptive: 1h",
    ),
];

/// How probes are judged; at most one of the three is given.
pub(super) const JUDGED_BY: [Key; 3] = [
    key(
        "risk",
        Kind::Percent(1, 40),
        None,
        "The probability that the verdict on the probes is wrong, 1% to 40%",
    ),
    key(
        "close_after",
        Kind::Whole(1, MOST_CALLS),
        None,
        "Instead of risk: this many good probes close the breaker, and one bad probe opens it",
    ),
    key(
        "judge_calls",
        Kind::Whole(1, MOST_CALLS),
        None,
        "Instead of risk: this many probes are judged together, by the thresholds of the window",
    ),
];

/// The names of those three keys.
pub(in crate::config) const JUDGED_BY_NAMES: [&str; JUDGED_BY.len()] =
    [JUDGED_BY[0].name, JUDGED_BY[1].name, JUDGED_BY[2].name];

/// The largest number of calls that a breaker can be told to count.
const MOST_CALLS: u64 = 1 << 16;

/// All keys that belong to `algorithm: breaker`.
pub(super) const TAKES: &[&str] = &{
    let mut names = ["ttl"; KEYS.len() + JUDGED_BY.len() + 2];
    let mut at = 0;
    while at < KEYS.len() {
        names[at] = KEYS[at].name;
        at += 1;
    }
    while at < KEYS.len() + JUDGED_BY.len() {
        names[at] = JUDGED_BY[at - KEYS.len()].name;
        at += 1;
    }
    names[at] = "buckets";
    names
};

/// One profile: its name and its defaults.
#[derive(Debug)]
pub(in crate::config) struct Profile {
    pub(in crate::config) name: &'static str,
    pub(in crate::config) words: &'static [(&'static str, &'static str)],
    /// The words of the keys that `words` leaves out.
    others: &'static [(&'static str, &'static str)],
    /// Whether the first probe comes strictly after the open time instead of at its end.
    pub(in crate::config) strictly_after: bool,
}

impl Profile {
    /// Returns the profile with a name.
    pub(in crate::config) fn named(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// Returns the profile's default for a key.
    pub(in crate::config) fn word(&self, key: &str) -> Option<&'static str> {
        self.words.iter().chain(self.others).find(|(name, _)| *name == key).map(|(_, word)| *word)
    }
}

/// The defaults of Tidegate's own breaker.
const OURS: &[(&str, &str)] = &[
    ("window", "10s"),
    ("buckets", "10"),
    ("min_calls", "20"),
    ("open_for", "5s"),
    ("open_at_most", "60s"),
    ("growth", "2"),
    ("jitter", "20%"),
    ("probes", "3"),
    ("risk", "5%"),
    ("steps", "3"),
    ("forget_after", "5min"),
    ("failures", "50%"),
    ("trips", "at"),
    ("overloaded", "fails"),
    ("evaluate", "each-call"),
    ("ttl", "60s"),
];

/// The defaults of other libraries' breakers, where a profile does not set the key itself.
const ALL_ALIKE: &[(&str, &str)] = &[
    ("failures", "50%"),
    ("trips", "at"),
    ("overloaded", "fails"),
    ("evaluate", "each-call"),
    ("ttl", "60s"),
    ("growth", "1"),
    ("jitter", "0%"),
    ("probes", "1"),
    ("steps", "0"),
    ("forget_after", "never"),
];

const PROFILES: [Profile; 9] = [
    Profile { name: "tidegate", words: OURS, others: ALL_ALIKE, strictly_after: false },
    Profile {
        name: "hystrix",
        words: &[
            ("window", "10500ms"),
            ("buckets", "21"),
            ("min_calls", "20"),
            ("evaluate", "500ms"),
            ("open_for", "5s"),
            ("close_after", "1"),
        ],
        others: ALL_ALIKE,
        strictly_after: true,
    },
    Profile {
        name: "resilience4j",
        words: &[
            ("window", "100 calls"),
            ("min_calls", "100"),
            ("slow_after", "60s"),
            ("slow_calls", "100%"),
            ("open_for", "60s"),
            ("probes", "10"),
            ("judge_calls", "10"),
        ],
        others: ALL_ALIKE,
        strictly_after: true,
    },
    Profile {
        name: "sentinel",
        words: &[
            ("window", "1s"),
            ("buckets", "1"),
            ("min_calls", "5"),
            ("trips", "above"),
            ("open_for", "5s"),
            ("close_after", "1"),
        ],
        others: ALL_ALIKE,
        strictly_after: false,
    },
    Profile {
        name: "sentinel-go",
        words: &[
            ("window", "1s"),
            ("buckets", "1"),
            ("min_calls", "5"),
            ("open_for", "5s"),
            ("close_after", "1"),
        ],
        others: ALL_ALIKE,
        strictly_after: false,
    },
    Profile {
        name: "polly",
        words: &[
            ("window", "30s"),
            ("buckets", "10"),
            ("failures", "10%"),
            ("min_calls", "100"),
            ("evaluate", "each-failure"),
            ("open_for", "5s"),
            ("close_after", "1"),
        ],
        others: ALL_ALIKE,
        strictly_after: false,
    },
    Profile {
        name: "tower-resilience",
        words: &[("window", "100 calls"), ("min_calls", "100"), ("open_for", "30s"), ("close_after", "1")],
        others: ALL_ALIKE,
        strictly_after: false,
    },
    Profile {
        name: "sre",
        words: &[("window", "2min"), ("buckets", "120"), ("min_calls", "1"), ("shed_at_most", "99%")],
        others: OURS,
        strictly_after: false,
    },
    Profile {
        name: "envoy",
        words: &[
            ("window", "30s"),
            ("buckets", "30"),
            ("failures", "5%"),
            ("min_calls", "1"),
            ("shed_at_most", "80%"),
        ],
        others: OURS,
        strictly_after: false,
    },
];

const PROFILE_NAMES: [&str; PROFILES.len()] = {
    let mut names = [""; PROFILES.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = PROFILES[at].name;
        at += 1;
    }
    names
};
