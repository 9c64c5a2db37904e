//! Whole policy files: what they mean in both formats, what is in effect, and that the schema agrees.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::time::Duration;

use tidegate::config::{Config, Diagnostic, Format, HeaderForm, Preset, QUICKSTART, StoreKind, schema};
use tidegate::policy::{ChargeOn, Descriptor, Direction, Mode, OnStoreError, Relevance, Share};

use tidegate::{Cost, Quota, Tick};
use tidegate_core::rate::ColdFactor;
use tidegate_core::{Algorithm, Ask, Transition};

/// The policies of the manual that this version supports.
const MANUAL: &str = r#"
version: 1
server: { http: 127.0.0.1:8181 }
client_ip: { trusted_proxies: [10.0.0.0/8], header: x-forwarded-for, ipv6_prefix: 56 }
store: { kind: memory, keys: 500k in full }
defaults: { mode: enforce, near_limit: 75%, on_store_error: allow, share: local, headers: draft-03 }

policies:
  - name: global-protect
    limit: { algorithm: token-bucket, rate: 5000/s, burst: 5000 }
    deny: { status: 503, problem: temporary-reduced-capacity }

  - name: per-ip
    match: { path: /api/** }
    by: [client.ip]
    limit: { algorithm: gcra, rate: 100/s, burst: 200 }
    shadow_limit: { rate: 80/s }

  - name: per-user-tier
    by: [user.id]
    limit: { algorithm: sliding-window, rate: { by: user.tier, values: { free: 60/min, pro: 600/min, staff: unlimited }, otherwise: 60/min } }
    cost: { by: request.method, values: { POST: 5 }, otherwise: 1 }

  - name: login
    match: { method: POST, path: /login }
    by: [client.ip, form.username]
    limit: { algorithm: sliding-log, rate: 3/h }
    charge: on-failure
    on_store_error: deny
    deny: { problem: abnormal-usage-detected }

  - name: sms-per-phone
    by: [sms.phone]
    limit:
      - { algorithm: fixed-window, rate: 5/day, calendar: Asia/Shanghai }
      - { algorithm: fixed-window, rate: 1/min }

  - name: cold-start
    match: { path: /api/report/** }
    mode: shadow
    limit: { algorithm: warm-up, rate: 1000/s, warm_up: 2min }

  - name: bank-api
    direction: outbound
    match: { host: api.bank.example }
    limit: { algorithm: leaky-bucket, rate: 30/s, queue: 300, max_wait: 10s }
"#;

fn yaml(text: &str) -> Config {
    match Config::parse(text, "tidegate.yaml", Format::Yaml) {
        Ok((config, warnings)) => {
            assert!(warnings.is_empty(), "{warnings:?}");
            config
        }
        Err(mistakes) => panic!("{mistakes:#?}"),
    }
}

fn names(config: &Config, descriptor: &Descriptor<'_>) -> Vec<String> {
    let plan = config.policies.plan(descriptor, None);
    plan.lines.iter().map(|line| config.policies.policies()[line.policy].name.clone()).collect()
}

#[test]
fn the_policies_of_the_manual_mean_what_they_say() {
    let config = yaml(MANUAL);
    assert_eq!(config.server.http, "127.0.0.1:8181".parse().unwrap());
    let store = &config.store;
    assert_eq!((store.word(), store.keys, store.full_keys), ("memory", 500_000, true));
    assert_eq!(config.headers, HeaderForm::Draft03);
    assert_eq!(config.client_ip.ipv6_prefix, 56);

    let set = &config.policies;
    let (_, global) = set.find("global-protect").unwrap();
    assert_eq!(global.deny.status, 503);
    assert!(global.deny.problem.ends_with("#temporary-reduced-capacity"));
    assert_eq!((global.near_limit, global.on_store_error), (75, OnStoreError::Allow));
    assert_eq!(global.share, Some(Share::Local));

    let (per_ip, policy) = set.find("per-ip").unwrap();
    assert_eq!(policy.limits[0].terms.label, "gcra 100/s burst 200");
    // The shadow takes what it leaves out from the limit.
    assert_eq!(policy.shadow_limit.as_ref().unwrap().terms.label, "gcra 80/s burst 200");
    assert_eq!(config.place(per_ip), Some((13, 5)));

    let (_, login) = set.find("login").unwrap();
    assert_eq!((login.charge, login.on_store_error), (ChargeOn::Failure, OnStoreError::Deny));
    assert_eq!(set.find("cold-start").unwrap().1.mode, Mode::Shadow);
    let (_, bank) = set.find("bank-api").unwrap();
    assert_eq!((bank.direction, bank.limits[0].max_wait), (Direction::Outbound, Duration::from_secs(10)));

    let quota = |name: &str| set.find(name).unwrap().1.limits[0].terms.quota.clone().unwrap();
    assert_eq!(*quota("global-protect"), Quota::per_second(5000).token_bucket().unwrap());
    assert_eq!(*quota("bank-api"), Quota::per_second(30).leaky_queue(300).unwrap());
    let two_minutes = Duration::from_secs(120);
    assert_eq!(
        *quota("cold-start"),
        Quota::per_second(1000).warm_up(two_minutes, ColdFactor::THREE).unwrap()
    );

    let request = Descriptor::new()
        .with("request.method", "POST")
        .with("request.path", "/api/search")
        .with("client.ip", "203.0.113.9")
        .with("user.id", "42")
        .with("user.tier", "pro");
    assert_eq!(names(&config, &request), ["global-protect", "per-ip", "per-ip", "per-user-tier"]);
    let plan = set.plan(&request, None);
    assert_eq!(plan.lines[3].cost, Cost::new(5).unwrap());
    assert_eq!(**plan.lines[3].quota, Quota::per_minute(600).sliding_window(10).unwrap());
    assert!(
        matches!(&set.relevance(&request)[4], Relevance::NothingToKeyBy { absent } if absent == &["sms.phone"])
    );
    let sms = Descriptor::new().with("sms.phone", "+86 1");
    assert_eq!(names(&config, &sms), ["global-protect", "sms-per-phone", "sms-per-phone"]);
    let out =
        Descriptor::new().with("request.direction", "outbound").with("request.host", "api.bank.example");
    assert_eq!(names(&config, &out), ["bank-api"]);
}

#[test]
fn toml_is_the_same_tree() {
    let text = r#"
version = 1
[client_ip]
trusted_proxies = ["10.0.0.0/8"]
[[policies]]
name = "per-ip"
by = ["client.ip"]
match.path = "/api/**"
limit = { rate = "100/s", burst = 200 }
[[policies]]
name = "sms"
by = "sms.phone"
[[policies.limit]]
algorithm = "fixed-window"
rate = "5/day"
calendar = "Asia/Shanghai"
"#;
    let (config, warnings) = Config::parse(text, "tidegate.toml", Format::Toml).unwrap();
    assert_eq!(warnings, []);
    let same = yaml(
        "version: 1\nclient_ip: { trusted_proxies: [10.0.0.0/8] }\npolicies:\n- name: per-ip\n  by: [client.ip]\n  match: { path: /api/** }\n  limit: { rate: 100/s, burst: 200 }\n- name: sms\n  by: sms.phone\n  limit: [{ algorithm: fixed-window, rate: 5/day, calendar: Asia/Shanghai }]\n",
    );
    assert_eq!(config.effective.value, same.effective.value);
    assert_eq!(config.policies.policies()[0].matching, same.policies.policies()[0].matching);
}

#[test]
fn what_is_in_effect_says_where_it_comes_from() {
    let config = yaml(MANUAL);
    let origin = |path: &str| config.effective.origins.get(path).map(String::as_str);
    assert_eq!(origin("server.http"), Some("tidegate.yaml:3"));
    assert_eq!(origin("policies.1.limit.burst"), Some("tidegate.yaml:16"));
    assert_eq!(origin("policies.2.limit.buckets"), Some("default"));
    assert_eq!(origin("policies.1.near_limit"), Some("tidegate.yaml:6"), "from defaults");
    assert_eq!(config.effective.value["policies"][1]["mode"], "enforce");
    assert_eq!(config.effective.value["policies"][1]["share"], "local");
    assert_eq!(origin("policies.1.share"), Some("tidegate.yaml:6"), "from defaults");
    assert_eq!(config.effective.value["policies"][3]["on_store_error"], "deny");
    assert_eq!(config.effective.value["policies"][1]["limit"].get("buckets"), None);

    assert_eq!(config.effective.value["policies"][5]["limit"]["burst"], 1000);
    assert_eq!(origin("policies.5.limit.burst"), Some("default, the count of the rate"));

    let quick = yaml(QUICKSTART);
    assert_eq!(quick.effective.origins["server.http"], "default");
    // The shown file can be read again, and has the same effect.
    let again = yaml(&quick.effective.to_yaml());
    assert_eq!(again.effective.value, quick.effective.value);
}

/// Regression: how refusals are answered was not shown, nor where conditions end.
#[test]
fn defaults_that_depend_on_other_words_are_in_effect_too() {
    let shown = |policy: &str| {
        let config = yaml(&format!("version: 1\npolicies:\n  - {{ name: p, {policy} }}\n"));
        let again = yaml(&config.effective.to_yaml());
        assert_eq!(again.effective.value, config.effective.value);
        let answers = |config: &Config| {
            let policy = &config.policies.policies()[0];
            (policy.refusal(0).clone(), policy.when.clone())
        };
        assert_eq!(answers(&again), answers(&config), "{policy}");
        config.effective.value["policies"][0].clone()
    };
    let answer = |status: u16, problem: &str| serde_json::json!({ "status": status, "problem": problem });
    let (quota, capacity) = ("quota-exceeded", "temporary-reduced-capacity");
    for (policy, expected) in [
        ("limit: { rate: 1/s }", answer(429, quota)),
        ("limit: { algorithm: concurrency, max: 2 }", answer(503, capacity)),
        ("limit: [{ algorithm: breaker }, { algorithm: adaptive }], deadline: 9ms", answer(503, capacity)),
        ("limit: { rate: 1/s }, deny: { status: 500 }", answer(500, capacity)),
        (
            "limit: { rate: 1/s }, deny: { problem: abnormal-usage-detected }",
            answer(429, "abnormal-usage-detected"),
        ),
        ("limit: { rate: 1/s }, deadline: 9ms", serde_json::Value::Null),
        ("limit: [{ rate: 1/s }, { algorithm: breaker }]", serde_json::Value::Null),
    ] {
        assert_eq!(shown(policy)["deny"], expected, "{policy}");
    }
    for (when, expected) in [
        ("cpu above 80%", "cpu above 80%, until 72%, stale after 10s"),
        ("cpu above 80%, stale after 1min", "cpu above 80%, until 72%, stale after 60s"),
        ("switch previews off", "switch previews off"),
    ] {
        let both = shown(&format!("limit: {{ rate: 1/s }}, when: ['{when}', load below 2]"));
        assert_eq!(both["when"], serde_json::json!([expected, "load below 2, until 2.2, stale after 10s"]));
        assert_eq!(shown(&format!("limit: {{ rate: 1/s }}, when: '{when}'"))["when"], expected);
    }
}

/// Regression: presets contained `trusted_proxies: []`, which silenced the warning. Behind nginx all callers shared one
/// key.
#[test]
fn presets_are_valid_as_they_stand_and_warn_of_proxies() {
    for preset in Preset::EVERY {
        let parse = |format: Format| Config::parse_to_serve(&preset.text(format), "t", format).unwrap();
        let ((config, warnings), (same, also)) = (parse(Format::Yaml), parse(Format::Toml));
        assert!(!config.policies.is_empty(), "{preset:?}");
        assert_eq!(config.effective.value, same.effective.value, "{preset:?}");
        let said =
            |warnings: &[Diagnostic]| warnings.iter().map(|one| one.message.clone()).collect::<Vec<_>>();
        assert_eq!(said(&warnings), said(&also), "{preset:?}");
        assert_eq!(
            warnings.len(),
            usize::from(preset != Preset::Outbound) + usize::from(preset == Preset::All)
        );
        assert!(
            said(&warnings).iter().all(|one| one.contains("client_ip.trusted_proxies is empty")),
            "{warnings:?}"
        );
        // Regression: the files said `memory`, so a limit of 5 a day began anew at each restart.
        assert!(matches!(config.store.kind, StoreKind::Disk(_)), "{preset:?}");
        // A program finds its callers' addresses itself: the setting does nothing there, and neither does the warning.
        let (_, warnings) = Config::parse(&preset.text(Format::Yaml), "t", Format::Yaml).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
    }
    let all = Preset::All.text(Format::Yaml);
    assert_eq!(Config::parse(&all, "t", Format::Yaml).unwrap().0.policies.len(), 6);
}

#[test]
fn what_a_preset_says_in_its_comments_is_there() {
    for text in Preset::EVERY.into_iter().flat_map(|one| [one.text(Format::Yaml), one.text(Format::Toml)]) {
        assert!(!text.contains("admin:") && !text.contains("dashboard"), "{text}");
    }
    let text = "version: 1\nserver: { admin: 127.0.0.1:9080 }\npolicies: []\n";
    let (config, _) = Config::parse(text, "t", Format::Yaml).unwrap();
    assert_eq!(config.server.admin, Some("127.0.0.1:9080".parse().unwrap()));
}

#[cfg(feature = "cel")]
#[test]
fn a_cost_may_be_an_expression_over_the_attributes() {
    let file = |cost: &str| {
        format!("version: 1\npolicies:\n  - name: p\n    limit: {{ rate: 60/min }}\n    cost: {cost}\n")
    };
    let config = yaml(&file("'request.path.startsWith(\"/api/export\") ? 10 : 1'"));
    let units = |path: &'static str| {
        config.policies.plan(&Descriptor::new().with("request.path", path), None).lines[0].cost.units()
    };
    assert_eq!((units("/api/export/all"), units("/api/search")), (10, 1));
    let plan = config.policies.plan(&Descriptor::new(), None);
    assert!(plan.lines[0].cost_is_unknown(), "no path to look at");
    assert_eq!(config.policies.cost_errors(0).at_check, 1);
    let mistakes = Config::parse(&file("'1 +'"), "t", Format::Yaml).unwrap_err();
    assert_eq!(
        mistakes[0].to_string(),
        "t:5:11  error  policy \"p\": cost: the expression cannot be read at its character 4: mismatched input '<EOF>'"
    );
}

/// The file as an editor sees it: parsed without tidegate.
fn tree(text: &str) -> serde_json::Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn the_schema_accepts_what_the_validator_accepts() {
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let presets = Preset::EVERY.map(|preset| preset.text(Format::Yaml));
    for text in presets.iter().map(String::as_str).chain([MANUAL, QUICKSTART]) {
        let errors: Vec<_> = validator.iter_errors(&tree(text)).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
}

#[test]
fn the_schema_refuses_what_the_validator_refuses() {
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for policies in [
        "[{ name: a }]",
        "[{ name: a, limit: { rate: 100 } }]",
        "[{ name: a, limit: { rate: 1/s, burts: 2 } }]",
        "[{ name: a, limit: { rate: 1/s, buckets: 2 } }]",
        "[{ name: a, limit: { algorithm: fixed-window, rate: 1/s, burst: 2 } }]",
        "[{ name: a, limit: { algorithm: warm-up, rate: 1/s } }]",
        "[{ name: a, limit: { algorithm: concurrency, rate: 3/s } }]",
        "[{ name: a, limit: { rate: { by: user.tier } } }]",
        "[{ name: a, limit: { rate: 1/s }, limits: [] }]",
        "[{ name: a, mode: on, limit: { rate: 1/s } }]",
        "[{ limit: { rate: 1/s } }]",
        "{}",
    ] {
        let text = format!("version: 1\npolicies: {policies}\n");
        assert!(!validator.is_valid(&tree(&text)), "{policies}");
        assert!(Config::parse(&text, "t", Format::Yaml).is_err(), "{policies}");
    }
}

#[test]
fn a_file_that_is_not_there_is_one_error() {
    let mistakes = Config::read(std::path::Path::new("does-not-exist.yaml")).unwrap_err();
    assert!(
        mistakes[0].to_string().starts_with("does-not-exist.yaml  error  the file cannot be read: "),
        "{}",
        mistakes[0]
    );
}

/// Regression: a count at each full hour with a burst of its own could not be written.
#[test]
fn a_bucket_may_refill_by_the_clock() {
    let text = "version: 1\npolicies:\n  - name: p\n    limit: { algorithm: token-bucket, rate: 100/h, burst: 250, refill: aligned }\n";
    let (config, warnings) = Config::parse(text, "t", Format::Yaml).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let terms = &config.policies.policies()[0].limits[0].terms;
    assert_eq!(terms.label, "token-bucket 100/h burst 250 refill aligned");
    let quota = terms.quota.as_ref().unwrap();
    assert_eq!(**quota, Quota::per_hour(100).burst(250).aligned_bucket().unwrap());
    let half_past = Tick::from_secs(1_700_001_000);
    let ask = Ask::allow(half_past, Cost::new(250).unwrap());
    let Transition::Allowed { next, .. } = quota.decide(&quota.fresh(half_past), ask) else { panic!("full") };
    let left =
        |minutes: u64| quota.standing(&next, half_past.after(Duration::from_secs(60 * minutes))).remaining;
    assert_eq!([left(29), left(30), left(90), left(150)], [0, 100, 200, 250]);
    let validator = jsonschema::validator_for(&schema()).unwrap();
    assert!(validator.is_valid(&serde_saphyr::from_str::<serde_json::Value>(text).unwrap()));
}

/// A fleet that restarts would get its burst again, and a caller who makes up keys gets one with each.
#[test]
fn a_bucket_may_start_with_fewer_tokens_than_it_holds() {
    let start = Tick::from_secs(1);
    for (more, tokens, after) in
        [("start: 0", 0, 2), ("start: 3, refill: interval", 3, 10), ("start: 10", 10, 10)]
    {
        let text = format!(
            "version: 1\npolicies:\n  - name: p\n    limit: {{ algorithm: token-bucket, rate: 10/5s, {more} }}\n"
        );
        let (config, warnings) = Config::parse(&text, "t", Format::Yaml).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let terms = &config.policies.policies()[0].limits[0].terms;
        let quota = terms.quota.as_ref().unwrap();
        let left = |at| quota.standing(&quota.fresh(start), at).remaining;
        let later = start.after(Duration::from_secs(if tokens == 3 { 5 } else { 1 }));
        assert_eq!((left(start), left(later)), (tokens, after), "{more}");
        assert!(terms.label.contains(&format!("start {tokens}")), "{}", terms.label);
        let validator = jsonschema::validator_for(&schema()).unwrap();
        assert!(validator.is_valid(&serde_saphyr::from_str::<serde_json::Value>(&text).unwrap()), "{text}");
    }
}
