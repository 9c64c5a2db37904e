//! `algorithm: breaker` in a policy file: its keys, its profiles, and the keys that do not go with it.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::time::Duration;

use tidegate::Quota;
use tidegate::breaker::{BreakerBuilder, CircuitBreaker, Evaluate, Judgement, SentinelRule, Window};
use tidegate::config::{Config, Format, schema};

fn file(limit: &str) -> String {
    format!(
        "version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: p\n    limit: {{ algorithm: breaker{limit} }}\n"
    )
}

fn quota(limit: &str) -> Quota {
    let (config, warnings) = Config::parse(&file(limit), "t", Format::Yaml).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let policy = &config.policies.policies()[0];
    assert!(policy.limits[0].is_guard());
    assert_eq!(policy.refusal(0).status, 503);
    policy.limits[0].terms.quota.as_deref().unwrap().clone()
}

fn label(limit: &str) -> String {
    let (config, _) = Config::parse(&file(limit), "t", Format::Yaml).unwrap();
    config.policies.policies()[0].limits[0].terms.label.clone()
}

fn mistake(limit: &str) -> String {
    let found = Config::parse(&file(limit), "t", Format::Yaml).unwrap_err();
    assert_eq!(found.len(), 1, "{found:?}");
    found.first().unwrap().to_string()
}

fn built(builder: BreakerBuilder) -> Quota {
    Quota::Breaker(builder.build().unwrap())
}

#[test]
fn a_breaker_without_words_is_the_librarys() {
    assert_eq!(quota(""), built(CircuitBreaker::builder()));
    assert_eq!(label(""), "breaker failures 50% in 10s open 5s");
}

/// Compares the keys of each profile in the file with the profile's builder in the library.
#[test]
fn profiles_are_those_of_the_library() {
    let ttl = Duration::from_secs(60);
    let five = Duration::from_secs(5);
    let profiles = [
        ("hystrix", CircuitBreaker::hystrix()),
        ("resilience4j", CircuitBreaker::resilience4j()),
        ("sentinel", CircuitBreaker::sentinel(SentinelRule::ErrorRatio(0.5), five)),
    ];
    for (name, profile) in profiles {
        let longest = if name == "resilience4j" { 60 } else { 5 };
        let profile = profile.ttl(ttl).open_at_most(Duration::from_secs(longest));
        assert_eq!(quota(&format!(", profile: {name}")), built(profile), "{name}");
    }
}

/// Regression: a profile that opens at a share was replaced by one that opens above it.
#[test]
fn the_line_for_a_profile_of_the_library_alone_does_what_it_did() {
    let five = Duration::from_secs(5);
    for (name, profile, open_for) in [
        ("sentinel-go", CircuitBreaker::sentinel_go(SentinelRule::ErrorRatio(0.5), five, 0), 5),
        ("polly", CircuitBreaker::polly().evaluate(Evaluate::EachCall), 5),
        ("tower-resilience", CircuitBreaker::tower_resilience(), 30),
    ] {
        let told = mistake(&format!(", profile: {name}"));
        let (_, line) = told.split_once("write ").unwrap();
        let (line, _) = line.split_once(", or ").unwrap();
        let profile =
            profile.strictly_after().ttl(Duration::from_secs(60)).open_at_most(Duration::from_secs(open_for));
        assert_eq!(quota(&format!(", {line}")), built(profile), "{name}");
    }
}

#[test]
fn profiles_that_shed_are_those_of_the_library() {
    assert_eq!(quota(", profile: sre"), built(CircuitBreaker::sre()));
    let envoy = ", profile: sre, window: 30s, buckets: 30, failures: 5%, shed_at_most: 80%";
    assert_eq!(quota(envoy), built(CircuitBreaker::envoy()));
    assert_eq!(label(envoy), "breaker failures 5% in 30s shed 80% at most");
    let shed = CircuitBreaker::builder().failure_ratio(0.2).shed_at_most(0.9);
    assert_eq!(quota(", failures: 20%, shed_at_most: 90%"), built(shed));
}

