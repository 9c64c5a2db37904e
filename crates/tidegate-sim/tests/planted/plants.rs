//! The clients that are planted among the people.

use crate::planted::traffic::{Asker, HOUR, PAGES, Planted, SPAN};

pub(crate) fn nothing(_: &mut Planted) {}

/// Up to three addresses that fetch page after page at 3 to 20 a second for some minutes.
pub(crate) fn scrapers(log: &mut Planted) {
    for scraper in 0..=log.chance.below(3) {
        let asker = log.bad(Asker::program(format!("203.0.113.{scraper}"), "harvest/2.1"));
        let (mut at, gap) = (log.chance.below(SPAN - HOUR), log.chance.between(50, 330));
        let first = log.chance.below(PAGES);
        for page in 0..log.chance.between(600, 1_500) {
            log.add(at, &asker, &format!("/item/{}", (first + page) % PAGES), 200);
            at += gap / 2 + log.chance.below(gap);
        }
    }
}

/// One address that fetches a page every 4 to 9 seconds for hours, and never bursts.
pub(crate) fn slow_crawler(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.50", "crawl/1.0"));
    let (mut at, gap) = (log.chance.below(HOUR / 2), log.chance.between(4_000, 9_000));
    let mut page = 0;
    while at < SPAN {
        log.add(at, &asker, &format!("/item/{}", page % PAGES), 200);
        (page, at) = (page + 1, at + gap - 500 + log.chance.below(1_000));
    }
}

/// Thirty addresses that fetch together, each at 30 to 60 a minute for a quarter of an hour.
pub(crate) fn many_scrapers(log: &mut Planted) {
    let start = log.chance.below(SPAN - HOUR);
    for scraper in 0..30 {
        let asker = log.bad(Asker::program(format!("203.0.113.{}", 100 + scraper), "harvest/2.1"));
        let (mut at, gap) = (start + log.chance.below(HOUR / 12), log.chance.between(1_000, 2_000));
        let end = at + HOUR / 4;
        while at < end {
            let page = log.chance.below(PAGES);
            log.add(at, &asker, &format!("/item/{page}"), 200);
            at += gap / 2 + log.chance.below(gap);
        }
    }
}

/// Offices: addresses with people behind each, all of whom sign in and visit several times.
fn offices_of(log: &mut Planted, offices: u64, least: u64, most: u64) {
    for office in 0..offices {
        for person in 0..log.chance.between(least, most) {
            let user = format!("office{office}-{person}");
            let asker = Asker::person(format!("198.51.100.{office}"), user, log.chance.next());
            for _ in 0..3 {
                let start = log.chance.below(SPAN - HOUR / 4);
                log.visit(&asker, start);
            }
        }
    }
}

/// Three addresses with fifteen to forty people behind each.
pub(crate) fn offices(log: &mut Planted) {
    offices_of(log, 3, 15, 40);
}

/// One address with two hundred people behind it.
pub(crate) fn large_office(log: &mut Planted) {
    offices_of(log, 1, 200, 200);
    log.without_users();
}

/// Sixty machines that send one to three requests each, all in the same second, every ten minutes.
pub(crate) fn cron_together(log: &mut Planted) {
    for round in 0..SPAN / (HOUR / 6) {
        for machine in 0..60 {
            let asker = Asker::program(format!("198.51.100.{}", 100 + machine), "curl/8.9");
            for _ in 0..log.chance.between(1, 3) {
                let at = round * HOUR / 6 + log.chance.below(900);
                log.add(at, &asker, "/api/report", 200);
            }
        }
    }
}

/// One machine that sends 40 to 80 requests at once on the hour.
pub(crate) fn cron_hourly(log: &mut Planted) {
    let asker = Asker::program("198.51.100.200", "curl/8.9");
    for hour in 0..SPAN / HOUR {
        for _ in 0..log.chance.between(40, 80) {
            let (at, path) = (hour * HOUR + log.chance.below(2_000), log.chance.below(20));
            log.add(at, &asker, &format!("/export/{path}"), 200);
        }
    }
}

