//! Logs in which it is known who is who: people, and what is planted among them.

use std::collections::HashSet;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    /// Milliseconds since the start.
    at: u64,
    client: String,
    user: String,
}

/// A log of some hours, made up from a seed.
#[derive(Debug)]
pub(crate) struct Planted {
    chance: Chance,
    requests: Vec<Request>,
    /// The clients that a limit should cut.
    pub(crate) bad: HashSet<String>,
    /// Whether the log says who signed in.
    names_users: bool,
}

const HOUR: u64 = 3_600_000;
/// How long each log is.
const SPAN: u64 = 4 * HOUR;

/// Chance from a seed alone (SplitMix64), apart from that of the traffic generator, so that these logs never change with it.
#[derive(Clone, Debug)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// Returns how often a chance of `stay` in a hundred came true in a row, at most `most` times.
    fn run(&mut self, stay: u64, most: u64) -> u64 {
        (0..most).find(|_| self.below(100) >= stay).unwrap_or(most)
    }
}

/// What can be planted.
pub(crate) type Plant = fn(&mut Planted);

impl Planted {
    /// Makes the people of a log, who visit all day, and plants something among them.
    pub(crate) fn new(seed: u64, plant: Plant) -> Self {
        let mut log =
            Self { chance: Chance(seed), requests: Vec::new(), bad: HashSet::new(), names_users: true };
        for person in 0..240 {
            let signed_in = log.chance.below(4) == 0;
            let visits = 1 + log.chance.run(35, 4);
            let user = if signed_in { format!("user{person}") } else { String::new() };
            for _ in 0..visits {
                let start = log.chance.below(SPAN - HOUR / 4);
                log.visit(&format!("192.0.2.{person}"), &user, start);
            }
        }
        plant(&mut log);
        log.requests.sort();
        log.requests.retain(|request| request.at < SPAN);
        log
    }

    /// Some pages with what belongs to them, and time to read between them.
    fn visit(&mut self, client: &str, user: &str, start: u64) {
        let mut at = start;
        for _ in 0..=self.chance.run(75, 25) {
            for _ in 0..=self.chance.below(5) {
                self.add(at + self.chance.clone().below(1_500), client, user);
                self.chance.next();
            }
            at += 4_000 + self.chance.below(45_000);
        }
    }

    fn add(&mut self, at: u64, client: &str, user: &str) {
        self.requests.push(Request { at, client: client.to_owned(), user: user.to_owned() });
    }

    fn bad(&mut self, client: &str) -> String {
        self.bad.insert(client.to_owned());
        client.to_owned()
    }

    /// Returns the log as a table.
    pub(crate) fn text(&self) -> String {
        let mut text = "timestamp,client_ip,user,status\n".to_owned();
        for Request { at, client, user } in &self.requests {
            let user = if self.names_users && !user.is_empty() { user } else { "-" };
            text.push_str(&format!("{},{client},{user},200\n", 1_772_442_000_000 + at));
        }
        text
    }

    /// Returns each request as (client, whether it is one to cut).
    pub(crate) fn clients(&self) -> impl Iterator<Item = (&str, bool)> {
        self.requests.iter().map(|request| (request.client.as_str(), self.bad.contains(&request.client)))
    }
}

pub(crate) fn nothing(_: &mut Planted) {}

/// Up to three addresses that fetch at 3 to 20 a second for some minutes.
pub(crate) fn scrapers(log: &mut Planted) {
    for scraper in 0..=log.chance.below(3) {
        let client = log.bad(&format!("203.0.113.{scraper}"));
        let (mut at, gap) = (log.chance.below(SPAN - HOUR), log.chance.between(50, 330));
        for _ in 0..log.chance.between(600, 1_500) {
            log.add(at, &client, "");
            at += gap / 2 + log.chance.below(gap);
        }
    }
}

/// One address that fetches a page every 4 to 9 seconds for hours, and never bursts.
pub(crate) fn slow_crawler(log: &mut Planted) {
    let client = log.bad("203.0.113.50");
    let (mut at, gap) = (log.chance.below(HOUR / 2), log.chance.between(4_000, 9_000));
    while at < SPAN {
        log.add(at, &client, "");
        at += gap - 500 + log.chance.below(1_000);
    }
}

/// Thirty addresses that fetch together, each at 30 to 60 a minute for half an hour.
pub(crate) fn many_scrapers(log: &mut Planted) {
    let start = log.chance.below(SPAN - HOUR);
    for scraper in 0..30 {
        let client = log.bad(&format!("203.0.113.{}", 100 + scraper));
        let (mut at, gap) = (start + log.chance.below(HOUR / 12), log.chance.between(1_000, 2_000));
        let end = at + HOUR / 4;
        while at < end {
            log.add(at, &client, "");
            at += gap / 2 + log.chance.below(gap);
        }
    }
}

