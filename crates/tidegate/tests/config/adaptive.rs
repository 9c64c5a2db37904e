//! `algorithm: adaptive` in a policy file: its laws, their knobs and defaults, and the keys that do not go with it.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::time::Duration;

use serde_json::json;
use tidegate::Quota;
use tidegate::concurrency::{Adaptive, AdaptiveConcurrency, Aimd, Bbr, Bounds, Gradient, HillClimb, Vegas};
use tidegate::config::{Config, Format, schema};
use tidegate::policy::Policy;

const SECOND: Duration = Duration::from_secs(1);

fn file(limit: &str) -> String {
    format!(
        "version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: p\n    limit: {{ algorithm: adaptive{limit} }}\n"
    )
}

fn policy(limit: &str) -> Policy {
    let (config, warnings) = Config::parse(&file(limit), "t", Format::Yaml).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    config.policies.policies()[0].clone()
}

fn quota(limit: &str) -> Quota {
    policy(limit).limits[0].terms.quota.as_deref().unwrap().clone()
}

fn mistake(limit: &str) -> String {
    let found = Config::parse(&file(limit), "t", Format::Yaml).unwrap_err();
    assert_eq!(found.len(), 1, "{found:?}");
    found.first().unwrap().to_string()
}

fn guard(law: Adaptive) -> AdaptiveConcurrency {
    AdaptiveConcurrency::new(law).ttl(60 * SECOND).unwrap()
}

fn bounds(least: u64, most: u64, start: u64) -> Bounds {
    Bounds::new(least, most).unwrap().start_at(start).unwrap()
}

#[test]
fn without_words_it_is_our_default() {
    let law = Adaptive::HillClimb(HillClimb::default().bounds(bounds(1, 65_536, 20)));
    assert_eq!(quota(""), guard(law).into());
    let policy = policy("");
    assert_eq!(policy.limits[0].terms.label, "adaptive hill-climb 1..65536 ttl 60s");
    assert!(policy.limits[0].is_guard());
    assert_eq!((policy.refusal(0).status, policy.deny.status), (503, 429));
}

/// A law without other keys has the library's defaults.
#[test]
fn defaults_are_those_of_the_library() {
    for name in ["aimd", "vegas", "gradient"] {
        let law: Adaptive = name.parse().unwrap();
        assert_eq!(quota(&format!(", law: {name}")), guard(law).into(), "{name}");
    }
    let bbr = Bbr::default().smoothing(0.0).unwrap().bounds(bounds(1, 65_536, 20));
    assert_eq!(quota(", law: bbr"), guard(Adaptive::Bbr(bbr)).into());
}

#[test]
fn every_word_is_read() {
    let all = bounds(2, 300, 40);
    let with = |law: Adaptive| Quota::from(AdaptiveConcurrency::new(law).ttl(30 * SECOND).unwrap());
    let common = "min: 2, max: 300, start: 40, ttl: 30s";
    let aimd = Aimd::default().bounds(all).backoff(0.8).unwrap().timeout(2 * SECOND).unwrap();
    let vegas = Vegas::default().bounds(all);
    let gradient = Gradient::default().bounds(all).tolerance(2.5).unwrap();
    let gradient = gradient.backoff(0.7).unwrap().timeout(3 * SECOND).unwrap();
    let bbr = Bbr::default().smoothing(0.0).unwrap().bounds(all).threshold(900).unwrap();
    for (words, law) in [
        ("law: aimd, backoff: 80%, slow_after: 2s", Adaptive::Aimd(aimd)),
        ("law: vegas", Adaptive::Vegas(vegas)),
        ("law: gradient, tolerance: 2.5, backoff: 70%, slow_after: 3s", Adaptive::Gradient(gradient)),
        ("law: bbr, busy_from: 90%", Adaptive::Bbr(bbr)),
    ] {
        assert_eq!(quota(&format!(", {common}, {words}")), with(law), "{words}");
    }
}

