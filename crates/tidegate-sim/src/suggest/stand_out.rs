//! Those who stand out, each with its evidence and with what becomes of it.

use std::collections::HashSet;

use serde::Serialize;

use super::caution::Caution;
use super::cut::Known;
use super::needs::{KeyNeed, Needs};
use super::signs::{Evident, Looks, Signs};
use super::watch::Watch;

/// Keys told of for each fate.
const TOLD: usize = 5;

/// What becomes of a key that stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The recommended limit cuts it.
    Cut,
    /// A limit is meant for it, and none by this key cuts it without others.
    Missed,
    /// It is left alone.
    Spared,
}

/// A key that stands out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StandsOut {
    /// The key.
    pub key: String,
    /// Its hash, by which it is found again.
    #[serde(skip)]
    pub(super) hash: u64,
    /// What becomes of it.
    pub fate: Fate,
    /// What its requests look like.
    pub looks: Looks,
    /// Its requests.
    pub requests: u64,
    /// The most it asked in one period of the rate, in cost units.
    pub peak: u64,
    /// Whether somebody signed in with it and was served.
    pub signed_in: bool,
    /// What was seen of it.
    #[serde(flatten)]
    pub signs: Signs,
}

/// Returns the keys that a limit is meant for and that ask this much at least, those that ask most first.
pub(super) fn culprits<'n>(needs: &'n Needs, known: &Known, least: f64) -> Vec<&'n KeyNeed> {
    let meant = |key: &&KeyNeed| {
        known.looks(key).is_culprit()
            // Of those who share a key with a crawler somebody may have signed in.
            && (known.looks(key) == Looks::Shared || !known.signed_in(key))
            && key.asked() as f64 >= least * needs.units as f64
    };
    let mut culprits: Vec<&KeyNeed> = needs.remembered().iter().filter(meant).collect();
    sort(&mut culprits);
    culprits
}

/// Tells of those who stand out: at most so many of each fate, those that ask most first.
pub(super) fn told(
    needs: &Needs,
    watch: &Watch,
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
            let evident = watch.evident(key.hash)?;
            Some(StandsOut {
                key: key.name.to_string(),
                hash: key.hash,
                fate: wanted,
                looks: watch.looks(key.hash),
                requests: evident.requests(),
                peak: key.peak(),
                signed_in: key.signed_in,
                signs: evident.signs(),
            })
        };
        out.extend(keys.into_iter().filter_map(with).take(TOLD));
    }
    out
}

/// Says what may be wrong with cutting these keys: jobs and programs, several people behind one of them, customers.
pub(super) fn doubts(needs: &Needs, watch: &Watch, known: &Known, cut: &HashSet<u64>) -> Vec<Caution> {
    let mut keys: Vec<&KeyNeed> = needs.remembered().iter().filter(|key| cut.contains(&key.hash)).collect();
    sort(&mut keys);
    let doubt = |is_doubtful: &dyn Fn(&KeyNeed) -> bool, caution: fn(String, u64) -> Caution| {
        let first = keys.iter().find(|key| is_doubtful(key))?;
        let count = keys.iter().filter(|key| is_doubtful(key)).count() as u64;
        Some(caution(first.name.to_string(), count))
    };
    let is_program = |key: &KeyNeed| matches!(known.looks(key), Looks::Timer | Looks::Program);
    // Whoever is refused most of the time changes its agent to hide.
    let is_several = |key: &KeyNeed| {
        let has_agents = watch.evident(key.hash).is_some_and(Evident::has_several_agents);
        let is_read = known.looks(key).is_culprit() && watch.readers(key.hash) > 0;
        (known.looks(key) != Looks::Refused && has_agents)
            || is_read && watch.crawler_behind(key.hash).is_some()
    };
    let has_a_name = |key: &KeyNeed| {
        let agent = watch.evident(key.hash).and_then(Evident::only_agent);
        known.looks(key) == Looks::Crawler && agent.is_some_and(is_a_name)
    };
    let doubts = [
        doubt(&is_program, |key, keys| Caution::CutPrograms { key, keys }),
        doubt(&is_several, |key, keys| Caution::CutSeveral { key, keys }),
        doubt(&has_a_name, |key, keys| Caution::CutCrawlers { key, keys }),
        doubt(&|key| key.signed_in, |key, keys| Caution::CutSignedIn { key, keys }),
    ];
    doubts.into_iter().flatten().collect()
}

/// Says whether an agent is the name of a program: browsers begin with the same word, and so do search engines, which say what they are
/// behind it.
fn is_a_name(agent: &str) -> bool {
    !agent.starts_with("Mozilla/") || agent.contains("compatible;")
}

fn sort(keys: &mut [&KeyNeed]) {
    keys.sort_by(|a, b| b.asked().cmp(&a.asked()).then_with(|| a.name.cmp(&b.name)));
}
