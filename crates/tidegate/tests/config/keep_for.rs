//! `keep_for` in a policy file: the part of a limit that is kept for requests of higher priority.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use tidegate::config::{Config, Format, schema};
use tidegate::policy::Limit;
use tidegate::priority::Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};

fn file(limit: &str) -> String {
    format!("version: 1\npolicies:\n  - name: p\n    limit: {limit}\n")
}

fn parse(text: &str) -> Result<(Config, Vec<String>), Vec<String>> {
    let lines = |found: Vec<tidegate::config::Diagnostic>| found.iter().map(ToString::to_string).collect();
    match Config::parse(text, "t", Format::Yaml) {
        Ok((config, warnings)) => Ok((config, lines(warnings))),
        Err(mistakes) => Err(lines(mistakes)),
    }
}

fn limit(written: &str) -> Limit {
    let (config, warnings) = parse(&file(written)).unwrap();
    assert_eq!(warnings, [""; 0], "{written}");
    config.policies.policies()[0].limits[0].clone()
}

/// Says whether the schema accepts a file.
fn fits_the_schema(text: &str) -> bool {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    validator.is_valid(&serde_saphyr::from_str::<serde_json::Value>(text).unwrap())
}

#[test]
fn a_part_is_a_share_or_so_many_units_of_any_limit_that_can_keep_one() {
    for written in [
        "{ rate: 100/s, keep_for: { critical: 20%, critical-plus: 5 } }",
        "{ algorithm: token-bucket, rate: 100/s, keep_for: { critical: 20 %, critical-plus: \"5\" } }",
        "{ algorithm: fixed-window, rate: 100/day, keep_for: { critical: 20, critical-plus: 5% } }",
        "{ algorithm: sliding-window, rate: 100/s, keep_for: { critical: 20%, critical-plus: 5% } }",
        "{ algorithm: sliding-log, rate: 100/s, keep_for: { critical: 20%, critical-plus: 5% } }",
        "{ algorithm: sliding-counter, rate: 100/s, keep_for: { critical: 20%, critical-plus: 5% } }",
        "{ algorithm: leaky-bucket, rate: 100/s, keep_for: { critical: 20%, critical-plus: 5% } }",
        "{ algorithm: leaky-bucket, rate: 1/s, queue: 99, max_wait: 1h, keep_for: { critical: 20%, critical-plus: 5% } }",
        "{ algorithm: x-time, rate: 100/s, keep_for: { critical: 20%, critical-plus: 5% } }",
        "{ algorithm: uber-pacer, rate: 100/s, slack: 99, max_wait: 1s, keep_for: { critical: 20%, critical-plus: 5% } }",
        "{ algorithm: concurrency, max: 100, keep_for: { critical: 20%, critical-plus: 5% } }",
    ] {
        let limit = limit(written);
        let capacity = limit.terms.quota.as_ref().unwrap().capacity();
        let kept_back =
            |level: tidegate::priority::Criticality| limit.keep_for.kept_back(level.into(), capacity);
        assert_eq!(
            [Sheddable, SheddablePlus, Critical, CriticalPlus].map(kept_back),
            [20, 20, 5, 0],
            "{written}"
        );
        assert!(fits_the_schema(&file(written)), "{written}");
    }
    let all = limit("{ rate: 10/s, keep_for: { sheddable-plus: 100%, critical: 0% } }").keep_for;
    assert_eq!([Sheddable, SheddablePlus].map(|level| all.kept_back(level.into(), 10)), [10, 0]);
}

#[test]
fn what_cannot_be_kept_is_named_where_it_stands() {
    for (written, expected) in [
        (
            "{ rate: 10/s, keep_for: { critical: 10 } }",
            "t:4:38  error  policy \"p\": keep_for.critical: 10 is all of a limit of 10, and nothing would be left for others; keep less, or write 100% (gcra 10/s)",
        ),
        (
            "{ rate: 1/s, keep_for: { critical: 1% } }",
            "t:4:37  error  policy \"p\": keep_for.critical: 1% is all of a limit of 1, and nothing would be left for others; keep less, or write 100% (gcra 1/s)",
        ),
        (
            "{ rate: 10/s, keep_for: { critical: 20%, critical-plus: 30% } }",
            "t:4:53  error  policy \"p\": keep_for.critical-plus: 30% is more than the 20% kept for critical; critical-plus may use all that is kept for critical, so keep 20% or less for it (gcra 10/s)",
        ),
        (
            "{ rate: { by: user.tier, values: { free: 2/s }, otherwise: 100/s }, keep_for: { critical: 5 } }",
            "t:4:92  error  policy \"p\": keep_for.critical: 5 is all of a limit of 2, and nothing would be left for others; keep less, or write 100% (gcra 2/s)",
        ),
        (
            "{ algorithm: leaky-bucket, rate: 1/s, queue: 10, max_wait: 5s, keep_for: { critical: 60% } }",
            "t:4:87  error  policy \"p\": keep_for.critical: 7 are kept, and a full limit grants no more than 6 within max_wait, so nothing would be left for others; keep less, raise max_wait, or write 100% (leaky-bucket 1/s queue 10)",
        ),
        (
            "{ rate: 10/s, keep_for: { critical: 120% } }",
            "t:4:48  error  policy \"p\": keep_for.critical: \"120%\" is neither a share nor a number of units; use 0% to 100%, or 20",
        ),
        (
            "{ rate: 10/s, keep_for: { critical: some } }",
            "t:4:48  error  policy \"p\": keep_for.critical: \"some\" is neither a share nor a number of units; use 0% to 100%, or 20",
        ),
        (
            "{ rate: 10/s, keep_for: { critcal: 2 } }",
            "t:4:38  error  policy \"p\": keep_for: unknown word \"critcal\"; did you mean \"critical\"?",
        ),
        ("{ rate: 10/s, keep_for: 20% }", "t:4:36  error  policy \"p\": keep_for is a map, found a text"),
        (
            "{ algorithm: warm-up, warm_up: 1s, rate: 10/s, keep_for: { critical: 2 } }",
            "t:4:59  error  policy \"p\": keep_for does not belong to warm-up; it belongs to gcra, token-bucket, leaky-bucket, fixed-window, sliding-window, sliding-counter, sliding-log, x-time, uber-pacer, concurrency, adaptive",
        ),
    ] {
        let found = parse(&file(written)).unwrap_err();
        let errors: Vec<_> = found.iter().filter(|line| line.contains("  error  ")).collect();
        assert_eq!(errors, [expected], "{written}");
    }
    assert!(!fits_the_schema(&file("{ rate: 10/s, keep_for: { sheddable: 2 } }")));
    assert!(!fits_the_schema(&file(
        "{ algorithm: warm-up, warm_up: 1s, rate: 10/s, keep_for: { critical: 2 } }"
    )));
}