/// A breaker that sheds opens only after it was forced open and its probes failed, so its open times rarely count.
#[test]
fn open_times_of_a_breaker_that_sheds_are_told() {
    for (limit, told) in [
        (", shed_at_most: 90%, open_for: 5s..9s", &["open_for"][..]),
        (", profile: sre, open_for: 5s..5min", &["open_for"]),
        (", profile: sre, probes: 2", &[]),
        (", open_for: 5s", &[]),
    ] {
        let text = file(limit);
        let (_, warnings) = Config::parse(&text, "t", Format::Yaml).unwrap();
        assert_eq!(warnings.len(), told.len(), "{warnings:?}");
        for key in told {
            let says =
                format!("{key}: a breaker with shed_at_most refuses a share and does not open by itself");
            assert!(warnings.iter().any(|one| one.to_string().contains(&says)), "{warnings:?}");
        }
    }
}

#[test]
fn a_breaker_that_sheds_nothing_is_a_mistake() {
    let opens = "opens a breaker, and shed_at_most keeps it from opening; use a share, as failures: 50%";
    let cases = [
        (", shed_at_most: 90%, failures: 20", format!("failures {opens}")),
        (", shed_at_most: 90%, consecutive: 3", format!("consecutive {opens}")),
        (
            ", profile: sre, failures: 100%",
            "failures: 100% allows all calls, so nothing would be shed; use less".to_owned(),
        ),
        (", shed_at_most: 100%", "shed_at_most: 100% would let in no call".to_owned()),
        (
            ", shed_at_most: 50%, profile: hystrix",
            "shed_at_most: the breaker of this profile does not compare at each call; use profile: sre"
                .to_owned(),
        ),
        (", shed_at_most: 0%", "shed_at_most".to_owned()),
    ];
    for (limit, text) in cases {
        let mistake = mistake(limit);
        assert!(mistake.contains(&text), "{limit}: {mistake}");
    }
}

#[test]
fn every_word_is_read() {
    let limit = ", window: 100 calls, failures: 30%, slow_after: 2s, slow_calls: 80%, consecutive: 7, min_calls: 10, \
                 open_for: 1s..10s, probes: 2, ttl: 30s, close_after: 4";
    let expected = CircuitBreaker::builder()
        .window(Window::Calls(100))
        .failure_ratio(0.3)
        .slow_calls(Duration::from_secs(2), 0.8)
        .consecutive(7)
        .min_calls(10)
        .open_for(Duration::from_secs(1))
        .open_at_most(Duration::from_secs(10))
        .probes(2)
        .ttl(Duration::from_secs(30))
        .judgement(Judgement::Successes(4));
    assert_eq!(quota(limit), built(expected));
    assert_eq!(label(limit), "breaker failures 30%/slow 80% after 2s/consecutive 7 in 100 calls open 1s");
}

/// `consecutive: 5` replaces the profile's trip conditions: it does not mean "or half of the calls".
#[test]
fn what_trips_it_replaces_what_the_profile_has() {
    let expected = CircuitBreaker::builder().without_failure_ratio().consecutive(5);
    assert_eq!(quota(", consecutive: 5"), built(expected));
    assert_eq!(
        quota(", failures: 20"),
        built(CircuitBreaker::builder().without_failure_ratio().failures(20))
    );
    let minute = Duration::from_secs(60);
    let batch = CircuitBreaker::resilience4j().probes(5).judgement(Judgement::Batch(5));
    assert_eq!(quota(", profile: resilience4j, probes: 5"), built(batch.ttl(minute).open_at_most(minute)));
    // Open times grow in each profile, if the file says how long they may become.
    let grows = CircuitBreaker::hystrix().ttl(minute).open_at_most(minute).growth(2.0);
    assert_eq!(
        quota(", profile: hystrix, open_for: 5s..60s"),
        built(grows.forget_after(Duration::from_secs(300)))
    );
    let long = Window::Time { span: Duration::from_secs(1000), buckets: 21 };
    let rarely = CircuitBreaker::hystrix().ttl(minute).open_at_most(Duration::from_secs(5)).window(long);
    assert_eq!(
        quota(", profile: hystrix, window: 1000s"),
        built(rarely.evaluate(Evaluate::Every(Duration::from_secs(1))))
    );
}

