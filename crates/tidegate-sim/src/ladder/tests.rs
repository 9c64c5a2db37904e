//! Compares rungs with replays of the same limits.

use std::sync::Arc;

use tidegate::config::{Config, Format};

use super::*;
use crate::peaks::PathCount;

fn set(limit: &str) -> Arc<PolicySet> {
    let text = format!("version: 1\npolicies:\n  - {{ name: per-ip, by: [client.ip], limit: {limit} }}\n");
    match Config::parse(&text, "test.yaml", Format::Yaml) {
        Ok((config, _)) => config.policies,
        Err(mistakes) => panic!("{mistakes:#?}"),
    }
}

/// Twenty clients, each faster than the one before, a scraper that has signed in, and one client that comes again and
/// again.
fn requests() -> Vec<(u64, String, String, bool)> {
    let mut all = Vec::new();
    for client in 1..=20u64 {
        all.extend(
            (0..client * 3)
                .map(|n| (n * 60_000 / (client * 3), format!("client-{client:02}"), "/".to_owned(), false)),
        );
    }
    all.extend((0..900).map(|n| (n * 40, "scraper".to_owned(), format!("/items/{n}"), true)));
    all.sort();
    all
}

fn replayed(limit: &str) -> (Replay, Ladders) {
    let policies = set(limit);
    let options = ReplayOptions { details: true, ..ReplayOptions::default() };
    let mut ladders = Ladders::new(&policies, &options);
    let mut replay = Replay::new(vec![("policies".to_owned(), policies)], options);
    for (at, client, path, signed_in) in requests() {
        let at = Tick::from_secs(1_000).after(Duration::from_millis(at));
        let request = Descriptor::new().with("request.path", &*path).with("client.ip", &*client);
        replay.feed_request(at, &request, None);
        ladders.ask(at, &request, signed_in);
    }
    (replay, ladders)
}

#[test]
fn each_rung_is_what_a_replay_of_it_prints() {
    let (replay, ladders) = replayed("{ rate: 60/min, burst: 20 }");
    let ladder = ladders.of_row(0).unwrap();
    let (rungs, at) = ladder.rungs(&replay);
    assert!(rungs.len() > 5 && ladder.is_exact());
    assert_eq!((rungs[at].limit().as_str(), rungs[at].granted), ("gcra 60/min burst 20", 80));
    assert_eq!((rungs[at].newly_hit, rungs[at].spared), (0, 0), "the limit itself hits whom it hits");
    for rung in &rungs {
        let limit = format!("{{ rate: {}, burst: {} }}", rung.rate, rung.burst);
        let (again, _) = replayed(&limit);
        let outcome = &again.outcomes()[0].policies[0];
        assert_eq!((rung.denied, rung.keys_hit), (outcome.denied, outcome.keys_hit), "{limit}");
        let drawn = rung.hit.iter().filter(|hit| **hit).count() as u64;
        assert_eq!(drawn, rung.keys_hit, "{limit}");
        let granted = again.granted(0, 0).unwrap();
        assert_eq!((granted.units, &granted.limit), (rung.granted, &rung.limit()));
    }
    // The limit hits only the scraper, so every other key is newly hit.
    let lowest = &rungs[0];
    assert_eq!((rungs[at].keys_hit, lowest.newly_hit), (1, lowest.keys_hit - 1));
    assert_eq!((lowest.newly.len(), lowest.newly_hit_signed_in, lowest.keys_hit_signed_in), (10, 0, 1));
    assert_eq!((rungs.last().unwrap().denied, rungs.last().unwrap().spared), (0, 1));
}

#[test]
fn keys_newly_hit_are_known_by_their_paths() {
    let (replay, ladders) = replayed("{ rate: 2000/min, burst: 2000 }");
    let (rungs, at) = ladders.of_row(0).unwrap().rungs(&replay);
    assert_eq!(rungs[at].keys_hit, 0);
    let first = rungs.iter().rev().find(|rung| rung.newly_hit == 1).unwrap();
    let [newly] = &first.newly[..] else { panic!("{first:?}") };
    assert_eq!((newly.key.as_str(), newly.signed_in, newly.denied), ("scraper", true, first.denied));
    let path = PathCount { path: "/items/*".to_owned(), requests: 900, is_exact: true };
    assert_eq!(newly.detail.as_ref().unwrap().paths, [path]);
    assert_eq!(
        ladders.of_row(0).unwrap().yaml(first).unwrap(),
        format!(
            "  - name: per-ip\n    mode: shadow\n    by: [client.ip]\n    limit: {{ algorithm: gcra, rate: {}, burst: {} }}\n",
            first.rate, first.burst
        )
    );
}

#[test]
fn what_is_no_rate_has_no_ladder_and_says_so() {
    let ladders = Ladders::new(&set("{ algorithm: concurrency, max: 5 }"), &ReplayOptions::default());
    assert!(ladders.of_row(0).is_none());
    assert!(ladders.why_not(0).unwrap().contains("only rates are tried"), "{:?}", ladders.why_not(0));
    let windows = Ladders::new(&set("{ algorithm: fixed-window, rate: 60/min }"), &ReplayOptions::default());
    assert_eq!(windows.of_row(0).unwrap().stands_in_for(), Some("fixed-window 60/min"));
    let gcra = Ladders::new(&set("{ rate: 60/min, burst: 20 }"), &ReplayOptions::default());
    assert_eq!(gcra.of_row(0).unwrap().stands_in_for(), None);
}
