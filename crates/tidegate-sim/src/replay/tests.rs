//! Replays of small logs under real policies.

mod conditions;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use tidegate::config::{Config, Format};

use super::*;
use crate::log::{Input, Log, LogOptions, Tally};
use crate::traffic::Traffic;

fn set(text: &str) -> Arc<PolicySet> {
    let text = format!("version: 1\npolicies:\n{text}");
    match Config::parse(&text, "test.yaml", Format::Yaml) {
        Ok((config, _)) => config.policies,
        Err(mistakes) => panic!("{mistakes:#?}"),
    }
}

fn run(policies: &str, traffic: &str) -> Replay {
    let mut replay = Replay::new(vec![("policies".into(), set(policies))], ReplayOptions::default()).unwrap();
    let traffic: Traffic = traffic.parse().unwrap();
    for arrival in traffic.arrivals(Tick::from_secs(1_000_000), 1) {
        let key = arrival.key.text();
        let request = Descriptor::new().with("request.path", "/api/x").with("client.ip", key);
        replay.feed_request(arrival.at, &request, Some(arrival.cost));
    }
    replay
}

const PER_IP: &str =
    "  - { name: per-ip, by: [client.ip], limit: { algorithm: gcra, rate: 10/s, burst: 20 } }\n";

#[test]
fn counts_keys_and_peaks_are_those_of_the_traffic() {
    let replay = run(PER_IP, "steady 8/s 10s key good, burst 50 key bad, idle 1s, burst 5 key bad");
    let [outcome] = &replay.outcomes()[..] else { panic!() };
    assert_eq!((outcome.requests, outcome.allowed, outcome.denied), (135, 105, 30));
    let [policy] = &outcome.policies[..] else { panic!() };
    assert_eq!((policy.matched, policy.denied, policy.keys_hit), (135, 30, 1));
    assert_eq!(policy.keys.to_string(), "2");
    let worst = policy.worst.as_ref().unwrap();
    assert_eq!((worst.key.as_str(), worst.denied, worst.total), ("bad", 30, 55));
    assert_eq!(policy.peak.unwrap().to_string(), "50/s");
    assert_eq!(policy.first_denied, Some(Tick::from_secs(1_000_010)));
    let series = replay.series(0).unwrap();
    assert_eq!((series.total(OFFERED), series.total(ADMITTED), series.total(DENIED)), (135, 105, 30));
    let verdict = |text: &str| text.parse::<Threshold>().unwrap().measure(outcome, &Tally::default());
    assert!(verdict("denied{policy=per-ip} > 22%").unwrap().failed);
    assert!(!verdict("denied{policy=per-ip} > 23%").unwrap().failed);
    assert_eq!(verdict("keys_hit == 1").unwrap(), Verdict { failed: true, measured: 1.0, percent: false });
    assert_eq!(
        verdict("denied{policy=perip} > 1").unwrap_err(),
        "--fail-if denied{policy=perip} > 1: there is no policy `perip`; did you mean `per-ip`?; there are per-ip"
    );
}

/// A policy in shadow mode must report the first time that it would have denied a request, as its keys do.
#[test]
fn a_shadow_denial_has_a_first_time_too() {
    let replay = run(
        "  - { name: per-ip, mode: shadow, by: [client.ip], limit: { algorithm: gcra, rate: 10/s, burst: 20 } }\n",
        "steady 8/s 10s key good, burst 50 key bad",
    );
    let outcome = &replay.outcomes()[0];
    let policy = &outcome.policies[0];
    assert_eq!((policy.denied, policy.shadow_denied), (0, 30));
    assert_eq!(policy.first_denied, Some(Tick::from_secs(1_000_010)));
    assert_eq!(policy.first_denied, policy.worst.as_ref().unwrap().first_denied);
}

