//! What a request is charged: matching, keys, modes, lists, costs.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate::policy::{
    Absent, AccessEntry, ChargeOn, Choice, CostError, CostErrors, CostRule, Descriptor, Direction, Limit,
    Match, Mode, OnCostError, Over, Policy, PolicySet, Relevance, Terms, Want,
};
use tidegate::{Cost, Quota};

fn limit(count: u64) -> Limit {
    Limit::new(Quota::per_second(count).gcra().unwrap(), format!("gcra {count}/s"))
}

fn policy(name: &str, by: &[&str]) -> Policy {
    let mut policy = Policy::new(name, limit(10));
    policy.by = by.iter().map(|name| (*name).to_owned()).collect();
    policy
}

fn set(policies: Vec<Policy>) -> PolicySet {
    PolicySet::new(policies).unwrap()
}

fn request() -> Descriptor<'static> {
    Descriptor::new()
        .with("request.method", "POST")
        .with("request.path", "/api/search?q=1")
        .with("request.host", "Api.Example.com:8443")
        .with("client.ip", "203.0.113.9")
}

/// Returns the names of the policies that charge a request.
fn charged(set: &PolicySet, descriptor: &Descriptor<'_>) -> Vec<String> {
    set.plan(descriptor, None).lines.iter().map(|line| set.policies()[line.policy].name.clone()).collect()
}

#[test]
fn each_part_of_a_match_must_fit() {
    let fits = |matching: Match| {
        let mut policy = policy("p", &[]);
        policy.matching = matching.clone();
        let by_index = !charged(&set(vec![policy]), &request()).is_empty();
        assert_eq!(by_index, matching.matches(&request()), "the index only saves work");
        by_index
    };
    assert!(fits(Match::any()));
    assert!(fits(Match::any().method("post").method("PUT")));
    assert!(!fits(Match::any().method("GET")));
    assert!(fits(Match::any().path("/api/**").unwrap()));
    assert!(fits(Match::any().path("/login").unwrap().path("/api/{search,find}").unwrap()));
    assert!(!fits(Match::any().path("/api").unwrap()));
    assert!(fits(Match::any().host("api.example.com").unwrap()));
    assert!(fits(Match::any().host("*.example.com").unwrap()));
    assert!(!fits(Match::any().host("*.api.example.com").unwrap()));
    assert!(!fits(Match::any().header("x-key", Want::Present)));
    assert!(fits(Match::any().header("X-Key", Want::Absent)));
    assert!(fits(Match::any().attribute("client.ip", Want::value("203.0.113.*").unwrap())));
    assert!(!fits(Match::any().attribute("client.ip", Want::value("203.0.113.8").unwrap())));
    assert!(!fits(Match::any().not(Match::any().path("/api/**").unwrap())));
    assert!(fits(Match::any().not(Match::any().path("/health").unwrap())));
    assert!(!fits(Match::any().path("/api/**").unwrap().not(Match::any().method("POST"))));
    assert!(!fits(Match::any().not(Match::any())), "all but everything is nothing");
}

#[test]
fn no_disguise_walks_around_a_limit() {
    let mut login = policy("login", &[]);
    login.matching = Match::any().path("/login").unwrap();
    let mut rest = policy("rest", &[]);
    rest.matching = Match::any().path("/**").unwrap().not(Match::any().path("/static/**").unwrap());
    let set = set(vec![login, rest]);
    for path in [
        "/login",
        "//login",
        "/./login",
        "/%6cogin",
        "/a/../login",
        "/login/",
        "\\login",
        "/login;a=b",
        "/x%2f..%2flogin",
    ] {
        let descriptor = Descriptor::new().with("request.path", path);
        assert_eq!(charged(&set, &descriptor), ["login", "rest"], "{path}");
    }
    // A path that looks static in only one of its readings is not left out.
    let descriptor = Descriptor::new().with("request.path", "/static%2f..%2fapi");
    assert_eq!(charged(&set, &descriptor), ["rest"]);
    let descriptor = Descriptor::new().with("request.path", "/static/logo.png");
    assert!(charged(&set, &descriptor).is_empty());
}

#[test]
fn the_order_of_the_file_is_kept_whatever_drawer_a_policy_is_in() {
    let mut policies = Vec::new();
    for (name, matching) in [
        ("a", Match::any().path("/api/**").unwrap()),
        ("b", Match::any()),
        ("c", Match::any().host("api.example.com").unwrap()),
        ("d", Match::any().attribute("client.ip", Want::value("203.0.113.9").unwrap())),
        ("e", Match::any().path("/api/search").unwrap()),
        ("f", Match::any().path("/{api,app}/search").unwrap().path("/api/**").unwrap()),
        ("g", Match::any().path("/**").unwrap()),
    ] {
        let mut policy = policy(name, &[]);
        policy.matching = matching;
        policies.push(policy);
    }
    assert_eq!(charged(&set(policies), &request()), ["a", "b", "c", "d", "e", "f", "g"]);
}

