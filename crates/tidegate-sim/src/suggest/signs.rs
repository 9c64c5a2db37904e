//! Judges what the requests of one key look like: the evidence that distinguishes crawlers, jobs on a timer and
//! offices.
//!
//! A crawler visits many pages once each and loads none of their images or scripts. A job on a timer asks for the same
//! few paths at an even pace. Many people behind one address show many agents, the same pages again and again, and the
//! parts of each page. A machine that loads those too goes from page to page at an even pace for hours. Clients that
//! guess passwords or look for vulnerabilities are refused. If one of these shares an address with people, the agents
//! show it.
//!
//! The hashes are not seeded at random: the verdict on a key must not change from run to run. A client that chooses
//! paths with colliding hashes can look like an app that asks for one path, which spares it no more than a slow pace
//! would.

mod page_turns;
mod rhythm;

use std::borrow::Cow;
use std::hash::BuildHasher as _;
use std::time::Duration;

use foldhash::quality::FixedState;
use serde::Serialize;

use self::page_turns::PageTurns;
use self::rhythm::Rhythm;
use crate::log::{Record, text};
use crate::replay::share;
use crate::units;

pub(super) use page_turns::Few;

/// What the requests of a key look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientKind {
    /// Many pages, once each, without their images and scripts.
    Crawler,
    /// Most requests are refused or find nothing: guessed passwords, a search for vulnerabilities.
    Refused,
    /// A crawler or a guesser that shares its key with people, such as the address of an office.
    Shared,
    /// Many agents, or pages with their images and scripts: one or several people.
    People,
    /// The same few paths at an even pace, or rounds of requests at an even pace: a job on a timer, an app that
    /// polls.
    Timer,
    /// The same few paths at an uneven pace: a program that uses or searches an interface.
    Program,
    /// None of these, or too little evidence in the log.
    Unclear,
}

impl ClientKind {
    pub(super) const fn is_culprit(self) -> bool {
        matches!(self, Self::Crawler | Self::Refused | Self::Shared)
    }
}

pub(super) const PATHS: u64 = 0;
/// The fewest pages from which it can be told whether pages are visited once each.
const PAGES: u64 = 30;
/// The least share of distinct pages among a crawler's pages. The count of many pages is an estimate (9 %).
const ONCE: f64 = 0.7;
/// The largest share of distinct paths among a timer's requests.
const SAME: f64 = 0.25;
/// From this share of refused requests on, a client is not ordinary.
const MOST: f64 = 0.5;
/// A crawler's share of requests for parts of pages is below this.
const STRAY: f64 = 0.01;
/// The number of agents from which several people, or machines, are assumed behind a key.
const SEVERAL: usize = 4;
/// The agents remembered of a key: those with the smallest hashes, which are a fair sample.
const AGENTS: usize = 8;
/// The number of agents that load pages as browsers do from which people share a key with a crawler; and the fewest
/// images and scripts that each of them loads. A person who runs a program at home has one browser.
const READERS: (usize, u64) = (2, 3);
/// From this number of signed-in users on, people share a key.
const USERS: usize = 3;
/// If the crowd's share of requests for images, scripts and the like is below this, the log does not show who loads
/// them.
const CROWD_LOADS: f64 = 0.1;
const AGENT: usize = 120;

const ENDINGS: [&str; 20] = [
    "css", "js", "mjs", "map", "png", "jpg", "jpeg", "gif", "xbm", "svg", "ico", "webp", "avif", "woff",
    "woff2", "ttf", "otf", "eot", "mp4", "webm",
];

/// Requests for pages, and for their parts: images, scripts and the like.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loads {
    pages: u64,
    parts: u64,
}

impl Loads {
    fn count(&mut self, path: &[u8]) {
        if belongs_to_a_page(path) {
            self.parts += 1;
        } else {
            self.pages += 1;
        }
    }

    pub(super) fn add(&mut self, record: &Record<'_>) {
        if !record.path.is_empty() {
            self.count(record.path);
        }
    }

    pub(super) fn is_of_browsers(self) -> bool {
        self.share() >= CROWD_LOADS
    }

    fn share(self) -> f64 {
        share(self.parts, self.pages + self.parts)
    }
}

/// The evidence of one key, or of several keys taken together.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    hasher: FixedState,
    requests: u64,
    loads: Loads,
    pages: Few,
    paths: Few,
    statuses: u64,
    unauthorized: u64,
    missing: u64,
    /// Agents by their hashes, smallest first, and what each of them loads.
    agents: Vec<(u64, Loads)>,
    /// The candidate for the agent of most requests: counted up by its own requests, down by others (majority vote).
    agent: (Box<str>, u64),
    /// The candidate for the path of most requests, likewise.
    path: (Box<str>, u64),
    /// Hashes of users who were served, up to [`USERS`] of them.
    users: Vec<u64>,
    rhythm: Rhythm,
    turns: PageTurns,
    /// The keys, if the evidence is of several.
    keys: Few,
}

