//! The keys that stand out, each with its evidence and its fate.

use std::collections::HashSet;

use serde::Serialize;

use super::bursts::{KeyNeed, Needs};
use super::candidates::Known;
use super::signs::{ClientKind, Evidence, Signs};
use super::suggestion::Caution;
use super::watch::KeyWatch;

/// The most keys reported of each fate.
const SHOWN: usize = 5;

/// How a suggestion treats a key that stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The recommended limit cuts it.
    Cut,
    /// A limit is meant for it, but no limit by this key cuts it without others.
    Missed,
    /// The suggestion spares it.
    Spared,
}

/// A key that stands out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StandsOut {
    /// The key.
    pub key: String,
    #[serde(skip)]
    pub(super) hash: u64,
    /// How the suggestion treats it.
    pub fate: Fate,
    /// What its requests look like.
    pub looks: ClientKind,
    /// The number of its requests.
    pub requests: u64,
    /// The most it asked for in one period of the rate, in cost units.
    pub peak: u64,
    /// Whether a user signed in with this key and was served.
    pub signed_in: bool,
    /// The evidence from its requests.
    #[serde(flatten)]
    pub signs: Signs,
}

/// Limits are meant for these keys, which ask for at least a share `least` of all units; largest first.
pub(super) fn culprits<'n>(needs: &'n Needs, known: &Known, least: f64) -> Vec<&'n KeyNeed> {
    let meant = |key: &&KeyNeed| {
        (known.looks(key) == ClientKind::Shared || known.is_culprit(key.hash))
            // Others may have signed in with a key shared with a crawler.
            && (known.looks(key) == ClientKind::Shared || !known.signed_in(key))
            && key.asked() as f64 >= least * needs.units as f64
    };
    let mut culprits: Vec<&KeyNeed> = needs.remembered().iter().filter(meant).collect();
    sort(&mut culprits);
    culprits
}

/// Returns the keys that stand out: at most [`SHOWN`] of each fate, those that ask for most first.
pub(super) fn describe(
    needs: &Needs,
    watch: &KeyWatch,
    cut: &HashSet<u64>,
    missed: &[u64],
    stand_out: &HashSet<u64>,
) -> Vec<StandsOut> {
    let fate = |key: &KeyNeed| {
        if cut.contains(&key.hash) {
            Some(Fate::Cut)
        } else if missed.contains(&key.hash) {
            Some(Fate::Missed)
        } else {
            stand_out.contains(&key.hash).then_some(Fate::Spared)
        }
    };
    let mut out = Vec::new();
    for wanted in [Fate::Cut, Fate::Missed, Fate::Spared] {
        let mut keys: Vec<&KeyNeed> =
            needs.remembered().iter().filter(|key| fate(key) == Some(wanted)).collect();
        sort(&mut keys);
        let with = |key: &KeyNeed| {
            let evidence = watch.evidence(key.hash)?;
            Some(StandsOut {
                key: key.name.to_string(),
                hash: key.hash,
                fate: wanted,
                looks: watch.looks(key.hash),
                requests: evidence.requests(),
                peak: key.peak(),
                signed_in: key.signed_in,
                signs: evidence.signs(),
            })
        };
        out.extend(keys.into_iter().filter_map(with).take(SHOWN));
    }
    out
}

/// Cautions about cutting these keys: jobs and programs, several people behind one key, customers.
pub(super) fn doubts(needs: &Needs, watch: &KeyWatch, known: &Known, cut: &HashSet<u64>) -> Vec<Caution> {
    let mut keys: Vec<&KeyNeed> = needs.remembered().iter().filter(|key| cut.contains(&key.hash)).collect();
    sort(&mut keys);
    let doubt = |is_doubtful: &dyn Fn(&KeyNeed) -> bool, caution: fn(String, u64) -> Caution| {
        let first = keys.iter().find(|key| is_doubtful(key))?;
        let count = keys.iter().filter(|key| is_doubtful(key)).count() as u64;
        Some(caution(first.name.to_string(), count))
    };
    let is_program = |key: &KeyNeed| matches!(known.looks(key), ClientKind::Timer | ClientKind::Program);
    // Clients that are refused most of the time change their agent to hide.
    let is_several = |key: &KeyNeed| {
        let has_agents = watch.evidence(key.hash).is_some_and(Evidence::has_several_agents);
        let is_read = known.looks(key).is_culprit() && watch.readers(key.hash) > 0;
        (known.looks(key) != ClientKind::Refused && has_agents)
            || is_read && watch.crawler_behind(key.hash).is_some()
    };
    let has_a_name = |key: &KeyNeed| {
        let agent = watch.evidence(key.hash).and_then(Evidence::only_agent);
        known.looks(key) == ClientKind::Crawler && agent.is_some_and(is_a_name)
    };
    let doubts = [
        doubt(&is_program, |key, keys| Caution::CutPrograms { key, keys }),
        doubt(&is_several, |key, keys| Caution::CutSeveral { key, keys }),
        doubt(&has_a_name, |key, keys| Caution::CutCrawlers { key, keys }),
        doubt(&|key| key.signed_in, |key, keys| Caution::CutSignedIn { key, keys }),
    ];
    doubts.into_iter().flatten().collect()
}

/// Browsers begin with `Mozilla/`, and so do search engines, but those name themselves after it.
fn is_a_name(agent: &str) -> bool {
    !agent.starts_with("Mozilla/") || agent.contains("compatible;")
}

fn sort(keys: &mut [&KeyNeed]) {
    keys.sort_by(|a, b| b.asked().cmp(&a.asked()).then_with(|| a.name.cmp(&b.name)));
}