/// `denied` must count requests for the worst key too, not units: otherwise a key could have more denials than its
/// policy, and one expensive call would outweigh many denials.
#[test]
fn denied_counts_requests_for_the_worst_key_too() {
    let replay = run(PER_IP, "burst 1 key dear cost 1000, burst 25 key cheap, burst 1 key fits cost 20");
    let policy = &replay.outcomes()[0].policies[0];
    let worst = policy.worst.as_ref().unwrap();
    assert_eq!((policy.denied, worst.key.as_str(), worst.denied, worst.denied_units), (6, "cheap", 5, 5));
    let dear = replay.policy_peaks(0, 0).unwrap().top(1, |key| key.denied_units).remove(0);
    assert_eq!((dear.key.as_str(), dear.denied, dear.denied_units, dear.total), ("dear", 1, 1000, 1000));
}

#[test]
fn a_policy_in_shadow_denies_nobody_and_is_counted() {
    let replay = run(&PER_IP.replace("by:", "mode: shadow, by:"), "burst 50 key bad");
    let outcome = &replay.outcomes()[0];
    assert_eq!((outcome.denied, outcome.shadow_denied), (0, 30));
    assert_eq!((outcome.policies[0].denied, outcome.policies[0].shadow_denied), (0, 30));
    assert_eq!((outcome.policies[0].mode, outcome.policies[0].keys_hit), ("shadow", 1));
    let series = replay.series(0).unwrap();
    let lanes = [OFFERED, ADMITTED, DENIED, WOULD_DENY].map(|lane| series.total(lane));
    assert_eq!(lanes, [50, 50, 0, 30]);
}

/// A crawler that goes on during its block is refused all that time, though its window is new.
#[test]
fn a_block_after_a_limit_is_replayed() {
    let text = "  - { name: per-ip, by: [client.ip], limit: { algorithm: fixed-window, rate: 2/s }, over: block 10s }\nstore: { kind: memory }\n";
    for (mode, refused) in [("", 28), ("mode: shadow, ", 28)] {
        let replay = run(&text.replace("by:", &format!("{mode}by:")), "steady 3/s 10s key bad");
        let outcome = &replay.outcomes()[0];
        let policy = &outcome.policies[0];
        assert_eq!(
            (policy.matched, policy.denied + policy.shadow_denied, outcome.denied_by_list),
            (30, refused, 0)
        );
        assert_eq!(policy.worst.as_ref().unwrap().denied, refused);
        assert_eq!(outcome.allowed, if mode.is_empty() { 2 } else { 30 });
    }
}

/// Regression: a check in a pipeline on what a policy in shadow mode denies held whatever the policy would have done.
#[test]
fn a_condition_on_what_shadow_mode_denies_is_an_error_with_the_word_that_counts() {
    let shadow = run(&PER_IP.replace("by:", "mode: shadow, by:"), "burst 50 key bad");
    let enforced = run(PER_IP, "burst 50 key bad");
    let measure = |replay: &Replay, text: &str| {
        text.parse::<Threshold>().unwrap().measure(&replay.outcomes()[0], &Tally::default())
    };
    for text in ["denied{policy=per-ip} > 1%", "allowed{policy=per-ip} < 90%", "delayed{policy=per-ip} > 0"] {
        let never = measure(&shadow, text).unwrap_err();
        assert!(
            never.ends_with("`per-ip` is in shadow mode, which denies and delays nobody; use shadow_denied"),
            "{never}"
        );
    }
    let never = measure(&shadow, "denied > 1%").unwrap_err();
    assert!(
        never.ends_with("all policies are in shadow mode, which denies and delays nobody; use shadow_denied"),
        "{never}"
    );
    assert!(measure(&shadow, "shadow_denied{policy=per-ip} > 59%").unwrap().failed);
    assert!(measure(&shadow, "shadow_denied > 59%").unwrap().failed);
    let queue = "  - { name: q, limit: { algorithm: leaky-bucket, rate: 10/s, queue: 99, max_wait: 10s } }\n";
    let delays = run(queue, "burst 50 key bad");
    for text in ["delayed{policy=q} > 80%", "delayed > 80%"] {
        assert!(measure(&delays, text).unwrap().failed, "{text}");
    }
    for (text, says) in [
        ("shadow_denied{policy=per-ip} > 1%", "`per-ip` is enforced; use denied"),
        ("shadow_denied > 1%", "no policy is in shadow mode and none has a shadow limit; use denied"),
        ("marked > 1%", "no policy has `over: mark`"),
        (
            "delayed{policy=per-ip} < 5%",
            "`per-ip` has no limit with max_wait, so it delays nobody; use denied",
        ),
        ("delayed < 5%", "no policy has a limit with max_wait, so nobody is delayed; use denied"),
    ] {
        let never = measure(&enforced, text).unwrap_err();
        assert!(never.ends_with(says), "{never}");
    }
}

