//! The second reading: what the keys that stand out ask for, and who shares their agent or network.
//!
//! Looked at are the keys above any clear gap, those that ask most, and, since a crawler may change its address, the agents and the networks
//! that ask most. All others are the crowd: of them only one sum is kept.

mod agents;
mod group;
mod networks;
mod pages;

use std::collections::{HashMap, HashSet};

use self::agents::Agents;
pub(super) use self::group::{Group, Shared};
use self::networks::networks;
use self::pages::Pages;
use super::cut;
use super::needs::Needs;
use super::signs::{Evident, Loads, Looks};
use crate::log::Record;
use crate::peaks::GivenHash;

/// Keys looked at, at most: some 4 KiB each.
const WATCHED: usize = 2_000;
/// Keys that ask most, in all and at once, looked at in any case.
const LARGEST: usize = 50;
/// Keys that a group has at least: fewer are looked at one by one.
const GROUP: u64 = 8;

/// What was seen of the keys that stand out.
#[derive(Debug)]
pub(super) struct Watch {
    places: HashMap<u64, u32, GivenHash>,
    evident: Vec<Evident>,
    members: HashMap<u64, u32, GivenHash>,
    networks: Vec<Group>,
    agents: Agents,
    pages: Pages,
    /// The crowd: everybody who is not looked at.
    crowd: Loads,
    /// Whether any request had a path, and whether any had an agent.
    pub(super) has_paths: bool,
    pub(super) has_agents: bool,
}

impl Watch {
    /// Chooses whom to look at.
    pub(super) fn new(needs: &Needs, is_by_client: bool) -> Self {
        let watched = watched(needs);
        let (networks, members) = if is_by_client { networks(needs, GROUP) } else { Default::default() };
        let group = |pattern| Group { shared: Shared::Network(pattern), evident: Evident::new() };
        Self {
            // There are at most `WATCHED`.
            places: watched.iter().enumerate().map(|(place, hash)| (*hash, place as u32)).collect(),
            evident: watched.iter().map(|_| Evident::new()).collect(),
            members,
            networks: networks.into_iter().map(group).collect(),
            agents: Agents::default(),
            pages: Pages::default(),
            crowd: Loads::default(),
            has_paths: false,
            has_agents: false,
        }
    }

    /// Takes in a request of the key with this hash.
    pub(super) fn feed(&mut self, record: &Record<'_>, key: u64) {
        self.has_paths |= !record.path.is_empty();
        self.has_agents |= !record.agent().is_empty();
        self.agents.add(record, key);
        self.pages.add(record);
        match self.places.get(&key) {
            Some(place) => self.evident[*place as usize].add(record, key),
            None => self.crowd.add(record),
        }
        if let Some(group) = self.members.get(&key) {
            self.networks[*group as usize].evident.add(record, key);
        }
    }

    /// Returns what a key shows, if it was looked at.
    pub(super) fn evident(&self, key: u64) -> Option<&Evident> {
        self.places.get(&key).map(|place| &self.evident[*place as usize])
    }

    /// Says what a key looks like.
    pub(super) fn looks(&self, key: u64) -> Looks {
        self.evident(key).map_or(Looks::Unclear, |evident| evident.looks(self.crowd))
    }

    /// Says whether several keys ask as one crawler does, and so much at least.
    fn is_a_crawler(&self, group: &Group, least: u64) -> bool {
        let Group { evident, .. } = group;
        evident.keys() >= GROUP
            && evident.requests() >= least.max(1)
            && evident.looks(self.crowd) == Looks::Crawler
            && self.pages.are_read_by_others(evident)
    }

    /// Returns the agents that people send and a crawler of many keys, too: too few images and scripts are loaded with them. Each with its
    /// keys and requests, those with most requests first. The keys in `known` are told of by themselves.
    pub(super) fn borrowed_agents(
        &self,
        known: &HashSet<u64>,
        requests: u64,
        share: f64,
    ) -> Vec<(String, u64, u64)> {
        if !self.crowd.is_of_browsers() {
            return Vec::new();
        }
        let is_borrowed = |group: &&Group| {
            self.is_a_crawler(group, (requests as f64 * share) as u64)
                && !group.evident.is_of_programs(self.crowd)
                && self.told_of(group, known) * 2 < group.evident.requests()
        };
        let told = |group: &Group| match &group.shared {
            Shared::Agent(agent) => Some((agent.clone(), group.evident.keys(), group.evident.requests())),
            Shared::Network(_) => None,
        };
        let mut out: Vec<_> = self.agents.groups().filter(is_borrowed).filter_map(told).collect();
        out.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
        out
    }

    /// Returns what only this key sends of all that asks as a crawler or a guesser does, by its agent; `None` where its agent is another's, too.
    pub(super) fn crawler_behind(&self, key: u64) -> Option<&Group> {
        self.agents.only_of(key, |evident| evident.looks(self.crowd).is_culprit())
    }

    /// Returns how many readers share a key: agents that load pages as browsers do.
    pub(super) fn readers(&self, key: u64) -> usize {
        self.evident(key).map_or(0, |evident| evident.readers(self.crowd))
    }

    /// Returns how many of the requests with an agent are of keys that are told of by themselves.
    fn told_of(&self, group: &Group, known: &HashSet<u64>) -> u64 {
        let Shared::Agent(agent) = &group.shared else { return 0 };
        let keys = known.iter().filter_map(|key| self.evident(*key));
        keys.filter(|key| key.only_agent() == Some(agent)).map(Evident::requests).sum()
    }

    /// Returns the groups whose requests look like those of one crawler and are a share of all at least; each such crawler once, under
    /// its agent where it has one. The keys in `known` are told of by themselves, and no group that is mostly one of them.
    pub(super) fn groups(&self, known: &HashSet<u64>, requests: u64, share: f64) -> Vec<Group> {
        let least = (requests as f64 * share) as u64;
        let is_one = |group: &&Group| {
            self.is_a_crawler(group, least)
                && group.evident.is_of_programs(self.crowd)
                && self.told_of(group, known) * 2 < group.evident.requests()
        };
        let mut out: Vec<Group> = self.agents.groups().filter(is_one).cloned().collect();
        for network in self.networks.iter().filter(is_one) {
            let agent = network.evident.only_agent();
            let is_told =
                |group: &Group| matches!(&group.shared, Shared::Agent(known) if Some(&**known) == agent);
            if !out.iter().any(is_told) {
                out.push(network.clone());
            }
        }
        out.sort_by(|a, b| {
            b.evident.requests().cmp(&a.evident.requests()).then_with(|| a.shared.cmp(&b.shared))
        });
        out
    }
}

/// Returns the hashes of the keys to look at.
fn watched(needs: &Needs) -> Vec<u64> {
    let remembered = needs.remembered();
    let mut peaks: Vec<usize> = (0..remembered.len()).collect();
    peaks.sort_by_key(|place| std::cmp::Reverse(remembered[*place].peak()));
    let most = needs.falling(0).into_iter().take(LARGEST);
    let mut places: Vec<usize> = most.chain(peaks.into_iter().take(LARGEST)).collect();
    places.extend(cut::standing_out(needs));
    let mut seen = HashSet::new();
    let hashes = places.into_iter().map(|place| remembered[place].hash);
    hashes.filter(|hash| seen.insert(*hash)).take(WATCHED).collect()
}