#[test]
fn mistakes_name_the_key_and_what_would_work() {
    for (limit, told) in [
        (", profile: histrix", "profile: unknown word \"histrix\"; did you mean \"hystrix\"?"),
        (", windw: 10s", "unknown key \"windw\" in limit; did you mean \"window\"?"),
        (", window: 10", "window: \"10\" is neither a time as 10s nor a number of calls as 100 calls"),
        (", failures: 150%", "failures: \"150%\" is neither a share of the calls"),
        (
            ", growth: 0.5",
            "unknown key \"growth\" in limit; write open_for: 5s..60s, where each open time is twice the one before",
        ),
        (
            ", profile: envoy",
            "profile: \"envoy\" is a word of the library alone; write profile: sre, window: 30s, buckets: 30, failures: 5%",
        ),
        (", rate: 5/s", "rate does not belong to breaker, which is decided by how calls end"),
        (", max: 5", "max does not belong to breaker; it belongs to concurrency"),
        (", slow_calls: 50%", "slow_calls needs slow_after too"),
        (", slow_after: 1s", "slow_after needs slow_calls too"),
        (", risk: 5%", "unknown key \"risk\" in limit; write close_after: 3"),
        // Regression: the advice was a range whose end was refused next.
        (", shed_at_most: half", "shed_at_most: \"half\" is not a share; use 1% to 99%"),
        (
            ", shed_at_most: 100%",
            "shed_at_most: 100% would let in no call to see whether the service recovers; use 1% to 99%",
        ),
        (", slow_calls: half, slow_after: 1s", "slow_calls: \"half\" is not a share; use 1% to 100%"),
        (", slow_calls: 0%, slow_after: 1s", "slow_calls: 0% of all calls are always slow; use 1% to 100%"),
        (", window: 100 calls, buckets: 5", "buckets are parts of a time; a window of calls has none"),
        (", window: 10 calls, min_calls: 11", "min_calls 11 with a window of 10 calls is never reached"),
        (", window: 10 calls, failures: 11", "failures 11 with a window of 10 calls is never reached"),
        (
            ", profile: sentinel, window: 10 calls, failures: 10",
            "failures 10 with a window of 10 calls is never exceeded; use fewer",
        ),
        (", window: 2d", "window"),
        (", buckets: 500", "buckets"),
        (", open_for: 5s..1s", "open_for: the longest time is shorter than the first"),
        (
            ", open_for: 5s, open_at_most: 9s",
            "write open_for: 5s..9s, with the longest open time behind the first",
        ),
        (", overloaded: fails", "; leave it out: a breaker counts overloaded calls as failed"),
        (
            ", overloaded: ignored",
            "with outcome: ignored, which holds for every limit of the call that goes by outcomes",
        ),
        (", open_for: soon", "is neither a span of time as 5s nor two as 5s..60s"),
        (", keep_for: { critical: 20% }", "keep_for does not belong to breaker"),
    ] {
        let found = mistake(limit);
        assert!(found.contains(told), "{limit}: {found}");
    }
    let breaker = "version: 1\npolicies: [{ name: p, limit: { rate: 5/s }, breaker: { open_for: 5s } }]\n";
    let found = Config::parse(breaker, "t", Format::Yaml).unwrap_err();
    let found = found.first().unwrap().to_string();
    assert!(found.contains("breaker is not a key here; write limit: { algorithm: breaker, ... }"), "{found}");
    let places = "version: 1\npolicies: [{ name: p, limit: { rate: 5/s }, concurrency: { max: 5 } }]\n";
    let found = Config::parse(places, "t", Format::Yaml).unwrap_err();
    let found = found.first().unwrap().to_string();
    assert!(
        found.contains("concurrency is not a key here; write limit: { algorithm: concurrency, max"),
        "{found}"
    );
}

#[test]
fn the_schema_and_what_is_in_effect_have_its_words() {
    let schema = schema();
    let limit = &schema["properties"]["policies"]["items"]["properties"]["limit"]["anyOf"][0];
    assert_eq!(limit["properties"]["profile"]["enum"][1], "hystrix");
    assert!(limit["properties"]["open_for"].is_object());
    let (config, _) = Config::parse(&file(", profile: hystrix, open_for: 9s"), "t", Format::Yaml).unwrap();
    let limit = &config.effective.value["policies"][0]["limit"];
    assert_eq!(
        (&limit["open_for"], &limit["window"], &limit["min_calls"]),
        (&"9s".into(), &"10500ms".into(), &20.into())
    );
    assert_eq!((limit.get("cold_factor"), limit.get("risk"), &limit["close_after"]), (None, None, &1.into()));
    assert_eq!(config.effective.origins["policies.0.limit.window"], "default, of the profile");
}

