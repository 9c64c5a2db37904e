//! The mistakes of a canary, and what one means.

use std::time::Duration;

use tidegate::config::{Config, Format, schema};
use tidegate::policy::{Canary, Portion};

use super::{policy, yaml};

const BASE: [&str; 2] = ["by: [client.ip]", "limit: { rate: 10/s, burst: 20 }"];

/// Returns what is wrong with the third line of a policy, which is the seventh of the file.
fn told(lines: [&str; 3]) -> Vec<String> {
    let found = policy(&lines);
    let without_place = |line: &String| {
        assert!(line.starts_with("t:7:"), "{line}");
        line.split_once("error  policy \"p\": ").unwrap_or_else(|| panic!("{line}")).1.to_owned()
    };
    found.iter().map(without_place).collect()
}

fn canary(text: &str) -> Vec<String> {
    told([BASE[0], BASE[1], &format!("canary: {text}")])
}

#[test]
fn each_bad_value_is_named_with_one_that_works() {
    for (text, expected) in [
        ("5%", "canary is a map, found a text; write { limit: { rate: 6/s }, share: 5%, for: 2h }"),
        ("{ share: 5%, for: 2h }", "canary has no limit; write limit: { rate: 6/s }"),
        ("{ limit: { rate: 6/s }, for: 2h }", "canary has no share; write share: 5%"),
        ("{ limit: { rate: 6/s }, share: 5% }", "canary has no for; write for: 2h"),
        (
            "{ limit: { rate: 6/s }, share: 60%, for: 2h }",
            "canary.share: \"60%\" is not a share of the keys; use 0.1% to 50%, as 5%",
        ),
        (
            "{ limit: { rate: 6/s }, share: 0.05%, for: 2h }",
            "canary.share: \"0.05%\" is not a share of the keys; use 0.1% to 50%, as 5%",
        ),
        (
            "{ limit: { rate: 6/s }, share: 5, for: 2h }",
            "canary.share: \"5\" is not a share of the keys; use 0.1% to 50%, as 5%",
        ),
        (
            "{ limit: { rate: 6/s }, share: 5%, for: 30s }",
            "canary.for: 30 s is out of range; use 1min to 30d, as for: 2h",
        ),
        (
            "{ limit: { rate: 6/s }, share: 5%, for: 31d }",
            "canary.for: 31 d is out of range; use 1min to 30d, as for: 2h",
        ),
        (
            "{ limit: { rate: 6/s }, share: 5%, for: 2h, guard: { denied: 101% } }",
            "canary.guard.denied: \"101%\" is not how much more; use +0.01% to +100%, as +1%",
        ),
        (
            "{ limit: { rate: 6/s }, share: 5%, for: 2h, guard: { failures: 0% } }",
            "canary.guard.failures: \"0%\" is not how much more; use +0.01% to +100%, as +1%",
        ),
        (
            "{ limit: { rate: 6/s }, share: 5%, for: 2h, guard: { keys_refused: 0 } }",
            "canary.guard.keys_refused: 0 is out of range; use 1 to 1000000",
        ),
        (
            "{ limit: { rate: 6/s }, share: 5%, for: 2h, gaurd: {} }",
            "unknown key \"gaurd\" in canary; did you mean \"guard\"?",
        ),
        ("{ limit: { burst: 12 }, share: 5%, for: 2h }", "canary.limit has no rate; write rate: 6/s"),
        (
            "{ limit: { rate: 6/s, brust: 12 }, share: 5%, for: 2h }",
            "unknown key \"brust\" in canary.limit; did you mean \"burst\"?",
        ),
        (
            "{ limit: { rate: unlimited }, share: 5%, for: 2h }",
            "canary.limit: a limit is compared with a limit, and unlimited leaves no figures; write a rate that no key reaches, as rate: 1_000_000/s",
        ),
        (
            "{ limit: { algorithm: token-bucket, rate: 6/s }, share: 5%, for: 2h }",
            "canary.limit: token-bucket 6/s has other counters than gcra 10/s burst 20, so a key would begin anew under it; write the algorithm of the limit",
        ),
    ] {
        assert_eq!(canary(text), [expected], "{text}");
    }
    let words = canary("{ limit: { rate: 6/s }, share: 5%, for: 2h, then: stop }");
    assert!(words.len() == 1 && words[0].starts_with("canary.then: unknown word \"stop\""), "{words:?}");
}

