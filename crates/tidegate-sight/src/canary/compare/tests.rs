//! Canaries on made-up traffic: 50 requests a second by day, keys that ask as often as Zipf's law says, and a policy that
//! refuses a tenth of them, nearly all of a few keys.
//!
//! `TIDEGATE_CANARIES=long` tries as many canaries as the promise is about: it takes some minutes.

use std::f64::consts::TAU;
use std::sync::OnceLock;

use tidegate_core::{Quota, Tick};

use super::super::Running;
use super::super::tests::canary;
use super::*;
use crate::board::mixed;

const KEYS: usize = 2_000;
const A_SECOND: f64 = 50.0;

/// The policy decides for a minute before the canary begins.
const BEFORE: u64 = 60;

const HOUR: u64 = 3_600;

fn is_long() -> bool {
    std::env::var("TIDEGATE_CANARIES").is_ok_and(|form| form == "long")
}

/// A reproducible stream of numbers.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        (mixed(self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A key: the first asks twice as often as the second, three times as often as the third.
    fn key(&mut self) -> usize {
        static UP_TO: OnceLock<Vec<f64>> = OnceLock::new();
        let up_to = UP_TO.get_or_init(|| {
            let mut sum = 0.0;
            (1..=KEYS)
                .map(|rank| {
                    sum += 1.0 / rank as f64;
                    sum
                })
                .collect()
        });
        let at = self.unit() * up_to[KEYS - 1];
        up_to.partition_point(|sum| *sum < at).min(KEYS - 1)
    }
}

/// What a canary does to its keys.
#[derive(Clone, Debug)]
enum Harm {
    None,
    /// Refuses this share of the requests that its policy would let pass.
    More(f64),
    /// Has another limit.
    Limit(Quota),
    /// Lets this share of the calls fail, beside the fiftieth that fails anyway.
    Failures(f64),
}

#[derive(Clone, Debug)]
struct Trial {
    share: f64,
    harm: Harm,
    /// Whether the policy's own limit is followed.
    follows: bool,
    seconds: u64,
    seed: u64,
}

#[derive(Debug)]
struct Stopped {
    /// How long twenty of its keys had been refused by then.
    since_twenty: Option<u64>,
    why: String,
}

/// Runs a canary. `None`: it was not stopped.
fn run(trial: &Trial) -> Option<Stopped> {
    let mut random = Random(mixed(trial.seed));
    let limit = || OldLimit::new(Quota::per_second(2).burst(10).gcra().unwrap());
    let (own, others) = match &trial.harm {
        Harm::Limit(quota) => (OldLimit::new(quota.clone()), limit()),
        _ => (limit(), limit()),
    };
    let judged = Canary { share: trial.share, in_force: trial.share, ..canary("per-ip") };
    let mut running: Option<Running> = None;
    let mut states: Vec<Option<State>> = vec![None; KEYS];
    let mut refused = vec![false; KEYS];
    let (mut keys_refused, mut twenty) = (0, None);
    let begin = 1_800_000_000 + (random.unit() * 24.0) as u64 * HOUR;
    let (mut second, mut at) = (begin, 0.0);
    loop {
        let busy = 1.0 + 0.5 * ((begin as f64 + at) / 86_400.0 * TAU).sin();
        at -= (1.0 - random.unit()).ln() / (A_SECOND * busy);
        while second - begin < at as u64 {
            second += 1;
            if second - begin == BEFORE {
                running = Some(Running::new(&judged, trial.follows.then(limit), second));
            }
            if let Some(why) = running.as_mut().and_then(|running| running.judge(second)) {
                let since_twenty = twenty.map(|since: u64| second - since);
                return Some(Stopped { since_twenty, why });
            }
            if second - begin > BEFORE + trial.seconds {
                return None;
            }
        }
        let place = random.key();
        let key = mixed(trial.seed ^ ((place as u64 + 1) << 32));
        let chosen = (mixed(key ^ 0x5eed) >> 11) as f64 / (1_u64 << 53) as f64;
        let is_canary = running.is_some() && chosen < trial.share;
        let now = Tick::from_nanos(begin * 1_000_000_000 + (at * 1e9) as u64);
        let more = match trial.harm {
            Harm::More(share) => is_canary && random.unit() < share,
            _ => false,
        };
        let limit = if is_canary { &own } else { &others };
        // What is refused spends nothing.
        let is_denied = more || limit.refuses(&mut states[place], now, Cost::ONE);
        if is_canary && is_denied && !refused[place] {
            refused[place] = true;
            keys_refused += 1;
            if keys_refused == 20 {
                twenty = Some(second);
            }
        }
        let Some(running) = &mut running else { continue };
        let verdict = if is_denied { Verdict::Denied } else { Verdict::Allowed };
        let seen = Seen { policy: 1, verdict, near: false, canary: is_canary, key, cost: 1, at: now };
        running.compared.note(&seen);
        if let (Harm::Failures(share), false) = (&trial.harm, is_denied) {
            let share = if is_canary { 0.02 + share } else { 0.02 };
            let failed = random.unit() < share;
            running.compared.end(Ended { policy: 1, key, canary: is_canary, failed });
        }
    }
}

