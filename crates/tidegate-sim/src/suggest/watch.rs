//! The second reading: what the keys that stand out ask for, and which keys share an agent or a network.
//!
//! It watches the keys above any clear gap and those that ask for most. Since a crawler may change its address, it also
//! watches the agents and the networks that ask for most. All other keys are the crowd, and only their sum is kept.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::net::IpAddr;

use foldhash::quality::FixedState;

use super::bursts::Needs;
use super::candidates;
use super::signs::{ClientKind, Evidence, Loads};
use crate::log::Record;
use crate::peaks::GivenHash;
use crate::suggest::signs::{PATHS, agent_name};

/// The most keys watched, about 4 KiB each.
const WATCHED: usize = 2_000;
/// Always watched: those that ask for most in all, and those with the highest peaks.
const LARGEST: usize = 50;
/// The fewest keys of a group: fewer are judged one by one.
const GROUP: u64 = 8;

#[derive(Debug)]
pub(super) struct KeyWatch {
    places: HashMap<u64, u32, GivenHash>,
    evidence: Vec<Evidence>,
    members: HashMap<u64, u32, GivenHash>,
    networks: Vec<Group>,
    agents: Agents,
    pages: Pages,
    /// The sum over the crowd: all keys that are not watched.
    crowd: Loads,
    pub(super) has_paths: bool,
    pub(super) has_agents: bool,
}

impl KeyWatch {
    pub(super) fn new(needs: &Needs, is_by_client: bool) -> Self {
        let watched = watched(needs);
        let (networks, members) = if is_by_client { networks(needs, GROUP) } else { Default::default() };
        let group = |pattern| Group { shared: Shared::Network(pattern), evidence: Evidence::new() };
        Self {
            // At most `WATCHED`.
            places: watched.iter().enumerate().map(|(place, hash)| (*hash, place as u32)).collect(),
            evidence: watched.iter().map(|_| Evidence::new()).collect(),
            members,
            networks: networks.into_iter().map(group).collect(),
            agents: Agents::default(),
            pages: Pages::default(),
            crowd: Loads::default(),
            has_paths: false,
            has_agents: false,
        }
    }

    pub(super) fn feed(&mut self, record: &Record<'_>, key: u64) {
        self.has_paths |= !record.path.is_empty();
        // An agent is searched for in the line.
        self.has_agents = self.has_agents || !record.agent().is_empty();
        self.agents.add(record, key);
        self.pages.add(record);
        match self.places.get(&key) {
            Some(place) => self.evidence[*place as usize].add(record, key),
            None => self.crowd.add(record),
        }
        if let Some(group) = self.members.get(&key) {
            self.networks[*group as usize].evidence.add(record, key);
        }
    }

    pub(super) fn evidence(&self, key: u64) -> Option<&Evidence> {
        self.places.get(&key).map(|place| &self.evidence[*place as usize])
    }

    pub(super) fn looks(&self, key: u64) -> ClientKind {
        self.evidence(key).map_or(ClientKind::Unclear, |evidence| evidence.looks(self.crowd))
    }

    /// Clients that do not load images and scripts then stand out.
    pub(super) fn crowd_loads(&self) -> bool {
        self.crowd.is_of_browsers()
    }

    /// Says whether a group of keys behaves like one crawler, with at least `least` requests.
    fn is_a_crawler(&self, group: &Group, least: u64) -> bool {
        let Group { evidence, .. } = group;
        evidence.keys() >= GROUP
            && evidence.requests() >= least.max(1)
            && evidence.looks(self.crowd) == ClientKind::Crawler
            && self.pages.are_read_by_others(evidence)
    }