/// One machine that requests the same thirty things every five minutes.
pub(crate) fn cron_often(log: &mut Planted) {
    let asker = Asker::program("198.51.100.201", "curl/8.9");
    for round in 0..SPAN / (HOUR / 12) {
        for path in 0..30 {
            let at = round * HOUR / 12 + log.chance.below(2_000);
            log.add(at, &asker, &format!("/export/{path}"), 200);
        }
    }
}

/// Four hundred new clients within five minutes, one visit each.
pub(crate) fn flash_crowd(log: &mut Planted) {
    let start = log.chance.below(SPAN - HOUR);
    for client in 0..400 {
        let at = start + log.chance.below(300_000);
        let asker = Asker::person(format!("198.18.{}.{}", client / 4, client % 200), "", log.chance.next());
        log.visit(&asker, at);
    }
}

/// Ten apps that send a request every ten seconds for hours, none of them signed in.
pub(crate) fn polling(log: &mut Planted) {
    for app in 0..10 {
        let asker = Asker::program(format!("198.51.100.{app}"), "OurApp/3.1");
        let mut at = log.chance.below(10_000);
        while at < SPAN {
            log.add(at, &asker, "/api/inbox", 200);
            at += 10_000;
        }
    }
}

/// Six apps that request three things about every five seconds.
pub(crate) fn polling_unevenly(log: &mut Planted) {
    for app in 0..6 {
        let asker = Asker::program(format!("198.51.100.{app}"), "OurApp/3.1");
        let mut at = log.chance.below(10_000);
        while at < SPAN {
            for what in ["inbox", "badge", "presence"] {
                log.add(at + log.chance.clone().below(200), &asker, &format!("/api/{what}"), 200);
                log.chance.next();
            }
            at += 4_500 + log.chance.below(1_000);
        }
    }
}

/// Sixty customers of an API, whose load falls by a power law: the first sends 12 requests a minute, the second 6,
/// the third 4.
pub(crate) fn power_law(log: &mut Planted) {
    for customer in 1..=60 {
        let asker = Asker::program(format!("198.51.100.{customer}"), format!("sdk/{}", customer % 7));
        let gap = 5_000 * customer;
        let mut at = log.chance.below(gap);
        while at < SPAN {
            let path =
                format!("/api/{}", ["orders", "stock", "prices", "invoices"][log.chance.below(4) as usize]);
            log.add(at, &asker, &path, 200);
            at += log.chance.below(2 * gap);
        }
    }
}

/// One client that tries passwords at 20 a minute for ten minutes.
pub(crate) fn guesser(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.77", "Mozilla/5.0 (browser 3)"));
    let mut at = log.chance.below(SPAN - HOUR);
    for _ in 0..200 {
        log.add(at, &asker, "/login", 401);
        at += log.chance.below(6_000);
    }
}

/// A vulnerability scanner with about one request a second, nearly all of them not found.
pub(crate) fn scanner(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.78", "Mozilla/5.0 (browser 4)"));
    let mut at = log.chance.below(SPAN - HOUR);
    for path in 0..700 {
        log.add(at, &asker, &format!("/wp/{path}.php"), if path % 20 == 0 { 200 } else { 404 });
        at += 500 + log.chance.below(1_000);
    }
}

/// A scraper that switches to the next of three hundred addresses after every ten requests.
fn rotating(log: &mut Planted, agent: &str, address: fn(u64) -> String) {
    let (mut at, mut page) = (log.chance.below(HOUR), 0);
    for place in 0..300 {
        let asker = log.bad(Asker::program(address(place), agent));
        for _ in 0..10 {
            log.add(at, &asker, &format!("/item/{}", page % PAGES), 200);
            (page, at) = (page + 1, at + 500 + log.chance.below(1_500));
        }
    }
}