/// Three addresses with fifteen to forty people behind each, all of whom sign in and visit several times.
pub(crate) fn offices(log: &mut Planted) {
    for office in 0..3 {
        let client = format!("198.51.100.{office}");
        for person in 0..log.chance.between(15, 40) {
            for _ in 0..3 {
                let start = log.chance.below(SPAN - HOUR / 4);
                log.visit(&client, &format!("office{office}-{person}"), start);
            }
        }
    }
}

pub(crate) fn offices_and_scrapers(log: &mut Planted) {
    offices(log);
    scrapers(log);
}

/// The same offices in a log that does not say who signed in.
pub(crate) fn offices_unknown(log: &mut Planted) {
    offices(log);
    log.names_users = false;
}

pub(crate) fn offices_unknown_and_scrapers(log: &mut Planted) {
    offices_and_scrapers(log);
    log.names_users = false;
}

/// Sixty machines that ask one to three times each, all in the same second, every ten minutes.
pub(crate) fn cron_together(log: &mut Planted) {
    for round in 0..SPAN / (HOUR / 6) {
        for machine in 0..60 {
            for _ in 0..log.chance.between(1, 3) {
                let at = round * HOUR / 6 + log.chance.below(900);
                log.add(at, &format!("198.51.100.{}", 100 + machine), "");
            }
        }
    }
}

/// One machine that asks 40 to 80 times at once on the hour.
pub(crate) fn cron_alone(log: &mut Planted) {
    for hour in 0..SPAN / HOUR {
        for _ in 0..log.chance.between(40, 80) {
            let at = hour * HOUR + log.chance.below(2_000);
            log.add(at, "198.51.100.200", "");
        }
    }
}

/// Four hundred new clients within five minutes, a visit each.
pub(crate) fn flash_crowd(log: &mut Planted) {
    let start = log.chance.below(SPAN - HOUR);
    for client in 0..400 {
        let at = start + log.chance.below(300_000);
        log.visit(&format!("198.18.{}.{}", client / 200, client % 200), "", at);
    }
}

pub(crate) fn flash_crowd_and_scrapers(log: &mut Planted) {
    flash_crowd(log);
    scrapers(log);
}

/// Ten apps that ask every ten seconds for hours, none of them signed in.
pub(crate) fn polling(log: &mut Planted) {
    for app in 0..10 {
        let mut at = log.chance.below(10_000);
        while at < SPAN {
            log.add(at, &format!("198.51.100.{app}"), "");
            at += 10_000;
        }
    }
}

pub(crate) fn polling_and_scrapers(log: &mut Planted) {
    polling(log);
    scrapers(log);
}

pub(crate) fn crawler_and_scrapers(log: &mut Planted) {
    slow_crawler(log);
    scrapers(log);
}

/// An address that fetches no faster than the offices do.
pub(crate) fn crawler_behind_offices(log: &mut Planted) {
    offices(log);
    slow_crawler(log);
}

/// Customers of an API, sixty of them, whose load falls by a power law: the first asks 12 a minute, the second 6, the third 4.
pub(crate) fn power_law(log: &mut Planted) {
    for customer in 1..=60 {
        let gap = 5_000 * customer;
        let mut at = log.chance.below(gap);
        while at < SPAN {
            log.add(at, &format!("198.51.100.{customer}"), "");
            at += log.chance.below(2 * gap);
        }
    }
}

pub(crate) fn power_law_and_scrapers(log: &mut Planted) {
    power_law(log);
    scrapers(log);
}

/// One client that tries passwords at 20 a minute for ten minutes.
pub(crate) fn guesser(log: &mut Planted) {
    let client = log.bad("203.0.113.77");
    let mut at = log.chance.below(SPAN - HOUR);
    for _ in 0..200 {
        log.add(at, &client, "");
        at += log.chance.below(6_000);
    }
}

/// A scraper that goes on from another of three hundred addresses after every ten requests.
pub(crate) fn rotating_scraper(log: &mut Planted) {
    let mut at = log.chance.below(HOUR);
    for address in 0..300 {
        let client = log.bad(&format!("203.0.{}.{}", 114 + address / 200, address % 200));
        for _ in 0..10 {
            log.add(at, &client, "");
            at += 500 + log.chance.below(1_500);
        }
    }
}
