//! The sample logs of `examples/` say what its README says.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;
use std::path::Path;

use tidegate::config::{Config, Format};
use tidegate_sim::ladder::Ladders;
use tidegate_sim::log::{Log, LogOptions, Tally};
use tidegate_sim::replay::{Outcome, Replay, ReplayOptions, Threshold};
use tidegate_sim::report::{self, Report};
use tidegate_sim::source::Input;

fn replay(name: &str, policies: &str) -> (Outcome, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let text = format!("version: 1\npolicies:\n{policies}");
    let (config, _) = Config::parse(&text, "test.yaml", Format::Yaml).unwrap();
    let options = ReplayOptions { details: true, ..ReplayOptions::default() };
    let mut ladders = Ladders::new(&config.policies, &options);
    let mut replay = Replay::new(vec![("policies".to_owned(), config.policies)], options);
    let mut log = Log::open(vec![Input::File(path)], LogOptions::default()).unwrap();
    log.read(|record| {
        replay.feed(record);
        ladders.feed(record);
        ControlFlow::Continue(())
    })
    .unwrap();
    let tally = log.tally();
    assert_eq!((tally.malformed, tally.order.clamped), (0, 0), "{:?}", tally.first_malformed);
    let report =
        Report { title: name, replay: &replay, log: Some(tally), doubts: &[], ladders: &ladders, keys: 20 };
    let page = report::page(&report).unwrap();
    // For eyes and browsers: `TIDEGATE_CHARTS=dir cargo test -p tidegate-sim --test samples` leaves the pages there.
    if let Some(dir) = std::env::var_os("TIDEGATE_CHARTS") {
        std::fs::write(Path::new(&dir).join(format!("{name}.html")), &page).unwrap();
    }
    (replay.outcomes().remove(0), page)
}

#[test]
fn the_scraper_and_the_guesser_are_found_and_nobody_else() {
    let (outcome, page) = replay(
        "access.log",
        "  - { name: per-ip, by: [client.ip], limit: { algorithm: gcra, rate: 5/s, burst: 20 } }\n  \
           - { name: login, match: { method: POST, path: /login }, by: [client.ip], charge: on-failure,\n      \
           limit: { algorithm: sliding-log, rate: 10/h } }\n",
    );
    let [per_ip, login] = &outcome.policies[..] else { panic!("{outcome:#?}") };
    assert_eq!((per_ip.keys_hit, per_ip.worst.as_ref().unwrap().key.as_str()), (1, "203.0.113.9"));
    assert_eq!((login.keys_hit, login.worst.as_ref().unwrap().key.as_str()), (1, "198.51.100.77"));
    assert!(per_ip.denied > 300 && login.denied > 100, "{outcome:#?}");
    let threshold: Threshold = "denied{policy=per-ip} > 1%".parse().unwrap();
    assert!(threshold.measure(&outcome, &Tally::default()).unwrap().failed);
    // One page, nothing to load.
    assert!(page.contains("203.0.113.9") && page.matches("<svg").count() == 3);
    for reference in ["src=", "href=", "@import", "url(", "style=\"", "<script src", " onload"] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert!(page.contains("Content-Security-Policy") && page.contains("default-src 'none'"));
}

#[test]
fn tokens_are_limited_per_tenant() {
    let (outcome, _) = replay(
        "llm-calls.csv",
        "  - { name: tokens, by: [tenant], cost: 'int(total_tokens)',\n      \
           limit: { algorithm: gcra, rate: 30k/min, burst: 30k } }\n",
    );
    let tokens = &outcome.policies[0];
    assert_eq!((tokens.keys.to_string(), tokens.keys_hit), ("5".to_owned(), 1), "{outcome:#?}");
    assert_eq!(tokens.worst.as_ref().unwrap().key, "harbour");
}