/// Denials by a shadow limit must not count for the policy: `10/s` denied one key but would be reported to have hit a
/// hundred, so that a threshold on it failed.
#[test]
fn a_shadow_limit_has_a_row_of_its_own() {
    let limits = "limit: { rate: 10/s, burst: 20 }, shadow_limit: { rate: 2/min, burst: 2 }";
    let text = format!(
        "  - {{ name: unused, mode: off, by: [x], limit: {{ rate: 1/h }} }}\n  \
           - {{ name: per-ip, by: [client.ip], {limits} }}\n"
    );
    let replay = run(&text, "steady 8/s 10s key good, burst 50 key bad");
    let outcome = &replay.outcomes()[0];
    let [policy, shadow] = &outcome.policies[..] else { panic!("{outcome:#?}") };
    assert_eq!((policy.name.as_str(), policy.mode, &policy.shadow_limit_of), ("per-ip", "enforce", &None));
    assert_eq!((policy.matched, policy.denied, policy.shadow_denied, policy.keys_hit), (130, 30, 0, 1));
    assert_eq!(policy.limits, ["gcra 10/s burst 20"]);
    assert_eq!(policy.peak.unwrap().to_string(), "50/s");
    assert_eq!((shadow.name.as_str(), shadow.mode), ("per-ip (shadow_limit)", "shadow"));
    assert_eq!(shadow.shadow_limit_of.as_deref(), Some("per-ip"));
    assert_eq!((shadow.matched, shadow.denied, shadow.keys_hit), (130, 0, 2));
    assert_eq!((outcome.denied, outcome.shadow_denied), (30, shadow.shadow_denied));
    assert_eq!(shadow.limits, ["gcra 2/min burst 2"]);
    assert_eq!(shadow.peak.unwrap().window, Duration::from_secs(60));
    // A policy that is off has no row.
    assert_eq!(replay.policy_peaks(0, 0).unwrap().denied_keys(), 1);
    assert_eq!(replay.policy_peaks(0, 1).unwrap().denied_keys(), 2);
    assert!(replay.policy_peaks(0, 2).is_none());

    let measure = |text: &str| text.parse::<Threshold>().unwrap().measure(outcome, &Tally::default());
    for (text, measured) in [
        ("keys_hit > 1", 1.0),
        ("keys_hit{policy=per-ip} > 1", 1.0),
        ("keys_hit{policy=per-ip (shadow_limit)} > 1", 2.0),
        ("shadow_denied{policy=per-ip (shadow_limit)} > 1", shadow.shadow_denied as f64),
    ] {
        assert_eq!(measure(text).unwrap().measured, measured, "{text}");
    }
    // These conditions could never hold.
    let never = measure("shadow_denied{policy=per-ip} > 1").unwrap_err();
    assert!(never.ends_with("its shadow limit is {policy=per-ip (shadow_limit)}"), "{never}");
    let never = measure("denied{policy=per-ip (shadow_limit)} > 1").unwrap_err();
    assert!(never.ends_with("use shadow_denied"), "{never}");
}

