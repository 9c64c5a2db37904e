//! Generated logs in which the role of each client is known: people, and the clients planted among them.

use std::collections::HashSet;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Request {
    /// The time in milliseconds since the start.
    at: u64,
    pub(crate) client: String,
    user: String,
    path: String,
    status: u16,
    pub(crate) agent: String,
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) client: String,
    pub(crate) user: String,
    pub(crate) agent: String,
}

impl Asker {
    /// Makes a program, which does not sign in.
    pub(crate) fn program(client: impl Into<String>, agent: impl Into<String>) -> Self {
        Self { client: client.into(), user: String::new(), agent: agent.into() }
    }

    /// Makes a person with one of thirty browsers.
    pub(crate) fn person(client: impl Into<String>, user: impl Into<String>, browser: u64) -> Self {
        let agent = format!("Mozilla/5.0 (browser {})", browser % 30);
        Self { client: client.into(), user: user.into(), agent }
    }
}

/// The fields that the log has, besides the time and the address.
#[derive(Clone, Copy, Debug)]
struct Says {
    users: bool,
    paths: bool,
    parts: bool,
    /// Whether times have milliseconds.
    millis: bool,
}

/// A log of some hours, generated from a seed.
#[derive(Debug)]
pub(crate) struct Planted {
    pub(crate) chance: Chance,
    /// Random numbers that are the same on each day: who people are, as opposed to what they do.
    pub(crate) persona: Chance,
    pub(crate) requests: Vec<Request>,
    /// The clients that a limit should cut.
    pub(crate) bad: HashSet<String>,
    /// The clients to cut that share their address with others: address and agent.
    pub(crate) bad_within: HashSet<(String, String)>,
    says: Says,
}

/// Another day of a seed is the log of the seed plus this.
pub(crate) const ANOTHER_DAY: u64 = 1_000_000;
pub(crate) const HOUR: u64 = 3_600_000;
/// The length of each log.
pub(crate) const SPAN: u64 = 4 * HOUR;
/// The number of pages of the site.
pub(crate) const PAGES: u64 = 3_000;

/// Random numbers from a seed alone (SplitMix64), separate from the traffic generator's, so that changes there do not
/// change these logs.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }

    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// Returns how many times in a row an event with a probability of `stay` percent happens, at most `most`.
    pub(crate) fn run(&mut self, stay: u64, most: u64) -> u64 {
        (0..most).find(|_| self.below(100) >= stay).unwrap_or(most)
    }
}

/// Plants clients in a log.
pub(crate) type Plant = fn(&mut Planted);

impl Planted {
    /// Makes a log of people who visit all day, and plants clients among them.
    pub(crate) fn new(seed: u64, plant: Plant) -> Self {
        let says = Says { users: true, paths: true, parts: true, millis: true };
        let mut log = Self {
            chance: Chance(seed),
            persona: Chance((seed % ANOTHER_DAY) ^ 0x5eed),
            requests: Vec::new(),
            bad: HashSet::new(),
            bad_within: HashSet::new(),
            says,
        };
        for person in 0..240 {
            let signed_in = log.chance.below(4) == 0;
            let visits = 1 + log.chance.run(35, 4);
            let user = if signed_in { format!("user{person}") } else { String::new() };
            // Several people per network, as with internet providers.
            let asker = Asker::person(format!("192.0.{}.{}", person % 60, person), user, log.chance.next());
            for _ in 0..visits {
                let start = log.chance.below(SPAN - HOUR / 4);
                log.visit(&asker, start);
            }
        }
        plant(&mut log);
        log.requests.sort();
        log.requests.retain(|request| request.at < SPAN);
        log
    }

    /// Adds a visit: some pages with their parts, and time to read between them.
    pub(crate) fn visit(&mut self, asker: &Asker, start: u64) {
        let mut at = start;
        for _ in 0..=self.chance.run(75, 25) {
            // Most visits go to a few popular pages.
            let page = self.chance.below(self.chance.clone().below(PAGES) + 1);
            self.chance.next();
            self.add(at, asker, &format!("/item/{page}"), 200);
            for _ in 0..self.chance.below(5) {
                let part = self.chance.below(12);
                let path = format!("/static/{}.{}", part, ["css", "js", "png"][part as usize % 3]);
                let later = at + self.chance.below(1_500);
                if self.says.parts {
                    self.add(later, asker, &path, 200);
                }
            }
            at += 4_000 + self.chance.below(45_000);
        }
    }

    pub(crate) fn add(&mut self, at: u64, asker: &Asker, path: &str, status: u16) {
        let Asker { client, user, agent } = asker.clone();
        self.requests.push(Request { at, client, user, path: path.to_owned(), status, agent });
    }

    /// Marks a client as one to cut.
    pub(crate) fn bad(&mut self, asker: Asker) -> Asker {
        self.bad.insert(asker.client.clone());
        asker
    }

    /// Marks a client to cut by its agent, among others at the same address.
    pub(crate) fn bad_within(&mut self, asker: Asker) -> Asker {
        self.bad_within.insert((asker.client.clone(), asker.agent.clone()));
        asker
    }

    /// Says whether there is no client to cut.
    pub(crate) fn is_innocent(&self) -> bool {
        self.bad.is_empty() && self.bad_within.is_empty()
    }

    /// Says whether an address belongs to a client to cut, alone or among others.
    pub(crate) fn has_bad(&self, client: &str) -> bool {
        self.bad.contains(client) || self.bad_within.iter().any(|(within, _)| within == client)
    }

    /// Removes the users from the log.
    pub(crate) fn without_users(&mut self) {
        self.says.users = false;
    }

    /// Cuts the times to whole seconds, as most access logs have them.
    pub(crate) fn in_whole_seconds(&mut self) {
        self.says.millis = false;
    }

    /// Makes all clients sign in, each address as a different user.
    pub(crate) fn everybody_signs_in(&mut self) {
        for request in self.requests.iter_mut().filter(|request| request.user.is_empty()) {
            request.user = format!("of-{}", request.client);
        }
    }

    /// Removes everything except times and addresses from the log.
    pub(crate) fn bare(&mut self) {
        self.says = Says { users: false, paths: false, ..self.says };
    }

    /// Removes images and scripts from the log, as if another server had them.
    pub(crate) fn without_parts(&mut self) {
        self.says.parts = false;
        self.requests.retain(|request| !request.path.starts_with("/static/"));
    }

    /// Returns the time of a request as it is in the log, in milliseconds since the start.
    pub(crate) fn time(&self, request: &Request) -> u64 {
        self.said(request.at)
    }

    fn said(&self, at: u64) -> u64 {
        if self.says.millis { at } else { at / 1_000 * 1_000 }
    }

    /// Returns the log as a table.
    pub(crate) fn text(&self) -> String {
        let columns = if self.says.paths { ",path,user_agent" } else { "" };
        let mut text = format!("timestamp,client_ip,user,status{columns}\n");
        for Request { at, client, user, path, status, agent } in &self.requests {
            let user = if self.says.users && !user.is_empty() { user } else { "-" };
            let time = 1_772_442_000_000 + self.said(*at);
            text.push_str(&if self.says.paths {
                format!("{time},{client},{user},{status},{path},{agent}\n")
            } else {
                format!("{time},{client},{user},{status}\n")
            });
        }
        text
    }

    /// Says whether a request is by a client to cut.
    pub(crate) fn is_bad(&self, request: &Request) -> bool {
        let is_within =
            |(client, agent): &(String, String)| *client == request.client && *agent == request.agent;
        self.bad.contains(&request.client) || self.bad_within.iter().any(is_within)
    }
}