    /// The agents that are sent both by people and by a crawler that uses many keys: few parts of pages are loaded with
    /// them, but some. With their numbers of keys and requests, most requests first. The keys in `known` are reported
    /// on their own.
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
                && !group.evidence.is_of_programs(self.crowd)
                && self.told_of(group, known) * 2 < group.evidence.requests()
        };
        let told = |group: &Group| match &group.shared {
            Shared::Agent(agent) => Some((agent.clone(), group.evidence.keys(), group.evidence.requests())),
            Shared::Network(_) => None,
        };
        let mut out: Vec<_> = self.agents.groups().filter(is_borrowed).filter_map(told).collect();
        out.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
        out
    }

    /// Returns the crawler or guesser behind a key that people use too, by its agent; `None` if other keys send its
    /// agent as well.
    pub(super) fn crawler_behind(&self, key: u64) -> Option<&Group> {
        self.agents.only_of(key, |evidence| evidence.looks(self.crowd).is_culprit())
    }

    pub(super) fn readers(&self, key: u64) -> usize {
        self.evidence(key).map_or(0, |evidence| evidence.readers(self.crowd))
    }

    /// Returns how many of a group's requests come from keys that are reported on their own.
    fn told_of(&self, group: &Group, known: &HashSet<u64>) -> u64 {
        let Shared::Agent(agent) = &group.shared else { return 0 };
        let keys = known.iter().filter_map(|key| self.evidence(*key));
        keys.filter(|key| key.only_agent() == Some(agent)).map(Evidence::requests).sum()
    }

    /// The groups that behave like one crawler and make at least a share `share` of all requests; each such crawler
    /// once, by its agent if it has one. The keys in `known` are reported on their own, and groups that mostly consist
    /// of them are left out.
    pub(super) fn groups(&self, known: &HashSet<u64>, requests: u64, share: f64) -> Vec<Group> {
        let least = (requests as f64 * share) as u64;
        let is_one = |group: &&Group| {
            self.is_a_crawler(group, least)
                && group.evidence.is_of_programs(self.crowd)
                && self.told_of(group, known) * 2 < group.evidence.requests()
        };
        let mut out: Vec<Group> = self.agents.groups().filter(is_one).cloned().collect();
        for network in self.networks.iter().filter(is_one) {
            let agent = network.evidence.only_agent();
            let is_told =
                |group: &Group| matches!(&group.shared, Shared::Agent(known) if Some(&**known) == agent);
            if !out.iter().any(is_told) {
                out.push(network.clone());
            }
        }
        out.sort_by(|a, b| {
            b.evidence.requests().cmp(&a.evidence.requests()).then_with(|| a.shared.cmp(&b.shared))
        });
        out
    }
}

fn watched(needs: &Needs) -> Vec<u64> {
    let remembered = needs.remembered();
    let mut peaks: Vec<usize> = (0..remembered.len()).collect();
    peaks.sort_by_key(|place| std::cmp::Reverse(remembered[*place].peak()));
    let most = needs.falling(0).into_iter().take(LARGEST);
    let mut places: Vec<usize> = most.chain(peaks.into_iter().take(LARGEST)).collect();
    places.extend(candidates::standing_out(needs));
    let mut seen = HashSet::new();
    let hashes = places.into_iter().map(|place| remembered[place].hash);
    hashes.filter(|hash| seen.insert(*hash)).take(WATCHED).collect()
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::suggest) enum Shared {
    /// The same agent.
    Agent(String),
    /// The same first parts of their addresses, as a pattern.
    Network(String),
}

/// Several keys that behave like one crawler.
#[derive(Clone, Debug)]
pub(in crate::suggest) struct Group {
    pub(in crate::suggest) shared: Shared,
    pub(in crate::suggest) evidence: Evidence,
}

/// The agents counted at once, about 4 KiB each. Once counted, an agent with more than one request in 65 stays counted.
const COUNTED: usize = 64;

#[derive(Debug)]
struct Agents {
    hasher: FixedState,
    counted: HashMap<u64, (u64, Group), GivenHash>,
}

impl Default for Agents {
    fn default() -> Self {
        Self { hasher: FixedState::with_seed(1), counted: HashMap::default() }
    }
}

impl Agents {
    /// Counts a request.
    ///
    /// # Source
    /// Misra, Gries: Finding repeated elements, 1982.
    fn add(&mut self, record: &Record<'_>, key: u64) {
        let agent = record.agent();
        if agent.is_empty() {
            return;
        }
        let hash = self.hasher.hash_one(&*agent);
        if let Some((count, group)) = self.counted.get_mut(&hash) {
            *count += 1;
            group.evidence.add(record, key);
        } else if self.counted.len() < COUNTED {
            let mut group =
                Group { shared: Shared::Agent(agent_name(&agent).into_owned()), evidence: Evidence::new() };
            group.evidence.add(record, key);
            self.counted.insert(hash, (1, group));
        } else {
            self.counted.retain(|_, (count, _)| {
                *count -= 1;
                *count > 0
            });
        }
    }

