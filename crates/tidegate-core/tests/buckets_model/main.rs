//! Every exact algorithm equals its slow rational model, decision by decision, over random traffic; and keeps its laws.

#![allow(clippy::unwrap_used, reason = "in a test an unwrap is an assertion")]

mod laws;
mod models;
mod quotas;
mod random;

use core::time::Duration;

use models::{Band, Bucket, Charge, Model, Queue, Slope, q};
use random::{Dice, steps};
use tidegate_core::rate::{
    Bandwidth, ColdFactor, Gcra, LeakyBucket, LeakyQueue, Refill, TokenBucket, WarmUp,
};
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Receipt, State, Tick, Transition};

/// How long one quota is followed: long enough for debts and rests, short enough for many quotas.
const RUN: u64 = 200;

/// A limit, its model, and what the dice need to know of it.
struct Pair {
    quota: Quota,
    model: Box<dyn Model>,
    rate: Rate,
    capacity: u64,
    /// Whether a refund may be of any size, or only of the charge just made: with several bandwidths one of them may be
    /// full before another has taken all of it, and cancelling then errs on the safe side.
    any_refund: bool,
    ends_in_parts: bool,
    /// The last tick to ask at.
    until: u64,
}

fn compare(seed: u64, steps: u64, mut pair: impl FnMut(&mut Dice, u64) -> Pair) {
    let mut dice = Dice::new(seed);
    for run in 0..steps.div_ceil(RUN) {
        let now = dice.pick(&[0, 1, 1_000_000_000, 1 << 60, 1 << 63]);
        let pair = pair(&mut dice, now);
        follow(&mut dice, now, pair, &format!("seed {seed} run {run}"));
    }
}

fn follow(dice: &mut Dice, start: u64, mut pair: Pair, name: &str) {
    let quota = pair.quota.clone();
    let mut state = quota.fresh(Tick::from_nanos(start));
    let mut charges: Vec<(Receipt, Charge)> = Vec::new();
    let (mut clock, mut hint, mut last) = (start, 0, start);
    for step in 0..RUN {
        let place = || format!("{name} step {step}: {quota:?}");
        clock = match dice.up_to(9) {
            0 => clock.saturating_sub(dice.span(pair.rate, pair.capacity)),
            1 => clock.saturating_add(hint),
            _ => clock.saturating_add(dice.span(pair.rate, pair.capacity)),
        };
        if clock > pair.until {
            break;
        }
        let now = Tick::from_nanos(clock);
        let cost = dice.one_to(pair.capacity);
        let action = dice.up_to(11);
        let gave_back = action <= 2;
        // The model forgets promises that a part given back hides; GCRA does not, see its own tests.
        if gave_back && pair.ends_in_parts && charges.iter().any(|(receipt, _)| receipt.act > now) {
            break;
        }
        match action {
            0 if pair.any_refund || charges.last().is_some_and(|(receipt, _)| receipt.at == now) => {
                let cost = match charges.pop() {
                    Some((_, charge)) if !pair.any_refund => charge.cost,
                    _ => cost,
                };
                state = quota.refund(&state, now, Cost::new(cost).unwrap());
                pair.model.refund(clock, cost);
                last = last.max(clock);
            }
            1 | 2 if !charges.is_empty() => {
                let (receipt, charge) = charges.swap_remove(dice.up_to(charges.len() as u64 - 1) as usize);
                let cancelled = quota.cancel(&state, now, &receipt);
                pair.model.cancel(clock, &charge);
                if cancelled != state {
                    (state, last) = (cancelled, last.max(clock));
                }
            }
            _ => {
                let cost = if dice.up_to(20) == 0 { pair.capacity.saturating_add(1) } else { cost };
                let max_wait = match dice.up_to(3) {
                    0 | 1 => 0,
                    2 => dice.span(pair.rate, pair.capacity),
                    _ => u64::MAX,
                };
                let ask = Ask::within(now, Cost::new(cost).unwrap(), Duration::from_nanos(max_wait));
                let (expected, charge) = pair.model.decide(clock, cost, max_wait);
                let expected = expected.map_err(|retry| retry.map(speakable));
                let verdict = quota.decide(&state, ask);
                let found = match &verdict {
                    Transition::Allowed { wait, .. } => Ok(wait.as_nanos()),
                    Transition::Denied { retry } => Err(retry.after().map(|wait| wait.as_nanos())),
                };
                assert_eq!(found, expected, "{ask:?} at {}", place());
                if let Err(Some(retry)) = found {
                    hint = u64::try_from(retry).unwrap_or(u64::MAX);
                    // A step back stands still at the last change, and the wait counts from there.
                    is_least(&quota, &state, Ask { now: Tick::from_nanos(clock.max(last)), ..ask }, retry);
                }
                if let (Transition::Allowed { next, receipt, .. }, Some(charge)) = (verdict, charge) {
                    last = receipt.at.as_nanos();
                    charges.push((receipt, charge));
                    state = next;
                }
            }
        }
        // With several bandwidths a second give-back across the same wait errs on the safe side as well.
        if gave_back && (!pair.any_refund || pair.model.period_ended()) {
            charges.clear();
        }
        let standing = quota.standing(&state, now);
        let found = (standing.remaining, standing.reset_after.as_nanos());
        let (remaining, reset) = pair.model.standing(clock);
        assert_eq!(found, (remaining, speakable(reset)), "standing at {now:?}, {}", place());
        if step % 16 == 0 {
            assert_eq!(State::decode(&state.encode()).as_ref(), Ok(&state), "{}", place());
        }
    }
}

