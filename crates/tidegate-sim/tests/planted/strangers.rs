//! Logs of other sites than the one of the table, by another hand: nineteen kinds, three seeds, and another day of each.
//!
//! Nothing in the method was tuned to these logs. Each has regular clients, which a seed chooses and who come on both
//! days, and clients to cut. What a limit does is worked out here with arithmetic of its own, so that it also judges
//! the arithmetic of the proposals.

use std::collections::{BTreeMap, HashMap, HashSet};

use tidegate::policy::Glob;
use tidegate_sim::log::{Input, LogOptions};
use tidegate_sim::suggest::{Fate, SuggestOptions, Suggestion, suggest};

use crate::planted::traffic::Chance;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
/// The length of each log.
const SPAN: u64 = 3 * HOUR;

/// One request, at so many milliseconds from the start.
struct Ask {
    at: u64,
    client: String,
    user: String,
    line: String,
    agent: String,
    bad: bool,
}

/// A client, as the log shows it.
#[derive(Clone)]
struct Who {
    client: String,
    user: String,
    agent: String,
    bad: bool,
}

fn who(client: impl Into<String>, agent: &str) -> Who {
    Who { client: client.into(), user: "-".to_owned(), agent: agent.to_owned(), bad: false }
}

impl Who {
    fn known_as(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    fn among_those_to_cut(mut self) -> Self {
        self.bad = true;
        self
    }
}

/// One day of a site. `fixed` is the same on each day of a seed, `today` is not.
struct Day {
    fixed: Chance,
    today: Chance,
    asks: Vec<Ask>,
}

const BROWSERS: [&str; 5] = [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/142.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 Version/19.1 Safari/605.1.15",
    "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_1 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "Mozilla/5.0 (Linux; Android 15; Pixel 9) AppleWebKit/537.36 Chrome/142.0 Mobile Safari/537.36",
];

impl Day {
    fn add(&mut self, at: u64, who: &Who, line: &str, status: u16) {
        if at < SPAN {
            let Who { client, user, agent, bad } = who.clone();
            self.asks.push(Ask { at, client, user, line: format!("{line} {status}"), agent, bad });
        }
    }

    /// A person who reads pages: the first with many parts, the next from the browser's cache, with pauses.
    fn reads(&mut self, who: &Who, start: u64, parts: u64) {
        let mut at = start;
        for view in 0..self.today.between(1, 12) {
            let page = self.today.below(900);
            self.add(at, who, &format!("GET /story/{page}"), 200);
            let parts = if view == 0 { parts } else { parts / 6 };
            for part in 0..parts {
                let later = at + 80 + self.today.below(1_800);
                self.add(later, who, &format!("GET /assets/{part}.webp"), 200);
            }
            at += self.today.between(6_000, 90_000);
        }
    }

    /// People who read, each with an address of their own, more of them around the middle of the day.
    fn readers(&mut self, people: u64, parts: u64) {
        for person in 0..people {
            let agent = BROWSERS[self.fixed.below(5) as usize];
            let eager = self.fixed.between(1, 4);
            let reader = who(format!("81.{}.{}.{}", person / 250, person % 250, 7 + person % 11), agent);
            for _ in 0..eager {
                let start = (self.today.below(SPAN) + self.today.below(SPAN)) / 2;
                self.reads(&reader, start, parts);
            }
        }
    }

    /// Signed-in people of a company, all behind one address.
    fn office(&mut self, address: &str, people: u64, signed_in: bool) {
        for person in 0..people {
            let agent = BROWSERS[self.fixed.below(5) as usize];
            let mut one = who(address, agent);
            if signed_in {
                one = one.known_as(format!("{address}-p{person}"));
            }
            for _ in 0..self.fixed.between(1, 3) {
                let start = self.today.below(SPAN - MINUTE * 10);
                self.reads(&one, start, 14);
            }
        }
    }

    /// Phones that ask for three things every half a minute to a minute and a half, some of them behind eight
    /// addresses of carriers.
    fn phones(&mut self, count: u64) {
        for phone in 0..count {
            let address = if self.fixed.below(2) == 0 {
                format!("37.24.0.{}", self.fixed.below(8))
            } else {
                format!("91.{}.{}.5", phone / 200, phone % 200)
            };
            let one = who(address, "ShopApp/7.4 (Android 15)").known_as(format!("phone{phone}"));
            let gap = self.fixed.between(30_000, 90_000);
            let (mut at, end) = (self.today.below(SPAN), SPAN);
            let end = (at + self.today.between(5, 40) * MINUTE).min(end);
            while at < end {
                for thing in ["cart", "offers", "messages"] {
                    let later = at + self.today.below(400);
                    self.add(later, &one, &format!("GET /v2/{thing}"), 200);
                }
                at += gap + self.today.below(4_000);
            }
        }
    }