/// Regression: `denied > 5000` passed on a log of 4,478 requests, whatever the limits.
#[test]
fn a_count_above_all_there_are_is_an_error_with_their_number() {
    let two = format!("{PER_IP}  - {{ name: gone, match: {{ path: /other }}, limit: {{ rate: 1/s }} }}\n");
    let replay = run(&two, "burst 50 key bad, burst 3 key good");
    let measure =
        |text: &str| text.parse::<Threshold>().unwrap().measure(&replay.outcomes()[0], &Tally::default());
    for (text, says) in [
        ("denied > 53", "there are only 53 requests, so this never holds; "),
        ("denied{policy=per-ip} >= 54", "there are only 53 requests of `per-ip`, so this never holds; "),
        ("denied == 1000", "there are only 53 requests, so this never holds; "),
        ("keys_hit > 2", "there are only 2 keys, so this never holds; "),
        ("keys_hit{policy=per-ip} > 2", "there are only 2 keys of `per-ip`, so this never holds; "),
        ("allowed < 54", "there are only 53 requests, so this always holds; "),
        ("allowed{policy=per-ip} <= 53", "there are only 53 requests of `per-ip`, so this always holds; "),
        ("errors != 54", "there are only 53 requests, so this always holds; "),
    ] {
        let never = measure(text).unwrap_err();
        assert!(never.contains(says), "{never}");
    }
    // Another limit would change these; how many requests there are is a question about the log.
    for text in ["denied > 52", "denied >= 53", "keys_hit > 1", "allowed < 53", "requests > 1000"] {
        measure(text).unwrap();
    }
}

#[test]
fn a_condition_on_a_policy_that_matched_nothing_is_no_verdict() {
    let replay = run(&PER_IP.replace("by:", "match: { path: /other }, by:"), "burst 5 key a");
    let measure =
        |text: &str| text.parse::<Threshold>().unwrap().measure(&replay.outcomes()[0], &Tally::default());
    let none = measure("denied{policy=per-ip} > 1%").unwrap_err();
    assert!(none.ends_with("no verdict, `per-ip` matched none of the 5 requests"), "{none}");
    assert!(measure("matched{policy=per-ip} == 0").unwrap().failed);
}

#[test]
fn names_that_no_request_has_are_remembered() {
    let replay = run(&PER_IP.replace("client.ip", "client.ip, team"), "burst 5 key a");
    assert_eq!(replay.unseen(), ["team"]);
    assert_eq!(replay.attributes(), ["request.path", "client.ip"]);
}

#[test]
fn several_algorithms_see_the_same_requests() {
    let other = PER_IP.replace("gcra", "fixed-window").replace(", burst: 20", "");
    let sets = vec![("gcra".to_owned(), set(PER_IP)), ("fixed-window".to_owned(), set(&other))];
    let mut replay = Replay::new(sets, ReplayOptions::default()).unwrap();
    let traffic: Traffic = "steady 30/s 2s".parse().unwrap();
    for arrival in traffic.arrivals(Tick::from_secs(1_000_000), 1) {
        replay.feed_request(arrival.at, &Descriptor::new().with("client.ip", "a"), None);
    }
    let outcomes = replay.outcomes();
    assert_eq!((outcomes[0].requests, outcomes[1].requests), (60, 60));
    // 20 at once and 10 a second for just under two seconds; two windows of 10.
    assert_eq!((outcomes[0].allowed, outcomes[1].allowed), (39, 20));
}

