//! More logs, on two days with the same people, offices and machines: what the first limit on offer cuts and whom it
//! hits, on its own day and on the other.

use std::collections::HashMap;
use std::time::Duration;

use tidegate::limiter::Rate;
use tidegate::policy::{Descriptor, Limit, Policy};
use tidegate::{Quota, Tick};
use tidegate_sim::suggest::{Finding, Suggestion};
use tidegate_sim::what_if::{Candidate, WhatIf, WhatIfOptions};

use crate::planted::harm::{harm, propose};
use crate::planted::plants::{self, health_checks, nothing, power_law, scrapers, slow_crawler};
use crate::planted::traffic::{ANOTHER_DAY, Asker, HOUR, PAGES, Plant, Planted, SPAN};

macro_rules! both {
    ($($plant:expr),+) => { |log: &mut Planted| { $($plant(log);)+ } };
}

static KINDS: &[(&str, Plant)] = &[
    ("people", nothing),
    ("people, bare", both!(nothing, Planted::bare)),
    ("heavy readers", heavy_readers),
    (
        "heavy readers, no parts, no users",
        both!(heavy_readers, Planted::without_parts, Planted::without_users),
    ),
    ("customers of an API", api_customers),
    ("customers of an API, one runs wild", both!(api_customers, api_runaway)),
    ("power law", power_law),
    ("office", office),
    ("office and a scraper beside it", both!(office, middling_scraper)),
    ("office and fast scrapers", both!(office, scrapers)),
    ("office without users and a scraper beside it", both!(office, middling_scraper, Planted::without_users)),
    ("office with a scraper inside", office_with_one),
    ("mobile carriers", carriers),
    ("mobile carriers and scrapers", both!(carriers, scrapers)),
    ("mobile carriers, bare", both!(carriers, Planted::bare)),
    ("a scraper slightly above the busiest", slightly_above),
    ("the same without parts", both!(slightly_above, Planted::without_parts)),
    ("heavy readers and a scraper slightly above", both!(heavy_readers, slightly_above)),
    ("a scraper that grows", growing),
    ("credential stuffing", stuffing),
    ("a fast guesser", fast_guesser),
    ("on the hour", on_the_hour),
    ("on the hour, and scrapers", both!(on_the_hour, scrapers)),
    ("a busier afternoon", afternoon),
    ("a busier afternoon and a slow crawler", both!(afternoon, slow_crawler)),
    ("a welcome crawler", welcome),
    ("a welcome crawler and scrapers", both!(welcome, scrapers)),
    ("health checks and scrapers", both!(health_checks, scrapers)),
    ("a retry storm", retries),
    ("a sale", sale),
    ("a sale and scrapers", both!(sale, scrapers)),
    ("heavy pages", plants::heavy_pages),
    ("heavy pages and a slow crawler", both!(plants::heavy_pages, slow_crawler)),
    ("scrapers, whole seconds, no parts", both!(scrapers, Planted::in_whole_seconds, Planted::without_parts)),
    ("scrapers, bare", both!(scrapers, Planted::bare)),
    ("one scraper at the pace of a reader, all day", all_day_scraper),
];

/// Readers whose number of visits falls by a power law: the first has sixty.
fn heavy_readers(log: &mut Planted) {
    for reader in 0..80u64 {
        let asker = Asker::person(
            format!("100.70.1.{reader}"),
            if reader % 3 == 0 { format!("r{reader}") } else { String::new() },
            reader * 11,
        );
        for _ in 0..(60 / (reader + 1)).max(1) {
            let start = log.chance.below(SPAN - HOUR / 4);
            log.visit(&asker, start);
        }
    }
}

/// Customers of an interface by token: load by a power law, things of their own.
fn api_customers(log: &mut Planted) {
    log.requests.clear();
    for customer in 1..=90u64 {
        let asker = Asker {
            user: format!("c{customer}"),
            ..Asker::program(format!("tok-{customer}"), format!("sdk/{}", customer % 5))
        };
        let gap = 3_000 * customer;
        let mut at = log.chance.below(gap);
        while at < SPAN {
            let path = format!("/v1/orders/{}", log.chance.below(100_000));
            log.add(at, &asker, &path, 200);
            at += log.chance.below(2 * gap);
        }
    }
}