/// The addresses belong to two networks.
pub(crate) fn rotating_in_networks(log: &mut Planted) {
    rotating(log, "harvest/2.1", |place| format!("203.0.{}.{}", 114 + place / 200, place % 200));
}

/// The addresses belong to two networks, and the agent is that of a common browser.
pub(crate) fn rotating_as_a_browser(log: &mut Planted) {
    rotating(log, "Mozilla/5.0 (browser 7)", |place| format!("203.0.{}.{}", 114 + place / 200, place % 200));
}

/// Each address belongs to another network.
pub(crate) fn rotating_everywhere(log: &mut Planted) {
    rotating(log, "harvest/2.1", |place| format!("100.{}.{}.9", 64 + place % 60, place));
}

/// Each address belongs to another network, and the agent is that of a common browser.
pub(crate) fn rotating_unseen(log: &mut Planted) {
    rotating(log, "Mozilla/5.0 (browser 7)", |place| format!("100.{}.{}.9", 64 + place % 60, place));
}

/// An address that searches 20 times a minute for hours: one path, with search words that the log does not contain.
pub(crate) fn searcher(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.60", "Mozilla/5.0 (browser 2)"));
    let mut at = log.chance.below(HOUR);
    while at < SPAN {
        log.add(at, &asker, "/search", 200);
        at += log.chance.below(6_000);
    }
}

/// Three hundred people with an app, each of whom requests some things of their own, once.
pub(crate) fn app_with_ids(log: &mut Planted) {
    for user in 0..300 {
        let asker = Asker::program(format!("100.64.{}.{}", user / 3, user % 200), "OurApp/3.1");
        let mut at = log.chance.below(SPAN - HOUR);
        for what in 0..log.chance.between(3, 12) {
            log.add(at, &asker, &format!("/api/users/{user}/orders/{what}"), 200);
            at += 2_000 + log.chance.below(20_000);
        }
    }
}

/// A crawler that loads images and scripts as browsers do, a page every 4 to 9 seconds.
pub(crate) fn crawler_as_a_browser(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.51", "Mozilla/5.0 (browser 5)"));
    let (mut at, mut page) = (log.chance.below(HOUR / 2), 0);
    while at < SPAN {
        log.add(at, &asker, &format!("/item/{page}"), 200);
        for part in 0..3 {
            log.add(at + 200, &asker, &format!("/static/{part}.css"), 200);
        }
        (page, at) = (page + 1, at + log.chance.between(4_000, 9_000));
    }
}

/// A partner that imports forty new things every ten minutes.
pub(crate) fn importer(log: &mut Planted) {
    let asker = Asker::program("198.51.100.202", "import/1.2");
    for round in 0..SPAN / (HOUR / 6) {
        for thing in 0..40 {
            let at = round * HOUR / 6 + log.chance.below(5_000);
            log.add(at, &asker, &format!("/item/{}", (round * 40 + thing) % PAGES), 200);
        }
    }
}

/// An address that forwards events to another server as they happen: two paths, unevenly, in bursts of up to sixty.
pub(crate) fn webhooks(log: &mut Planted) {
    let asker = Asker::program("198.51.100.203", "hooks/4");
    let mut at = log.chance.below(60_000);
    while at < SPAN {
        for _ in 0..log.chance.between(1, 60) {
            let (later, path) = (log.chance.below(8_000), log.chance.below(2));
            log.add(at + later, &asker, &format!("/hooks/{path}"), 200);
        }
        at += log.chance.below(600_000);
    }
}

/// Two health checks, one a second each.
pub(crate) fn health_checks(log: &mut Planted) {
    for check in 0..2 {
        let asker = Asker::program(format!("198.51.100.{}", 210 + check), "health/1");
        for second in 0..SPAN / 1_000 {
            log.add(second * 1_000 + log.chance.clone().below(40), &asker, "/healthz", 200);
            log.chance.next();
        }
    }
}

