//! Tests of the rules. A month is a loop.

use std::f64::consts::TAU;

use super::*;
use crate::usual::tests::Random;

/// 2027-01-15T08:00:00Z.
const NOW: u64 = 1_800_000_000;
const DAY: u64 = 86_400;

fn busy_key(policy: &str, key: u64, passed: f64, refused: f64) -> Key {
    Key {
        policy: 1,
        key,
        name: policy.into(),
        shown: format!("#{key:016x}"),
        refused,
        passed,
        per_second: passed / 60.0,
        rate: None,
    }
}

fn never(_: u16, _: u64) -> Before {
    Before::default()
}

fn second(now: u64) -> Second<'static> {
    Second { now, store: "disk", ..Second::default() }
}

fn told(found: &[Found]) -> Vec<(&'static str, &str, &str)> {
    let mut told: Vec<_> = found.iter().map(|one| (one.rule.word(), &*one.policy, &*one.key)).collect();
    told.sort_unstable();
    told
}

/// A breaker that opened at a second of the gate's clock.
fn open(policy: &str, since: u64, probes: bool) -> OpenBreaker {
    let since = Some(Tick::from_secs(since));
    OpenBreaker {
        policy: policy.to_owned(),
        key: "(all)".to_owned(),
        since,
        why: "19 of 38 calls failed".to_owned(),
        probes,
    }
}

/// Four policies with three keys each, busier by day than by night, of which one in a hundred requests is refused and
/// some are refused in bursts. Each key has half of the rate at most.
#[test]
fn a_month_without_an_incident_is_silent() {
    let (mut rules, mut random) = (Rules::default(), Random(0x9e37_79b9_7f4a_7c15));
    let before = |_: u16, key: u64| Before {
        passed: 20_000.0,
        refused: if key.is_multiple_of(2) { 0.0 } else { 9.0 },
    };
    let mut fired = Vec::new();
    let mut unusual_since: Option<u64> = None;
    for minute in 0..30 * 1_440 {
        let now = NOW + minute * 60;
        let busy = 1.0 + 0.9 * ((now % DAY) as f64 / DAY as f64 * TAU).sin();
        let keys: Vec<Key> = (0..12)
            .map(|number| {
                let passed = random.poisson(20.0 * (number % 4 + 1) as f64 * busy) as f64;
                let burst = if random.poisson(0.002) > 0 { 15.0 } else { 0.0 };
                let refused = random.poisson(0.01 * passed) as f64 + burst;
                Key { policy: number as u16 / 3, rate: Some(4.0), ..busy_key("p", number, passed, refused) }
            })
            .collect();
        // A policy is above the line in one minute of a hundred, by chance.
        let is_unusual = random.poisson(0.01) > 0;
        unusual_since = if is_unusual { unusual_since.or(Some(now)) } else { None };
        let unusual =
            unusual_since.map(|since| UnusualPolicy { name: "p".into(), since, share: 0.02, usual: 0.01 });
        rules.minute(now - 60, &keys, &before);
        let found = rules.second(&Second { unusual: unusual.into_iter().collect(), ..second(now) });
        fired.extend(found.into_iter().map(|one| (one.rule, minute)));
    }
    let mut first = fired;
    first.dedup_by(|later, earlier| later.0 == earlier.0 && later.1 <= earlier.1 + 5);
    assert!(first.len() <= 4, "at most one a week: {first:?}");
}

#[test]
fn a_customer_who_is_cut_is_found_within_three_minutes_and_a_stranger_is_not() {
    for planted in 0..500_u64 {
        let mut rules = Rules::default();
        let customer = Before { passed: 1_000.0 + planted as f64, refused: 0.0 };
        let before = |_: u16, key: u64| match key {
            1 => customer,
            2 => Before { passed: 999.0, refused: 0.0 },
            3 => Before { passed: 90_000.0, refused: 1.0 },
            _ => Before::default(),
        };
        // The incident begins within the first minute.
        let first = 120.0 * (planted % 60) as f64 / 60.0;
        let minute = |rules: &mut Rules, number: u64, refused: f64| {
            let keys: Vec<Key> = (1..=4).map(|one| busy_key("per-tenant", one, 120.0, refused)).collect();
            rules.minute(NOW + number * 60, &keys, &before);
            rules.second(&second(NOW + number * 60 + 60))
        };
        assert!(minute(&mut rules, 0, first).is_empty());
        minute(&mut rules, 1, 1_440.0);
        let found = minute(&mut rules, 2, 1_440.0);
        assert_eq!(told(&found), [("customer-cut", "per-tenant", "#0000000000000001")]);
        assert_eq!(found[0].path, "/ui/keys?policy=per-tenant&by=denied");
        assert!(found[0].text.contains("refused 92 % of the time"), "{}", found[0].text);
        assert!(found[0].since >= NOW && found[0].since <= NOW + 60);
        assert_eq!(minute(&mut rules, 3, 1_440.0), found, "one and the same");
        assert_eq!(minute(&mut rules, 4, 0.0).len(), 1, "a calm minute");
        assert!(minute(&mut rules, 5, 0.0).is_empty());
    }
}

