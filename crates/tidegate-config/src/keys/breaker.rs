//! The keys of `algorithm: breaker`, and the default parameters of each profile as a file would write them.

use tidegate_core::breaker::Window;
use tidegate_core::concurrency::Concurrency;

use crate::grammars::{FAILURES, OPEN_FOR, SLOW, WINDOW};
use crate::keys::{Key, Kind, key};

pub(crate) const BREAKER: &str = "breaker";

/// The keys that only breakers have, and `slow_after`, which adaptive limits share.
pub(super) const KEYS: [Key; 11] = [
    key(
        "profile",
        Kind::Word(&PROFILE_NAMES, &[]),
        Some("tidegate"),
        "Whose defaults and arithmetic are used: Tidegate's, another library's, or those of sre, which sheds",
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
    key(
        "slow_after",
        Kind::Span,
        None,
        "A call that takes longer is slow: slow_calls counts it, and for the laws aimd and gradient it is an overload",
    ),
    key("slow_calls", Kind::Read(&SLOW), None, "The breaker opens when this share of the calls was slow"),
    key(
        "shed_at_most",
        Kind::Percent(1, 99),
        None,
        "Instead of opening, a breaker refuses what goes beyond its thresholds, and at most this share of the calls, for services that still answer some calls while they fail; default: 99% of sre",
    ),
    key(
        "min_calls",
        Kind::Whole(1, Window::MAX_CALLS as u64),
        None,
        "With fewer calls in the window, only consecutive opens the breaker; by default at most the window's calls",
    ),
    key(
        "open_for",
        Kind::Read(&OPEN_FOR),
        None,
        "How long the breaker is open the first time, or the first time and at most, as 5s..60s: each time is twice the one before",
    ),
    key(
        "probes",
        Kind::Whole(1, Concurrency::MAX_PLACES),
        None,
        "The most calls that may probe the service at once",
    ),
    key(
        "close_after",
        Kind::Whole(1, MOST_CALLS),
        None,
        "This many good probes close the breaker, and one bad probe opens it; default: as the profile judges probes",
    ),
];

const MOST_CALLS: u64 = 1 << 16;

/// All keys that belong to `algorithm: breaker`.
pub(super) const TAKES: &[&str] = &{
    let mut names = ["ttl"; KEYS.len() + 2];
    let mut at = 0;
    while at < KEYS.len() {
        names[at] = KEYS[at].name;
        at += 1;
    }
    names[at] = "buckets";
    names
};

/// One profile. Words that are no keys of the file change with the profile alone.
#[derive(Debug)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    pub(crate) words: &'static [(&'static str, &'static str)],
    /// The words of the keys that `words` leaves out.
    others: &'static [(&'static str, &'static str)],
    /// Whether the first probe comes strictly after the open time instead of at its end.
    pub(crate) strictly_after: bool,
}

impl Profile {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    pub(crate) fn word(&self, key: &str) -> Option<&'static str> {
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
    ("evaluate", "each-call"),
    ("ttl", "60s"),
];

/// The defaults of other libraries' breakers, where a profile sets no other.
const ALL_ALIKE: &[(&str, &str)] = &[
    ("failures", "50%"),
    ("trips", "at"),
    ("evaluate", "each-call"),
    ("ttl", "60s"),
    ("growth", "1"),
    ("jitter", "0%"),
    ("probes", "1"),
    ("steps", "0"),
    ("forget_after", "never"),
];

const PROFILES: [Profile; 5] = [
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
            // As many are judged together.
            ("probes", "10"),
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
        name: "sre",
        words: &[("window", "2min"), ("buckets", "120"), ("min_calls", "1"), ("shed_at_most", "99%")],
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