/// A backup that fetches two thousand pages once, within twenty minutes.
pub(crate) fn backup(log: &mut Planted) {
    let asker = Asker::program("198.51.100.220", "backup/9");
    let mut at = log.chance.below(SPAN - HOUR);
    for page in 0..2_000 {
        log.add(at, &asker, &format!("/item/{page}"), 200);
        at += 300 + log.chance.below(600);
    }
}

/// Three hundred people whose pages have ten to forty parts, so that each peaks at 40 to 90 a minute.
pub(crate) fn heavy_pages(log: &mut Planted) {
    for person in 0..300 {
        let asker = Asker::person(format!("198.19.{}.{}", person % 70, person % 250), "", log.chance.next());
        for _ in 0..log.chance.between(1, 3) {
            let mut at = log.chance.below(SPAN - HOUR / 4);
            for view in 0..log.chance.between(1, 8) {
                log.add(at, &asker, &format!("/item/{}", log.chance.clone().below(PAGES)), 200);
                let parts = if view == 0 { log.chance.between(10, 40) } else { log.chance.between(2, 12) };
                for part in 0..parts {
                    let later = at + log.chance.below(3_000);
                    log.add(later, &asker, &format!("/static/{}.png", part * 7 % 90), 200);
                }
                at += log.chance.between(8_000, 45_000);
            }
        }
    }
}

/// Up to three addresses that fetch page after page at 5 to 8 a second for a quarter of an hour and more.
pub(crate) fn fast_scrapers(log: &mut Planted) {
    for scraper in 0..=log.chance.below(3) {
        let asker = log.bad(Asker::program(format!("203.0.113.{}", 90 + scraper), "harvest/2.1"));
        let (mut at, gap) = (log.chance.below(SPAN - HOUR), log.chance.between(125, 200));
        let end = at + log.chance.between(HOUR / 4, HOUR * 2 / 3);
        let mut page = log.chance.below(100_000);
        while at < end {
            log.add(at, &asker, &format!("/item/{page}"), 200);
            (page, at) = (page + 1, at + gap * 7 / 10 + log.chance.below(gap * 6 / 10));
        }
    }
}

/// A vulnerability scanner at 8 requests a second for half an hour; nothing is found.
pub(crate) fn fast_scanner(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.79", "scan/0.x"));
    let start = log.chance.below(SPAN - HOUR);
    for path in 0..8 * 1_800 {
        log.add(start + path * 125, &asker, &format!("/wp-{path}.php"), 404);
    }
}

/// A customer who requests one thing at 30 a second for half an hour.
pub(crate) fn runaway(log: &mut Planted) {
    let asker = log.bad(Asker::program("203.0.113.80", "sdk/3"));
    let mut at = log.chance.below(SPAN - HOUR);
    for _ in 0..30 * 1_800 {
        log.add(at, &asker, "/api/orders", 200);
        at += log.chance.below(67);
    }
}

/// A partner that requests two hundred different things every half hour.
pub(crate) fn partner(log: &mut Planted) {
    let asker = Asker::program("198.51.100.221", "stock-sync/1.0");
    for round in 0..SPAN / (HOUR / 2) {
        for thing in 0..200 {
            let path = format!("/api/stock/{}", log.chance.below(20_000));
            log.add(round * HOUR / 2 + thing * 100, &asker, &path, 200);
        }
    }
}

/// An office of a hundred, with a scraper behind its address at three requests a second; the log has no users.
pub(crate) fn office_with_a_scraper(log: &mut Planted) {
    offices_of(log, 1, 100, 100);
    let asker = log.bad_within(Asker::program("198.51.100.0", "harvest/2.1"));
    let start = log.chance.below(SPAN - HOUR);
    for page in 0..4_500 {
        log.add(start + page * 333, &asker, &format!("/item/{page}"), 200);
    }
    log.without_users();
}