impl Evidence {
    pub(super) fn new() -> Self {
        Self {
            hasher: FixedState::with_seed(PATHS),
            requests: 0,
            loads: Loads::default(),
            pages: Few::default(),
            paths: Few::default(),
            statuses: 0,
            unauthorized: 0,
            missing: 0,
            agents: Vec::new(),
            agent: ("".into(), 0),
            path: ("".into(), 0),
            users: Vec::new(),
            rhythm: Rhythm::default(),
            turns: PageTurns::default(),
            keys: Few::default(),
        }
    }

    pub(super) fn add(&mut self, record: &Record<'_>, key: u64) {
        self.requests += 1;
        self.keys.add(key);
        self.rhythm.add(record.time);
        if !record.path.is_empty() {
            let hash = self.hasher.hash_one(record.path);
            self.paths.add(hash);
            if record.path.len() <= AGENT {
                count_most(&mut self.path, &text(record.path));
            }
            let pages = self.loads.pages;
            self.loads.count(record.path);
            if self.loads.pages > pages {
                self.pages.add(hash);
                self.turns.add(record.time);
            }
        }
        if let Some(status) = record.status {
            self.statuses += 1;
            self.unauthorized += u64::from(matches!(status, 401 | 403 | 407));
            self.missing += u64::from(matches!(status, 400 | 404 | 410));
        }
        if self.users.len() < USERS && record.is_signed_in() {
            let user = self.hasher.hash_one(record.user);
            if !self.users.contains(&user) {
                self.users.push(user);
            }
        }
        self.add_agent(&record.agent(), record);
    }

    fn add_agent(&mut self, agent: &[u8], record: &Record<'_>) {
        if agent.is_empty() {
            return;
        }
        let hash = self.hasher.hash_one(agent);
        let place = self.agents.binary_search_by_key(&hash, |(known, _)| *known);
        let place = place.unwrap_or_else(|place| {
            // An agent that was left out or pushed out is never among the smallest again: all requests of an agent are
            // counted, or none.
            self.agents.insert(place, (hash, Loads::default()));
            self.agents.truncate(AGENTS);
            place
        });
        if let Some((_, loads)) = self.agents.get_mut(place) {
            loads.add(record);
        }
        count_most(&mut self.agent, &agent_name(agent));
    }

    /// Returns the hashes of some of its pages, a fair sample.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> {
        self.pages.kept()
    }

    pub(super) const fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns how many of them were for pages, as opposed to their parts.
    pub(super) const fn page_requests(&self) -> u64 {
        self.loads.pages
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys.about()
    }

    /// Returns the agent of at least nine in ten requests, if there is one.
    pub(super) fn only_agent(&self) -> Option<&str> {
        (self.agent.1 * 10 >= self.requests * 9 && self.agent.1 > 0).then_some(&*self.agent.0)
    }

    /// Returns the path of most requests, if a majority has one.
    fn main_path(&self) -> Option<&str> {
        (self.path.1 * 2 >= self.requests && self.path.1 > 0).then_some(&*self.path.0)
    }

    pub(super) fn only_key(&self) -> Option<u64> {
        self.keys.kept().next().filter(|_| self.keys.about() == 1)
    }

    pub(super) fn lasted(&self) -> Duration {
        self.rhythm.lasted()
    }

    /// The agents that load pages with their parts, as the crowd does: browsers of people.
    pub(super) fn readers(&self, crowd: Loads) -> usize {
        let is_reader = |loads: &Loads| loads.parts >= READERS.1 && loads.share() >= crowd.share() / 2.0;
        if crowd.is_of_browsers() {
            self.agents.iter().filter(|(_, loads)| is_reader(loads)).count()
        } else {
            0
        }
    }

    /// Says whether enough agents were sent that several people, or machines, may be behind a key.
    pub(super) fn has_several_agents(&self) -> bool {
        self.agents.len() >= SEVERAL
    }

    /// Says whether there are no people among several keys: nearly none of their requests is for a part of a page. If
    /// the crowd does not load parts either, the agent must not be a browser's: those begin with `Mozilla/`.
    pub(super) fn is_of_programs(&self, crowd: Loads) -> bool {
        if crowd.is_of_browsers() {
            return self.loads.share() < STRAY;
        }
        self.only_agent().is_some_and(|agent| !agent.starts_with("Mozilla/"))
    }

    /// A browser's agent that never loads parts of pages although the crowd does: a page that polls, or a program in
    /// disguise.
    fn pretends(&self, crowd: Loads) -> bool {
        let is_browser = |agent: &str| agent.starts_with("Mozilla/") && !agent.contains("compatible;");
        crowd.is_of_browsers() && self.loads.parts == 0 && self.only_agent().is_some_and(is_browser)
    }

    /// Says whether people share the key: several users signed in and were served, or several browsers load pages.
    fn is_shared(&self, crowd: Loads) -> bool {
        self.users.len() >= USERS || self.readers(crowd) >= READERS.0
    }

    /// The agent tells where its owner can be reached, as those of search engines do.
    fn tells_its_owner(&self) -> bool {
        self.only_agent().is_some_and(|agent| agent.contains("://") || agent.contains('@'))
    }

    pub(super) fn looks(&self, crowd: Loads) -> ClientKind {
        let asked = self.loads.pages + self.loads.parts;
        let same = asked >= PAGES && share(self.paths.about(), asked) <= SAME;
        let is_timer = asked > 0 && (same && self.rhythm.pace().is_some() || self.rhythm.is_in_rounds());
        let unauthorized = share(self.unauthorized, self.statuses);
        let missing = share(self.missing, self.statuses);
        let or_shared = |looks| if self.is_shared(crowd) { ClientKind::Shared } else { looks };
        if unauthorized >= MOST || (unauthorized + missing >= MOST && !is_timer) {
            return or_shared(ClientKind::Refused);
        }
        let crowd_loads = crowd.is_of_browsers();
        let loads = crowd_loads && self.loads.share() >= crowd.share() / 2.0;
        let once = self.loads.pages >= PAGES && share(self.pages.about(), self.loads.pages) >= ONCE;
        // Then several agents may be several people who read different pages.
        if once && !loads && !is_timer && (crowd_loads || !self.has_several_agents()) {
            if self.tells_its_owner() {
                return or_shared(ClientKind::Program);
            }
            return or_shared(ClientKind::Crawler);
        }
        // Jobs do not load parts of pages, and people do not read hundreds of pages without a rest.
        if once && loads && self.only_agent().is_some() && self.turns.are_of_a_machine() {
            return ClientKind::Crawler;
        }
        if is_timer {
            return ClientKind::Timer;
        }
        if loads || self.users.len() >= USERS || (self.has_several_agents() && !once) {
            return ClientKind::People;
        }
        if same && !self.pretends(crowd) { ClientKind::Program } else { ClientKind::Unclear }
    }
}

