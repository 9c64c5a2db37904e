//! Costs estimated at the check and settled by what the work really used: as a policy file spells them, and their
//! effect.
#![cfg(feature = "cel")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use tidegate::config::{Config, Format, schema};
use tidegate::policy::{Descriptor, PolicySet, RealCost, Usage};
use tidegate::{Cost, Gate};

fn file(lines: &str) -> String {
    format!("version: 1\npolicies:\n  - name: p\n    limit: {{ rate: 1000/min }}\n    {lines}\n")
}

fn set(lines: &str) -> std::sync::Arc<PolicySet> {
    let text = file(lines);
    let (config, warnings) =
        Config::parse(&text, "t", Format::Yaml).unwrap_or_else(|error| panic!("{lines}: {error:?}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    let tree: serde_json::Value = serde_json::to_value(&config.effective.value).unwrap();
    let schema = jsonschema::validator_for(&schema()).unwrap();
    assert!(schema.is_valid(&tree), "{lines}: what is shown is a file by its own schema: {tree}");
    config.policies
}

fn mistakes(lines: &str) -> Vec<String> {
    let found = Config::parse(&file(lines), "t", Format::Yaml).err().unwrap_or_default();
    found.iter().map(|one| one.to_string().replace("  error  policy \"p\":", "")).collect()
}

/// Returns what a check takes, without a cost of the caller and with a cost of 7.
fn taken(set: &PolicySet, request: &Descriptor<'_>) -> (u64, u64) {
    let cost = |asked| set.plan(request, asked).lines[0].cost.units();
    (cost(None), cost(Cost::new(7)))
}

#[test]
fn the_forms_of_an_estimate() {
    let request = Descriptor::new().with("llm.max_tokens", "300").with("request.method", "POST");
    for (cost, at_check) in [
        ("cost: { estimate: 800, settle: llm.total }", (800, 800)),
        ("cost: { estimate: 800, caller: believed, settle: llm.total }", (800, 7)),
        ("cost: { estimate: llm.max_tokens, settle: llm.total }", (300, 300)),
        ("cost: { estimate: 'int(llm.max_tokens) + 50', settle: llm.total }", (350, 350)),
        (
            "cost: { estimate: { by: request.method, values: { POST: 500 }, otherwise: 1 }, settle: llm.total }",
            (500, 500),
        ),
        ("cost: { estimate: learned, start: 250, settle: llm.total }", (250, 250)),
        ("cost: { settle: llm.total }", (1, 7)),
        ("cost: { estimate: 800 }", (800, 800)),
    ] {
        let set = set(cost);
        assert_eq!(taken(&set, &request), at_check, "{cost}");
        let real = |usage: &Usage<'_>| set.policies()[0].real_cost(usage);
        let (by_total, by_cost) = (real(&Usage::default().with("llm.total", 1300)), real(&Usage::cost(900)));
        if cost.contains("settle") {
            assert_eq!(by_total, RealCost::Units(1300), "{cost}");
            assert!(matches!(by_cost, RealCost::Unknown(_)), "{cost}: {by_cost:?}");
        } else {
            assert_eq!((by_total, by_cost), (RealCost::AsCharged, RealCost::Units(900)), "{cost}");
        }
    }
}

#[test]
fn a_settlement_goes_by_an_expression_over_what_it_tells() {
    let set = set(
        "cost: { estimate: 800, settle: 'llm.input - llm.cached + 3 * llm.output', missing: { llm.cached: 0 } }",
    );
    let real = |usage: Usage<'_>| set.policies()[0].real_cost(&usage);
    assert_eq!(real(Usage::default().with("llm.input", 900).with("llm.output", 133)), RealCost::Units(1299));
    let cached = Usage::default().with("llm.input", 900).with("llm.output", 0).with("llm.cached", 900);
    assert_eq!(real(cached), RealCost::Units(0), "said to be free, it is");
    let RealCost::Unknown(why) = real(Usage::default().with("llm.input", 900)) else { panic!("it was free") };
    assert_eq!(why.to_string(), "llm.output was not sent");
}

#[test]
fn mistakes_in_estimates_and_settlements_are_named() {
    for (lines, expected) in [
        (
            "cost: { estimate: learned, settle: llm.total }",
            "t:5:23 a learned estimate needs cost.start: the units charged until 20 requests were settled",
        ),
        ("cost: { estimate: 5, start: 5 }", "t:5:26 cost.start needs estimate: learned"),
        (
            "cost: { estimate: learned 0.9, start: 5 }",
            "t:5:23 cost.estimate: \"learned 0.9\" has no share; use 1% to 100%, as learned 99%",
        ),
        (
            "cost: { estimate: learned, start: 5, quantile: 99% }",
            "t:5:42 unknown key \"quantile\" in cost; write estimate: \"learned 99%\"",
        ),
        ("cost: { caller: believed, settle: llm.total }", "t:5:13 cost.caller needs cost.estimate"),
        ("cost: { estimate: 5, missing: { llm.total: 1 } }", "t:5:26 cost.missing needs cost.settle"),
        ("cost: { missing: { llm.total: 1 } }", "t:5:11 cost.missing needs cost.settle"),
        (
            "cost: { by: request.method, values: { GET: 2 }, settle: llm.total }",
            "t:5:13 cost.by is part of an estimate here; write cost: { estimate: { by: … } }",
        ),
        (
            "cost: { estimate: 5, settle: 3 }",
            "t:5:34 cost.settle: 3 is the same for every request; write cost: 3, which is charged at the check",
        ),
        (
            "cost: { estimate: 5, settle: request.path }",
            "t:5:34 cost.settle: a settlement has no request.path: it has the values sent with it, as llm.output, and not the request",
        ),
        (
            "cost: { estimate: 5, settle: 'llm.total + size(client.ip)' }",
            "t:5:34 cost.settle: a settlement has no client.ip: it has the values sent with it, as llm.output, and not the request",
        ),
        (
            "cost: { estimate: 5, settle: 'llm.total +' }",
            "t:5:34 cost.settle: the expression cannot be read at its character 12: mismatched input '<EOF>'",
        ),
        (
            "cost: { estimate: 1001, settle: llm.total }",
            "t:4:20 a request may cost 1001, and gcra 1000/min never grants more than 1000 at once",
        ),
        (
            "cost: { estimate: 5, settel: llm.total }",
            "t:5:26 unknown key \"settel\" in cost; did you mean \"settle\"?",
        ),
        (
            "cost: { estimate: 5, caller: yes }",
            "t:5:34 cost.caller: unknown word \"yes\"; possible are ignored, believed",
        ),
        ("{ cost: { estimate: 5 }, charge: on-failure }", ""),
    ] {
        if expected.is_empty() {
            continue;
        }
        assert_eq!(mistakes(lines), [expected], "{lines}");
    }
    let found = mistakes("cost: { estimate: 5, settle: llm.total }\n    charge: on-failure");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("is decided by how the work ended"), "{found:?}");
    let long = "1 + ".repeat(60) + "llm.total";
    let many: String = (0..1200)
        .map(|at| {
            format!(
                "  - {{ name: p{at}, limit: {{ rate: {}/s }}, cost: {{ estimate: 1, settle: '{long}' }} }}\n",
                at + 1
            )
        })
        .collect();
    let found = Config::parse(&format!("version: 1\npolicies:\n{many}"), "t", Format::Yaml).unwrap_err();
    assert!(found[0].to_string().contains("longer than 256 KiB together"), "{}", found[0]);
}

#[test]
fn what_would_never_settle_is_an_error() {
    for (settle, expected) in [
        (
            "'now()'",
            "\"now()\" uses no value of the settlement (the expression failed: Undeclared reference to 'now')",
        ),
        (
            "'\"x\"'",
            r#""\"x\"" uses no value of the settlement (string is not a number that a request can cost)"#,
        ),
        ("'true'", "\"true\" uses no value of the settlement (bool is not"),
        ("'1/0'", "\"1/0\" uses no value of the settlement (the expression failed: Division by zero"),
        ("'5'", "\"5\" uses no value of the settlement; use one such as llm.output"),
        ("'-5'", "\"-5\" uses no value of the settlement (-5 is not"),
        (
            "'llm.output ? 1 : 2'",
            "\"llm.output ? 1 : 2\" gives no number of 0 or more for any sample; with 1 for every name: ",
        ),
        (
            "'llm.output > 5'",
            "\"llm.output > 5\" gives no number of 0 or more for any sample; with 1 for every name: bool is not",
        ),
        ("cost", "leave settle out to use the cost in the settlement"),
    ] {
        let found = mistakes(&format!("cost: {{ estimate: 5, settle: {settle} }}"));
        assert_eq!(found.len(), 1, "{settle}: {found:?}");
        assert!(found[0].starts_with(&format!("t:5:34 cost.settle: {expected}")), "{settle}: {found:?}");
    }
    for (cost, expected) in [
        (
            "cost: { settle: 'llm.input - llm.cached', missing: { llm.cachde: 0, llm.cached: 0 } }",
            "t:5:58 cost.missing: settle does not use llm.cachde; it uses llm.cached, llm.input",
        ),
        (
            "cost: { settle: llm.input, missing: { llm.cached: 0 } }",
            "t:5:43 cost.missing: settle does not use llm.cached; it uses llm.input",
        ),
    ] {
        assert_eq!(mistakes(cost), [expected], "{cost}");
    }
}

fn warnings(text: &str) -> Vec<String> {
    let (_, found) =
        Config::parse(text, "t", Format::Yaml).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    found.iter().map(|one| one.to_string().replace("  warn   policy", "")).collect()
}

#[test]
fn a_name_that_is_probably_a_slip_is_a_warning() {
    for (settle, known) in
        [("llm.outptu", "llm.output"), ("'llm.input + llm.ouput'", "llm.output"), ("llm.inputs", "llm.input")]
    {
        let found = warnings(&file(&format!("cost: {{ estimate: 5, settle: {settle} }}")));
        assert_eq!(found.len(), 1, "{settle}: {found:?}");
        assert!(found[0].starts_with("t:5:34 \"p\": cost.settle: llm."), "{settle}: {found:?}");
        assert!(found[0].ends_with(&format!("did you mean {known}?")), "{settle}: {found:?}");
    }
    let two = |second: &str| {
        let first = file("cost: { settle: tokens.total }");
        warnings(&format!("{first}  - {{ name: q, limit: {{ rate: 5/s }}, cost: {{ settle: {second} }} }}\n"))
    };
    assert_eq!(
        two("tokens.totla"),
        [
            "t:6:54 \"q\": cost.settle: tokens.totla differs by a letter from tokens.total, which policy \"p\" settles by; is one of them meant?"
        ]
    );
    for other in ["tokens.total", "tokens.input", "tokens.tonal", "llm.total", "llm.cached"] {
        assert!(two(other).is_empty(), "{other}: {:?}", two(other));
    }
}

#[test]
fn units_that_are_told_do_not_become_places() {
    let places = |cost: &str, limits: &str| {
        let text = file(cost).replace("limit: { rate: 1000/min }", limits);
        let found = Config::parse(&text, "t", Format::Yaml).err().unwrap_or_default();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let guard = "limit: { algorithm: concurrency, max: 9 }";
    let both = "limit: [{ rate: 1000/min }, { algorithm: concurrency, max: 9 }]";
    for limits in [guard, both] {
        let found = places("cost: { estimate: 5, settle: llm.output }", limits);
        assert_eq!(
            found,
            [
                "t:5:26  error  policy \"p\": cost.settle: concurrency 9 ttl 60s counts places, but a settlement is in units; put one of the two into its own policy"
            ]
        );
        let found = places("cost: { estimate: learned, start: 5 }", limits);
        assert_eq!(
            found,
            [
                "t:5:23  error  policy \"p\": cost.estimate: concurrency 9 ttl 60s counts places, but an estimate is in units; put one of the two into its own policy"
            ]
        );
        assert!(places("cost: 2", limits).is_empty());
    }
}

#[test]
fn a_ticket_that_expires_before_its_place_is_a_warning() {
    let with = |tickets: &str, limit: &str| {
        warnings(&format!(
            "version: 1\ntickets: {{ {tickets} }}\npolicies: [{{ name: p, limit: {{ algorithm: concurrency, max: 5{limit} }} }}]\n"
        ))
    };
    for (tickets, limit, expected) in [
        ("ttl: 30s", "", Some(("2:17", "60s", "30s"))),
        ("ttl: 30s", ", ttl: 40s", Some(("3:69", "40s", "30s"))),
        ("name: here", ", ttl: 15min", Some(("3:69", "15min", "10min"))),
        ("ttl: 30s", ", ttl: 30s", None),
        ("name: here", "", None),
    ] {
        let expected = expected.map(|(spot, held, life)| {
            format!("t:{spot} \"p\": a place is held for up to {held}, and tickets.ttl is {life}: a ticket that has expired returns no place")
        });
        assert_eq!(with(tickets, limit), Vec::from_iter(expected), "{tickets} {limit}");
    }
}

#[test]
fn a_policy_learns_what_requests_cost_and_keeps_it_over_a_reload() {
    const COST: &str = "cost: { estimate: learned 50%, start: 250, settle: llm.total }";
    let gate = Gate::in_memory(set(COST), 100).unwrap();
    let estimate = |gate: &Gate| taken(&gate.policies(), &Descriptor::new()).0;
    (0..19).for_each(|_| gate.policies().learn(0, 480));
    assert_eq!((estimate(&gate), gate.policies().estimate(0)), (250, None), "nineteen say too little");
    gate.policies().learn(0, 480);
    let learned = estimate(&gate);
    assert!((480..510).contains(&learned), "{learned}");
    // Another quantile, another start, another policy before it: the learned estimate stays with the policy's name.
    let text = file(&COST.replace("50%", "100%").replace("250", "300"))
        .replace("policies:\n", "policies:\n  - { name: first, limit: { rate: 9/s } }\n");
    gate.policies().learn(0, 700);
    gate.replace(Config::parse(&text, "t", Format::Yaml).unwrap().0.policies);
    let cost = gate.policies().plan(&Descriptor::new(), None).lines[1].cost.units();
    assert!((700..750).contains(&cost), "{cost}");
    // A policy that settles by another expression counts other units, so it learns anew.
    let text = file(&COST.replace("llm.total }", "'15 * llm.total' }"));
    gate.replace(Config::parse(&text, "t", Format::Yaml).unwrap().0.policies);
    assert_eq!(estimate(&gate), 250);
    // So does a policy of another name.
    gate.replace(set(COST));
    (0..20).for_each(|_| gate.policies().learn(0, 480));
    assert!(estimate(&gate) >= 480);
    let renamed = Config::parse(&file(COST).replace("name: p", "name: q"), "t", Format::Yaml).unwrap().0;
    gate.replace(renamed.policies);
    assert_eq!(estimate(&gate), 250);
}

/// Regression: a gateway reserved its largest estimate, and so refused the first call of a user with a smaller limit.
#[test]
fn a_first_call_is_never_refused_by_its_own_estimate() {
    for limit in [
        "limit: { rate: 100/min }",
        "limit: { algorithm: token-bucket, rate: 100/min, burst: 60 }",
        "limit: { algorithm: sliding-window, rate: 100/min }",
        "limit: { algorithm: leaky-bucket, rate: 1/s, queue: 50, max_wait: 3s }",
        "limit: { rate: { by: user.tier, values: { large: 100000/min }, otherwise: 40/min } }",
        "limit: [{ rate: 1000/min }, { algorithm: fixed-window, rate: 70/day, calendar: UTC }]",
    ] {
        let lines = "cost: { estimate: learned, start: 250, settle: llm.total }";
        let text = file(lines).replace("limit: { rate: 1000/min }", limit);
        let (config, _) = Config::parse(&text, "t", Format::Yaml).unwrap();
        let gate = Gate::in_memory(config.policies, 100).unwrap();
        (0..30).for_each(|_| gate.policies().learn(0, 5_000_000));
        let first = gate.check(&Descriptor::new()).now().unwrap();
        assert!(first.allowed, "{limit}: {:?}", first.limits);
        let second = gate.check(&Descriptor::new()).now().unwrap();
        assert!(
            !second.allowed,
            "{limit}: it is reserved all the same: {:?} {:?}",
            first.limits, second.limits
        );
    }
}
