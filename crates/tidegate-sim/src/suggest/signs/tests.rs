use tidegate::Tick;

use super::*;
use crate::log::{Log, LogOptions};
use crate::source::Input;

/// Returns the evidence of a key with these requests: (second, path, status, agent).
fn evidence(requests: impl IntoIterator<Item = (f64, String, u16, String)>) -> Evidence {
    let mut text = "ts,client,path,status,user_agent\n".to_owned();
    for (second, path, status, agent) in requests {
        text.push_str(&format!("{},192.0.2.1,{path},{status},{agent}\n", 1_772_442_000.0 + second));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let mut evidence = Evidence::new();
    let mut log = Log::open(vec![Input::File(file.path().to_owned())], LogOptions::default()).unwrap();
    log.read(|record| {
        assert!(record.time > Tick::EPOCH);
        evidence.add(record, 1);
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    evidence
}

fn one(second: u32, path: impl Into<String>, agent: u32) -> (f64, String, u16, String) {
    (f64::from(second), path.into(), 200, format!("agent {agent}"))
}

/// A crowd in which half of the requests are for parts of pages.
fn crowd() -> Loads {
    Loads { pages: 500, parts: 500 }
}

#[test]
fn each_kind_is_told_by_its_requests() {
    let crawler = evidence((0..400).map(|n| one(n * 7 % 9_000 + n, format!("/item/{n}"), 1)));
    assert_eq!(crawler.looks(crowd()), ClientKind::Crawler);
    let office = evidence((0..400).map(|n| {
        let path = if n % 3 == 0 { format!("/item/{}", n * n % 60) } else { format!("/a/{}.CSS", n % 9) };
        one(n * 3 + n % 7, path, n % 6)
    }));
    assert_eq!(office.looks(crowd()), ClientKind::People);
    let poller = evidence((0..100).map(|n| one(n * 10, "/inbox", 1)));
    assert_eq!(
        (poller.looks(crowd()), poller.signs().every.map(|every| every.as_secs())),
        (ClientKind::Timer, Some(10))
    );
    let job = evidence((0..300).map(|n| one(n / 30 * 300, format!("/export/{}", n % 30), 1)));
    assert_eq!(job.looks(crowd()), ClientKind::Timer);
    let guesser =
        evidence((0..100).map(|n| (f64::from(n * 5), "/login".to_owned(), 401, "agent".to_owned())));
    assert_eq!(guesser.looks(crowd()), ClientKind::Refused, "an even pace excuses no guessing");
    let broken = evidence((0..100).map(|n| (f64::from(n * 5), "/gone".to_owned(), 404, "agent".to_owned())));
    assert_eq!(
        broken.looks(crowd()),
        ClientKind::Timer,
        "an app that asks for what is gone looks for nothing"
    );
    let customer = evidence((0..200).map(|n| one(n * 5 + n * n % 17, format!("/api/{}", n % 4), 1)));
    assert_eq!(customer.looks(crowd()), ClientKind::Program);
    let importer = evidence((0..400).map(|n| one(n / 40 * 600 + n % 5, format!("/item/{n}"), 1)));
    assert_eq!(importer.looks(crowd()), ClientKind::Timer, "forty new things every ten minutes");
    let few = evidence((0..29).map(|n| one(n * 7, format!("/item/{n}"), 1)));
    assert_eq!(few.looks(crowd()), ClientKind::Unclear, "a reader of 29 pages");
    assert_eq!(Evidence::new().looks(crowd()), ClientKind::Unclear);
}

/// If another server has the images, readers of many pages look like crawlers, except for their several agents.
#[test]
fn where_nobody_loads_images_several_agents_are_no_crawler() {
    let none = Loads { pages: 1_000, parts: 0 };
    let pages =
        |agents: u32| evidence((0..200).map(|n| one(n * 9 + n % 5, format!("/item/{n}"), n % agents)));
    assert_eq!((pages(1).looks(none), pages(5).looks(none)), (ClientKind::Crawler, ClientKind::Unclear));
    assert_eq!(pages(5).looks(crowd()), ClientKind::Crawler, "a crawler that changes its agent");
    assert!(pages(1).is_of_programs(none));
}

#[test]
fn a_long_agent_is_cut_between_characters() {
    assert_eq!(agent_name(b"short"), "short");
    let long = "\u{e4}".repeat(100);
    assert_eq!(agent_name(long.as_bytes()), format!("{}*", "\u{e4}".repeat(60)));
    assert_eq!(agent_name(&[0x80; 130]).chars().count(), 121, "bytes that are no text");
}

/// An office with a scraper must be recognised as shared: a limit on its address would cut everybody there.
#[test]
fn a_crawler_among_people_is_no_crawler_alone() {
    let scraper = |n: u32| one(900 + n / 2, format!("/item/{n}"), 99);
    let person = |n: u32, agent: u32| {
        let path =
            if n.is_multiple_of(3) { format!("/item/{}", n % 40) } else { format!("/a/{}.css", n % 9) };
        one(n * 11 + agent, path, agent)
    };
    let office = |people: u32| {
        let mut requests: Vec<_> = (0..2_000).map(scraper).collect();
        requests.extend((0..people).flat_map(|agent| (0..60).map(move |n| person(n, agent))));
        requests.sort_by(|a, b| a.0.total_cmp(&b.0));
        evidence(requests)
    };
    assert_eq!(
        (office(0).looks(crowd()), office(1).looks(crowd())),
        (ClientKind::Crawler, ClientKind::Crawler)
    );
    assert_eq!(
        (office(2).looks(crowd()), office(5).looks(crowd())),
        (ClientKind::Shared, ClientKind::Shared)
    );
    assert_eq!((office(5).readers(crowd()), office(1).readers(crowd())), (5, 1));
    let fakes = evidence((0..2_000).map(|n| one(n, format!("/item/{n}"), n % 30)));
    assert_eq!(fakes.looks(crowd()), ClientKind::Crawler, "a crawler that changes its agent has no readers");
}

/// A crawler that loads parts of pages must be recognised by its pace, not taken for people.
#[test]
fn a_crawler_that_loads_images_has_the_pace_of_a_machine() {
    let loading = |pause: fn(u32) -> u32, agents: u32| {
        let mut at = 0;
        evidence((0..1_200).map(move |n| {
            let page = n / 4;
            at += if n % 4 == 0 { pause(page) } else { 0 };
            let path = if n % 4 == 0 { format!("/item/{page}") } else { format!("/a/{}.css", n % 4) };
            one(at, path, page % agents)
        }))
    };
    assert_eq!(loading(|page| 4 + page * 7 % 6, 1).looks(crowd()), ClientKind::Crawler);
    assert_eq!(loading(|page| 4 + page * 7 % 6, 6).looks(crowd()), ClientKind::People, "several browsers");
    assert_eq!(loading(|page| 2 + page * page % 90, 1).looks(crowd()), ClientKind::People, "one who reads");
}

#[test]
fn a_browser_that_loads_no_images_is_no_known_program() {
    let asks = |agent: &str| {
        let agent = agent.to_owned();
        let ask = move |n: u32| (f64::from(n * 3 + n * n % 5), "/search".to_owned(), 200, agent.clone());
        evidence((0..300).map(ask))
    };
    assert_eq!(asks("sdk/3").looks(crowd()), ClientKind::Program);
    assert_eq!(asks("Mozilla/5.0 (compatible; feeds)").looks(crowd()), ClientKind::Program);
    assert_eq!(asks("Mozilla/5.0 (X11)").looks(crowd()), ClientKind::Unclear);
    assert_eq!(asks("Mozilla/5.0 (X11)").looks(Loads::default()), ClientKind::Program, "nobody loads any");
}