fn count_most((most, count): &mut (Box<str>, u64), text: &str) {
    if **most == *text {
        *count += 1;
    } else if *count == 0 {
        (*most, *count) = (text.into(), 1);
    } else {
        *count -= 1;
    }
}

/// Returns an agent as text, cut to 120 bytes; a `*` stands for the part cut off, as in a pattern.
pub(super) fn agent_name(agent: &[u8]) -> Cow<'_, str> {
    if agent.len() <= AGENT {
        return text(agent);
    }
    // Cut only between characters.
    let end = (0..=AGENT).rev().find(|end| agent[*end] & 0xc0 != 0x80).unwrap_or(AGENT);
    format!("{}*", text(&agent[..end])).into()
}

/// An image, a script, a font.
fn belongs_to_a_page(path: &[u8]) -> bool {
    let Some(dot) = memchr::memrchr(b'.', path) else { return false };
    let ending = &path[dot + 1..];
    ENDINGS.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(ending))
}

/// The evidence from the requests of a key. `None`: the log does not have the field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Signs {
    /// Distinct paths. Above 127 an estimate, with a standard error of 9 %.
    pub paths: Option<u64>,
    /// The path that most requests have.
    pub path: Option<String>,
    /// Requests for pages, as opposed to their parts, such as images and scripts.
    pub pages: Option<u64>,
    /// Distinct pages; above 127 an estimate, and never more than `pages`.
    pub pages_different: Option<u64>,
    /// The share of requests for parts of pages, such as images and scripts, 0 to 1.
    pub parts_share: Option<f64>,
    /// The share of requests that were refused or not found (400, 401, 403, 404, 407, 410), 0 to 1.
    pub refused_share: Option<f64>,
    /// Distinct agents; 8 means 8 or more.
    pub agents: Option<u64>,
    /// The agent of nine requests in ten, cut after 120 bytes.
    pub agent: Option<String>,
    /// The pause between two rounds of requests, if they come at an even pace.
    #[serde(rename = "every_ms", serialize_with = "units::maybe_span")]
    pub every: Option<Duration>,
}

impl Evidence {
    pub(in crate::suggest) fn signs(&self) -> Signs {
        let asked = self.loads.pages + self.loads.parts;
        let known = |is_known: bool, value: u64| is_known.then_some(value);
        Signs {
            paths: known(
                asked > 0,
                if self.paths.is_exact() { self.paths.about() } else { self.paths.about().min(asked) },
            ),
            path: self.main_path().map(str::to_owned),
            pages: known(asked > 0, self.loads.pages),
            pages_different: known(asked > 0, self.pages.about().min(self.loads.pages)),
            parts_share: (asked > 0).then(|| self.loads.share()),
            refused_share: (self.statuses > 0)
                .then(|| share(self.unauthorized + self.missing, self.statuses)),
            agents: known(!self.agents.is_empty(), self.agents.len() as u64),
            agent: self.only_agent().map(str::to_owned),
            every: self.rhythm.pace(),
        }
    }
}

#[cfg(test)]
mod tests;