/// A wait beyond what a `Duration` can say is its maximum.
fn speakable(ns: u128) -> u128 {
    ns.min(Duration::MAX.as_nanos())
}

/// The promised wait is enough, and a nanosecond less is not.
fn is_least(quota: &Quota, state: &State, ask: Ask, retry: u128) {
    let after = |ns: u128| {
        let now = u64::try_from(u128::from(ask.now.as_nanos()) + ns).ok()?;
        Some(matches!(
            quota.decide(state, Ask { now: Tick::from_nanos(now), ..ask }),
            Transition::Allowed { .. }
        ))
    };
    // A wait that ends beyond the last tick cannot be tried.
    assert_ne!(after(retry), Some(false), "{ask:?} waits {retry}: {quota:?}");
    assert_ne!(after(retry - 1), Some(true), "{ask:?} waits {retry}: {quota:?}");
}

fn capacity(dice: &mut Dice) -> u64 {
    let max = dice.pick(&[1, 2, 10, 1000, Rate::MAX_COUNT]);
    dice.one_to(max)
}

fn one_band(rate: Rate, capacity: u64, now: u64, in_parts: bool) -> Box<dyn Model> {
    Box::new(Bucket { bands: vec![Band::new(rate, capacity, capacity, false, now)], last: now, in_parts })
}

#[test]
fn gcra_equals_tokens_in_a_bucket() {
    compare(1, steps(120_000), |dice, now| {
        let (rate, capacity) = (dice.rate(), capacity(dice));
        let quota = Gcra::new(rate, capacity).unwrap().into();
        Pair {
            quota,
            model: one_band(rate, capacity, now, true),
            rate,
            capacity,
            any_refund: true,
            ends_in_parts: true,
            // An act at the last tick may be one beyond it.
            until: u64::MAX >> 1,
        }
    });
}

#[test]
fn leaky_bucket_equals_tokens_in_a_bucket() {
    compare(2, steps(120_000), |dice, now| {
        let (rate, capacity) = (dice.rate(), capacity(dice));
        let quota = LeakyBucket::new(rate, capacity).unwrap().into();
        Pair {
            quota,
            model: one_band(rate, capacity, now, false),
            rate,
            capacity,
            any_refund: true,
            ends_in_parts: false,
            until: u64::MAX,
        }
    });
}