/// A limit was raised for a customer who was cut, and set back by mistake the same day: what he had been refused in the
/// morning kept the alert silent.
#[test]
fn a_customer_who_is_cut_again_is_told_of_again() {
    let mut rules = Rules::default();
    // What is refused counts from the second minute on.
    let mut refused_before = 0.0;
    let mut minute = |number: u64, refused: f64| {
        let before = Before { passed: 5_000.0, refused: refused_before };
        let key = busy_key("per-tenant", 1, 120.0, refused);
        rules.minute(NOW + number * 60, &[key], &|_, _| before);
        refused_before += refused;
        rules.second(&second(NOW + number * 60 + 60)).len()
    };
    assert_eq!([0, 1, 2].map(|number| minute(number, 1_440.0)), [0, 1, 1]);
    assert_eq!([3, 4].map(|number| minute(number, 0.0)), [1, 0]);
    assert_eq!([30, 31, 32].map(|number| minute(number, 1_440.0)), [0; 3], "within the hour");
    assert_eq!([70, 71].map(|number| minute(number, 1_440.0)), [0, 1]);
}

/// After a restart nobody knows what a customer has passed, so one who was cut was said to be served again.
#[test]
fn a_customer_who_was_cut_before_a_restart_is_found_again() {
    let minute = |rules: &mut Rules, number: u64| {
        let key = busy_key("per-tenant", 1, 0.0, 1_440.0);
        rules.minute(NOW + number * 60, &[key], &never);
        rules.second(&second(NOW + number * 60 + 60))
    };
    let mut rules = Rules::default();
    rules.knew_customer("per-tenant", "#0000000000000001", None, NOW);
    assert!(minute(&mut rules, 0).is_empty());
    let found = minute(&mut rules, 1);
    assert_eq!(told(&found), [("customer-cut", "per-tenant", "#0000000000000001")]);
    assert!(found[0].text.contains("that an alert told of before is refused 100 % of the time"), "{found:?}");
    let mut rules = Rules::default();
    rules.knew_customer("per-tenant", "#0000000000000002", None, NOW);
    rules.knew_customer("per-tenant", "#0000000000000001", Some(NOW - DAY), NOW);
    assert!((0..3).all(|number| minute(&mut rules, number).is_empty()), "another one, or a day ago");
    (0..3_000).for_each(|key| rules.knew_customer("p", &key.to_string(), None, NOW));
    assert_eq!(rules.customers.len(), FOLLOWED);
}

/// Slices of which some are refused, the newest first: `r` for a refusal, `p` for a pass, and a comma between slices.
fn slices(text: &str) -> [Slice; CUT_SLICES] {
    let mut slices = [Slice::default(); CUT_SLICES];
    for (slice, events) in slices.iter_mut().zip(text.split(',')) {
        let count = |event: char| events.chars().filter(|one| *one == event).count() as u32;
        *slice = Slice { refused: count('r'), passed: count('p') };
    }
    slices
}

#[test]
fn who_asks_six_times_a_minute_is_cut_too_and_one_call_tried_again_is_not() {
    let of = |text: &str| refused_by(&slices(text)).map(|all| (all.refused, all.passed));
    assert_eq!(of("r,r,p,r,r,,r,p,,r,r,pppp"), Some((7, 2)), "since the first refusal");
    assert_eq!(of("p,p,,r,r,r,r,r,r,r,r"), None, "it is over");
    assert_eq!(of("r,r,r,r,r,r,r,r,r,p,p"), None, "it has not lasted");
    assert_eq!(of("rrrr,rrrr,,,,,,,,rrrrr"), None, "three times, whatever came together");
    assert_eq!(of("r,r,r,r,r,,,,,r,ppp"), Some((6, 0)));
    let nine = "rppppppppp,rppppppppp,rppppppppp,rppppppppp,,,,,,rppppppppp";
    assert_eq!(of(nine), Some((5, 45)), "a tenth goes on");
    assert_eq!(of(&nine.replace(",,,", ",p,,")), None);
}

