//! The sample logs of `examples/` have the properties that their README states.

use std::ops::ControlFlow;
use std::path::Path;

use tidegate::config::{Config, Format};
use tidegate_sim::log::{Input, Log, LogOptions, Tally};
use tidegate_sim::replay::{Outcome, Replay, ReplayOptions, Threshold};
use tidegate_sim::report::{self, Form, Ladders, Report};

fn replay(name: &str, policies: &str) -> (Outcome, String) {
    let (replay, ladders, tally) = read(name, &[("policies", policies)]);
    let report =
        Report { title: name, replay: &replay, log: Some(&tally), doubts: &[], ladders: &ladders, keys: 20 };
    let page = report::page(&report).unwrap();
    // For viewing: `TIDEGATE_CHARTS=dir cargo test -p tidegate-sim --test all samples` writes the pages there.
    keep(&format!("{name}.html"), &page);
    (replay.outcomes().remove(0), page)
}

/// Replays a log under several policies side by side, with ladders for the first.
fn read(name: &str, sets: &[(&str, &str)]) -> (Replay, Ladders, Tally) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let set = |(name, policies): &(&str, &str)| {
        let text = format!("version: 1\npolicies:\n{policies}");
        ((*name).to_owned(), Config::parse(&text, "test.yaml", Format::Yaml).unwrap().0.policies)
    };
    let sets: Vec<_> = sets.iter().map(set).collect();
    let options = ReplayOptions { details: true, ..ReplayOptions::default() };
    let mut ladders = Ladders::new(&sets[0].1, &options);
    let mut replay = Replay::new(sets, options).unwrap();
    let mut log = Log::open(vec![Input::File(path)], LogOptions::default()).unwrap();
    log.read(|record| {
        replay.feed(record);
        ladders.feed(record);
        ControlFlow::Continue(())
    })
    .unwrap();
    let tally = log.tally().clone();
    assert_eq!((tally.malformed, tally.order.clamped), (0, 0), "{:?}", tally.first_malformed);
    (replay, ladders, tally)
}

/// Returns the names of the pictures and their SVG.
fn drawn(replay: &Replay) -> Vec<(String, String)> {
    let pictures = report::pictures(replay, Form::Svg).unwrap();
    pictures.into_iter().map(|picture| (picture.name, String::from_utf8(picture.bytes).unwrap())).collect()
}

fn keep(name: &str, text: &str) {
    if let Some(dir) = std::env::var_os("TIDEGATE_CHARTS") {
        std::fs::write(Path::new(&dir).join(name), text).unwrap();
    }
}

/// The chart must count keys above the granted units: above the written rate there are 114 of 122, while the table
/// has 112 hit.
#[test]
fn charts_of_peaks_have_the_numbers_of_the_table() {
    let limits = [
        ("{ rate: 2/min }", "gcra 2/min grants at most 4 in any minute"),
        ("{ rate: 5/s, burst: 20 }", "gcra 5/s burst 20 grants at most 25 in any second"),
        ("{ algorithm: fixed-window, rate: 20/min }", "fixed-window 20/min grants at most 40 in any minute"),
        ("{ algorithm: sliding-log, rate: 20/min }", "sliding-log 20/min grants at most 20 in any minute"),
        ("{ algorithm: uber-pacer, rate: 1/s }", ""),
    ];
    for (limit, line) in limits {
        let policies = format!(
            "  - {{ name: per-ip, by: [client.ip], limit: {limit}, shadow_limit: {{ rate: 1/h }} }}\n"
        );
        let (replay, ..) = read("access.log", &[("policies", &policies)]);
        let (outcome, pictures) = (replay.outcomes().remove(0), drawn(&replay));
        assert_eq!(outcome.policies.len(), 2, "the policy, and its shadow limit");
        for (row, policy) in outcome.policies.iter().enumerate() {
            let svg = &pictures[row + 1].1;
            let would = if policy.shadow_limit_of.is_some() { "would be " } else { "" };
            let words = format!("{} of {} {would}hit", policy.keys_hit, policy.keys);
            assert!(svg.contains(&words), "{limit}: {words}\n{svg}");
        }
        assert!(
            pictures[1].1.contains(line) && line.is_empty() != pictures[1].1.contains("grants"),
            "{limit}"
        );
        keep(
            &format!("peaks-{}.svg", outcome.policies[0].limits[0].replace([' ', '/'], "-")),
            &pictures[1].1,
        );
    }
}

#[test]
fn comparisons_have_the_numbers_of_the_table_and_the_differences() {
    let policy = |limit: &str| format!("  - {{ name: per-ip, by: [client.ip], limit: {limit} }}\n");
    let (gcra, bucket, window) = (
        policy("{ rate: 60/min, burst: 20 }"),
        policy("{ algorithm: token-bucket, rate: 60/min, burst: 20 }"),
        policy("{ algorithm: fixed-window, rate: 60/min }"),
    );
    let (replay, ..) =
        read("access.log", &[("gcra", &gcra), ("token-bucket", &bucket), ("fixed-window", &window)]);
    let (outcomes, pictures) = (replay.outcomes(), drawn(&replay));
    let svg = &pictures[0].1;
    assert_eq!(pictures[0].0, "compare.svg");
    for outcome in &outcomes {
        assert!(
            svg.contains(&format!("{}: {} denied", outcome.name, outcome.denied)),
            "{}\n{svg}",
            outcome.name
        );
    }
    assert!(
        svg.contains("as many") && svg.contains(&format!("{} more", outcomes[2].denied - outcomes[0].denied))
    );
    keep("compare-sample.svg", svg);
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
    // One page that loads nothing.
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
