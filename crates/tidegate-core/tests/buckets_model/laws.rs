//! Laws that hold without a model: the bound over any span, what giving back may do, and arbitrary bytes.

use core::time::Duration;

use tidegate_core::rate::{
    Bandwidth, ColdFactor, Gcra, LeakyBucket, LeakyQueue, Refill, TokenBucket, WarmUp,
};
use tidegate_core::rate::{GuavaBursty, GuavaWarming, UberPacer, XTime};
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Receipt, Replace, State, Tick, Transition};

use crate::buckets_model::steps;
use crate::random::Random;

/// One quota of each exact algorithm, all with one rate and burst.
fn exact(rate: Rate, burst: u64) -> Vec<Quota> {
    let bandwidth = Bandwidth::new(rate, burst).unwrap();
    vec![
        Gcra::new(rate, burst).unwrap().into(),
        TokenBucket::new(bandwidth).into(),
        TokenBucket::several([bandwidth, bandwidth]).unwrap().into(),
        LeakyBucket::new(rate, burst).unwrap().into(),
        LeakyQueue::new(rate, burst - 1, 1 << 40).unwrap().into(),
        WarmUp::new(rate, Duration::from_secs(10), ColdFactor::THREE).unwrap().burst(burst).unwrap().into(),
        TokenBucket::new(bandwidth.refill(Refill::Interval)).into(),
        TokenBucket::new(bandwidth.refill(Refill::Aligned)).into(),
    ]
}

/// One quota of each algorithm with random numbers, including the profiles.
fn any(random: &mut Random) -> Vec<Quota> {
    let (rate, burst) = (random.rate(), random.one_to(Rate::MAX_COUNT));
    let mut quotas = exact(rate, burst);
    let initial = random.up_to(burst);
    quotas.push(TokenBucket::new(Bandwidth::new(rate, burst).unwrap().initial(initial).unwrap()).into());
    let float = random.pick(&[f64::MIN_POSITIVE, 1e-9, 0.3, 1e9, f64::MAX, f64::INFINITY]);
    quotas.push(XTime::new(float, burst).unwrap().into());
    quotas.push(XTime::new(0.0, burst).unwrap().into());
    quotas.extend(UberPacer::new(rate, random.up_to(1000) as u32).ok().map(Quota::from));
    let float = float.min(f64::MAX);
    quotas.push(GuavaBursty::new(float, 1.0).unwrap().into());
    let warm_up = Duration::from_nanos(random.any());
    quotas.push(GuavaWarming::new(float, warm_up, random.pick(&[1.5, 3.0, 50.0])).unwrap().into());
    quotas
}

/// Between any two grants, both included, no more acts than a burst plus what the rate gives in between.
///
/// A reservation counts when it acts. A refill at once may give its count at both ends of the span.
#[test]
fn no_span_admits_more_than_burst_and_rate() {
    let mut random = Random::new(11);
    for _ in 0..steps(40_000) / 200 {
        let (rate, burst) = (random.rate(), random.one_to(1000));
        for quota in exact(rate, burst) {
            let (mut clock, mut acts) = (1u64 << 61, Vec::<(u128, u64)>::new());
            let mut state = quota.fresh(Tick::from_nanos(clock));
            for _ in 0..30 {
                clock = clock.saturating_add(random.pause(rate, burst).min(1 << 55));
                let cost = Cost::new(random.one_to(burst)).unwrap();
                let interval = u128::from(rate.period_nanos() / rate.count()) as u64;
                let max_wait = random.pick(&[0, 0, interval.saturating_mul(burst)]).min(1 << 55);
                let ask = Ask::within(Tick::from_nanos(clock), cost, Duration::from_nanos(max_wait));
                if let Transition::Allowed { wait, next, .. } = quota.decide(&state, ask) {
                    state = next;
                    let act = u128::from(clock) + wait.as_nanos();
                    assert!(
                        acts.last().is_none_or(|last| last.0 <= act),
                        "first come, first served: {quota:?}"
                    );
                    acts.push((act, cost.units()));
                }
            }
            for (first, start) in acts.iter().enumerate() {
                let mut admitted = 0u128;
                for (end, cost) in &acts[first..] {
                    admitted += u128::from(*cost);
                    // Waits are rounded up to the nanosecond, so the first of a span may act one late.
                    let span = end - start.0 + 1;
                    let periods = match &quota {
                        Quota::TokenBucket(limit)
                            if limit.bandwidths()[0] != Bandwidth::new(rate, burst).unwrap() =>
                        {
                            (span / u128::from(rate.period_nanos()) + 1) * u128::from(rate.period_nanos())
                        }
                        _ => span,
                    };
                    let (brought, rest) = wide(periods, rate);
                    let bound = u128::from(burst) + brought + u128::from(rest);
                    assert!(admitted <= bound, "{admitted} above {bound} in {span} ns: {quota:?}");
                }
            }
        }
    }
}