/// Regression: values of the profile were shown where other words of the file had replaced them.
#[test]
fn what_is_in_effect_is_what_the_breaker_does() {
    for (words, key, expected) in [
        (", window: 10 calls", "min_calls", 10.into()),
        (", window: 10 calls, min_calls: 7", "min_calls", 7.into()),
        ("", "open_for", "5s..60s".into()),
        (", open_for: 2min", "open_for", "2min".into()),
        (", profile: hystrix", "open_for", "5s".into()),
        (", open_for: 2min..5min", "open_for", "2min..5min".into()),
        (", profile: resilience4j, window: 10s", "buckets", serde_json::Value::from(10)),
    ] {
        let (config, _) = Config::parse(&file(words), "t", Format::Yaml).unwrap();
        let shown = config.effective.to_yaml();
        let limit = &config.effective.value["policies"][0]["limit"];
        assert_eq!(limit[key], expected, "{words}");
        let (again, _) = Config::parse(&shown, "t", Format::Yaml).unwrap();
        let quota = |config: &Config| config.policies.policies()[0].limits[0].terms.quota.clone();
        assert_eq!(quota(&again), quota(&config), "{shown}");
    }
}

fn mistake_of(policy: &str) -> String {
    let file =
        format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies: [{{ name: p, {policy} }}]\n");
    Config::parse(&file, "t", Format::Yaml).unwrap_err().first().unwrap().to_string()
}

#[test]
fn what_becomes_of_requests_over_a_limit_is_read_and_checked() {
    for (policy, told) in [
        ("limit: { rate: 5/s }, deadline: 0s", "deadline: no request can be served in no time; leave it out"),
        ("limit: { rate: 5/s }, deadline: 5", "deadline: "),
        (
            "limit: { rate: 5/s }, over: marc",
            "over: \"marc\" is not deny, wait, mark, demote, demote to a level as demote to sheddable, or block with a time",
        ),
        ("limit: { rate: 5/s }, over: block", "or block with a time of up to 30d as block 10min"),
        ("limit: { rate: 5/s }, over: block 31d", "or block with a time of up to 30d as block 10min"),
        (
            "limit: { algorithm: concurrency, max: 5 }, over: block 10min",
            "over: block 10min blocks keys over a rate",
        ),
        (
            "limit: { rate: 5/s, keep_for: { critical: 20% } }, over: block 10min",
            "refused only for its priority; leave out keep_for",
        ),
        ("limit: { rate: 5/s }, over: wait", "over: wait needs a limit with max_wait"),
        ("limit: { rate: 5/s }, demote_to: sheddable", "write over: \"demote to sheddable\""),
        (
            "limit: { rate: 5/s }, over: demote to critical-plus",
            "over: critical-plus lowers nobody, since no level is above it; write demote to critical",
        ),
        ("limit: { rate: 5/s, max_wait: 1s }, over: mark", "over: mark lets requests through at once"),
        (
            "limit: { rate: 5/s }, over: demote, charge: on-failure",
            "over: demote cannot be combined with charge: on-failure",
        ),
    ] {
        let found = mistake_of(policy);
        assert!(found.contains(told), "{policy}: {found}");
    }
}

/// A key that many callers share lets one of them block the others.
#[test]
fn a_block_of_a_key_that_callers_share_is_warned_of() {
    let warned = |policy: &str| {
        let file = format!(
            "version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies: [{{ name: p, {policy} }}]\n"
        );
        let (_, notes) = Config::parse(&file, "t", Format::Yaml).unwrap();
        notes
            .iter()
            .any(|note| note.to_string().contains("one caller who exceeds the limit blocks everybody"))
    };
    assert!(warned("limit: { rate: 5/s }, over: block 10min"));
    assert!(warned("by: [request.header.x-key], absent: charge, limit: { rate: 5/s }, over: block 10min"));
    assert!(!warned("by: [request.header.x-key], limit: { rate: 5/s }, over: block 10min"));
    assert!(!warned("limit: { rate: 5/s }"));
}