fn bandwidth(dice: &mut Dice, rate: Rate, now: u64) -> (Bandwidth, Band) {
    let capacity = capacity(dice);
    let initial = if dice.up_to(2) == 0 { dice.up_to(capacity) } else { capacity };
    let (refill, interval) = dice.pick(&[(Refill::Continuous, false), (Refill::Interval, true)]);
    let bandwidth = Bandwidth::new(rate, capacity).unwrap().refill(refill).initial(initial).unwrap();
    (bandwidth, Band::new(rate, capacity, initial, interval, now))
}

#[test]
fn token_bucket_equals_its_model() {
    compare(3, steps(120_000), |dice, now| {
        let rate = dice.rate();
        let (bandwidth, band) = bandwidth(dice, rate, now);
        let capacity = band.capacity;
        let model = Box::new(Bucket { bands: vec![band], last: now, in_parts: false });
        Pair {
            quota: TokenBucket::new(bandwidth).into(),
            model,
            rate,
            capacity,
            any_refund: true,
            ends_in_parts: false,
            until: u64::MAX,
        }
    });
}

#[test]
fn several_bandwidths_equal_their_model() {
    compare(4, steps(90_000), |dice, now| {
        let rate = dice.rate();
        let mut rates = vec![rate];
        for _ in 0..dice.one_to(3) {
            // Near the first rate, so that now one binds and now the other.
            let count = (rate.count() / dice.one_to(4)).max(1);
            let period = rate.period_nanos().saturating_mul(dice.one_to(3)).min(1 << 62);
            rates.push(Rate::new(count, Duration::from_nanos(period)).unwrap());
        }
        let (bandwidths, bands): (Vec<_>, Vec<_>) =
            rates.into_iter().map(|rate| bandwidth(dice, rate, now)).unzip();
        let capacity = bands.iter().map(|band| band.capacity).min().unwrap();
        let model = Box::new(Bucket { bands, last: now, in_parts: false });
        Pair {
            quota: TokenBucket::several(bandwidths).unwrap().into(),
            model,
            rate,
            capacity,
            any_refund: false,
            ends_in_parts: false,
            until: u64::MAX,
        }
    });
}

#[test]
fn leaky_queue_equals_its_departures() {
    compare(5, steps(120_000), |dice, now| {
        let (rate, slack, places) = (dice.rate(), capacity(dice) - 1, capacity(dice));
        let mut model = Queue { rate, slack, places, next: q(0), last: now };
        model.next = q(now) - q(slack) * model.interval();
        let quota = LeakyQueue::new(rate, slack, places).unwrap().into();
        let capacity = slack + 1 + places;
        Pair {
            quota,
            model: Box::new(model),
            rate,
            capacity,
            any_refund: true,
            ends_in_parts: false,
            until: u64::MAX,
        }
    });
}

#[test]
fn warm_up_equals_permits_on_a_slope() {
    compare(6, steps(30_000), |dice, now| {
        let rate = loop {
            let rate = dice.rate();
            // A price of centuries ends beyond the last tick, where the limit stops counting and the model does not.
            if rate.period_nanos() / rate.count() < 1 << 36 {
                break rate;
            }
        };
        let burst = dice.one_to(100);
        let period = dice.one_to(WarmUp::MAX_PERIOD.as_nanos() as u64);
        let factor = dice.pick(&[1000, 1001, 1500, 2000, 3000, 4567, 1_000_000]);
        let limit = WarmUp::new(rate, Duration::from_nanos(period), ColdFactor::thousandths(factor)).unwrap();
        let quota = limit.burst(burst).unwrap().into();
        let factor = q(factor) / q(1000);
        let model = Slope { rate, burst, period, factor, next: q(now), stored_ns: q(period), last: now };
        Pair {
            quota,
            model: Box::new(model),
            rate,
            capacity: burst,
            any_refund: true,
            ends_in_parts: false,
            until: 3 << 62,
        }
    });
}