#[test]
fn a_missing_attribute_is_a_value_of_its_own() {
    let by_both = || policy("login", &["client.ip", "form.username"]);
    let ip = || Descriptor::new().with("client.ip", "203.0.113.9");
    let key = |set: &PolicySet, descriptor: &Descriptor<'_>| {
        let plan = set.plan(descriptor, None);
        plan.lines.first().map(|line| plan.keys[line.key.clone()].to_vec())
    };
    let partial = set(vec![by_both()]);
    let without = key(&partial, &ip());
    assert!(without.is_some(), "leaving the name out is no way around the limit");
    assert_ne!(without, key(&partial, &ip().with("form.username", "")));
    assert_eq!(key(&partial, &Descriptor::new()), None, "nobody to charge");
    assert_eq!(
        partial.relevance(&Descriptor::new())[0].to_string(),
        "not charged: the request has no client.ip, form.username"
    );
    assert_eq!(
        partial.relevance(&ip())[0].to_string(),
        "charged; absent from the request and keyed as such: form.username"
    );
    let with = |absent| {
        let mut policy = by_both();
        policy.absent = absent;
        set(vec![policy])
    };
    assert!(key(&with(Absent::Charge), &Descriptor::new()).is_some());
    assert!(key(&with(Absent::Skip), &ip()).is_none());
}

#[test]
fn shadows_bind_nobody_and_failures_wait_for_their_report() {
    let mut measured = policy("measured", &[]);
    measured.mode = Mode::Shadow;
    let mut beside = policy("beside", &[]);
    beside.shadow_limit = Some(limit(5));
    let mut login = policy("login", &["client.ip"]);
    login.charge = ChargeOn::Failure;
    let mut off = policy("off", &[]);
    off.mode = Mode::Off;
    let set = set(vec![measured, beside, login, off]);
    let lines: Vec<_> = set
        .plan(&request(), None)
        .lines
        .iter()
        .map(|line| (line.policy, line.limit, line.binding, line.rules.on_failure))
        .collect();
    assert_eq!(lines, [(0, 0, false, false), (1, 0, true, false), (1, 1, false, false), (2, 0, true, true)]);
    let check = set.plan(&request(), None);
    assert_eq!(set.key(2, 0, &request()).unwrap(), check.keys[check.lines[3].key.clone()]);
}

#[test]
fn lists_skip_or_refuse() {
    let entry = |text: &str| text.parse::<AccessEntry>().unwrap();
    let mut first = policy("first", &["client.ip"]);
    first.access.allow = [entry("203.0.113.0/24")].into_iter().collect();
    let mut second = policy("second", &["client.ip"]);
    second.access.deny = [entry("user.id=42")].into_iter().collect();
    let set = set(vec![first, second]);
    assert_eq!(charged(&set, &request()), ["second"]);
    assert_eq!(set.access(&request()), None);
    let refused = set.access(&request().with("user.id", "42")).unwrap();
    assert_eq!((refused.policy, refused.status), (Some(1), 403));
    assert_eq!(set.relevance(&request())[0].to_string(), "not charged: 203.0.113.0/24 is on an allow-list");
}

#[test]
fn tiers_and_overrides_choose_the_terms() {
    let terms = |count: u64| limit(count).terms;
    let mut tiered = policy("tier", &["user.id"]);
    tiered.limits[0].tiers = Some(Choice {
        by: "user.tier".to_owned(),
        values: [("pro".to_owned(), terms(600)), ("staff".to_owned(), Terms::unlimited())]
            .into_iter()
            .collect(),
    });
    tiered.limits[0].overrides = vec![Choice {
        by: "user.id".to_owned(),
        values: [("vip".to_owned(), terms(9000))].into_iter().collect(),
    }];
    let set = set(vec![tiered]);
    let count = |id: &'static str, tier: &'static str| {
        let descriptor = Descriptor::new().with("user.id", id).with("user.tier", tier);
        set.plan(&descriptor, None).lines.first().map(|line| (**line.quota).clone())
    };
    let quota = |count: u64| Some(Quota::per_second(count).gcra().unwrap());
    assert_eq!(count("1", "pro"), quota(600));
    assert_eq!(count("1", "unheard of"), quota(10));
    assert_eq!(count("1", "staff"), None);
    assert_eq!(count("vip", "staff"), quota(9000));
    let staff = Descriptor::new().with("user.id", "1").with("user.tier", "staff");
    assert_eq!(set.relevance(&staff), [Relevance::Unlimited]);
}