#[test]
fn what_a_policy_is_may_be_in_the_way() {
    let tried = "canary: { limit: { rate: 6/s }, share: 5%, for: 2h }";
    let one = |lines: [&str; 3]| {
        let told = told(lines);
        assert_eq!(told.len(), 1, "{told:?}");
        told.concat()
    };
    assert_eq!(
        one(["absent: skip", BASE[1], tried]),
        "canary: all requests have one key, of which no share can be taken; write by: [client.ip]"
    );
    assert_eq!(
        one([BASE[0], "limit: { rate: { by: user.tier, values: { gold: 90/s }, otherwise: 10/s } }", tried]),
        "canary.limit.rate: 6/s would be the rate of every user.tier, and the limit has one for each; write rate: { by: user.tier, values: { gold: 6/s }, otherwise: 6/s }"
    );
    let guard = one([
        BASE[0],
        "limit: { algorithm: concurrency, max: 5 }",
        "canary: { limit: { max: 3 }, share: 5%, for: 2h }",
    ]);
    let (begins, ends) = ("canary.limit: concurrency 3", "try such a limit as shadow_limit");
    assert!(guard.starts_with(begins) && guard.ends_with(ends), "{guard}");
    for (line, expected) in [
        ("mode: shadow", "canary: in mode: shadow nobody is refused, and a canary is tried for real"),
        (
            "over: block 10min",
            "canary: the blocks of over: block would outlast it when it is stopped; write over: deny",
        ),
    ] {
        let found = policy(&[BASE[0], BASE[1], tried, line]);
        assert!(found.len() == 1 && found[0].contains(expected), "{line}: {found:?}");
    }
}

fn read(canary: &str) -> (Config, Canary) {
    let text = format!(
        "version: 1\npolicies:\n  - name: p\n    by: [user.id]\n    limit: {{ rate: 10/s, burst: 20, overrides: [{{ key: {{ user.id: vip }}, rate: 90/s }}] }}\n    {canary}\n"
    );
    let (config, warnings) = Config::parse(&text, "t", Format::Yaml).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let canary = config.policies.policies()[0].canary.clone().unwrap();
    (config, canary)
}

#[test]
fn a_canary_means_what_it_says_and_takes_what_it_lacks_from_the_limit() {
    let (config, plain) = read("canary: { limit: { rate: 6/s }, share: 2.5%, for: 2h }   # since Monday");
    assert_eq!(plain.limit.terms.label, "gcra 6/s burst 20");
    assert_eq!(plain.limit.overrides.len(), 1, "whoever has a rate of his own keeps it");
    assert_eq!((plain.share, plain.lasts), (Portion::of(0.025), Duration::from_secs(7200)));
    let guard = plain.guard;
    assert_eq!(
        (guard.denied, guard.keys_refused, guard.failures),
        (Portion::of(0.01), 20, Portion::of(0.02))
    );
    assert!(!plain.enforce);
    assert_eq!(plain.text, "{ limit: { rate: 6/s }, share: 2.5%, for: 2h }");
    let shown = &config.effective.value["policies"][0]["canary"];
    assert_eq!(shown["then"], "hold");
    assert_eq!(shown["guard"], serde_json::json!({ "denied": "+1%", "keys_refused": 20, "failures": "+2%" }));
    assert_eq!(config.effective.origins["policies.0.canary.share"], "t:6");

    let (_, whole) = read(
        "canary:\n      limit: { rate: 6/s, burst: 12, overrides: [] }\n      share: 5%\n      for: 1day\n      guard: { denied: +3%, keys_refused: 7, failures: 10% }\n      then: enforce",
    );
    assert_eq!(whole.limit.terms.label, "gcra 6/s burst 12");
    assert!(whole.limit.overrides.is_empty() && whole.enforce);
    assert_eq!((whole.guard.denied, whole.guard.keys_refused), (Portion::of(0.03), 7));
    assert_eq!(
        whole.text,
        "{ limit: { rate: 6/s, burst: 12, overrides: [] }, share: 5%, for: 1day, guard: { denied: +3%, keys_refused: 7, failures: 10% }, then: enforce }"
    );
    let of_policy = &schema()["properties"]["policies"]["items"]["properties"]["canary"];
    assert_eq!(of_policy["required"], serde_json::json!(["limit", "share", "for"]));
}

#[test]
fn without_sight_nobody_compares_and_that_is_told() {
    let text = "version: 1\nserver: { sight: off }\npolicies:\n  - name: p\n    by: [user.id]\n    limit: { rate: 10/s }\n    canary: { limit: { rate: 6/s }, share: 5%, for: 2h }\n";
    let told = yaml(text);
    let expected = "t:2:18  warn   server.sight: off compares no canary";
    assert!(told.len() == 1 && told[0].starts_with(expected), "{told:?}");
}