fn api_runaway(log: &mut Planted) {
    let asker = log.bad(Asker { user: "c99".to_owned(), ..Asker::program("tok-99", "sdk/2") });
    let mut at = log.chance.below(HOUR);
    let end = at + HOUR * 2;
    while at < end {
        let path = format!("/v1/orders/{}", log.chance.below(100_000));
        log.add(at, &asker, &path, 200);
        at += log.chance.below(600);
    }
}

/// An office of 20 to 60 people who sign in; the same people on each day.
fn office(log: &mut Planted) {
    let people = log.persona.between(20, 60);
    for person in 0..people {
        let browser = log.persona.next();
        let asker = Asker::person("198.51.100.7", format!("o{person}"), browser);
        for _ in 0..log.chance.between(1, 4) {
            let start = log.chance.below(SPAN - HOUR / 4);
            log.visit(&asker, start);
        }
    }
}

/// A scraper at 20 to 60 a minute for one to two hours.
fn middling_scraper(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.20", "fetch/0.4"));
    let mut at = log.chance.below(HOUR);
    let (gap, end) = (log.chance.between(1_000, 3_000), at + HOUR + log.chance.below(HOUR));
    let mut page = 0;
    while at < end {
        log.add(at, &asker, &format!("/item/{}", page % PAGES), 200);
        (page, at) = (page + 1, at + gap / 2 + log.chance.below(gap));
    }
}

fn office_with_one(log: &mut Planted) {
    office(log);
    let asker = log.bad_within(Asker::program("198.51.100.7", "fetch/0.4"));
    let mut at = log.chance.below(HOUR);
    for page in 0..3_000 {
        log.add(at, &asker, &format!("/item/{page}"), 200);
        at += 500 + log.chance.below(1_000);
    }
}

/// Addresses of mobile carriers, with 40 to 120 people behind each, who do not sign in.
fn carriers(log: &mut Planted) {
    for carrier in 0..4 {
        for _ in 0..log.persona.between(40, 120) {
            let browser = log.persona.next();
            let asker = Asker::person(format!("100.80.0.{carrier}"), "", browser);
            for _ in 0..log.chance.between(0, 2) {
                let start = log.chance.below(SPAN - HOUR / 4);
                log.visit(&asker, start);
            }
        }
    }
}

/// A scraper that asks for 1.3 to 3 times as much as the busiest person, within the same time.
fn slightly_above(log: &mut Planted) {
    let mut of: HashMap<&str, Vec<u64>> = HashMap::new();
    for request in &log.requests {
        of.entry(&request.client).or_default().push(log.time(request));
    }
    let busiest = of.values().map(Vec::len).max().unwrap() as u64;
    let asks = busiest * log.chance.between(13, 30) / 10;
    let asker = log.bad(Asker::program("203.0.113.21", "Mozilla/5.0 (browser 6)"));
    let start = log.chance.below(HOUR);
    let gap = HOUR * 2 / asks;
    for page in 0..asks {
        let at = start + page * gap + log.chance.below(gap);
        log.add(at, &asker, &format!("/item/{}", page * 7 % PAGES), 200);
    }
}

/// From 2 a minute to 60 a minute within four hours.
fn growing(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.22", "grow/1"));
    let (mut at, mut page) = (0, 0);
    while at < SPAN {
        log.add(at, &asker, &format!("/item/{}", page % PAGES), 200);
        let pace = 2 + 58 * at / SPAN;
        (page, at) = (page + 1, at + log.chance.below(2 * 60_000 / pace));
    }
}

/// Four hundred addresses try three to six passwords each.
fn stuffing(log: &mut Planted) {
    for place in 0..400u64 {
        let asker = log.bad(Asker::person(format!("100.{}.{}.4", 90 + place % 30, place / 2), "", place));
        let mut at = log.chance.below(SPAN - HOUR / 2);
        for _ in 0..log.chance.between(3, 6) {
            log.add(at, &asker, "/login", 401);
            at += log.chance.between(2_000, 60_000);
        }
    }
}

fn fast_guesser(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.23", "python-requests/2.31"));
    let mut at = log.chance.below(SPAN - HOUR);
    for _ in 0..2_000 {
        log.add(at, &asker, "/login", 401);
        at += 200 + log.chance.below(800);
    }
}

