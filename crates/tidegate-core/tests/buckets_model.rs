//! Every exact algorithm equals its slow rational model, decision by decision, over random traffic, and keeps its laws.

mod aligned;
mod laws;
mod ledger;
mod models;
mod quotas;
use crate::random;
mod settle;

use core::time::Duration;

use ledger::Ledger;
use models::{Band, Bucket, Model, Queue, Slope, q};
use random::Random;
use tidegate_core::rate::{
    Bandwidth, ColdFactor, Gcra, LeakyBucket, LeakyQueue, Refill, TokenBucket, WarmUp,
};
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Replace, State, Tick, Transition};

/// How many steps one quota is followed: enough for debts and rests, few enough for many quotas.
const RUN: u64 = 200;

/// A limit, its model, and what random traffic needs to know about it.
struct Pair {
    quota: Quota,
    model: Box<dyn Model>,
    /// The bandwidths against which settlements are checked; none for a limit whose settlements have tests of their
    /// own.
    bands: Vec<Band>,
    rate: Rate,
    capacity: u64,
    /// The last tick to ask at.
    until: u64,
}

/// How many steps each model is compared for; `TIDEGATE_MODEL_STEPS` sets another number.
fn steps(default: u64) -> u64 {
    std::env::var("TIDEGATE_MODEL_STEPS").map_or(default, |steps| steps.parse().expect("a number of steps"))
}

fn compare(seed: u64, steps: u64, mut pair: impl FnMut(&mut Random, u64) -> Pair) {
    let mut random = Random::new(seed);
    for run in 0..steps.div_ceil(RUN) {
        let now = random.pick(&[0, 1, 1_000_000_000, 1 << 60, 1 << 63]);
        follow(&mut random, now, &mut pair, &format!("seed {seed} run {run}"));
    }
}

fn follow(random: &mut Random, start: u64, make: &mut impl FnMut(&mut Random, u64) -> Pair, name: &str) {
    let mut pair = make(random, start);
    let mut state = pair.quota.fresh(Tick::from_nanos(start));
    let mut ledger = Ledger::new(pair.bands.clone(), start);
    let (mut clock, mut hint, mut last) = (start, 0, start);
    for step in 0..RUN {
        let quota = pair.quota.clone();
        let place = || format!("{name} step {step}: {quota:?}");
        clock = match random.up_to(9) {
            0 => clock.saturating_sub(random.pause(pair.rate, pair.capacity)),
            1 => clock.saturating_add(hint),
            _ => clock.saturating_add(random.pause(pair.rate, pair.capacity)),
        };
        if clock > pair.until {
            break;
        }
        let now = Tick::from_nanos(clock);
        let cost = random.one_to(pair.capacity);
        match random.up_to(11) {
            0..=3 if !pair.bands.is_empty() => {
                // A change now and then, and settlements more often: of open charges, and of charges from before the
                // last change.
                if random.up_to(19) == 0 {
                    let next = make(random, clock.max(last));
                    let how = random.pick(&[Replace::AsIs, Replace::Proportional, Replace::Reset]);
                    ledger.ends_well(&quota);
                    state = next.quota.carry(&quota, &state, now, how);
                    pair = next;
                    ledger.carried(pair.bands.clone(), &pair.quota, &state);
                } else {
                    state = ledger.settle(random, &quota, &state, now, &place);
                }
                let (at, spent) = ledger::spent(&pair.quota, &state);
                last = at;
                pair.model.adopt(at, &spent);
            }
            _ => {
                let cost = if random.up_to(20) == 0 { pair.capacity.saturating_add(1) } else { cost };
                let max_wait = match random.up_to(3) {
                    0 | 1 => 0,
                    2 => random.pause(pair.rate, pair.capacity),
                    _ => u64::MAX,
                };
                let ask = Ask::within(now, Cost::new(cost).unwrap(), Duration::from_nanos(max_wait));
                let expected = pair.model.decide(clock, cost, max_wait);
                let expected = expected.map_err(|retry| retry.map(speakable));
                let transition = quota.decide(&state, ask);
                let found = match &transition {
                    Transition::Allowed { wait, .. } => Ok(wait.as_nanos()),
                    Transition::Denied { retry } => Err(retry.after().map(|wait| wait.as_nanos())),
                };
                assert_eq!(found, expected, "{ask:?} at {}", place());
                if let Err(Some(retry)) = found {
                    hint = u64::try_from(retry).unwrap_or(u64::MAX);
                    // After a step back, time stands still at the last change, and the wait counts from there.
                    is_least(&quota, &state, Ask { now: Tick::from_nanos(clock.max(last)), ..ask }, retry);
                }
                if let Transition::Allowed { next, receipt, .. } = transition {
                    last = receipt.at.as_nanos();
                    ledger.charged(&quota, &state, &next, receipt);
                    state = next;
                }
            }
        }
        let standing = pair.quota.standing(&state, now);
        let found = (standing.remaining, standing.debt, standing.reset_after.as_nanos());
        let (remaining, debt, reset) = pair.model.standing(clock);
        assert_eq!(found, (remaining, debt, speakable(reset)), "standing at {now:?}, {}", place());
        if step % 16 == 0 {
            assert_eq!(State::decode(&state.encode()).as_ref(), Ok(&state), "{}", place());
        }
    }
    ledger.ends_well(&pair.quota);
}

