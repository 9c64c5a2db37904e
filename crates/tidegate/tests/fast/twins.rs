//! The same calls on a limiter with its fast path and on one without: every answer is the same.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::{Clock, ManualClock};
use tidegate::limiter::{Finish, Precision, Replace, Reservation};
use tidegate::observer::{Event, Observer};
use tidegate::store::{Charge, ChargeRules, Ending, Op, PlainStore, Step, Store};
use tidegate::{KeyedLimiter, Limiter, Outcome, Quota, Tick};

use super::{Random, cost, steps};

/// An observer that does nothing. With an observer, a limiter never takes the fast path.
#[derive(Debug)]
struct Blind;

impl Observer for Blind {
    fn on_decision(&self, _: &Event) {}
}

fn quotas() -> Vec<Quota> {
    let gcra = [
        Quota::per_second(10).burst(5),
        Quota::per_second(7).burst(3),
        Quota::per_second(999_983).burst(1000),
        Quota::per_second(999_999_937).burst(50),
        Quota::per_day(3).burst(2),
        Quota::per_minute(1000).burst(1),
    ];
    gcra.into_iter()
        .map(|quota| quota.gcra().unwrap())
        .chain([Quota::per_second(5).fixed_window().unwrap()])
        .collect()
}

/// Returns a pause, usually the time of a few units, and rarely hours, years or half a century.
fn pause(random: &mut Random) -> Duration {
    if random.below(1500) == 0 {
        return Duration::from_secs(50 * 365 * 86_400);
    }
    match random.below(200) {
        0 => Duration::from_secs(random.below(40 * 86_400)),
        1..8 => Duration::from_secs(random.below(9000)),
        8..60 => Duration::from_nanos(random.below(400_000_000)),
        60..110 => Duration::from_nanos(random.below(4000)),
        _ => Duration::ZERO,
    }
}

#[test]
fn a_word_answers_as_the_long_way_does_call_by_call() {
    let quotas = quotas();
    for (seed, mode) in (0..12).zip([Precision::Shared, Precision::Exact].into_iter().cycle()) {
        let mut random = Random::seeded(seed);
        let clock = ManualClock::at(Tick::from_secs(1_700_000_000));
        let first = &quotas[seed as usize % quotas.len()];
        let short = Limiter::new(first.clone()).unwrap().with_clock(clock.clone()).with_precision(mode);
        let long = short.clone().with_observer(Blind);
        let mut held: Vec<(Reservation, Reservation)> = Vec::new();
        for step in 0..steps(4000) {
            clock.advance(pause(&mut random));
            // Stops well before the last tick, which is 584 years after 1970.
            if clock.now() > Tick::from_secs(12_000_000_000) {
                break;
            }
            let told = format!("seed {seed}, step {step}");
            let ask = cost(1 + random.below(4));
            match random.below(20) {
                0..9 => assert_eq!(short.allow_n(ask).unwrap(), long.allow_n(ask).unwrap(), "{told}"),
                9..11 => assert_eq!(short.peek_n(ask).unwrap(), long.peek_n(ask).unwrap(), "{told}"),
                11..15 => {
                    let wait =
                        [Duration::ZERO, Duration::from_millis(400), Duration::MAX][random.below(3) as usize];
                    match (short.reserve(ask, wait), long.reserve(ask, wait)) {
                        (Ok(ours), Ok(theirs)) => {
                            assert_eq!(
                                (ours.act(), ours.answer()),
                                (theirs.act(), theirs.answer()),
                                "{told}"
                            );
                            held.push((ours, theirs));
                        }
                        (Err(ours), Err(theirs)) => assert_eq!(ours, theirs, "{told}"),
                        (ours, theirs) => panic!("{told}: {ours:?} against {theirs:?}"),
                    }
                }
                15..18 if !held.is_empty() => {
                    let (ours, theirs) = held.swap_remove(random.below(held.len() as u64) as usize);
                    let used = used(&mut random);
                    ours.settle(used);
                    theirs.settle(used);
                }
                18 if random.below(6) == 0 => {
                    let how =
                        [Replace::AsIs, Replace::Proportional, Replace::Reset][random.below(3) as usize];
                    let quota = &quotas[random.below(quotas.len() as u64) as usize];
                    short.change(quota.clone(), how).unwrap();
                    long.change(quota.clone(), how).unwrap();
                }
                _ => assert_eq!(short.allow().decision(), long.allow().decision(), "{told}"),
            }
            assert_eq!(short.standing(), long.standing(), "{told}");
        }
    }
}

/// Returns how much of a charge was used: in half of the cases nothing, otherwise a part, all, or more.
fn used(random: &mut Random) -> u64 {
    if random.below(2) == 0 { 0 } else { random.below(7) }
}