/// Twelve machines that ask for ten to sixty things on the hour.
fn on_the_hour(log: &mut Planted) {
    for machine in 0..12 {
        let asks = log.persona.between(10, 60);
        let asker = Asker::program(format!("198.51.100.{}", 30 + machine), "cron-job/2");
        for hour in 0..SPAN / HOUR {
            for ask in 0..asks {
                let at = hour * HOUR + log.chance.below(20_000);
                log.add(at, &asker, &format!("/export/{ask}"), 200);
            }
        }
    }
}

/// Twice as many visits in the second half.
fn afternoon(log: &mut Planted) {
    for person in 0..200u64 {
        let asker = Asker::person(format!("100.71.{}.{person}", person % 40), "", log.persona.next());
        for _ in 0..log.chance.between(1, 3) {
            let start = SPAN / 2 + log.chance.below(SPAN / 2 - HOUR / 4);
            log.visit(&asker, start);
        }
    }
}

/// A search engine that reads a page every 3 to 8 seconds.
fn welcome(log: &mut Planted) {
    let agent = "Mozilla/5.0 (compatible; Seekbot/2.1; +http://www.seek.example/bot.html)";
    let asker = Asker::program("192.178.5.1", agent);
    let (mut at, mut page) = (0, log.chance.below(PAGES));
    while at < SPAN {
        log.add(at, &asker, &format!("/item/{}", page % PAGES), 200);
        (page, at) = (page + 1, at + log.chance.between(3_000, 8_000));
    }
}

/// Six clients of an app that repeat a failing request for some minutes.
fn retries(log: &mut Planted) {
    for app in 0..6 {
        let asker =
            Asker { user: format!("app{app}"), ..Asker::program(format!("100.72.0.{app}"), "OurApp/3.1") };
        for _ in 0..20 {
            let at = log.chance.below(SPAN);
            log.add(at, &asker, "/api/sync", 200);
        }
        let mut at = log.chance.below(SPAN - HOUR);
        for _ in 0..log.chance.between(100, 400) {
            log.add(at, &asker, "/api/sync", 503);
            at += 1_000 + log.chance.below(1_000);
        }
    }
}

/// A thousand new clients within half an hour, who reload.
fn sale(log: &mut Planted) {
    let start = HOUR + log.chance.below(HOUR);
    for client in 0..1_000u64 {
        let asker = Asker::person(format!("198.18.{}.{}", client / 10, client % 200), "", log.chance.next());
        let at = start + log.chance.below(HOUR / 2);
        for _ in 0..log.chance.below(12) {
            let later = at + log.chance.below(120_000);
            log.add(later, &asker, "/sale", 200);
        }
        log.visit(&asker, at);
    }
}

fn all_day_scraper(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.24", "Mozilla/5.0 (browser 8)"));
    let (mut at, mut page) = (0, 0);
    while at < SPAN {
        log.add(at, &asker, &format!("/item/{}", page % PAGES), 200);
        (page, at) = (page + 1, at + 5_000 + log.chance.below(20_000));
    }
}

/// The largest share of the abuse that a limit can deny that hits nobody else.
fn possible(log: &Planted) -> f64 {
    let mut policy = Policy::new("p", Limit::new(Quota::per_second(1).gcra().unwrap(), "any"));
    policy.by = vec!["client.ip".to_owned()];
    let counts = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1_024];
    let bursts =
        [1, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100, 130, 160, 200, 250, 300, 400, 600, 800, 1_200, 2_000];
    let rate = |count| Rate::new(count, Duration::from_secs(60)).unwrap();
    let candidates: Vec<Candidate> =
        counts.iter().flat_map(|count| bursts.map(|burst| Candidate { rate: rate(*count), burst })).collect();
    let mut what_if =
        WhatIf::new(&policy, &candidates, WhatIfOptions { named: 10_000, ..WhatIfOptions::default() })
            .unwrap();
    for request in &log.requests {
        let at = Tick::from_nanos(log.time(request) * 1_000_000);
        what_if.ask(at, &Descriptor::new().with("client.ip", request.client.as_str()), None, false);
    }
    let all = log.requests.iter().filter(|request| log.is_bad(request)).count().max(1) as f64;
    let fair = |hit: &[tidegate_sim::what_if::KeyHit]| hit.iter().all(|hit| log.bad.contains(&hit.key));
    let outcomes = what_if.outcomes();
    let denied = outcomes.iter().filter(|one| fair(&one.hit)).map(|one| one.denied as f64 / all);
    denied.fold(0.0, f64::max)
}