/// Runs as many canaries, half of them with 5 % of the keys and half with 10 %. Returns those that were stopped.
fn run_all(canaries: u64, harm: &Harm, follows: bool, seconds: u64) -> Vec<Stopped> {
    let trial = |seed: u64| {
        let share = if seed.is_multiple_of(2) { 0.05 } else { 0.1 };
        Trial { share, harm: harm.clone(), follows, seconds, seed }
    };
    (0..canaries).filter_map(|seed| run(&trial(seed))).collect()
}

#[test]
fn a_canary_that_changes_nothing_is_not_rolled_back() {
    let canaries = if is_long() { 1_000 } else { 4 };
    for follows in [true, false] {
        let stopped = run_all(canaries, &Harm::None, follows, 2 * HOUR);
        assert!(stopped.len() as u64 * 100 <= canaries, "{follows}: {stopped:?}");
    }
}

#[test]
fn a_canary_that_refuses_three_points_more_is_rolled_back_within_ten_minutes() {
    let canaries = if is_long() { 500 } else { 40 };
    let stopped = run_all(canaries, &Harm::More(0.03), true, 600);
    assert!(stopped.len() as u64 * 100 >= canaries * 95, "{} of {canaries}", stopped.len());
}

#[test]
fn a_limit_that_refuses_most_keys_is_rolled_back_within_half_a_minute() {
    let bad = Harm::Limit(Quota::per_hour(1).burst(1).gcra().unwrap());
    for follows in [true, false] {
        let canaries = if is_long() { 200 } else { 10 };
        let stopped = run_all(canaries, &bad, follows, 600);
        assert_eq!(stopped.len() as u64, canaries, "{follows}");
        for one in &stopped {
            assert!(one.since_twenty.is_none_or(|since| since <= 30), "{follows}: {one:?}");
        }
    }
}

#[test]
fn a_canary_whose_calls_fail_is_rolled_back_and_one_whose_calls_fail_as_often_is_not() {
    let canaries = if is_long() { 100 } else { 4 };
    let stopped = run_all(canaries, &Harm::Failures(0.1), true, HOUR);
    assert!(stopped.len() as u64 * 100 >= canaries * 95, "{} of {canaries}", stopped.len());
    assert!(stopped.iter().all(|one| one.why.contains("more of its calls failed > 2.0 %")), "{stopped:?}");
    let as_often = run_all(canaries, &Harm::Failures(0.0), true, HOUR);
    assert!(as_often.len() as u64 * 100 <= canaries, "{as_often:?}");
}

fn seen(key: u64, canary: bool, denied: bool, at: u64) -> Seen {
    let verdict = if denied { Verdict::Denied } else { Verdict::Allowed };
    Seen { policy: 1, verdict, near: false, canary, key, cost: 1, at: Tick::from_nanos(at * 1_000_000) }
}

/// Returns a comparison of 40 other keys and of 10 of the canary, with ten requests each; all pass.
fn compared() -> Comparison {
    let old = OldLimit::new(Quota::per_second(100).burst(1_000).gcra().unwrap());
    let mut compared = Comparison::new(Some(old), 0.2);
    compared.count();
    for at in 0..10 {
        (0..50).for_each(|key| compared.note(&seen(key, key < 10, false, at * 1_000)));
    }
    compared
}

#[test]
fn one_key_decides_nothing_and_several_do() {
    let allowed = canary("per-ip");
    let mut compared = compared();
    (0..500).for_each(|at| compared.note(&seen(3, true, true, 10_000 + at)));
    assert_eq!(compared.breach(&allowed, true), None);
    assert_eq!(compared.figures(&allowed).keys_refused, 1);
    for key in 4..7 {
        (0..20).for_each(|at| compared.note(&seen(key, true, true, 11_000 + at)));
    }
    let why = compared.breach(&allowed, false).unwrap();
    assert!(why.contains("more of its requests refused > 1.0 %"), "{why}");
}

#[test]
fn keys_that_the_policy_itself_would_refuse_are_not_counted() {
    let allowed = Canary { keys_refused: 0, ..canary("per-ip") };
    let old = || Some(OldLimit::new(Quota::per_second(1).burst(2).gcra().unwrap()));
    let mut both = Comparison::new(old(), 0.2);
    both.count();
    // Each key asks four times at once, of which its policy refuses two.
    for key in 0..50 {
        (0..4).for_each(|number| both.note(&seen(key, key < 10, number >= 2, 1_000)));
    }
    assert_eq!((both.breach(&allowed, true), both.figures(&allowed).keys_refused), (None, 0));
    let figures = both.figures(&allowed);
    assert_eq!((figures.denied, figures.requests, figures.keys), (Some([0.5, 0.5]), [40, 160], [10, 40]));
    // One of the canary is refused a third time.
    both.note(&seen(3, true, false, 60_000));
    both.note(&seen(3, true, true, 60_000));
    assert_eq!(both.breach(&allowed, false).as_deref(), Some("1 key refused > 0"));
    // Without the arithmetic, other keys show that this is nothing.
    let mut alone = Comparison::new(None, 0.2);
    alone.count();
    for key in 0..50 {
        (0..4).for_each(|number| alone.note(&seen(key, key < 10, number >= 2, 1_000)));
    }
    assert_eq!((alone.breach(&allowed, true), alone.figures(&allowed).keys_refused), (None, 0));
}