    /// Services that call each other: the first 4 a second, the others less and less.
    fn services(&mut self) {
        for service in 1..=14 {
            let one = who(format!("10.4.0.{service}"), "okhttp/5.1.0");
            let gap = 250 * service * service / 2 + 125;
            let mut at = self.today.below(gap);
            while at < SPAN {
                let path = ["stock", "price", "tax", "route"][self.fixed.clone().below(4) as usize];
                let id = self.today.below(4_000);
                self.add(at, &one, &format!("GET /internal/{path}/{id}"), 200);
                at += gap / 2 + self.today.below(gap);
            }
        }
    }

    /// Customers of an API, each with a user and a pace of its own.
    fn customers(&mut self, count: u64) {
        for customer in 0..count {
            let one = who(format!("52.{}.8.{}", customer % 90, customer), "acme-sdk/3.2 python/3.14")
                .known_as(format!("acct_{customer}"));
            let gap = 4_000 + self.fixed.below(60_000);
            let mut at = self.today.below(gap);
            while at < SPAN {
                for _ in 0..self.today.between(1, 4) {
                    let (later, id) = (self.today.below(900), self.today.below(600));
                    self.add(at + later, &one, &format!("POST /v1/orders/{id}"), 201);
                }
                at += gap / 2 + self.today.below(gap);
            }
        }
    }

    /// Requests one after another, from `start` on, about every `gap` milliseconds.
    fn series(
        &mut self,
        who: &Who,
        start: u64,
        gap: u64,
        count: u64,
        path: impl Fn(u64) -> String,
        status: u16,
    ) {
        let mut at = start;
        for number in 0..count {
            self.add(at, who, &path(number), status);
            at += gap * 7 / 10 + self.today.below(gap * 6 / 10 + 1);
        }
    }