/// The result of one log.
struct Result {
    found: Suggestion,
    offer: String,
    cut: f64,
    possible: f64,
    hit: u64,
    hit_next: u64,
    innocent: bool,
}

impl Result {
    fn of(plant: Plant, seed: u64, with_possible: bool) -> Self {
        let (log, next) = (Planted::new(seed, plant), Planted::new(seed + ANOTHER_DAY, plant));
        let found = propose(&log);
        let offer = &found.proposals[0];
        let (today, other) = (harm(&log, offer), harm(&next, offer));
        Self {
            offer: format!(
                "{} burst {} (room {}, {:?}, least {} burst {})",
                offer.rate,
                offer.burst,
                offer.room,
                offer.hit_on_another_half,
                offer.least.rate,
                offer.least.burst
            ),
            cut: today.bad_denied as f64
                / log.requests.iter().filter(|request| log.is_bad(request)).count().max(1) as f64,
            possible: if with_possible && !log.is_innocent() { possible(&log) } else { 0.0 },
            hit: today.others_hit,
            hit_next: other.others_hit,
            innocent: log.is_innocent(),
            found,
        }
    }

    fn is_right(&self) -> bool {
        let cuts = match self.innocent {
            true => self.found.finding != Finding::Gap,
            false => self.cut >= 0.8 * self.possible,
        };
        self.hit == 0 && cuts
    }
}

/// Where nobody abuses, no limit is recommended, and the one on offer hits nobody; elsewhere it hits no innocent either,
/// and nearly always hits none on another day. A third of the logs is tried; all of them, each with three seeds, with
/// `TIDEGATE_PLANTED=long`.
#[test]
fn no_innocent_is_hit_and_most_limits_hold_on_another_day() {
    let is_long = std::env::var("TIDEGATE_PLANTED").is_ok_and(|form| form == "long");
    let (mut all, mut held, mut right, mut wrong) = (0, 0, 0, Vec::new());
    for (place, (name, plant)) in KINDS.iter().enumerate().filter(|(place, _)| is_long || place % 3 == 1) {
        for seed in (21..24).filter(|seed| is_long || *seed == 21 + place as u64 / 3 % 3) {
            let one = Result::of(*plant, seed, is_long);
            (all, held) = (all + 1, held + u32::from(one.hit_next == 0));
            right += u32::from(one.is_right());
            if one.hit > 0 || one.innocent && one.found.finding == Finding::Gap {
                wrong.push(format!("{name} #{seed}: {:?} {} hits {}", one.found.finding, one.offer, one.hit));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(held * 10 >= all * 9, "{held} of {all} held");
    assert!(!is_long || right * 100 >= all * 85, "{right} of {all} right");
}

#[test]
#[ignore = "prints what is proposed, for whoever works on the method"]
fn score() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let seeds: Vec<u64> = std::env::var("SEEDS")
        .unwrap_or("11,12,13".to_owned())
        .split(',')
        .map(|seed| seed.parse().unwrap())
        .collect();
    let (mut right, mut held, mut all, mut cut, mut possible, mut with, mut hits) =
        (0, 0, 0, 0.0, 0.0, 0.0, 0);
    for (name, plant) in KINDS.iter().filter(|(name, _)| name.contains(&only)) {
        for seed in &seeds {
            let one = Result::of(*plant, *seed, true);
            all += 1;
            right += u32::from(one.is_right());
            held += u32::from(one.hit_next == 0);
            hits += one.hit;
            if !one.innocent {
                (cut, possible, with) = (cut + one.cut, possible + one.possible, with + 1.0);
            }
            println!(
                "{} {} {name} #{seed}: {:?} {} cuts {:.0} of {:.0} %, hits {}, next day {}; apart {}",
                if one.is_right() { "right" } else { "WRONG" },
                if one.hit_next == 0 { "held" } else { "MORE" },
                one.found.finding,
                one.offer,
                100.0 * one.cut,
                100.0 * one.possible,
                one.hit,
                one.hit_next,
                one.found.narrower.len(),
            );
        }
    }
    println!(
        "right {right}, held {held} of {all}; cut {:.0} of {:.0} %; hits {hits}",
        100.0 * cut / with,
        100.0 * possible / with
    );
}
