//! Random bytes and ticks: nothing panics, overflows or takes unbounded memory.

use std::time::Duration;

use tidegate_core::rate::CalendarUnit;
use tidegate_core::{Algorithm, Ask, Cost, Quota, Receipt, Replace, State, Tick, Transition};

use crate::random::Random;
use crate::windows_model::driver::steps;

fn number(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => u64::MAX - random.below(3),
        2 => (1 << 60) + random.below(3) - 1,
        3 => 1 + random.below(20),
        4 => (1 << 62) + random.below(3) - 1,
        _ => random.one_to(u64::MAX),
    }
}

fn quotas() -> Vec<Quota> {
    let (most, century) = (1 << 60, Duration::from_secs(100 * 365 * 86_400));
    let mut quotas = Vec::new();
    for (count, period) in
        [(1, century), (most, Duration::from_nanos(1 << 62)), (most, Duration::from_nanos(1))]
    {
        let rate = Quota::per(count, period);
        quotas.extend(
            [rate.fixed_window(), rate.sliding_counter(), rate.sliding_window(1)].map(Result::unwrap),
        );
    }
    for (count, period) in
        [(1, century), (1 << 14, Duration::from_nanos(1 << 62)), (7, Duration::from_nanos(1))]
    {
        quotas.push(Quota::per(count, period).sliding_log().unwrap());
    }
    quotas.push(Quota::per(most, century).sliding_window(1024).unwrap());
    quotas.push(Quota::per(5, Duration::from_secs(1)).sliding_window(7).unwrap());
    for unit in CalendarUnit::ALL {
        quotas.push(
            Quota::per_day(5)
                .calendar_window(unit, if cfg!(feature = "tz") { "America/New_York" } else { "UTC" })
                .unwrap(),
        );
    }
    quotas
}

/// Writes a window: first and last tick, units, the tick at which it opened, and the units that acted early.
fn span(random: &mut Random, put: &mut impl FnMut(u64)) {
    let mut ticks = [number(random), number(random), number(random)];
    ticks.sort_unstable();
    let [opened, start, through] = ticks;
    let (used, anew) = (number(random), random.one_in(2));
    [start, through, used].into_iter().for_each(&mut *put);
    put(if anew { opened } else { start });
    put(if anew { used } else { 0 });
}

/// Returns the bytes of a state with a valid header and arbitrary fields.
fn bytes(random: &mut Random) -> Vec<u8> {
    let kind = 2 + random.below(4) as u8;
    let mut bytes = vec![1, kind];
    let mut put = |number: u64| bytes.extend(number.to_le_bytes());
    match kind {
        2 => {
            put(number(random));
            span(random, &mut put);
        }
        4 => (0..3).for_each(|_| put(number(random))),
        _ => (0..2).for_each(|_| put(number(random))),
    }
    if kind == 2 {
        bytes.push(u8::from(random.one_in(2)));
    }
    let carried = random.one_in(3);
    bytes.push(u8::from(carried));
    if carried {
        let mut ticks = [number(random), number(random)];
        ticks.sort_unstable();
        ticks.into_iter().for_each(|tick| bytes.extend(tick.to_le_bytes()));
    }
    let count = random.below(if kind == 2 { 2 } else { 6 });
    bytes.extend(count.to_le_bytes());
    let mut put = |number: u64| bytes.extend(number.to_le_bytes());
    if kind == 2 {
        (0..count).for_each(|_| span(random, &mut put));
    } else {
        let mut slots: Vec<u64> = (0..count).map(|_| number(random)).collect();
        slots.sort_unstable();
        for slot in slots {
            put(slot);
            put(number(random));
        }
    }
    if random.one_in(16) {
        let cut = random.below(bytes.len() as u64) as usize;
        bytes.truncate(cut);
    }
    if random.one_in(16) {
        bytes.push(0);
    }
    bytes
}

#[test]
fn no_state_and_no_tick_makes_anything_panic() {
    let mut random = Random::new(6);
    let quotas = quotas();
    let mut decoded = 0;
    for _ in 0..steps() / 4 {
        let Ok(mut state) = State::decode(&bytes(&mut random)) else { continue };
        decoded += 1;
        for _ in 0..3 {
            let quota = &quotas[random.below(quotas.len() as u64) as usize];
            let now = Tick::from_nanos(number(&mut random));
            let cost = Cost::new(number(&mut random).max(1)).unwrap();
            let max_wait = random.pick(&[Duration::ZERO, Duration::MAX, Duration::from_nanos(u64::MAX)]);
            let standing = quota.standing(&state, now);
            assert!(standing.remaining <= standing.limit);
            quota.full_at(&state);
            let receipt = Receipt {
                at: now,
                act: Tick::from_nanos(number(&mut random)),
                cost,
                mark: [0; 4].map(|_: u64| number(&mut random)),
            };
            let old = &quotas[random.below(quotas.len() as u64) as usize];
            let how = random.pick(&[Replace::AsIs, Replace::Proportional, Replace::Reset]);
            state = match random.below(5) {
                0 | 1 => quota.settle(&state, now, &receipt, number(&mut random)),
                2 => quota.carry(old, &state, now, how),
                _ => match quota.decide(&state, Ask::within(now, cost, max_wait)) {
                    Transition::Allowed { next, .. } => next,
                    Transition::Denied { .. } => state,
                },
            };
            assert_eq!(State::decode(&state.encode()).as_ref(), Ok(&state), "what is written can be read");
        }
    }
    assert!(decoded > steps() / 20, "only {decoded} states could be read");
}

#[test]
fn bytes_that_lie_about_their_length_are_refused() {
    for kind in [3, 5] {
        let mut bytes = vec![1, kind];
        bytes.extend([0; 17]);
        bytes.extend(u64::MAX.to_le_bytes());
        assert!(State::decode(&bytes).is_err());
    }
    assert!(Quota::decode(&[1, 2, 9]).is_err());
    assert!(Quota::decode(&[1, 2, 200, 5, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
}
