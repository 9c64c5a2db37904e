//! `algorithm: concurrency` in a policy file: its keys, its defaults, and the keys that do not go with it.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::time::Duration;

use tidegate::Quota;
use tidegate::config::{Config, Format, schema};
use tidegate::policy::Policy;

const HEAD: &str = "version: 1\nclient_ip: { trusted_proxies: [] }\npolicies:\n  - name: p\n";

/// The file of one policy, with its lines from line 5.
fn file(lines: &[&str]) -> String {
    let indented: String = lines.iter().map(|line| format!("    {line}\n")).collect();
    format!("{HEAD}{indented}")
}

fn policy(lines: &[&str]) -> Policy {
    let (config, warnings) = Config::parse(&file(lines), "t", Format::Yaml).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    config.policies.policies()[0].clone()
}

fn mistakes(lines: &[&str]) -> Vec<String> {
    let found = Config::parse(&file(lines), "t", Format::Yaml).unwrap_err();
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn places_and_their_time_to_live() {
    let policy = policy(&["limit: { algorithm: concurrency, max: 50, ttl: 30s }"]);
    let terms = &policy.limits[0].terms;
    assert_eq!(terms.label, "concurrency 50 ttl 30s");
    let expected = Quota::concurrency(50, Duration::from_secs(30)).unwrap();
    assert_eq!(terms.quota.as_deref(), Some(&expected));
    assert!(policy.limits[0].is_guard());
}

/// A place that is free again before any work has ended limits nothing.
#[test]
fn a_time_to_live_that_no_work_keeps_within_is_told() {
    let warned = |limit: &str| {
        let (_, warnings) = Config::parse(&file(&[limit]), "t", Format::Yaml).unwrap();
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for algorithm in ["concurrency, max: 5", "adaptive"] {
        assert!(warned(&format!("limit: {{ algorithm: {algorithm}, ttl: 1ms }}")).is_empty());
        let told = warned(&format!("limit: {{ algorithm: {algorithm}, ttl: 1ns }}"));
        assert!(told.len() == 1 && told[0].contains("ttl: a place is free again after 1ns"), "{told:?}");
    }
}

#[test]
fn a_place_is_held_for_a_minute_unless_said() {
    let policy = policy(&["limit: { algorithm: concurrency, max: 1k }"]);
    assert_eq!(policy.limits[0].terms.label, "concurrency 1000 ttl 60s");
}

#[test]
fn a_refusal_is_our_shortage_unless_said() {
    let lines = &["limit: [{ rate: 5/s }, { algorithm: concurrency, max: 5 }]"][..];
    let unsaid = policy(lines);
    assert_eq!((unsaid.refusal(0).status, unsaid.refusal(1).status), (429, 503));
    assert!(unsaid.refusal(1).problem.ends_with("#temporary-reduced-capacity"));
    let said = policy(&[lines[0], "deny: { status: 429 }"]);
    assert_eq!((said.refusal(0).status, said.refusal(1).status), (429, 429));
    assert!(said.refusal(1).problem.ends_with("#quota-exceeded"));
    let named = policy(&[lines[0], "deny: { problem: abnormal-usage-detected }"]);
    assert_eq!((named.refusal(0).status, named.refusal(1).status), (429, 503));
    assert!(named.refusal(1).problem.ends_with("#abnormal-usage-detected"));
}

#[test]
fn a_shadow_is_of_the_same_kind_or_says_otherwise() {
    let smaller = policy(&["limit: { algorithm: concurrency, max: 5, ttl: 9s }", "shadow_limit: { max: 3 }"]);
    assert_eq!(smaller.shadow_limit.unwrap().terms.label, "concurrency 3 ttl 9s");
    let beside_a_rate = policy(&["limit: { rate: 5/s }", "shadow_limit: { algorithm: concurrency, max: 3 }"]);
    assert_eq!(beside_a_rate.shadow_limit.unwrap().terms.label, "concurrency 3 ttl 60s");
    let a_rate = policy(&[
        "limit: { algorithm: concurrency, max: 5 }",
        "shadow_limit: { algorithm: gcra, rate: 5/s }",
    ]);
    assert!(!a_rate.shadow_limit.unwrap().is_guard());
}

#[test]
fn what_does_not_belong_is_named() {
    for (lines, expected) in [
        (
            &["limit: { algorithm: concurrency }"][..],
            &["t:5:12  error  policy \"p\": concurrency needs max; write max: 10"][..],
        ),
        (
            &["limit: { algorithm: concurrency, max: 0 }"],
            &["t:5:43  error  policy \"p\": max: 0 is out of range; use 1 to 65536"],
        ),
        (
            &["limit: { algorithm: concurrency, max: 70000 }"],
            &["t:5:43  error  policy \"p\": max: 70000 is out of range; use 1 to 65536"],
        ),
        (
            &["limit: { algorithm: concurrency, max: 5, rate: 5/s }"],
            &[
                "t:5:46  error  policy \"p\": rate does not belong to concurrency, which counts what is in flight; max says how much",
            ],
        ),
        (
            &["limit: { algorithm: concurrency, max: 5, burst: 5 }"],
            &[
                "t:5:46  error  policy \"p\": burst does not belong to concurrency; it belongs to gcra, token-bucket, leaky-bucket, warm-up, x-time",
            ],
        ),
        (
            &["limit: { rate: 5/s, max: 5 }"],
            &[
                "t:5:25  error  policy \"p\": max does not belong to gcra; it belongs to concurrency, adaptive",
            ],
        ),
        (
            &["limit: { algorithm: concurrency, max: 5, ttl: 0s }"],
            &["t:5:51  error  policy \"p\": ttl 0s is not a time to live; use 1 ns to 146 years"],
        ),
        (
            &["limit: { algorithm: concurrency, max: 5, ttl: soon }"],
            &[
                "t:5:51  error  policy \"p\": ttl: \"soon\" is not a span of time; write 200ms, 10s or 1h30min",
            ],
        ),
        (
            &["limit: { algorithm: concurrency, max: 5 }", "cost: 6"],
            &[
                "t:5:43  error  policy \"p\": a request may cost 6, and concurrency 5 ttl 60s never grants more than 5 at once",
            ],
        ),
        (
            &["limit: { algorithm: concurrency, max: 5 }", "charge: on-failure"],
            &[
                "t:6:5  error  policy \"p\": charge: on-failure keeps the charges of failures, and concurrency 5 ttl 60s keeps none: a place is returned when its request ends",
            ],
        ),
        (
            &["limit: { rate: 50/s }", "cost: { estimate: 5, settle: llm.output }", "charge: always"],
            &[
                "t:7:5  error  policy \"p\": charge: always also charges refused requests, which nobody settles; leave the estimate and settle out of cost",
            ],
        ),
        (
            &["limit: { algorithm: concurrency, max: 5 }", "charge: always"],
            &[
                "t:6:5  error  policy \"p\": charge: always charges refused requests too, and concurrency 5 ttl 60s keeps none: a place is returned when its request ends",
            ],
        ),
        (
            &["limit: { algorithm: concurrency, max: 5 }", "shadow_limit: { rate: 5/s }"],
            &[
                "t:6:19  error  policy \"p\": shadow_limit has no max",
                "t:6:21  error  policy \"p\": rate does not belong to concurrency, which counts what is in flight; max says how much",
            ],
        ),
        (
            &["limit: { rate: 5/s }", "shadow_limit: { burst: 5 }"],
            &["t:6:19  error  policy \"p\": shadow_limit has no rate"],
        ),
    ] {
        assert_eq!(mistakes(lines), expected, "{lines:?}");
    }
}

#[test]
fn what_is_in_effect_shows_the_time_to_live_and_no_rate() {
    let text = file(&["limit: { algorithm: concurrency, max: 5 }"]);
    let (config, _) = Config::parse(&text, "t", Format::Yaml).unwrap();
    let limit = &config.effective.value["policies"][0]["limit"];
    let expected =
        serde_json::json!({ "algorithm": "concurrency", "max": 5, "ttl": "60s", "replace": "as-is" });
    assert_eq!(*limit, expected);
}

#[test]
fn the_schema_accepts_and_refuses_the_same() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let valid = |policy: serde_json::Value| {
        let file = serde_json::json!({ "version": 1, "policies": [policy] });
        validator.is_valid(&file)
    };
    let limit = |limit| serde_json::json!({ "name": "p", "limit": limit });
    assert!(valid(limit(serde_json::json!({ "algorithm": "concurrency", "max": 5 }))));
    assert!(valid(limit(serde_json::json!({ "algorithm": "concurrency", "max": "1k", "ttl": "30s" }))));
    for wrong in [
        serde_json::json!({ "algorithm": "concurrency" }),
        serde_json::json!({ "algorithm": "concurrency", "max": 0 }),
        serde_json::json!({ "algorithm": "concurrency", "max": 5, "rate": "5/s" }),
        serde_json::json!({ "algorithm": "concurrency", "max": 5, "burst": 5 }),
        serde_json::json!({ "max": 5 }),
        serde_json::json!({ "rate": "5/s", "max": 5 }),
    ] {
        assert!(!valid(limit(wrong.clone())), "{wrong}");
    }
    let shadow = serde_json::json!({
        "name": "p", "limit": { "algorithm": "concurrency", "max": 5 }, "shadow_limit": { "max": 3 },
    });
    assert!(valid(shadow));
}

/// Regression: `2days` was told as `172800s`, and `0s` as `0ns`.
#[test]
fn times_that_are_out_of_range_are_told_as_they_are_written() {
    for (limit, told) in [
        (
            "algorithm: breaker, window: 2days",
            "window 2days is out of range; use at least 1 ns for each bucket",
        ),
        ("algorithm: breaker, open_for: 0s", "open_for 0s is not a time to stay open"),
        ("algorithm: breaker, ttl: 0min", "ttl 0min is not a time to live"),
        ("algorithm: concurrency, max: 2, ttl: 0s", "ttl 0s is not a time to live"),
        ("algorithm: adaptive, ttl: 0s", "ttl 0s is not a time to live"),
        ("algorithm: adaptive, law: aimd, slow_after: 0s", "slow_after 0s is not a time-out"),
    ] {
        let found = Config::parse(&file(&[&format!("limit: {{ {limit} }}")]), "t", Format::Yaml).unwrap_err();
        assert!(found[0].to_string().contains(told), "{limit}: {found:?}");
    }
}
