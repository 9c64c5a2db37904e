//! The byte forms of version 1, held by a fixture: what this version wrote must be read, and written the same, for ever.
//!
//! Each line of the fixture is a limit and the state after a few steps, in hexadecimal digits. A new algorithm adds a line; a
//! line that is there is never changed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so")]

use std::time::Duration;

use tidegate_core::rate::{Bandwidth, CalendarUnit, ColdFactor, Refill, TokenBucket};
use tidegate_core::rate::{GuavaBursty, GuavaWarming, UberPacer, XTime};
use tidegate_core::{Algorithm, Ask, Cost, Quota, QuotaError, Rate, State, Tick, Transition};

#[test]
fn every_algorithm_reads_and_writes_version_1() {
    let fixture = include_str!("fixtures/bytes-v1.txt");
    let fixed: Vec<&str> = fixture.lines().filter(|line| !line.starts_with('#')).collect();
    let written: Vec<String> = quotas().unwrap().iter().map(line).collect();
    assert_eq!(fixed, written, "the fixture should read:\n{}", written.join("\n"));
    for line in fixed {
        let [_, quota, state] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (quota, state) = (Quota::decode(&bytes(quota)).unwrap(), State::decode(&bytes(state)).unwrap());
        // A state that was read decides as the one that was written.
        let ask = Ask::allow(Tick::from_secs(1_600_000_007), Cost::ONE);
        assert_eq!(quota.decide(&state, ask), quota.decide(&used(&quota), ask), "{line}");
    }
}

fn quotas() -> Result<Vec<Quota>, QuotaError> {
    let rate = Rate::new(7, Duration::from_secs(3))?;
    Ok(vec![
        Quota::per_second(7).burst(5).gcra()?,
        Quota::per_minute(5).fixed_window()?,
        Quota::per_day(5).calendar_window(CalendarUnit::Day, "Asia/Shanghai")?,
        Quota::per_minute(5).sliding_window(6)?,
        Quota::per_minute(5).sliding_counter()?,
        Quota::per_minute(5).sliding_log()?,
        Quota::per_second(7).burst(5).token_bucket()?,
        TokenBucket::several([Bandwidth::new(rate, 5)?, Bandwidth::new(rate, 9)?.refill(Refill::Interval)])?
            .into(),
        Quota::per_second(7).burst(5).leaky_bucket()?,
        Quota::per_second(7).burst(2).leaky_queue(5)?,
        Quota::per_second(7).warm_up(Duration::from_secs(4), ColdFactor::THREE)?,
        XTime::new(2.5, 5)?.into(),
        UberPacer::new(rate, 3)?.into(),
        GuavaBursty::new(2.5, 1.0)?.into(),
        GuavaWarming::new(2.5, Duration::from_secs(4), 3.0)?.into(),
        Quota::concurrency(6, Duration::from_secs(30))?,
    ])
}

/// Three units at once, one a second later, one reserved.
fn used(quota: &Quota) -> State {
    let mut state = quota.fresh(Tick::from_secs(1_600_000_000));
    for (second, cost, wait) in [(0, 3, 0), (1, 1, 0), (1, 2, 60)] {
        let ask = Ask::within(
            Tick::from_secs(1_600_000_000 + second),
            Cost::new(cost).unwrap(),
            Duration::from_secs(wait),
        );
        if let Transition::Allowed { next, .. } = quota.decide(&state, ask) {
            state = next;
        }
    }
    state
}

fn line(quota: &Quota) -> String {
    let name = format!("{quota:?}");
    let name = name.split('(').next().unwrap();
    format!("{name} {} {}", hex(&quota.encode()), hex(&used(quota).encode()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(pair).collect()
}
