//! Clients planted in logs that were written after the method was final, and that have not influenced it.

use crate::planted::traffic::{Asker, HOUR, PAGES, Planted, SPAN};

/// People behind one address, each with their own browser, who visit three times and do not sign in.
fn people_at(log: &mut Planted, address: &str, people: u64) {
    for person in 0..people {
        let asker = Asker::person(address, "", person * 7 + 3);
        for _ in 0..3 {
            let start = log.chance.below(SPAN - HOUR / 4);
            log.visit(&asker, start);
        }
    }
}

/// A home of three people, one of whom runs a program that fetches page after page, two a second.
pub(crate) fn home_with_a_scraper(log: &mut Planted) {
    people_at(log, "198.51.100.30", 3);
    let asker = log.bad_within(Asker::program("198.51.100.30", "harvest/2.1"));
    let mut at = log.chance.below(SPAN - HOUR);
    for page in 0..3_000 {
        log.add(at, &asker, &format!("/item/{page}"), 200);
        at += log.chance.between(300, 700);
    }
}

/// An office of thirty, with a scraper behind its address that uses the same browser as others there.
pub(crate) fn office_with_a_disguised_scraper(log: &mut Planted) {
    people_at(log, "198.51.100.31", 30);
    let asker = log.bad_within(Asker::person("198.51.100.31", "", 7));
    let mut at = log.chance.below(SPAN - HOUR);
    for page in 0..5_000 {
        log.add(at, &asker, &format!("/item/{page}"), 200);
        at += log.chance.between(200, 600);
    }
}

/// An office of sixty, with a vulnerability scanner behind its address.
pub(crate) fn office_with_a_scanner(log: &mut Planted) {
    people_at(log, "198.51.100.32", 60);
    let asker = log.bad_within(Asker::program("198.51.100.32", "scan/0.x"));
    let start = log.chance.below(SPAN - HOUR);
    for path in 0..9_000 {
        log.add(start + path * 250, &asker, &format!("/wp/{path}.php"), 404);
    }
}

/// An office of eighty, all with the same browser.
pub(crate) fn office_of_one_browser(log: &mut Planted) {
    for _ in 0..80 {
        let asker = Asker::person("198.51.100.33", "", 4);
        for _ in 0..3 {
            let start = log.chance.below(SPAN - HOUR / 4);
            log.visit(&asker, start);
        }
    }
}

/// A partner that requests eight hundred different things within two minutes of every hour.
pub(crate) fn hourly_partner(log: &mut Planted) {
    let asker = Asker::program("198.51.100.222", "price-sync/2");
    for round in 0..SPAN / HOUR {
        for thing in 0..800 {
            let path = format!("/api/prices/{}", log.chance.below(50_000));
            log.add(round * HOUR + thing * 150, &asker, &path, 200);
        }
    }
}

/// A client that requests one thing three hundred times within two seconds, every ten seconds for half an hour.
pub(crate) fn flood_on_a_timer(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.81", "load/1"));
    let start = log.chance.below(SPAN - HOUR);
    for round in 0..180 {
        for ask in 0..300 {
            log.add(start + round * 10_000 + ask * 6, &asker, "/api/orders", 200);
        }
    }
}

/// A crawler that loads images and scripts as browsers do, a page every 10 to 25 seconds.
pub(crate) fn slow_crawler_as_a_browser(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.52", "Mozilla/5.0 (browser 9)"));
    let (mut at, mut page) = (log.chance.below(HOUR / 2), 0);
    while at < SPAN {
        log.add(at, &asker, &format!("/item/{page}"), 200);
        for part in 0..log.chance.between(2, 6) {
            let later = at + log.chance.below(900);
            log.add(later, &asker, &format!("/static/{part}.js"), 200);
        }
        (page, at) = (page + 1, at + log.chance.between(10_000, 25_000));
    }
}

/// A wall display that shows sixty pages in turn, one every fifteen seconds.
pub(crate) fn screen(log: &mut Planted) {
    let asker = Asker::person("198.51.100.34", "", 11);
    for turn in 0..SPAN / 15_000 {
        log.add(turn * 15_000, &asker, &format!("/item/{}", turn % 60), 200);
        for part in 0..4 {
            log.add(turn * 15_000 + 300, &asker, &format!("/static/{part}.png"), 200);
        }
    }
}

/// A person who reads all day: hundreds of pages, some left at once and some read for minutes.
pub(crate) fn all_day_reader(log: &mut Planted) {
    let asker = Asker::person("198.51.100.35", "", 12);
    let mut at = 0;
    while at < SPAN {
        let page = log.chance.below(PAGES);
        log.add(at, &asker, &format!("/item/{page}"), 200);
        for part in 0..3 {
            log.add(at + 400, &asker, &format!("/static/{part}.css"), 200);
        }
        let (a, b) = (log.chance.below(100), log.chance.below(100));
        at += 2_000 + a * b * 8;
    }
}