#[test]
fn a_cost_that_the_lowest_level_never_pays_is_a_warning() {
    let text = "version: 1\npolicies:\n  - name: p\n    cost: 8\n    limit: { rate: 10/s, keep_for: { critical: 30% } }\n";
    let (_, warnings) = parse(text).unwrap();
    assert_eq!(
        warnings,
        [
            "t:5:36  warn   policy \"p\": keep_for: a request may cost 8, and of gcra 10/s only 7 are left for sheddable requests: at that cost they never pass"
        ]
    );
    let queue = "cost: 3\n    limit: { algorithm: leaky-bucket, rate: 1/s, queue: 10, max_wait: 5s, keep_for: { critical: 40% } }";
    let (_, warnings) = parse(&file("X").replace("limit: X", queue)).unwrap();
    assert!(
        warnings.iter().any(|warning| warning.contains("only 1 are left for sheddable requests")),
        "six within five seconds: {warnings:?}"
    );
}

#[test]
fn a_shadow_limit_tries_a_part_out_and_the_parts_are_shown() {
    let text = "version: 1\npolicies:\n  - name: p\n    limit: { rate: 10/s }\n    shadow_limit: { rate: 10/s, keep_for: { critical: 30% } }\n";
    let (config, _) = parse(text).unwrap();
    let policy = &config.policies.policies()[0];
    assert!(policy.limits[0].keep_for.is_nothing());
    assert_eq!(policy.shadow_limit.as_ref().unwrap().keep_for.kept_back(Sheddable.into(), 10), 3);
    assert_eq!(config.effective.value["policies"][0]["shadow_limit"]["keep_for"]["critical"], "30%");
    assert_eq!(config.effective.origins["policies.0.shadow_limit.keep_for"], "t:5");
}

/// Nobody was told that most of a queue stays free while requests are refused.
#[test]
fn a_queue_whose_places_outlast_max_wait_is_a_warning() {
    let warned = |limit: &str| parse(&file(limit)).unwrap().1;
    assert_eq!(
        warned("{ algorithm: leaky-bucket, rate: 5/s, queue: 10, max_wait: 1s }"),
        [
            "t:4:71  warn   policy \"p\": max_wait: within 1 s, leaky-bucket 5/s queue 10 serves 5 of the 10 places of its queue, and the others stay free; use max_wait: 2 s or queue: 5"
        ]
    );
    assert_eq!(
        warned("{ algorithm: leaky-bucket, rate: 5/s, queue: 10, max_wait: 199ms }"),
        [
            "t:4:71  warn   policy \"p\": max_wait: 199 ms is less than the 200 ms between two requests of leaky-bucket 5/s queue 10, so its queue is hardly used; with 2 s all 10 places are"
        ]
    );
    // What the warnings advise is not warned of, nor are saved-up requests taken for places.
    for fits in [
        "{ algorithm: leaky-bucket, rate: 5/s, queue: 10, max_wait: 2s }",
        "{ algorithm: leaky-bucket, rate: 5/s, queue: 5, max_wait: 1s }",
        "{ algorithm: leaky-bucket, rate: 5/s, queue: 10, slack: 7, max_wait: 2s }",
        "{ algorithm: leaky-bucket, rate: 3/s, queue: 3, max_wait: 1s }",
        "{ algorithm: leaky-bucket, rate: 5/s }",
        "{ rate: 5/s, max_wait: 1ms }",
    ] {
        assert_eq!(warned(fits), [""; 0], "{fits}");
    }
    let slack = warned("{ algorithm: leaky-bucket, rate: 5/s, queue: 10, slack: 7, max_wait: 1s }");
    assert!(slack[0].contains("serves 5 of the 10 places"), "{slack:?}");
    // Each tier has a queue of its own; only the slow one outlasts the wait.
    let tiers = warned(
        "{ algorithm: leaky-bucket, rate: { by: user.tier, values: { free: 1/s }, otherwise: 10/s }, queue: 10, max_wait: 1s }",
    );
    assert_eq!(tiers.len(), 1, "{tiers:?}");
    assert!(tiers[0].contains("leaky-bucket 1/s queue 10 serves 1 of the 10"), "{tiers:?}");
}