#[test]
fn who_is_refused_every_other_time_is_one_alert() {
    let mut rules = Rules::default();
    let customer = |_: u16, key: u64| Before { passed: 1_000.0 * key as f64, refused: 0.0 };
    let mut slice = |number: u64, key: u64, passed: f64, refused: f64| {
        rules.slice(NOW + number * SLICE, &[busy_key("per-tenant", key, passed, refused)], &customer);
        rules.second(&second(NOW + number * SLICE))
    };
    assert!(slice(0, 1, 10.0, 4.0).is_empty(), "chance does not explain it");
    assert!(slice(1, 0, 0.0, 9.0).is_empty(), "no customer");
    let found = slice(2, 1, 8.0, 5.0);
    assert_eq!(told(&found), [("customer-cut", "per-tenant", "#0000000000000001")]);
    assert_eq!(found[0].since, NOW + 2 * SLICE - 100);
    assert!((3..30).all(|number| slice(number, 1, 20.0, 8.0) == found), "it goes on");
    assert!((30..41).all(|number| slice(number, 0, 0.0, 9.0) == found), "two minutes without");
    assert!(slice(41, 0, 0.0, 9.0).is_empty());
    // By minutes and by slices it is one and the same.
    let key = [busy_key("per-tenant", 1, 0.0, 60.0)];
    (0..2).for_each(|minute| rules.minute(NOW + 86_400 + minute * 60, &key, &customer));
    rules.slice(NOW + 86_520, &key, &customer);
    assert_eq!(rules.second(&second(NOW + 86_520)).len(), 1);
}

#[test]
fn a_step_of_the_clock_lets_nothing_fire_early_or_late() {
    for by in [3_600_i64, -3_600] {
        let mut rules = Rules::default();
        let see = |rules: &mut Rules, at: u64, step: i64| {
            let now = (NOW + at).saturating_add_signed(step);
            let breakers = vec![open("bank", 5, false)];
            rules.second(&Second { store_away: Some("away"), dropped: 1, breakers, ..second(now) }).len()
        };
        assert_eq!(see(&mut rules, 0, 0), 1, "what was dropped is told at once");
        assert_eq!(see(&mut rules, 20, 0), 1);
        rules.follow_step(by);
        assert_eq!((see(&mut rules, 30, by), see(&mut rules, 31, by)), (1, 2), "the breaker");
        assert_eq!((see(&mut rules, 59, by), see(&mut rules, 60, by)), (2, 3), "the store");
        rules.follow_step(-by);
        let found = rules.second(&second(NOW + 61));
        assert_eq!(found.len(), 3, "calm for a second: {found:?}");
        assert!(found.iter().all(|one| one.since == NOW), "{found:?}");
    }
}

/// The scenario: a tenant of long standing grows tenfold, somebody guesses passwords, and a bank fails for 50 seconds.
#[test]
fn the_scenario_tells_of_the_tenant_and_the_bank_and_not_of_the_login() {
    let mut rules = Rules::default();
    // Login: refused all day, as usual.
    let before = |policy: u16, _: u64| match policy {
        1 => Before { passed: 80_000.0, refused: 0.0 },
        _ => Before { passed: 3.0, refused: 900.0 },
    };
    let (mut all, mut last) = (Vec::new(), 0);
    for at in 0..330_u64 {
        let now = NOW + at;
        if at.is_multiple_of(60) && at > 0 {
            let minute = at / 60;
            // From the 20th second to the 200th.
            let refused = [1_000.0, 1_440.0, 1_440.0, 480.0].get(minute as usize - 1).copied().unwrap_or(0.0);
            let keys = [
                busy_key("per-tenant", 1, 120.0, refused),
                Key { policy: 2, ..busy_key("login", 9, 0.0, 30.0) },
                Key { policy: 1, ..busy_key("per-tenant", 5, 500.0, 0.0) },
            ];
            rules.minute(now - 60, &keys, &before);
        }
        let breakers = match at {
            65..70 => vec![open("bank", NOW + 65, false)],
            70..72 => vec![open("bank", NOW + 70, true)],
            72..82 => vec![open("bank", NOW + 72, false)],
            82..84 => vec![open("bank", NOW + 82, true)],
            84..104 => vec![open("bank", NOW + 84, false)],
            104..142 => vec![open("bank", NOW + 104, at < 106)],
            _ => Vec::new(),
        };
        let found = rules.second(&Second { breakers, ..second(now) });
        last = found.len();
        for one in found {
            let of = (one.rule, one.policy.clone(), one.key.clone());
            if !all.iter().any(|(known, _)| *known == of) {
                all.push((of, at));
            }
        }
    }
    let told: Vec<_> = all.iter().map(|((rule, policy, _), at)| (rule.word(), &**policy, *at)).collect();
    assert_eq!(told, [("breaker-trips", "bank", 84), ("customer-cut", "per-tenant", 120)]);
    assert_eq!(last, 2, "of the openings, three are of the last five minutes");
}

