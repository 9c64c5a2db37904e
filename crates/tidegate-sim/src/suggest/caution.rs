//! Cautions about a suggestion, as sentences.

use std::fmt;

use serde::{Serialize, Serializer};
use tidegate::visible;

use crate::units::{grouped, percent};

/// A caution about the numbers of a suggestion.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Caution {
    /// The share of keys to keep amounts to every key.
    EveryKey {
        /// The requested share, 0 to 1.
        keep: f64,
        /// The number of keys.
        keys: u64,
    },
    /// The log names no users.
    NoUsers,
    /// The log lacks the fields that tell crawlers from offices.
    NoEvidence {
        /// Whether the log has paths.
        paths: bool,
        /// Whether the log has user agents.
        agents: bool,
    },
    /// Some keys that the recommended limit cuts look like jobs on a timer, or other programs.
    CutPrograms {
        /// The one with the most requests.
        key: String,
        /// The number of such keys.
        keys: u64,
    },
    /// Some keys that the recommended limit cuts are crawlers whose agent names them, such as a backup or a search
    /// engine.
    CutCrawlers {
        /// The one with the most requests.
        key: String,
        /// The number of such keys.
        keys: u64,
    },
    /// An agent is sent both by people and by a crawler that uses many keys.
    BorrowedAgent {
        /// The agent.
        agent: String,
        /// The number of keys that send it.
        keys: u64,
        /// The number of requests with it.
        requests: u64,
    },
    /// Some keys that the recommended limit cuts sent several agents, as several people behind one address do.
    CutSeveral {
        /// The one with the most requests.
        key: String,
        /// The number of such keys.
        keys: u64,
    },
    /// The recommended limit cuts keys that signed in, because nearly all keys did.
    CutSignedIn {
        /// The one with the most requests.
        key: String,
        /// The number of such keys.
        keys: u64,
    },
    /// The cost of some requests could not be determined.
    CostsUnknown {
        /// The number of such requests.
        requests: u64,
    },
    /// There were more keys than could be remembered.
    Forgotten {
        /// The most burst that a forgotten key needed.
        most: u64,
    },
    /// No policy counts the requests that were read, so none is written.
    Unwritten {
        /// The reason.
        why: String,
    },
    /// Keys were forgotten while a proposal was replayed.
    Evicted {
        /// The number of such keys.
        keys: u64,
    },
}

impl fmt::Display for Caution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EveryKey { keep, keys } => {
                let fewer = percent(1.0 - 1.0 / (*keys).max(2) as f64);
                write!(
                    f,
                    "{} of {keys} keys is every key, including the worst; keep {fewer} or less to leave one out",
                    percent(*keep)
                )
            }
            Self::NoUsers => {
                f.write_str("the log names no users, so it does not show which keys signed in: look at the names of the keys hit")
            }
            Self::NoEvidence { paths, agents } => {
                let lacks = match (paths, agents) {
                    (false, false) => "paths and no agents",
                    (false, true) => "paths",
                    _ => "agents",
                };
                write!(
                    f,
                    "the log has no {lacks}, which would distinguish a crawler from an office or an app that polls: only keys that are five times as \
                     fast as all others are cut"
                )
            }
            Self::CutPrograms { key, keys } => {
                let looks = ["looks like a job on a timer or a program", "look like jobs on a timer or programs"];
                let (they, them) = if *keys == 1 { ("it", "it") } else { ("they", "them") };
                write!(
                    f,
                    "{}: {they} may belong to a partner or to you; find out before you enforce the limit, or put {them} on an `allow` list",
                    of_those_cut(key, *keys, looks)
                )
            }
            Self::CutCrawlers { key, keys } => {
                let reads = ["reads page after page under a name of its own", "read page after page under names of their own"];
                let them = if *keys == 1 { "it" } else { "them" };
                write!(
                    f,
                    "{}, as a scraper does, but also a backup, a mirror or a search engine: the log does not show which, so if you know {them}, \
                     put {them} on an `allow` list",
                    of_those_cut(key, *keys, reads)
                )
            }
            Self::BorrowedAgent { agent, keys, requests } => write!(
                f,
                "{} requests of {} keys have the agent {} and load hardly any images or scripts, although people send this agent too: a crawler that \
                 changes its address may be among them; no limit can separate the two, so none is proposed for it",
                grouped(*requests),
                grouped(*keys),
                visible::name(agent)
            ),
            Self::CutSeveral { key, keys } => write!(
                f,
                "{}: if several people share an address, the limit cuts them all",
                of_those_cut(key, *keys, ["sent several agents"; 2])
            ),
            Self::CutSignedIn { key, keys } => write!(
                f,
                "{}: nearly all keys did, so no key is spared for it; find out who this is before you enforce the limit",
                of_those_cut(key, *keys, ["signed in"; 2])
            ),
            Self::CostsUnknown { requests } => {
                write!(f, "the cost of {} requests could not be computed: they are left out", grouped(*requests))
            }
            Self::Forgotten { most } => write!(
                f,
                "more keys than can be remembered: the keys with the fewest requests, which all need a burst of {most} or less, were left out of the search, so \
                 no burst below that is proposed; the denials of the proposals were counted with all keys"
            ),
            Self::Unwritten { why } => {
                write!(f, "no policy is written, since none would count the requests that were read: {}", visible::line(why))
            }
            Self::Evicted { keys } => {
                write!(f, "{keys} keys were forgotten while they were in use, so the number of denials may be too low")
            }
        }
    }
}

impl Serialize for Caution {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Begins a caution about keys that the recommended limit cuts. `does` completes the sentence for one key, `several_do`
/// for several.
fn of_those_cut(key: &str, keys: u64, [does, several_do]: [&str; 2]) -> String {
    let key = visible::name(key);
    match keys {
        1 => format!("{key}, which the recommended limit cuts, {does}"),
        keys => format!(
            "{} of the keys that the recommended limit cuts, {key} first, {several_do}",
            grouped(keys)
        ),
    }
}