fn log(lines: &str, policies: &str) -> Outcome {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    let mut replay = Replay::new(vec![("policies".into(), set(policies))], ReplayOptions::default()).unwrap();
    let inputs = vec![Input::File(file.path().to_owned())];
    Log::open(inputs, LogOptions::default())
        .unwrap()
        .read(|record| {
            replay.feed(record);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(replay.is_recorded());
    replay.outcomes().remove(0)
}

/// Whether requests come one by one or together, each is decided at its own time and counted once. The log includes
/// clients that come again within one batch, IPv6 networks, a shadow limit, keys of two parts, a limit by path, and
/// lines that go back.
#[test]
fn requests_fed_together_are_those_fed_one_by_one() {
    const POLICIES: &str = "  - { name: per-ip, by: [client.ip], limit: { rate: 1/s, burst: 2 }, shadow_limit: { rate: 30/min } }
  - { name: each-path, by: [client.ip, request.path], limit: { rate: 20/min, burst: 1 } }
  - { name: posts, by: [client.ip], match: { path: /login }, charge: on-failure, limit: { rate: 3/min } }
  - { name: all, limit: { rate: 200/min } }\n";
    let line = |number: usize| {
        let client = ["203.0.113.9", "h", "2001:db8::1", "2001:db8::2"][number * 7 / 3 % 4];
        let path = ["/a", "/login", "/b?c"][number % 3];
        let (minute, second) = (number / 200, (number / 5 + number * 31 % 7) % 60);
        let status = 200 + number % 4 * 67;
        format!(
            "{client} - - [17/May/2015:10:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" {status} 5\n"
        )
    };
    let lines: String = (0..900).map(line).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    let replayed = |together: bool, details: bool| {
        let options = ReplayOptions { details, ..ReplayOptions::default() };
        let mut replay = Replay::new(vec![("policies".into(), set(POLICIES))], options).unwrap();
        let input = Input::File(file.path().to_owned());
        let mut log = Log::open(vec![input], LogOptions::default()).unwrap();
        let flow = ControlFlow::Continue(());
        let tally = if together {
            log.read_together(|records| {
                assert!((1..=16).contains(&records.len()));
                replay.feed_all(records);
                flow
            })
        } else {
            log.read(|record| {
                replay.feed(record);
                flow
            })
        };
        let tally = format!("{:?}", tally.unwrap());
        let hit = replay.policy_peaks(0, 0).unwrap().hit(9, |_| true);
        (format!("{:?}", replay.outcomes()), tally, hit, replay.series(0).unwrap().total(DENIED))
    };
    for details in [false, true] {
        let alone = replayed(false, details);
        assert!(alone.3 > 100, "{alone:?}");
        assert_eq!(replayed(true, details), alone);
    }
}

/// Three wrong passwords an hour: only failures recorded in the log are charged, and a success forgets them.
#[test]
fn failures_are_charged_by_the_status_of_the_log() {
    let line = |second: u32, user: &str, status: u16| {
        format!(
            "203.0.113.9 - {user} [17/May/2015:10:05:{second:02} +0000] \"POST /login HTTP/1.1\" {status} 5\n"
        )
    };
    let login = "  - { name: login, match: { method: POST, path: /login }, by: [client.ip], charge: on-failure,\n      \
        limit: { algorithm: sliding-log, rate: 3/h } }\n";
    let failing: String = (0..5).map(|second| line(second, "-", 401)).collect();
    assert_eq!(log(&failing, login).policies[0].denied, 2);
    let forgiven: String = [(0, 401), (1, 401), (2, 200), (3, 401), (4, 401), (5, 401), (6, 401)]
        .map(|(second, status)| line(second, if status == 200 { "ann" } else { "-" }, status))
        .concat();
    let outcome = log(&forgiven, login);
    assert_eq!((outcome.policies[0].denied, outcome.policies[0].keys_hit_signed_in), (1, 1));
    assert_eq!(outcome.policies[0].peak, Some(PeakRate { count: 7, window: Duration::from_secs(3_600) }));
}

#[test]
fn columns_are_attributes_that_costs_can_name() {
    let csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:46.6,374,44\n";
    let tokens = "  - { name: tokens, cost: 'int(ContextTokens) + int(GeneratedTokens)',\n      \
        limit: { algorithm: gcra, rate: 100/s, burst: 500 } }\n";
    let outcome = log(csv, tokens);
    assert_eq!((outcome.allowed, outcome.denied), (1, 1));
    assert_eq!(outcome.policies[0].worst.as_ref().unwrap().total, 836);
}

#[test]
fn ipv6_clients_are_named_by_the_network_that_shares_their_capacity() {
    let lines: String = (1..=30)
        .map(|host| format!("2001:db8::{host:x} - - [17/May/2015:10:05:00 +0000] \"GET / HTTP/1.1\" 200 5\n"))
        .collect();
    let outcome = log(&lines, PER_IP);
    assert_eq!(outcome.denied, 10);
    assert_eq!(outcome.policies[0].worst.as_ref().unwrap().key, "2001:db8::/64");
}

#[test]
fn peak_rates_print_as_limits_are_written() {
    let rate = |count, seconds| PeakRate { count, window: Duration::from_secs(seconds) }.to_string();
    assert_eq!(
        [rate(412, 1), rate(31, 3_600), rate(90, 600), rate(9, 90)],
        ["412/s", "31/h", "90/10min", "9/90s"]
    );
}

const PLACES: &str = "  - { name: work, limit: { algorithm: concurrency, max: 2, ttl: 30s } }\n";

/// Sends requests at these milliseconds, each inside for `hold`. Returns which were admitted.
fn held(policies: &str, hold: Duration, at: &[u64]) -> (Vec<bool>, Outcome) {
    let options = ReplayOptions { hold: Some(hold), ..ReplayOptions::default() };
    let mut replay = Replay::new(vec![("policies".into(), set(policies))], options).unwrap();
    let mut allowed = Vec::new();
    for millis in at {
        let before = replay.outcomes()[0].allowed;
        let at = Tick::from_secs(1_000).after(Duration::from_millis(*millis));
        replay.feed_request(at, &Descriptor::new(), None);
        allowed.push(replay.outcomes()[0].allowed > before);
    }
    assert_eq!(replay.unheld(), 0);
    (allowed, replay.outcomes().remove(0))
}

#[test]
fn a_request_holds_its_place_for_as_long_as_it_takes() {
    let second = Duration::from_secs(1);
    // The first request's place is free in the millisecond in which it ends.
    let (allowed, outcome) = held(PLACES, second, &[0, 400, 999, 1000, 1399, 1400]);
    assert_eq!(allowed, [true, true, false, true, false, true]);
    let policy = &outcome.policies[0];
    assert_eq!((policy.most_in_use, outcome.left_early), (Some(2), 0));
    let (allowed, _) = held(PLACES, Duration::ZERO, &[0, 0, 0, 0]);
    assert_eq!(allowed, [true; 4], "whoever takes no time leaves at once");
}

#[test]
fn a_place_lapses_also_where_its_request_takes_longer() {
    let (allowed, _) = held(PLACES, Duration::from_secs(3600), &[0, 0, 29_999, 30_000]);
    assert_eq!(allowed, [true, true, false, true]);
}

#[test]
fn what_a_queue_holds_back_needs_its_place_later() {
    let queued = "  - name: work
    limit:
      - { algorithm: leaky-bucket, rate: 1/s, queue: 9, max_wait: 9s }
      - { algorithm: concurrency, max: 3 }
";
    let half = Duration::from_millis(500);
    // The third request waits for two seconds and leaves two and a half seconds after it came.
    let (allowed, outcome) = held(queued, half, &[0, 0, 0, 0, 2_499, 2_500]);
    assert_eq!(allowed, [true, true, true, false, true, true]);
    assert_eq!(outcome.policies[0].most_in_use, Some(3));
}

#[test]
fn requests_of_unknown_length_are_counted() {
    let mut replay = Replay::new(vec![("policies".into(), set(PLACES))], ReplayOptions::default()).unwrap();
    replay.feed_request(Tick::from_secs(1), &Descriptor::new(), None);
    assert!(replay.holds());
    assert_eq!(replay.unheld(), 1);
    let rates = run(PER_IP, "burst 5 key a");
    assert!(!rates.holds() && rates.unheld() == 0);
    assert_eq!(rates.outcomes()[0].policies[0].most_in_use, None);
}

/// A replay describes only the attributes of requests that its policies use; that must not change the result.
#[test]
fn what_no_policy_looks_at_changes_nothing() {
    let policies = "  - { name: agents, by: [request.header.user-agent], match: { attributes: { response.status: \"5*\" } }, limit: { rate: 1/s, burst: 2 } }
  - { name: plans, by: [user.id], limit: { rate: { by: plan, values: { pro: 5/s }, otherwise: 1/s } } }
  - { name: tokens, by: [], cost: \"int(llm.tokens) + 1\", match: { host: shop.example, path: /api/**, not: { header: { x-in: true } } }, limit: { rate: 20/s } }
  - { name: bytes, by: [client.ip], cost: response.bytes, access: { deny: [\"tenant=eve\"] }, limit: { rate: 900/s } }
";
    let line = |n: u64| {
        format!(
            "{{\"ts\":{},\"client_ip\":\"203.0.113.{}\",\"user\":\"u{}\",\"method\":\"GET\",\"path\":\"/api/{}\",\"host\":\"Shop.example\",\
             \"status\":{},\"bytes\":{},\"user_agent\":\"a{}\",\"referer\":\"r\",\"plan\":\"{}\",\"llm\":{{\"tokens\":{}}},\"tenant\":\"{}\",\
             \"request.header.x-in\":{}}}\n",
            1_700_000_000 + n / 20,
            n % 3,
            n % 5,
            n % 2,
            200 + 100 * (n % 4),
            n * 37 % 400,
            n % 2,
            if n.is_multiple_of(5) { "pro" } else { "free" },
            n % 7,
            if n.is_multiple_of(11) { "eve" } else { "bob" },
            if n.is_multiple_of(3) { "null" } else { "1" },
        )
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), (0..2_000).map(line).collect::<String>()).unwrap();
    let outcome = |wanted: Option<Wanted>| {
        let mut replay =
            Replay::new(vec![("policies".into(), set(policies))], ReplayOptions::default()).unwrap();
        replay.wanted = wanted.unwrap_or(replay.wanted);
        let input = Input::File(file.path().to_owned());
        let mut log = Log::open(vec![input], LogOptions::default()).unwrap();
        log.read(|record| {
            replay.feed(record);
            ControlFlow::Continue(())
        })
        .unwrap();
        serde_json::to_value(replay.outcomes()).unwrap()
    };
    let (narrowed, whole) = (outcome(None), outcome(Some(Wanted::ALL)));
    assert_eq!(narrowed, whole);
    // Each policy denies some requests, so each of them saw its attributes.
    for policy in whole[0]["policies"].as_array().unwrap() {
        assert!(policy["denied"].as_u64().unwrap() > 0, "{policy}");
    }
}

/// Values that make the same key must be counted as one key: a host with and without its port, a path in two
/// spellings, an IPv4 address written as IPv6.
#[test]
fn a_key_has_one_name_however_the_log_writes_it() {
    let lines = "time,client_ip,host,path\n\
        2026-03-02T09:00:00Z,::ffff:192.0.2.1,Example.com:443,/a/../b?x=1\n\
        2026-03-02T09:00:01Z,192.0.2.1,example.com,/b\n\
        2026-03-02T09:00:02Z,192.0.2.1,example.com.,//b\n";
    for (by, name) in [
        ("[client.ip]", "192.0.2.1"),
        ("[request.host]", "example.com"),
        ("[request.path]", "/b"),
        ("[request.host, request.path]", "example.com · /b"),
    ] {
        let outcome = log(lines, &format!("  - {{ name: p, by: {by}, limit: {{ rate: 1/day }} }}\n"));
        let [policy] = &outcome.policies[..] else { panic!() };
        assert_eq!((policy.denied, policy.keys.about(), policy.keys_hit), (2, 1, 1), "{by}");
        let worst = policy.worst.as_ref().unwrap();
        assert_eq!((&*worst.key, worst.denied, worst.total), (name, 2, 3), "{by}");
    }
}

/// Requests that a policy marks or demotes must not be counted as in shadow mode, where they would be denied one day.
#[test]
fn what_passes_over_a_limit_is_marked_or_demoted_and_not_refused() {
    let text = "  - { name: soft, over: mark, limit: { rate: 1/h, burst: 10 } }\n  \
        - { name: heavy, over: demote, limit: { rate: 1/h, burst: 20 }, shadow_limit: { rate: 1/h, burst: 5 } }\n  \
        - { name: all, limit: { rate: 1/h, burst: 40, keep_for: { critical: 50% } } }\n";
    let replay = run(text, "burst 50 key a");
    let outcome = &replay.outcomes()[0];
    // Of the last 30 requests, the first 20 find the part of `all` used up that is not reserved for critical
    // requests.
    assert_eq!((outcome.allowed, outcome.denied, outcome.shadow_denied), (20, 30, 45));
    assert_eq!((outcome.marked, outcome.demoted), (Some(10), Some(0)));
    let [soft, heavy, shadow, all] = &outcome.policies[..] else { panic!("{outcome:#?}") };
    assert_eq!((soft.marked, soft.demoted, soft.denied, soft.shadow_denied), (Some(40), None, 0, 0));
    assert_eq!((heavy.marked, heavy.demoted, heavy.shadow_denied), (None, Some(30), 0));
    assert_eq!((shadow.demoted, shadow.shadow_denied), (None, 45));
    assert_eq!((all.marked, all.demoted, all.denied), (None, None, 30));
    let measure = |text: &str| text.parse::<Threshold>().unwrap().measure(outcome, &Tally::default());
    for (text, measured) in [("marked > 3", 10.0), ("demoted{policy=heavy} > 3", 30.0), ("marked > 3%", 20.0)]
    {
        assert_eq!(measure(text).unwrap().measured, measured, "{text}");
    }
    for (text, says) in [
        ("shadow_denied{policy=soft} > 1", "`soft` lets through what is over its limit; use marked"),
        ("denied{policy=soft} > 1", "`soft` lets through what is over its limit; use marked"),
        ("delayed{policy=soft} < 1", "`soft` has no limit with max_wait, so it delays nobody; use marked"),
        ("demoted{policy=soft} > 1", "`soft` has another `over`"),
        ("marked{policy=all} > 1", "`all` has another `over`"),
    ] {
        assert!(measure(text).unwrap_err().ends_with(says), "{text}");
    }
    let json = serde_json::to_value(outcome).unwrap();
    assert_eq!((&json["marked"], json["policies"][3].get("marked")), (&serde_json::json!(10), None));

    let options = ReplayOptions { details: true, ..ReplayOptions::default() };
    let ladders = crate::ladder::Ladders::new(&set(text), &options);
    let report = crate::report::Report {
        title: "t",
        replay: &replay,
        log: None,
        doubts: &[],
        ladders: &ladders,
        keys: 5,
    };
    let page = crate::report::page(&report).unwrap();
    assert!(page.contains("<th class=\"n\">Marked</th>") && page.contains(", 10 marked"), "{page}");
}

/// Each key that asked for more than is granted in a window must be hit; others may be hit too.
#[test]
fn keys_above_the_granted_units_are_hit() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/access.log");
    for limit in [
        "{ rate: 2/min }",
        "{ rate: 5/s, burst: 20 }",
        "{ algorithm: fixed-window, rate: 20/min }",
        "{ algorithm: sliding-log, rate: 20/min }",
    ] {
        let policies = format!("  - {{ name: per-ip, by: [client.ip], limit: {limit} }}\n");
        let sets = vec![("policies".into(), set(&policies))];
        let mut replay = Replay::new(sets, ReplayOptions::default()).unwrap();
        let mut log = Log::open(vec![Input::File(path.clone())], LogOptions::default()).unwrap();
        log.read(|record| {
            replay.feed(record);
            ControlFlow::Continue(())
        })
        .unwrap();
        let granted = replay.granted(0, 0).unwrap().units;
        let ranking = replay.policy_peaks(0, 0).unwrap().ranking();
        assert!(ranking.iter().all(|key| key.peak <= granted || key.denied > 0), "{limit}");
    }
}
