//! What the requests of one key look like: the evidence that tells a crawler, a job on a timer and an office apart.
//!
//! A crawler visits many pages once each and loads nothing that belongs to them. A job on a timer, or an app that polls, asks for the same
//! few paths at an even pace. Many people behind one address show many agents, the same pages again and again, and the images and
//! scripts of each page; a machine that loads those, too, goes from page to page at an even pace for hours. Whoever guesses passwords or
//! looks for holes is refused. Where one of these shares an address with people, the agents tell. None of this needs a name of a user.
//!
//! At most 4 KiB per key, whatever it asks. The hashes are not secret: what is said of a key must not change from run to run. Whoever
//! chooses paths whose hashes meet can be taken for an app that asks one path, which spares it no more than a slow pace would.

mod few;
mod page_turns;
mod rhythm;
mod shown;

use std::borrow::Cow;
use std::hash::BuildHasher as _;
use std::time::Duration;

use foldhash::quality::FixedState;

pub(super) use self::few::Few;
use self::page_turns::PageTurns;
use self::rhythm::Rhythm;
pub use self::shown::Signs;
use crate::log::{Record, text};

/// What the requests of a key look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Looks {
    /// Many pages, once each, without what belongs to them.
    Crawler,
    /// Most of what it asks is refused or not there: passwords that are guessed, holes that are looked for.
    Refused,
    /// A crawler or a guesser that shares its key with people, as the address of an office.
    Shared,
    /// Many agents, or pages with all that belongs to them: people, one or many.
    People,
    /// The same few paths at an even pace, or rounds of requests at one: a job on a timer, an app that polls.
    Timer,
    /// The same few paths at no even pace: a program that uses an interface, or one that searches.
    Program,
    /// None of these, or the log has too little to tell.
    Unclear,
}

impl Looks {
    /// Says whether a limit is meant for it.
    pub(super) const fn is_culprit(self) -> bool {
        matches!(self, Self::Crawler | Self::Refused | Self::Shared)
    }
}

/// The seed of the hashes of paths.
pub(super) const PATHS: u64 = 0;
/// Of fewer pages, nobody can say whether they are visited once each by habit.
const PAGES: u64 = 30;
/// A crawler's different pages, as a share of all pages it asked for, at least. The count of many pages is an estimate (9 %).
const ONCE: f64 = 0.7;
/// A timer's different paths, as a share of its requests, at most.
const SAME: f64 = 0.25;
/// Whoever is refused that often, as a share of its requests, is no ordinary client.
const MOST: f64 = 0.5;
/// A crawler's requests for what belongs to pages, as a share of its requests, below.
const STRAY: f64 = 0.01;
/// Agents from which on there are several people, or machines, behind a key.
const SEVERAL: usize = 4;
/// Agents remembered of a key: those with the smallest hashes, which are a fair sample.
const AGENTS: usize = 8;
/// Agents that load pages as browsers do, from which on people share a key with a crawler, and the images and scripts each of them loads at
/// least. Somebody who runs a program at home has one browser.
const READERS: (usize, u64) = (2, 3);
/// Where fewer of the crowd's requests load images, scripts and the like, the log does not show who loads them.
const CROWD_LOADS: f64 = 0.1;
/// The longest agent kept, in bytes.
const AGENT: usize = 120;

/// The endings of what belongs to a page.
const ENDINGS: [&str; 20] = [
    "css", "js", "mjs", "map", "png", "jpg", "jpeg", "gif", "xbm", "svg", "ico", "webp", "avif", "woff",
    "woff2", "ttf", "otf", "eot", "mp4", "webm",
];

/// How often requests load images, scripts and the like.
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

    /// Says whether so many of the requests load what belongs to pages that it tells who loads none.
    pub(super) fn is_of_browsers(self) -> bool {
        self.share() >= CROWD_LOADS
    }

    fn share(self) -> f64 {
        share(self.parts, self.pages + self.parts)
    }
}

/// The evidence of one key, or of several taken together.
#[derive(Clone, Debug)]
pub(super) struct Evident {
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
    /// The agent of most requests, if one is: counted up by itself, down by others.
    agent: (Box<str>, u64),
    rhythm: Rhythm,
    turns: PageTurns,
    /// The keys, where there are several.
    keys: Few,
}