#[test]
fn what_only_others_refuse_and_what_is_not_decided_by_the_limit_is_left_out() {
    let allowed = canary("per-ip");
    let mut compared = compared();
    let before = compared.figures(&allowed);
    for verdict in [Verdict::Error, Verdict::WouldDeny, Verdict::WouldAllow] {
        compared.note(&Seen { verdict, ..seen(3, true, false, 20_000) });
    }
    compared.note(&Seen { cost: 0, ..seen(3, true, true, 20_000) });
    compared.end(Ended { policy: 1, key: 999, canary: true, failed: true });
    assert_eq!(compared.figures(&allowed), before);
}

#[test]
fn another_share_begins_anew_and_keeps_what_keys_have_spent() {
    let allowed = Canary { keys_refused: 0, ..canary("per-ip") };
    let old = OldLimit::new(Quota::per_hour(2).burst(2).gcra().unwrap());
    let mut compared = Comparison::new(Some(old), 0.2);
    compared.count();
    for key in 0..50 {
        (0..3).for_each(|number| compared.note(&seen(key, key < 10, number >= 2, 1_000)));
    }
    compared.restart(0.5);
    compared.note(&seen(3, true, true, 2_000));
    assert_eq!(compared.figures(&allowed).requests, [0, 0], "nothing counts yet");
    compared.count();
    // Half of the keys are in the canary now.
    for key in 0..50 {
        (0..4).for_each(|_| compared.note(&seen(key, key < 25, true, 3_000)));
    }
    let figures = compared.figures(&allowed);
    assert_eq!((figures.requests, figures.keys, figures.keys_refused), ([100, 100], [25, 25], 0));
    assert_eq!(compared.breach(&allowed, true), None);
}

#[test]
fn keys_beyond_the_bound_are_left_out_whole_and_that_is_told() {
    let mut compared = Comparison::new(None, 0.1);
    compared.count();
    for key in 0..60_000_u64 {
        compared.note(&seen(key, key.is_multiple_of(10), false, key));
        assert!(compared.keys.len() <= 2 * MOST_KEYS);
    }
    let figures = compared.figures(&canary("per-ip"));
    assert_eq!(figures.share_of_keys, [0.25, 0.03125]);
    let all = figures.keys.iter().zip(figures.share_of_keys).map(|(keys, share)| *keys as f64 / share);
    let all: Vec<f64> = all.collect();
    assert!((all[0] / 6_000.0 - 1.0).abs() < 0.1 && (all[1] / 54_000.0 - 1.0).abs() < 0.1, "{all:?}");
    let odds = compared.odds();
    let kept = figures.keys[0] as f64 / (figures.keys[0] + figures.keys[1]) as f64;
    assert!((odds - kept).abs() < 0.05, "{odds} {kept}");
}

#[test]
fn no_key_weighs_more_than_its_part() {
    let mut counts: Vec<u32> = (1..=2_000).map(|rank| 40_000 / rank).collect();
    let cap = cap(&mut counts, 0.05);
    let sum: f64 = counts.iter().map(|count| f64::from(*count).min(cap)).sum();
    assert!((cap - MOST_OF_A_KEY * 0.05 * sum).abs() < 1e-6 * cap, "{cap} of {sum}");
    assert_eq!(super::cap(&mut [1, 1, 1, 1], 0.5), 4.0 * 0.5, "four keys, of which two are the canary's");
    assert_eq!((super::cap(&mut [], 0.5), super::cap(&mut [7], 0.5)), (1.0, 1.0));
}

#[test]
fn evidence_is_the_logarithm_of_the_odds_of_each_key() {
    let chosen = |count: usize| vec![(1.0, true); count];
    for count in [1, 4, 20] {
        let nats = evidence(&chosen(count), 0.05);
        assert!((nats - count as f64 * 20.0_f64.ln()).abs() < 0.01, "{count}: {nats}");
    }
    // One that weighs a thousand times as much says no more than one.
    let heavy = [vec![(1_000.0, true)], vec![(-1.0, true); 50], vec![(-1.0, false); 950]].concat();
    assert!(evidence(&heavy, 0.05) <= 20.0_f64.ln() + 0.01);
    // As many as are expected.
    let even = [vec![(1.0, true); 5], vec![(1.0, false); 95]].concat();
    assert!(evidence(&even, 0.05) < 0.1);
    assert_eq!([&[][..], &[(0.0, true)], &[(-1.0, true)]].map(|none| evidence(none, 0.05)), [0.0; 3]);
}