/// Returns what a rate gives in a number of ns: whole units, and whether there is a remainder.
fn wide(ns: u128, rate: Rate) -> (u128, bool) {
    let (count, period) = rate.reduced();
    let (count, period) = (u128::from(count), u128::from(period));
    let rest = ns % period * count;
    (ns / period * count + rest / period, !rest.is_multiple_of(period))
}

/// A charge given back, in full or in part, leaves no more than if only the used part had been charged, then and later.
#[test]
fn giving_back_never_creates_capacity() {
    let mut random = Random::new(12);
    for _ in 0..steps(40_000) / 20 {
        let (rate, burst) = (random.rate(), random.one_to(1000));
        for quota in exact(rate, burst) {
            let mut clock = 1u64 << 61;
            let mut state = quota.fresh(Tick::from_nanos(clock));
            for _ in 0..4 {
                clock += random.pause(rate, burst).min(1 << 55);
                let now = Tick::from_nanos(clock);
                let cost = Cost::new(random.one_to(burst)).unwrap();
                let ask = Ask::within(now, cost, Duration::from_nanos(random.pick(&[0, 1 << 50, 1 << 60])));
                let Transition::Allowed { next, receipt, .. } = quota.decide(&state, ask) else { continue };
                let used = random.up_to(cost.units());
                let later = Tick::from_nanos(clock + random.pause(rate, burst).min(1 << 55));
                for (at, used) in [(now, 0), (later, 0), (now, used), (later, used)] {
                    let settled = quota.settle(&next, at, &receipt, used);
                    not_fuller(&mut random, &quota, &settled, &state, later);
                }
                state = next;
            }
        }
    }
}

/// Asserts that `given_back` has no more left than `never`, now and, if nothing is asked, later. A warm-up is compared
/// only now: it has a whole burst or nothing left, and a debt given back at the stable price differs from the one the
/// slope made.
fn not_fuller(random: &mut Random, quota: &Quota, given_back: &State, never: &State, now: Tick) {
    let left = |state, at| quota.standing(state, at).remaining;
    assert!(left(given_back, now) <= left(never, now), "{given_back:?} after {never:?}: {quota:?}");
    if !matches!(quota, Quota::WarmUp(_)) {
        let wait = Duration::from_nanos(random.up_to(1 << 50));
        assert!(left(given_back, now.after(wait)) <= left(never, now.after(wait)), "{quota:?}");
    }
}

/// Whatever bytes a store returns, every call answers without a panic or overflow, and the answer can be stored.
#[test]
fn foreign_states_and_extreme_ticks_are_survived() {
    let mut random = Random::new(13);
    for _ in 0..steps(100_000) / 80 {
        let quotas = any(&mut random);
        for (index, quota) in quotas.iter().enumerate() {
            let extreme = |random: &mut Random| match random.up_to(3) {
                0 => random.any(),
                1 => 0,
                2 => u64::MAX,
                _ => random.any() >> random.up_to(63),
            };
            let mut state = quota.fresh(Tick::from_nanos(extreme(&mut random)));
            for _ in 0..8 {
                let mut bytes = state.encode();
                for _ in 0..random.up_to(6) {
                    let byte = random.up_to(bytes.len() as u64 - 1) as usize;
                    bytes[byte] =
                        if byte < 2 { bytes[byte] } else { random.pick(&[0, 0x7f, 0xff, dice_byte(byte)]) };
                }
                state = State::decode(&bytes).unwrap_or(state);
                let now = Tick::from_nanos(extreme(&mut random));
                let cost = Cost::new(extreme(&mut random)).unwrap_or(Cost::ONE);
                let max_wait = random.pick(&[Duration::ZERO, Duration::from_nanos(7), Duration::MAX]);
                let receipt = Receipt {
                    at: Tick::from_nanos(extreme(&mut random)),
                    act: Tick::from_nanos(extreme(&mut random)),
                    cost,
                    mark: [
                        random.any() >> random.up_to(63),
                        random.any(),
                        random.any() >> random.up_to(63),
                        random.any(),
                    ],
                };
                let how = random.pick(&[Replace::AsIs, Replace::Proportional, Replace::Reset]);
                let old = &quotas[random.pick(&[index, (index + 1) % quotas.len()])];
                quota.standing(&state, now);
                quota.full_at(&state);
                for next in [
                    quota.settle(&state, now, &receipt, 0),
                    quota.settle(&state, now, &receipt, extreme(&mut random)),
                    quota.carry(old, &state, now, how),
                ] {
                    quota.standing(&next, now);
                    quota.full_at(&next);
                    quota.settle(&next, now, &receipt, cost.units() / 2);
                    // A profile may reach not-a-number, as the real library does. Then decoding fails, but nothing
                    // panics.
                    let _ = State::decode(&next.encode());
                }
                if let Transition::Allowed { next, .. } =
                    quota.decide(&state, Ask::within(now, cost, max_wait))
                {
                    state = next;
                }
            }
        }
    }
}