    /// Returns the agent with the most requests among those that only this key sends and that pass a test.
    fn only_of(&self, key: u64, passes: impl Fn(&Evidence) -> bool) -> Option<&Group> {
        let own =
            self.groups().filter(|group| group.evidence.only_key() == Some(key) && passes(&group.evidence));
        own.max_by(|a, b| {
            a.evidence.requests().cmp(&b.evidence.requests()).then_with(|| b.shared.cmp(&a.shared))
        })
    }

    fn groups(&self) -> impl Iterator<Item = &Group> {
        self.counted.values().map(|(_, group)| group)
    }
}

const NETWORKS: usize = 20;

/// The patterns of the networks that ask for most, with at least `least` keys, and the network of each key in one of
/// them.
fn networks(needs: &Needs, least: u64) -> (Vec<String>, HashMap<u64, u32, GivenHash>) {
    let mut all: HashMap<String, (u64, Vec<u64>)> = HashMap::new();
    for key in needs.remembered() {
        let Some(pattern) = pattern(&key.name) else { continue };
        let (asked, keys) = all.entry(pattern).or_default();
        *asked += key.asked();
        keys.push(key.hash);
    }
    let mut large: Vec<_> = all.into_iter().filter(|(_, (_, keys))| keys.len() as u64 >= least).collect();
    large.sort_by(|(a, (one, _)), (b, (other, _))| other.cmp(one).then_with(|| a.cmp(b)));
    large.truncate(NETWORKS);
    let mut members = HashMap::default();
    let mut patterns = Vec::with_capacity(large.len());
    for (place, (pattern, (_, keys))) in large.into_iter().enumerate() {
        patterns.push(pattern);
        // At most `NETWORKS`.
        members.extend(keys.into_iter().map(|key| (key, place as u32)));
    }
    (patterns, members)
}

/// Returns the pattern of an address's network: 24 bits of IPv4, 48 of IPv6. `None` if the text is not an address.
fn pattern(name: &str) -> Option<String> {
    let name = name.split_once('/').map_or(name, |(address, _)| address);
    match name.parse().ok()? {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            Some(format!("{a}.{b}.{c}.*"))
        }
        IpAddr::V6(address) => {
            let [a, b, c, ..] = address.segments();
            // Addresses are written without leading zeros; a zero within the first three parts may be written as
            // `::`.
            (b != 0 && c != 0).then(|| format!("{a:x}:{b:x}:{c:x}:*"))
        }
    }
}

/// The pages followed: those with the smallest hashes, a fair sample of all, in about 50 KiB.
const FOLLOWED: usize = 1_024;
/// The least share, and the least number, of a crawler's sampled pages that a client with another agent asks for too.
const READ: (f64, usize) = (0.02, 2);

/// Whether others ask for the same pages: a crawler takes what everybody reads, an app asks for its own user's data.
#[derive(Debug)]
struct Pages {
    paths: FixedState,
    /// The agent that asked first, and whether another one did too.
    followed: BTreeMap<u64, (u64, bool)>,
}

impl Default for Pages {
    fn default() -> Self {
        Self { paths: FixedState::with_seed(PATHS), followed: BTreeMap::new() }
    }
}

impl Pages {
    fn add(&mut self, record: &Record<'_>) {
        if record.path.is_empty() {
            return;
        }
        let hash = self.paths.hash_one(record.path);
        let is_full = self.followed.len() == FOLLOWED;
        if is_full && self.followed.last_key_value().is_some_and(|(largest, _)| hash > *largest) {
            return;
        }
        let agent = self.paths.hash_one(&*record.agent());
        self.followed
            .entry(hash)
            .and_modify(|(first, several)| *several |= *first != agent)
            .or_insert((agent, false));
        if self.followed.len() > FOLLOWED {
            self.followed.pop_last();
        }
    }

    fn are_read_by_others(&self, evidence: &Evidence) -> bool {
        let followed: Vec<bool> = evidence
            .pages()
            .filter_map(|page| self.followed.get(&page).map(|(_, several)| *several))
            .collect();
        let read = followed.iter().filter(|several| **several).count();
        read >= READ.1 && read as f64 >= READ.0 * followed.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_patterns() {
        let rows = [
            ("203.0.113.7", Some("203.0.113.*")),
            ("2001:db8:5:1::/64", Some("2001:db8:5:*")),
            ("2001:db8::1", None),
            ("crawler.example", None),
        ];
        for (name, network) in rows {
            assert_eq!(pattern(name).as_deref(), network, "{name}");
        }
    }
}