#[test]
fn a_breaker_is_told_of_when_it_is_open_for_long_or_opens_often() {
    let mut rules = Rules::default();
    let at = |rules: &mut Rules, now: u64, since: u64| {
        rules.second(&Second { breakers: vec![open("bank", since, false)], ..second(now) })
    };
    assert!(at(&mut rules, NOW, 5).is_empty());
    assert!(at(&mut rules, NOW + 30, 5).is_empty());
    let found = at(&mut rules, NOW + 31, 5);
    assert_eq!(told(&found), [("breaker-trips", "bank", "")]);
    assert_eq!(found[0].text, "the breaker of `bank` is not closed for 30 s: 19 of 38 calls failed");
    assert!(!rules.second(&second(NOW + 90)).is_empty(), "it has just closed");
    assert!(rules.second(&second(NOW + 91)).is_empty());

    let mut rules = Rules::default();
    for (number, since) in [10, 20, 30].into_iter().enumerate() {
        let found = at(&mut rules, NOW + since, since);
        assert_eq!(found.len(), usize::from(number == 2), "{since}");
        assert_eq!(rules.second(&second(NOW + since + 1)).len(), usize::from(number == 2));
    }
    assert_eq!(rules.second(&second(NOW + 309)).len(), 1);
    assert!(rules.second(&second(NOW + 400)).is_empty());
    assert!(rules.breakers.is_empty());
}

#[test]
fn two_breakers_of_a_key_do_not_open_without_end() {
    let mut rules = Rules::default();
    for at in 0..30 {
        let breakers = vec![open("bank", 5, false), open("bank", 7, false)];
        assert!(rules.second(&Second { breakers, ..second(NOW + at) }).is_empty(), "{at}");
    }
}

#[test]
fn a_key_is_near_its_rate_after_five_minutes() {
    let mut rules = Rules::default();
    let mut minute = |passed: f64| {
        rules.minute(NOW, &[Key { rate: Some(2.0), ..busy_key("per-tenant", 7, passed, 0.0) }], &never);
        rules.second(&second(NOW)).len()
    };
    assert_eq!([95.0; 5].map(&mut minute), [0; 5], "79 %");
    assert_eq!([96.0; 5].map(&mut minute), [0, 0, 0, 0, 1]);
    assert_eq!([10.0; 5].map(&mut minute), [1, 1, 1, 1, 0]);
    assert_eq!([96.0, 96.0, 10.0, 96.0, 96.0, 96.0].map(&mut minute), [0; 6], "not in a row");
}

/// A job that comes near its rate each night was a message each night.
#[test]
fn a_key_that_is_near_its_rate_again_and_again_is_told_of_once() {
    let day = |rules: &mut Rules, day: u64| {
        let key = [Key { rate: Some(2.0), ..busy_key("nightly", 7, 110.0, 0.0) }];
        let minutes = (0..20).map(|minute| {
            let from = NOW + day * DAY + minute * 60;
            rules.minute(from, if minute < 10 { &key } else { &[] }, &never);
            rules.second(&second(from + 60)).len()
        });
        minutes.max()
    };
    let mut rules = Rules::default();
    assert_eq!([0, 1, 2, 9, 10, 19].map(|number| day(&mut rules, number)), [1, 0, 0, 0, 0, 1].map(Some));
    let shown = "#0000000000000007";
    for (over, told) in [(Some(NOW - 7 * DAY), 0), (Some(NOW - 8 * DAY), 1), (None, 1)] {
        let mut rules = Rules::default();
        rules.knew_near("nightly", shown, over, NOW);
        assert_eq!(day(&mut rules, 0), Some(told), "after a restart: {over:?}");
    }
}