    fn early(&mut self) -> u64 {
        self.today.below(SPAN / 2)
    }
}

type Site = fn(&mut Day);

/// The kinds. Regular clients come first, then those to cut.
static SITES: [(&str, Site); 19] = [
    ("a newspaper, nobody abuses", |day| day.readers(700, 22)),
    ("services of one company, nobody abuses", Day::services),
    ("two offices and readers, nobody abuses", |day| {
        day.readers(250, 16);
        day.office("193.99.144.80", 70, true);
        day.office("193.99.144.81", 25, true);
    }),
    ("an app behind carriers, nobody abuses", |day| day.phones(700)),
    ("a newspaper and a scraper, two a second", |day| {
        day.readers(500, 18);
        let (bot, start) = (who("45.9.20.14", "python-requests/2.33").among_those_to_cut(), day.early());
        day.series(&bot, start, 500, 4_800, |page| format!("GET /story/{page}"), 200);
    }),
    ("a newspaper and a scraper little faster than the busiest reader", |day| {
        day.readers(500, 8);
        let (bot, start) =
            (who("45.9.20.15", "Go-http-client/2.0").among_those_to_cut(), day.today.below(HOUR / 4));
        day.series(&bot, start, 1_900, 5_000, |page| format!("GET /story/{page}"), 200);
    }),
    ("an office of sixty without users, and a scraper elsewhere, three a second", |day| {
        day.readers(200, 14);
        day.office("193.99.144.82", 60, false);
        let (bot, start) = (who("45.9.20.16", "Scrapy/2.14").among_those_to_cut(), day.early());
        day.series(&bot, start, 330, 6_000, |page| format!("GET /story/{page}"), 200);
    }),
    ("an office of sixty with a scraper inside", |day| {
        day.readers(200, 14);
        day.office("193.99.144.83", 60, false);
        let (bot, start) = (who("193.99.144.83", "colly/2.2").among_those_to_cut(), day.early());
        day.series(&bot, start, 400, 5_000, |page| format!("GET /story/{page}"), 200);
    }),
    ("passwords tried from one address, one a second", |day| {
        day.readers(300, 14);
        let (bot, start) = (who("45.9.20.17", BROWSERS[0]).among_those_to_cut(), day.early());
        day.series(&bot, start, 1_000, 1_500, |_| "POST /login".to_owned(), 401);
    }),
    ("passwords tried from forty addresses, six a minute each", |day| {
        day.readers(300, 14);
        let start = day.early();
        for bot in 0..40 {
            let bot = who(format!("185.220.{}.{}", bot % 5, bot), BROWSERS[2]).among_those_to_cut();
            let start = start + day.today.below(5 * MINUTE);
            day.series(&bot, start, 10_000, 180, |_| "POST /login".to_owned(), 401);
        }
    }),
    ("customers, one of whom repeats failed calls twenty times a second", |day| {
        day.customers(90);
        let start = day.early();
        let loops = who("52.3.9.9", "acme-sdk/3.2 python/3.14").known_as("acct_loop").among_those_to_cut();
        day.series(&loops, start, 50, 12_000, |_| "POST /v1/orders/77".to_owned(), 500);
    }),
    ("an app behind carriers, and a program that sends its agent, four a second", |day| {
        day.phones(500);
        let (bot, start) = (who("45.9.20.18", "ShopApp/7.4 (Android 15)").among_those_to_cut(), day.early());
        day.series(&bot, start, 250, 9_000, |page| format!("GET /v2/products/{page}"), 200);
    }),
    ("a newspaper and comments by a machine, one every two seconds", |day| {
        day.readers(400, 12);
        let (bot, start) = (who("45.9.20.19", BROWSERS[1]).among_those_to_cut(), day.early());
        day.series(&bot, start, 2_000, 2_400, |page| format!("POST /story/{}/comments", page % 40), 201);
    }),
    ("three who look for holes, five a second", |day| {
        day.readers(400, 16);
        for bot in 0..3 {
            let (bot, start) =
                (who(format!("45.9.21.{bot}"), "Nuclei/3.5").among_those_to_cut(), day.early());
            day.series(&bot, start, 200, 3_000, |page| format!("GET /{page}.php"), 404);
        }
    }),
    ("a flood from twenty-five addresses, ten a second each for five minutes", |day| {
        day.readers(400, 16);
        let start = day.early();
        for bot in 0..25 {
            let bot = who(format!("103.7.{bot}.2"), BROWSERS[4]).among_those_to_cut();
            day.series(&bot, start, 100, 3_000, |_| "GET /".to_owned(), 200);
        }
    }),
    ("customers with a sync on the hour, and a scraper, six a second", |day| {
        day.customers(60);
        for partner in 0..3 {
            let one =
                who(format!("52.200.1.{partner}"), "nightly-sync/2.0").known_as(format!("acct_p{partner}"));
            for hour in 0..SPAN / HOUR {
                let items = day.fixed.clone().between(250, 350);
                day.series(
                    &one,
                    hour * HOUR + 2_000,
                    120,
                    items,
                    |item| format!("GET /v1/items/{item}"),
                    200,
                );
            }
        }
        let (bot, start) = (who("45.9.20.20", "aiohttp/3.14").among_those_to_cut(), day.early());
        day.series(&bot, start, 160, 15_000, |page| format!("GET /v1/items/{page}"), 200);
    }),
    ("a newspaper, a search engine that is welcome, and a scraper, two a second", |day| {
        day.readers(400, 16);
        let engine =
            who("66.249.66.12", "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)");
        day.series(&engine, 0, 9_000, SPAN / 9_000, |page| format!("GET /story/{}", page * 37 % 900), 200);
        let (bot, start) = (who("45.9.20.21", "curl/8.16").among_those_to_cut(), day.early());
        day.series(&bot, start, 500, 4_000, |page| format!("GET /story/{page}"), 200);
    }),
    ("events of a payment service in bursts, and passwords tried, two a second", |day| {
        day.readers(250, 12);
        let hooks = who("54.187.174.1", "Payments/1.0 (webhooks)");
        let mut at = day.today.below(MINUTE);
        while at < SPAN {
            for _ in 0..day.today.between(1, 30) {
                let later = at + day.today.below(5_000);
                day.add(later, &hooks, "POST /hooks/payment", 200);
            }
            at += day.today.between(20_000, 300_000);
        }
        let (bot, start) = (who("45.9.20.22", "python-requests/2.33").among_those_to_cut(), day.early());
        day.series(&bot, start, 500, 2_500, |_| "POST /login".to_owned(), 401);
    }),
    ("a sale that starts on the hour, and a machine that buys, five a second", |day| {
        day.readers(200, 10);
        for buyer in 0..500 {
            let agent = BROWSERS[day.fixed.below(5) as usize];
            let one = who(format!("94.{}.{}.3", buyer / 200, buyer % 200), agent);
            let start = HOUR + day.today.below(4 * MINUTE);
            day.reads(&one, start, 20);
        }
        let bot = who("45.9.20.23", BROWSERS[3]).among_those_to_cut();
        day.series(&bot, HOUR, 200, 4_000, |_| "POST /checkout".to_owned(), 409);
    }),
];

fn day_of(site: Site, seed: u64, day: u64) -> Day {
    let mut made =
        Day { fixed: Chance::new(seed), today: Chance::new(seed * 31 + 1 + day), asks: Vec::new() };
    site(&mut made);
    made.asks.sort_by_key(|ask| ask.at);
    made
}

/// Writes a log as web servers do, in whole seconds.
fn text(day: &Day) -> String {
    let mut text = String::new();
    for ask in &day.asks {
        let (second, line) = (ask.at / 1_000, ask.line.rsplit_once(' ').unwrap());
        text.push_str(&format!(
            "{} - {} [14/Sep/2026:{:02}:{:02}:{:02} +0000] \"{} HTTP/1.1\" {} 512 \"-\" \"{}\"\n",
            ask.client,
            ask.user,
            9 + second / 3_600,
            second / 60 % 60,
            second % 60,
            line.0,
            line.1,
            ask.agent
        ));
    }
    text
}

/// What a limit does: requests refused by client, those of clients to cut apart.
#[derive(Debug, Default)]
struct Done {
    bad_refused: u64,
    others: HashMap<String, u64>,
}

/// A token bucket of `burst` filled at `rate` a minute, in units of 1/60,000 token, for each client.
fn done_by(day: &Day, rate: u64, window: u64, burst: u64) -> Done {
    let (full, one) = (burst * window, window);
    let mut levels: HashMap<&str, (u64, u64)> = HashMap::new();
    let mut done = Done::default();
    for ask in &day.asks {
        let at = ask.at / 1_000 * 1_000;
        let (level, last) = levels.entry(&ask.client).or_insert((full, at));
        *level = (*level + (at - *last) * rate).min(full);
        *last = at;
        if *level >= one {
            *level -= one;
        } else if ask.bad {
            done.bad_refused += 1;
        } else {
            *done.others.entry(ask.client.clone()).or_default() += 1;
        }
    }
    done
}

/// The most requests of clients to cut that a limit by address can refuse without refusing anybody else.
fn possible(day: &Day) -> u64 {
    let rates = [1, 2, 3, 5, 8, 12, 18, 25, 35, 50, 70, 100, 140, 200, 280, 400, 600, 900];
    let least = |rate: u64| {
        let (mut low, mut high) = (1, 1 << 14);
        while low < high {
            let middle = (low + high) / 2;
            if done_by(day, rate, MINUTE, middle).others.is_empty() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    };
    rates.iter().map(|rate| done_by(day, *rate, MINUTE, least(*rate)).bad_refused).max().unwrap_or(0)
}

/// What became of one log.
#[derive(Debug)]
#[expect(dead_code, reason = "all of it is printed")]
struct Judged {
    abuse: bool,
    bad: u64,
    refused: u64,
    possible: u64,
    innocent_hit: u64,
    innocent_refused: u64,
    innocent_asked: u64,
    signed_in_hit: u64,
    /// Innocent clients hit on another day; `None` where nothing is offered.
    another_day: Option<u64>,
    named: bool,
    told_apart: bool,
    right: bool,
    offered: String,
}

fn propose(day: &Day) -> Suggestion {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text(day)).unwrap();
    let input = Input::File(file.path().to_owned());
    suggest(&[input], &LogOptions::default(), &SuggestOptions::default(), |_| {}).unwrap()
}

/// The requests that the policies for traffic of their own match: those of clients to cut, and others.
fn matched(day: &Day, found: &Suggestion) -> (u64, u64) {
    let globs = found.narrower.iter().map(|one| (one.attribute.as_str(), Glob::new(&one.pattern).unwrap()));
    let globs: Vec<(&str, Glob)> = globs.collect();
    let fits = |ask: &&Ask| {
        let fits = |(attribute, glob): &(&str, Glob)| match *attribute {
            "client.ip" => glob.matches(&ask.client),
            _ => glob.matches(&ask.agent),
        };
        globs.iter().any(fits)
    };
    let (bad, others): (Vec<&Ask>, Vec<&Ask>) = day.asks.iter().filter(fits).partition(|ask| ask.bad);
    (bad.len() as u64, others.len() as u64)
}

fn judge(site: Site, seed: u64) -> Judged {
    let (day, next) = (day_of(site, seed, 0), day_of(site, seed, 1));
    let found = propose(&day);
    let bad_keys: HashSet<&str> = day.asks.iter().filter(|ask| ask.bad).map(|ask| &*ask.client).collect();
    let shared: HashSet<&str> = day
        .asks
        .iter()
        .filter(|ask| !ask.bad && bad_keys.contains(&*ask.client))
        .map(|ask| &*ask.client)
        .collect();
    let bad = day.asks.iter().filter(|ask| ask.bad).count() as u64;
    let first = found.proposals.first();
    let millis = |window: std::time::Duration| u64::try_from(window.as_millis()).unwrap();
    let apply = |day: &Day| first.map(|one| done_by(day, one.rate.count, millis(one.rate.window), one.burst));
    let (today, another) = (apply(&day), apply(&next));
    let users: HashSet<&str> =
        day.asks.iter().filter(|ask| !ask.bad && ask.user != "-").map(|ask| &*ask.client).collect();
    let hit = today.as_ref().map_or(0, |done| done.others.len() as u64);
    let refused = today.as_ref().map_or(0, |done| done.bad_refused);
    let possible = possible(&day);
    let named = found.stand_out.iter().any(|told| bad_keys.contains(&*told.key));
    let accused =
        found.stand_out.iter().any(|told| told.fate == Fate::Missed && !bad_keys.contains(&*told.key));
    let apart = !found.narrower.is_empty() && {
        let (bad_told, others) = matched(&day, &found);
        others == 0 && bad_told * 10 >= bad * 8
    };
    let right = hit == 0
        && !accused
        && match (bad, possible * 10 >= bad * 3) {
            (0, _) => found.narrower.is_empty(),
            (_, true) => refused * 10 >= possible * 8 || apart,
            // No limit by address can cut much: the abuser is named, or told apart by a policy of its own.
            (_, false) => apart || (named && !shared.is_empty()),
        };
    Judged {
        abuse: bad > 0,
        bad,
        refused,
        possible,
        innocent_hit: hit,
        innocent_refused: today.as_ref().map_or(0, |done| done.others.values().sum()),
        innocent_asked: day.asks.len() as u64 - bad,
        signed_in_hit: today
            .as_ref()
            .map_or(0, |done| done.others.keys().filter(|key| users.contains(&***key)).count() as u64),
        another_day: another.map(|done| done.others.len() as u64),
        named,
        told_apart: apart,
        right,
        offered: first
            .map_or("none".to_owned(), |one| format!("{:?} {} burst {}", one.purpose, one.rate, one.burst)),
    }
}

/// Prints the whole table, and what it adds up to.
#[test]
#[ignore = "the long form: 114 logs, minutes without optimisation"]
fn strangers() {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, site) in &SITES {
        for seed in [7_101, 7_102, 7_103] {
            let one = judge(*site, seed);
            println!("{name} #{seed}: {one:?}");
            let mut add = |what, much: f64| *sums.entry(what).or_default() += much;
            add("logs", 1.0);
            add("right", f64::from(u8::from(one.right)));
            add("innocent requests refused", one.innocent_refused as f64);
            add("innocent requests", one.innocent_asked as f64);
            add("signed in hit", one.signed_in_hit as f64);
            if one.abuse {
                add("abuse logs", 1.0);
                add("abuse cut, share summed", one.refused as f64 / one.bad as f64);
                add("abuse possible, share summed", one.possible as f64 / one.bad as f64);
            } else {
                add("no abuse: innocents hit", one.innocent_hit as f64);
                add("no abuse: room offered", f64::from(u8::from(one.another_day.is_some())));
            }
            if let Some(others) = one.another_day {
                add("offers tried on another day", 1.0);
                add("offers held on another day", f64::from(u8::from(others == 0)));
            }
        }
    }
    println!("{sums:#?}");
}