/// A bound that the file sets alone still leaves the law room to move.
#[test]
fn bounds_of_the_file_win_over_those_of_the_law() {
    let of = |limit: &str| match quota(limit) {
        Quota::Adaptive(guard) => {
            let bounds = guard.law().bounds();
            (bounds.least(), bounds.start(), bounds.most())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(of(", law: aimd, max: 10"), (1, 10, 10));
    assert_eq!(of(", law: aimd, min: 300"), (300, 300, 65_536));
    assert_eq!(of(", law: aimd, start: 5"), (1, 5, 200));
    assert_eq!(of(", law: aimd, start: 500"), (20, 500, 65_536));
    assert_eq!(of(", max: 1"), (1, 1, 1));
}

#[test]
fn what_does_not_belong_is_named() {
    let mut wrong = Vec::new();
    for (limit, expected) in [
        (", law: fast", "law: unknown word \"fast\"; possible are hill-climb, aimd, vegas, gradient, bbr"),
        (", law: aimd, tolerance: 2", "tolerance does not belong to law aimd; it belongs to gradient"),
        (", backoff: 50%", "backoff does not belong to law hill-climb; it belongs to aimd, gradient"),
        (", min: 30, max: 20", "min 30 is more than max 20; use 1 to 20"),
        (", max: 20, start: 30", "start 30 is outside the bounds; use 1 to 20"),
        (", min: 20, start: 3", "start 3 is outside the bounds; use 20 or more"),
        (
            ", law: aimd, backoff: 5%",
            "backoff 5% leaves less than a tenth of the limit after one overload; use 10% to 99%",
        ),
        (", law: aimd, backoff: half", "backoff: \"half\" is not a share; use 10% to 99%"),
        (", law: aimd, backoff: 100%", "backoff 100% leaves the limit as it is; use 10% to 99%"),
        (", law: gradient, tolerance: 20", "tolerance 20 is too much; use 1 to 10"),
        (", max: 0", "max: 0 is out of range; use 1 to 65536"),
        (", law: min-latency", "law: \"min-latency\" is a word of the library alone; write law: gradient"),
        (", law: aimd, slow_after: 0s", "slow_after 0s is not a time-out; use 1 ns or more"),
        (
            ", law: aimd, timeout: 2s",
            "unknown key \"timeout\" in limit; it is called slow_after now: write slow_after: 2s",
        ),
        (
            ", forget_after: 1ms",
            "unknown key \"forget_after\" in limit; leave it out: its value belongs to its law or profile",
        ),
        (
            ", rate: 5/s",
            "rate does not belong to adaptive, which counts what is in flight; a law says how much",
        ),
        (", window: 10s", "window does not belong to adaptive; it belongs to breaker"),
        (
            ", keep_for: { critical: 5 }",
            "keep_for.critical: 5 is not part of a limit that moves; write a share of it, as 20% (adaptive hill-climb 1..65536 ttl 60s)",
        ),
        (
            ", adaptive: vegas",
            "adaptive is not a key here; write algorithm: adaptive, and its law as law: hill-climb",
        ),
    ] {
        let told = mistake(limit);
        if told.split_once("policy \"p\": ").map(|(_, message)| message) != Some(expected) {
            wrong.push(told);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let spot = mistake(", law: aimd, tolerance: 2");
    assert!(spot.starts_with("t:5:46  error  policy \"p\": tolerance"), "{spot}");
    let priced = file(", max: 4").replace(
        "    limit:",
        "    cost: { by: request.method, values: { GET: 5 }, otherwise: 1 }\n    limit:",
    );
    let found = Config::parse(&priced, "t", Format::Yaml).unwrap_err();
    assert!(
        found.first().unwrap().to_string().ends_with(
            "a request may cost 5, and adaptive hill-climb 1..4 ttl 60s never grants more than 4 at once"
        ),
        "{found:?}"
    );
}

#[test]
fn the_configuration_in_effect_shows_the_numbers_of_the_law() {
    let shown = |limit: &str| {
        let (config, _) = Config::parse(&file(limit), "t", Format::Yaml).unwrap();
        config.effective.value["policies"][0]["limit"].clone()
    };
    assert_eq!(
        shown(", law: aimd, max: 50"),
        json!({
            "algorithm": "adaptive", "law": "aimd", "min": 20, "max": 50, "start": 20, "backoff": "90%", "slow_after": "5s",
            "ttl": "60s", "replace": "as-is",
        })
    );
    assert_eq!(
        shown(""),
        json!({
            "algorithm": "adaptive", "law": "hill-climb", "min": 1, "max": 65_536, "start": 20, "ttl": "60s",
            "replace": "as-is",
        })
    );
}

#[test]
fn the_schema_accepts_and_refuses_the_same() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let valid = |limit: serde_json::Value| {
        validator.is_valid(&json!({ "version": 1, "policies": [{ "name": "p", "limit": limit }] }))
    };
    assert!(valid(json!({ "algorithm": "adaptive" })));
    let kept = json!({ "critical": "20%" });
    assert!(valid(json!({ "algorithm": "adaptive", "law": "vegas", "max": 50, "keep_for": kept })));
    for wrong in [
        json!({ "algorithm": "adaptive", "rate": "5/s" }),
        json!({ "algorithm": "adaptive", "law": "fast" }),
        json!({ "algorithm": "adaptive", "window": "10s" }),
        json!({ "algorithm": "adaptive", "max": 0 }),
        json!({ "law": "aimd" }),
    ] {
        assert!(!valid(wrong.clone()), "{wrong}");
    }
}
