//! The keys of `algorithm: adaptive`, and the default parameters of each law as a file would write them.

use tidegate_core::concurrency::Concurrency;

use crate::grammars::FACTOR;
use crate::kind::{Key, Kind, key};

/// The algorithm of an adaptive limit: a law moves the number of requests in flight that it allows.
pub(crate) const ADAPTIVE: &str = "adaptive";

/// The keys that only adaptive limits have; they share [others](SHARED) with more algorithms.
pub(super) const KEYS: [Key; 5] = [
    key(
        "law",
        Kind::Word(&LAW_NAMES, &[]),
        Some("hill-climb"),
        "The law that moves the limit: by experiment, by reported overload, by latency (vegas, gradient), or by the use of the processor",
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
pub(super) const TAKES: &[&str] = &{
    let mut names = [""; KEYS.len() + SHARED.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = if at < KEYS.len() { KEYS[at].name } else { SHARED[at - KEYS.len()] };
        at += 1;
    }
    names
};

/// One law: its name, its parameters and their defaults.
#[derive(Debug)]
pub(crate) struct LawWords {
    pub(crate) name: &'static str,
    pub(crate) words: &'static [(&'static str, Option<&'static str>)],
}

impl LawWords {
    /// Returns the law with a name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        LAWS.iter().find(|law| law.name == name)
    }

    /// Reports whether the law has a parameter.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.words.iter().any(|(name, _)| *name == key)
    }

    /// Returns the default of a parameter; `None` if it has none.
    pub(crate) fn word(&self, key: &str) -> Option<&'static str> {
        self.words.iter().find(|(name, _)| *name == key).and_then(|(_, word)| *word)
    }

    /// Returns the names of the laws that have a parameter.
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