/// Keys in the words of the table against cells in a map, while the limit changes.
#[test]
fn keys_answer_as_the_plain_store_does_call_by_call() {
    let quotas = quotas();
    for (seed, mode) in (0..12).zip([Precision::Shared, Precision::Exact].into_iter().cycle()) {
        let mut random = Random::seeded(100 + seed);
        let clock = ManualClock::at(Tick::from_secs(1_700_000_000));
        let mut quota = Arc::new(quotas[seed as usize % quotas.len()].clone());
        let mut replace = Replace::AsIs;
        let keys =
            KeyedLimiter::new((*quota).clone(), 1000).unwrap().with_clock(clock.clone()).with_precision(mode);
        let keys = if seed % 4 < 2 { keys } else { keys.with_full_keys() };
        let plain = PlainStore::default();
        let mut held: Vec<(Reservation, tidegate::limiter::Receipt, u64, u64)> = Vec::new();
        let mut terms = 0;
        for step in 0..steps(4000) {
            clock.advance(pause(&mut random));
            if clock.now() > Tick::from_secs(12_000_000_000) {
                break;
            }
            let told = format!("seed {seed}, step {step}");
            let (key, units) = (random.below(7), 1 + random.below(4));
            let name = key.to_le_bytes();
            let execute = |op: Op<'_>, units, max_wait, key: &[u8]| {
                let rules = ChargeRules { replace, ..ChargeRules::new(0) };
                let charge = Charge { max_wait, rules, ..Charge::new(key, &quota, cost(units)) };
                plain.blocking_execute(&Step::new(clock.now(), op, &[charge])).unwrap().lines[0]
            };
            match random.below(20) {
                0..9 => {
                    let theirs = execute(Op::Take, units, Duration::ZERO, &name);
                    assert_eq!(
                        keys.allow_n(name, cost(units)).unwrap().decision(),
                        theirs.decision,
                        "{told}"
                    );
                }
                9 => {
                    let theirs = execute(Op::Peek, units, Duration::ZERO, &name);
                    assert_eq!(keys.peek_n(name, cost(units)).unwrap().decision(), theirs.decision, "{told}");
                }
                10..12 => {
                    let names: Vec<_> = (0..20).map(|_| random.below(7).to_le_bytes()).collect();
                    keys.allow_each(&names, |name, ours| {
                        let theirs = execute(Op::Take, 1, Duration::ZERO, name);
                        assert_eq!(ours.decision(), theirs.decision, "{told}");
                    });
                }
                12..15 => {
                    let wait =
                        [Duration::ZERO, Duration::from_millis(400), Duration::MAX][random.below(3) as usize];
                    let theirs = execute(Op::Take, units, wait, &name);
                    match keys.reserve(name, cost(units), wait) {
                        Ok(ours) => {
                            let receipt = theirs.receipt.unwrap();
                            assert_eq!(
                                (ours.act(), ours.answer().decision()),
                                (receipt.act, theirs.decision),
                                "{told}"
                            );
                            held.push((ours, receipt, key, terms));
                        }
                        Err(ours) => assert_eq!(ours.answer().unwrap().decision(), theirs.decision, "{told}"),
                    }
                }
                15..18 if !held.is_empty() => {
                    let (ours, receipt, key, made) =
                        held.swap_remove(random.below(held.len() as u64) as usize);
                    let used = used(&mut random);
                    ours.settle(used);
                    if made == terms || used > receipt.cost.units() {
                        let ending = [Ending::new(receipt, Finish { used, outcome: Outcome::Ignored })];
                        execute(
                            Op::Finish(&ending),
                            receipt.cost.units(),
                            Duration::ZERO,
                            &key.to_le_bytes(),
                        );
                    }
                }
                18 if random.below(6) == 0 => {
                    replace =
                        [Replace::AsIs, Replace::Proportional, Replace::Reset][random.below(3) as usize];
                    quota = Arc::new(quotas[random.below(quotas.len() as u64) as usize].clone());
                    terms += 1;
                    keys.change((*quota).clone(), replace).unwrap();
                    continue;
                }
                _ => {
                    execute(Op::Reset, 1, Duration::ZERO, &name);
                    keys.reset(name);
                }
            }
            let theirs = execute(Op::Peek, 1, Duration::ZERO, &name).decision.standing;
            assert_eq!(keys.standing(name), theirs, "{told}");
        }
    }
}

/// Word forms for odd rates last for an hour or a little more. The clock moves in steps of minutes over many of them,
/// and sometimes by half a century; the answers do not show where a new form begins.
#[test]
fn the_end_of_a_form_and_the_next_one_do_not_show() {
    for quota in [
        Quota::per_second(999_983).burst(2_000_000),
        Quota::per_second(7).burst(9),
        Quota::per_day(1).burst(3),
    ] {
        let quota = Arc::new(quota.gcra().unwrap());
        let clock = ManualClock::at(Tick::from_secs(1_700_000_000));
        let limiter = Limiter::new((*quota).clone()).unwrap().with_clock(clock.clone());
        let keys = KeyedLimiter::new((*quota).clone(), 100).unwrap().with_clock(clock.clone());
        let plain = PlainStore::default();
        let mut random = Random::seeded(5);
        for step in 0..steps(6000) {
            match random.below(1000) {
                // Six such steps fit between 2023 and the last tick.
                0 if step < steps(6000) / 2 && clock.now() < Tick::from_secs(9_000_000_000) => {
                    clock.advance(Duration::from_secs(50 * 365 * 86_400));
                }
                1..400 => clock.advance(Duration::from_millis(random.below(600_000))),
                _ => {}
            }
            let most = [3, 1_500_000][random.below(2) as usize];
            let units = cost(1 + random.below(most));
            let charges = [Charge::new(b"key", &quota, units)];
            let step = Step::new(clock.now(), Op::Take, &charges);
            let decision = plain.blocking_execute(&step).unwrap().lines[0].decision;
            assert_eq!(limiter.allow_n(units).unwrap().decision(), decision, "{step:?}");
            assert_eq!(keys.allow_n("key", units).unwrap().decision(), decision, "{step:?}");
        }
    }
}