/// Formerly such a request was charged 1, so a caller who sent no number, or none that reads as one, paid least.
#[test]
fn a_cost_that_cannot_be_found_refuses_or_takes_the_whole_limit_and_is_counted() {
    let mut tokens = policy("tokens", &[]);
    tokens.cost = Some(CostRule::Attribute("llm.tokens".to_owned()));
    let mut lenient = tokens.clone();
    (lenient.name, lenient.on_cost_error) = ("lenient".to_owned(), OnCostError::WholeLimit);
    // What is only observed, or let through, takes what it would take if it were enforced.
    let (mut observed, mut passed) = (lenient.clone(), lenient.clone());
    (observed.name, observed.mode) = ("observed".to_owned(), Mode::Shadow);
    (passed.name, passed.over) = ("passed".to_owned(), Over::Mark);
    let before = set(vec![tokens, policy("plain", &[]), lenient, observed, passed]);
    let costs = |descriptor: &Descriptor<'_>| {
        before.plan(descriptor, Cost::new(3)).lines.iter().map(|line| line.cost.units()).collect::<Vec<_>>()
    };
    assert_eq!(costs(&request().with("llm.tokens", "250")), [250, 3, 250, 250, 250]);
    assert_eq!(before.cost_errors(0), CostErrors::default());
    for bad in [request().with("llm.tokens", "-1"), request().with("llm.tokens", "many"), request()] {
        assert_eq!(costs(&bad)[1..], [3, 10, 10, 10]);
        let plan = before.plan(&bad, None);
        assert!(plan.lines[0].cost_is_unknown() && !plan.lines[2].cost_is_unknown());
    }
    let errors = before.cost_errors(0);
    assert_eq!((errors.at_check, errors.at_settlement), (6, 0));
    assert_eq!(errors.last, Some(CostError::Missing { name: "llm.tokens".to_owned() }));
    // A reload counts on.
    let after = set(before.policies().to_vec());
    after.learn_from(&before);
    assert_eq!(after.cost_errors(0), errors);
    // Whoever puts the first set in force again counts nothing twice.
    before.learn_from(&after);
    assert_eq!(before.cost_errors(0), errors);
}

#[test]
fn outbound_policies_speak_of_outbound_requests_only() {
    let mut bank = policy("bank", &[]);
    bank.direction = Direction::Outbound;
    let set = set(vec![policy("in", &[]), bank]);
    assert_eq!(charged(&set, &request()), ["in"]);
    assert_eq!(charged(&set, &request().with("request.direction", "outbound")), ["bank"]);
}

#[test]
fn sets_that_cannot_be_are_refused() {
    assert!(PolicySet::new(vec![policy("a", &[]), policy("a", &[])]).is_err());
    assert!(PolicySet::new(vec![policy("", &[])]).is_err());
    assert!(PolicySet::new(vec![policy("a", &["x", "x"])]).is_err());
    let mut empty = policy("a", &[]);
    empty.limits.clear();
    assert!(PolicySet::new(vec![empty]).is_err());
}

fn any_pair() -> impl Strategy<Value = (&'static str, String)> {
    prop_oneof![
        (Just("request.method"), "(GET|post)"),
        (Just("request.host"), "(a\\.com|A\\.com:80|b\\.com)"),
        (Just("request.path"), "(/(a|b|%61|\\.\\.|a;x|)){0,3}"),
        (Just("request.direction"), "(outbound|inbound)"),
        (Just("client.ip"), "(10\\.0\\.0\\.[12]|2001:db8::[12])"),
        (Just("user.id"), "[ab]"),
    ]
}

fn any_match() -> impl Strategy<Value = Match> {
    let parts = prop_oneof![
        (Just("method"), "(GET|POST)"),
        (Just("host"), "(a\\.com|\\*\\.com)"),
        (Just("path"), "(/(a|b|\\*|\\*\\*)){1,3}"),
        (Just("user"), "(a|b|\\*)"),
        (Just("client"), "10\\.0\\.0\\.1"),
    ];
    proptest::collection::vec(parts, 0..3).prop_map(|parts| {
        parts.into_iter().fold(Match::any(), |matching, (part, text)| match part {
            "method" => matching.method(&text),
            "host" => matching.host(&text).unwrap(),
            "path" => matching.path(&text).unwrap(),
            "user" => matching.attribute("user.id", Want::value(&text).unwrap()),
            _ => matching.attribute("client.ip", Want::value(&text).unwrap()),
        })
    })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let by = prop_oneof![
        Just(&[][..]),
        Just(&["client.ip"][..]),
        Just(&["user.id"][..]),
        Just(&["user.id", "client.ip"][..])
    ];
    (any_match(), proptest::option::of(any_match()), by, proptest::bool::weighted(0.2)).prop_map(
        |(matching, not, by, outbound)| {
            let mut policy = policy("any", by);
            policy.matching = match not {
                Some(not) => matching.not(not),
                None => matching,
            };
            policy.direction = if outbound { Direction::Outbound } else { Direction::Inbound };
            policy
        },
    )
}