impl Evident {
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
            rhythm: Rhythm::default(),
            turns: PageTurns::default(),
            keys: Few::default(),
        }
    }

    /// Takes in a request of the key with this hash.
    pub(super) fn add(&mut self, record: &Record<'_>, key: u64) {
        self.requests += 1;
        self.keys.add(key);
        self.rhythm.add(record.time);
        if !record.path.is_empty() {
            let hash = self.hasher.hash_one(record.path);
            self.paths.add(hash);
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
        self.add_agent(&record.agent(), record);
    }

    fn add_agent(&mut self, agent: &[u8], record: &Record<'_>) {
        if agent.is_empty() {
            return;
        }
        let hash = self.hasher.hash_one(agent);
        let place = self.agents.binary_search_by_key(&hash, |(known, _)| *known);
        let place = place.unwrap_or_else(|place| {
            // One that was left out, or pushed out, is never among the smallest again: what is counted is all of an agent or nothing.
            self.agents.insert(place, (hash, Loads::default()));
            self.agents.truncate(AGENTS);
            place
        });
        if let Some((_, loads)) = self.agents.get_mut(place) {
            loads.add(record);
        }
        let name = agent_name(agent);
        match &mut self.agent {
            (most, count) if **most == *name => *count += 1,
            (most, count @ 0) => (*most, *count) = (name.as_ref().into(), 1),
            (_, count) => *count -= 1,
        }
    }

    /// Returns the hashes of some of its pages: a fair sample.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> {
        self.pages.kept()
    }

    pub(super) const fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns how many different keys there were.
    pub(super) fn keys(&self) -> u64 {
        self.keys.about()
    }

    /// Returns the agent of most of the requests, where one agent made them.
    pub(super) fn only_agent(&self) -> Option<&str> {
        (self.agent.1 * 10 >= self.requests * 9 && self.agent.1 > 0).then_some(&*self.agent.0)
    }

    /// Returns the only key, where there is one.
    pub(super) fn only_key(&self) -> Option<u64> {
        self.keys.kept().next().filter(|_| self.keys.about() == 1)
    }

    /// Returns how much time passed from the first request to the last.
    pub(super) fn lasted(&self) -> Duration {
        self.rhythm.lasted()
    }

    /// Returns how many of the agents load pages with what belongs to them, as the crowd does: browsers of people.
    pub(super) fn readers(&self, crowd: Loads) -> usize {
        let is_reader = |loads: &Loads| loads.parts >= READERS.1 && loads.share() >= crowd.share() / 2.0;
        if crowd.is_of_browsers() {
            self.agents.iter().filter(|(_, loads)| is_reader(loads)).count()
        } else {
            0
        }
    }

    /// Says whether so many agents were sent that several people, or machines, may be behind a key.
    pub(super) fn has_several_agents(&self) -> bool {
        self.agents.len() >= SEVERAL
    }

    /// Says whether no people are among several keys: none of their requests is for what belongs to a page. Where the crowd loads no such
    /// things either, the agent must be none of a browser: those begin with the same word.
    pub(super) fn is_of_programs(&self, crowd: Loads) -> bool {
        if crowd.is_of_browsers() {
            return self.loads.share() < STRAY;
        }
        self.only_agent().is_some_and(|agent| !agent.starts_with("Mozilla/"))
    }

    /// Says whether a browser's agent loads nothing of what belongs to pages, where the crowd does: a page that polls, or a program that hides.
    fn pretends(&self, crowd: Loads) -> bool {
        let is_browser = |agent: &str| agent.starts_with("Mozilla/") && !agent.contains("compatible;");
        crowd.is_of_browsers() && self.loads.parts == 0 && self.only_agent().is_some_and(is_browser)
    }

    /// Says what the requests look like, beside how often the crowd loads what belongs to pages.
    pub(super) fn looks(&self, crowd: Loads) -> Looks {
        let asked = self.loads.pages + self.loads.parts;
        let same = asked >= PAGES && share(self.paths.about(), asked) <= SAME;
        let is_timer = asked > 0 && (same && self.rhythm.pace().is_some() || self.rhythm.is_in_rounds());
        let unauthorized = share(self.unauthorized, self.statuses);
        let missing = share(self.missing, self.statuses);
        let or_shared = |looks| if self.readers(crowd) >= READERS.0 { Looks::Shared } else { looks };
        if unauthorized >= MOST || (unauthorized + missing >= MOST && !is_timer) {
            return or_shared(Looks::Refused);
        }
        let crowd_loads = crowd.is_of_browsers();
        let loads = crowd_loads && self.loads.share() >= crowd.share() / 2.0;
        let once = self.loads.pages >= PAGES && share(self.pages.about(), self.loads.pages) >= ONCE;
        // Where nobody loads images or scripts, several agents may be several people who read different pages.
        if once && !loads && !is_timer && (crowd_loads || !self.has_several_agents()) {
            return or_shared(Looks::Crawler);
        }
        // No job loads what belongs to pages, and nobody reads hundreds of pages without a rest.
        if once && loads && self.only_agent().is_some() && self.turns.are_of_a_machine() {
            return Looks::Crawler;
        }
        if is_timer {
            return Looks::Timer;
        }
        if loads || (self.has_several_agents() && !once) {
            return Looks::People;
        }
        if same && !self.pretends(crowd) { Looks::Program } else { Looks::Unclear }
    }
}

/// Returns an agent as text, cut to 120 bytes; what was cut off is `*`, as in a pattern.
pub(super) fn agent_name(agent: &[u8]) -> Cow<'_, str> {
    if agent.len() <= AGENT {
        return text(agent);
    }
    // A character is not cut in two.
    let end = (0..=AGENT).rev().find(|end| agent[*end] & 0xc0 != 0x80).unwrap_or(AGENT);
    format!("{}*", text(&agent[..end])).into()
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Says whether a path is loaded because of a page: an image, a script, a font.
fn belongs_to_a_page(path: &[u8]) -> bool {
    let Some(dot) = memchr::memrchr(b'.', path) else { return false };
    let ending = &path[dot + 1..];
    ENDINGS.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(ending))
}

#[cfg(test)]
mod tests;