fn dice_byte(byte: usize) -> u8 {
    (byte as u8).wrapping_mul(73)
}

#[test]
fn quotas_and_states_come_back_from_their_bytes() {
    let mut random = Random::new(14);
    for _ in 0..steps(10_000) / 100 {
        for quota in any(&mut random) {
            assert_eq!(Quota::decode(&quota.encode()).as_ref(), Ok(&quota));
            let state = quota.fresh(Tick::from_nanos(random.any()));
            assert_eq!(State::decode(&state.encode()), Ok(state));
        }
    }
}

/// A state that is as good as a fresh one may be forgotten: from then on a fresh one grants the same at every tick.
#[test]
fn a_full_limit_is_as_good_as_a_forgotten_one() {
    let mut random = Random::new(15);
    for _ in 0..steps(20_000) / 20 {
        let (rate, burst) = (random.rate(), random.one_to(1000));
        for quota in exact(rate, burst) {
            let now = Tick::from_nanos(1 << 60);
            let cost = Cost::new(random.one_to(burst)).unwrap();
            let ask = Ask::within(now, cost, Duration::from_nanos(1 << 60));
            let Transition::Allowed { next, .. } = quota.decide(&quota.fresh(now), ask) else {
                panic!("fresh")
            };
            let Some(full) = quota.full_at(&next) else { continue };
            let (kept, forgotten) = (quota.standing(&next, full), quota.standing(&quota.fresh(full), full));
            assert_eq!(kept, forgotten, "{quota:?}");
            let again = Ask { now: full, ..ask };
            let wait = |state| match quota.decide(state, again) {
                Transition::Allowed { wait, next, .. } => (wait, quota.standing(&next, full)),
                Transition::Denied { .. } => panic!("a full limit grants what a fresh one does"),
            };
            assert_eq!(wait(&next), wait(&quota.fresh(full)), "{quota:?}");
        }
    }
}

/// A changed limit keeps what was spent: it never has more left than before, whether carried by share or by unit.
#[test]
fn a_live_change_never_forgets_what_was_spent() {
    let mut random = Random::new(16);
    for _ in 0..steps(20_000) / 20 {
        let (rate, burst) = (random.rate(), random.one_to(1000));
        let (new_rate, new_burst) = (random.rate(), random.one_to(1000));
        for (old, new) in exact(rate, burst).into_iter().zip(exact(new_rate, new_burst)) {
            if matches!(old, Quota::WarmUp(_)) {
                continue;
            }
            let now = Tick::from_nanos(1 << 60);
            let cost = random.one_to(burst);
            let ask = Ask::allow(now, Cost::new(cost).unwrap());
            let Transition::Allowed { next, .. } = old.decide(&old.fresh(now), ask) else { panic!("fresh") };
            let left = |how| new.standing(&new.carry(&old, &next, now, how), now).remaining;
            assert_eq!(left(Replace::AsIs), new_burst.saturating_sub(cost), "{old:?} to {new:?}");
            let spent = (u128::from(cost) * u128::from(new_burst)).div_ceil(u128::from(burst)) as u64;
            assert_eq!(left(Replace::Proportional), new_burst - spent, "{old:?} to {new:?}");
            assert_eq!(left(Replace::Reset), new_burst, "{old:?} to {new:?}");
        }
    }
}

/// A keyed store holds millions of states.
#[test]
fn a_state_takes_48_bytes_at_most() {
    assert!(size_of::<State>() <= 48, "{}", size_of::<State>());
}