/// Regression: five requests in five minutes, of a thousand a day, were 144 % of the rate.
#[test]
fn a_request_a_minute_is_not_near_a_rate_of_days() {
    let mut rules = Rules::default();
    let day = Key { rate: Some(1_000.0 / DAY as f64), ..busy_key("per-tenant", 7, 1.0, 0.0) };
    for _ in 0..20 {
        rules.minute(NOW, std::slice::from_ref(&day), &never);
        assert!(rules.second(&second(NOW)).is_empty());
    }
}

#[test]
fn what_the_server_says_is_told_after_a_minute_and_ends_after_another() {
    let mut rules = Rules::default();
    let mut see = |at: u64, away: Option<&'static str>, refused: Option<&'static str>, dropped: u64| {
        let found = rules.second(&Second { store_away: away, refused, dropped, ..second(NOW + at) });
        found.into_iter().map(|one| one.text).collect::<Vec<_>>()
    };
    assert!(see(0, Some("a\u{1b}b"), None, 0).is_empty());
    assert!(see(59, Some("a"), None, 0).is_empty());
    assert_eq!(see(60, Some("a\u{1b}b"), None, 0), ["the store (disk) cannot be asked: a\\u{1b}b"]);
    assert_eq!(see(61, None, Some("line 3"), 0).len(), 1);
    let refused = "the newest configuration is refused, the one before stays in force: line 3";
    assert_eq!(see(121, None, Some("line 3"), 0), [refused]);
    assert!(see(181, None, None, 0).is_empty());
    assert_eq!(see(182, None, None, 5).len(), 1);
    assert_eq!(see(400, None, None, 0).len(), 1);
    assert!(see(482, None, None, 0).is_empty());
}

#[test]
fn refusals_are_unusual_for_two_minutes_and_a_moment_of_calm_is_no_end() {
    let mut rules = Rules::default();
    let mut see = |at: u64, since: Option<u64>| {
        let one =
            |since: u64| UnusualPolicy { name: "a/b".into(), since: NOW + since, share: 0.19, usual: 0.006 };
        let unusual = since.map(one).into_iter().collect();
        rules.second(&Second { unusual, ..second(NOW + at) })
    };
    assert!(see(119, Some(0)).is_empty());
    let found = see(120, Some(0));
    assert_eq!(found[0].text, "`a/b` refuses 19.0 % of its requests; usual is up to 0.6 %");
    assert_eq!((found[0].path.as_str(), found[0].since), ("/ui/policies/a%2Fb", NOW));
    assert_eq!(see(130, None), found);
    assert_eq!(see(140, Some(140)), found, "it goes on");
    assert_eq!(see(259, None), found);
    assert!(see(261, None).is_empty());
    assert!(see(300, Some(290)).is_empty(), "a new one");
}

#[test]
fn a_canary_is_told_of_as_long_as_it_is_rolled_back() {
    let mut rules = Rules::default();
    let canary =
        RolledBack { policy: "a/b".to_owned(), since: NOW - 5, why: "31 keys refused > 20".to_owned() };
    let found = rules.second(&Second { rolled_back: vec![canary], ..second(NOW) });
    assert_eq!(told(&found), [("canary-rolled-back", "a/b", "")]);
    assert_eq!(found[0].text, "the canary of `a/b` is rolled back: 31 keys refused > 20");
    assert_eq!((found[0].path.as_str(), found[0].since), ("/ui/policies/a%2Fb", NOW - 5));
    assert!(rules.second(&second(NOW + 1)).is_empty());
}

#[test]
fn callers_cannot_make_rules_follow_any_number_of_keys() {
    let mut rules = Rules::default();
    let often = |_: u16, _: u64| Before { passed: 5_000.0, refused: 0.0 };
    let keys: Vec<Key> =
        (0..3_000).map(|one| Key { rate: Some(1.0), ..busy_key("p", one, 60.0, 100.0) }).collect();
    (0..5).for_each(|minute| rules.minute(NOW + minute * 60, &keys, &often));
    assert_eq!(rules.second(&second(NOW)).len(), 2 * FOLLOWED);
}