fn value() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[ab\u{0}\u{1}\u{2}]{0,3}")
}

proptest! {
    /// Different callers never share a key, and one caller always has the same.
    #[test]
    fn keys_are_unambiguous(requests in proptest::collection::hash_set((value(), value()), 1..12)) {
        let mut pairs = policy("pairs", &["a", "b"]);
        pairs.absent = Absent::Charge;
        let set = set(vec![pairs, policy("everyone", &[])]);
        let mut keys = HashSet::new();
        for (a, b) in &requests {
            let mut descriptor = Descriptor::new();
            for (name, value) in [("a", a), ("b", b)] {
                if let Some(value) = value {
                    descriptor.push(name, value.as_str());
                }
            }
            let plan = set.plan(&descriptor, None);
            keys.extend(plan.lines.iter().map(|line| plan.keys[line.key.clone()].to_vec()));
        }
        prop_assert_eq!(keys.len(), requests.len() + 1);
    }

    /// With or without the index, the charged policies are those that match, in order.
    #[test]
    fn the_index_changes_nothing(
        patterns in proptest::collection::vec("(/(a|b|\\*|\\*\\*|\\{a,b\\})){1,3}", 1..12),
        path in "(/(a|b|c|%61|\\.\\.|)){0,4}",
    ) {
        let matches: Vec<Match> = patterns.iter().map(|pattern| Match::any().path(pattern).unwrap()).collect();
        let policies = matches.iter().enumerate().map(|(at, matching)| {
            let mut policy = policy(&at.to_string(), &[]);
            policy.matching = matching.clone();
            policy
        });
        let set = set(policies.collect());
        let descriptor = Descriptor::new().with("request.path", path.as_str());
        let expected: Vec<String> = (0..matches.len()).filter(|at| matches[*at].matches(&descriptor)).map(|at| at.to_string()).collect();
        prop_assert_eq!(charged(&set, &descriptor), expected);
    }

    /// The policies and keys of a plan are those that each policy gives alone, although values are looked up once for
    /// several policies, or skipped if the first policy does not need them.
    #[test]
    fn a_plan_is_what_every_policy_says_in_turn(
        mut policies in proptest::collection::vec(any_policy(), 1..8),
        pairs in proptest::collection::vec(any_pair(), 0..7),
    ) {
        for (at, policy) in policies.iter_mut().enumerate() {
            policy.name = at.to_string();
        }
        let set = set(policies);
        let mut descriptor = Descriptor::new();
        for (name, value) in &pairs {
            descriptor.push(*name, value.as_str());
        }
        let expected: Vec<_> = (0..set.len()).filter_map(|at| {
            let policy = &set.policies()[at];
            let outbound = descriptor.value("request.direction") == Some("outbound");
            let there = policy.by.is_empty() || policy.key_values(&descriptor, 64).any(|(_, value)| value.is_some());
            let charged = there && policy.matching.matches(&descriptor)
                && (policy.direction == Direction::Outbound) == outbound;
            charged.then(|| (at, set.key(at, 0, &descriptor).unwrap()))
        }).collect();
        let plan = set.plan(&descriptor, None);
        let planned = plan.lines.iter().map(|line| (line.policy, plan.keys[line.key.clone()].to_vec()));
        prop_assert_eq!(planned.collect::<Vec<_>>(), expected);
    }
}

/// A quota of a plan is found among the policies' quotas by its address, which stores and doors rely on.
#[test]
fn equal_limits_have_one_quota_which_is_the_policies_own() {
    let mut second = policy("second", &["client.ip"]);
    let values = [("gold".to_owned(), limit(10).terms), ("lead".to_owned(), limit(2).terms)];
    second.limits[0].tiers = Some(Choice { by: "tier".to_owned(), values: values.into_iter().collect() });
    let set = set(vec![policy("first", &["client.ip"]), second]);
    let own: HashSet<_> = set
        .policies()
        .iter()
        .flat_map(|policy| &policy.limits)
        .flat_map(Limit::all_terms)
        .map(|terms| terms.quota.as_ref().map(Arc::as_ptr))
        .collect();
    assert_eq!(own.len(), 2, "ten a second, and two");
    for tier in ["gold", "lead", "none"] {
        let plan = set.plan(&request().with("tier", tier), None);
        assert_eq!(plan.lines.len(), 2);
        assert!(plan.lines.iter().all(|line| own.contains(&Some(Arc::as_ptr(line.quota)))), "{tier}");
    }
}