/// A wait beyond the range of `Duration` is its maximum.
fn speakable(ns: u128) -> u128 {
    ns.min(Duration::MAX.as_nanos())
}

/// The returned wait is enough, and a nanosecond less is not.
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

fn capacity(random: &mut Random) -> u64 {
    let max = random.pick(&[1, 2, 10, 1000, Rate::MAX_COUNT]);
    random.one_to(max)
}

fn one_band(rate: Rate, capacity: u64, now: u64) -> (Box<dyn Model>, Vec<Band>) {
    let bands = vec![Band::new(rate, capacity, capacity, Refill::Continuous, now)];
    (Box::new(Bucket { bands: bands.clone(), last: now }), bands)
}

#[test]
fn gcra_equals_tokens_in_a_bucket() {
    compare(1, steps(120_000), |random, now| {
        let (rate, capacity) = (random.rate(), capacity(random));
        let quota = Gcra::new(rate, capacity).unwrap().into();
        let (model, bands) = one_band(rate, capacity, now);
        // An act at the last tick may really be one beyond it.
        Pair { quota, model, bands, rate, capacity, until: u64::MAX >> 1 }
    });
}

#[test]
fn leaky_bucket_equals_tokens_in_a_bucket() {
    compare(2, steps(120_000), |random, now| {
        let (rate, capacity) = (random.rate(), capacity(random));
        let quota = LeakyBucket::new(rate, capacity).unwrap().into();
        let (model, bands) = one_band(rate, capacity, now);
        Pair { quota, model, bands, rate, capacity, until: u64::MAX >> 1 }
    });
}

fn bandwidth(random: &mut Random, rate: Rate, now: u64) -> (Bandwidth, Band) {
    let capacity = capacity(random);
    let initial = if random.up_to(2) == 0 { random.up_to(capacity) } else { capacity };
    let refill = random.pick(&[Refill::Continuous, Refill::Interval, Refill::Aligned]);
    let bandwidth = Bandwidth::new(rate, capacity).unwrap().refill(refill).initial(initial).unwrap();
    (bandwidth, Band::new(rate, capacity, initial, refill, now))
}

#[test]
fn token_bucket_equals_its_model() {
    compare(3, steps(120_000), |random, now| {
        let rate = random.rate();
        let (bandwidth, band) = bandwidth(random, rate, now);
        let (capacity, bands) = (band.capacity, vec![band]);
        let model = Box::new(Bucket { bands: bands.clone(), last: now });
        let quota = TokenBucket::new(bandwidth).into();
        Pair { quota, model, bands, rate, capacity, until: u64::MAX >> 1 }
    });
}

#[test]
fn several_bandwidths_equal_their_model() {
    compare(4, steps(90_000), |random, now| {
        let rate = random.rate();
        let mut rates = vec![rate];
        for _ in 0..random.one_to(3) {
            // Near the first rate, so that sometimes one binds and sometimes the other.
            let count = (rate.count() / random.one_to(4)).max(1);
            let period = rate.period_nanos().saturating_mul(random.one_to(3)).min(1 << 62);
            rates.push(Rate::new(count, Duration::from_nanos(period)).unwrap());
        }
        let (bandwidths, bands): (Vec<_>, Vec<_>) =
            rates.into_iter().map(|rate| bandwidth(random, rate, now)).unzip();
        let capacity = bands.iter().map(|band| band.capacity).min().unwrap();
        let model = Box::new(Bucket { bands: bands.clone(), last: now });
        let quota = TokenBucket::several(bandwidths).unwrap().into();
        Pair { quota, model, bands, rate, capacity, until: u64::MAX >> 1 }
    });
}

#[test]
fn leaky_queue_equals_its_departures() {
    compare(5, steps(120_000), |random, now| {
        let (rate, slack, places) = (random.rate(), capacity(random) - 1, capacity(random));
        let mut model = Queue { rate, slack, places, next: q(0), last: now };
        model.next = q(now) - q(slack) * model.interval();
        let quota = LeakyQueue::new(rate, slack, places).unwrap().into();
        // What is spent of a queue comes back as in a bucket with a capacity of what leaves at once.
        let bands = vec![Band::new(rate, slack + 1, slack + 1, Refill::Continuous, now)];
        Pair {
            quota,
            model: Box::new(model),
            bands,
            rate,
            capacity: slack + 1 + places,
            until: u64::MAX >> 1,
        }
    });
}

#[test]
fn warm_up_equals_permits_on_a_slope() {
    compare(6, steps(30_000), |random, now| {
        let rate = loop {
            let rate = random.rate();
            // A price of centuries ends beyond the last tick, where the limit stops counting but the model does not.
            if rate.period_nanos() / rate.count() < 1 << 36 {
                break rate;
            }
        };
        let burst = random.one_to(100);
        let period = random.one_to(WarmUp::MAX_PERIOD.as_nanos() as u64);
        let factor = random.pick(&[1000, 1001, 1500, 2000, 3000, 4567, 1_000_000]);
        let limit = WarmUp::new(rate, Duration::from_nanos(period), ColdFactor::thousandths(factor)).unwrap();
        let quota = limit.burst(burst).unwrap().into();
        let factor = q(factor) / q(1000);
        let model = Slope { rate, burst, period, factor, next: q(now), stored_ns: q(period), last: now };
        let bands = Vec::new();
        Pair { quota, model: Box::new(model), bands, rate, capacity: burst, until: 3 << 62 }
    });
}
