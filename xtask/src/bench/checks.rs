//! What a check costs in a program: the paved path, with its own clock read.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::{Gate, KeyedLimiter, Limiter, Quota};

use super::Measured;

const CHECKS: u32 = 1_000_000;
const ROUNDS: usize = 7;

pub(crate) fn measure(machine: &str) -> Result<Measured> {
    let quota = || Quota::per_second(1_000_000_000).burst(1_000_000_000);
    let limiter = Limiter::new(quota())?;
    let one = median(|_| black_box(limiter.allow().is_allowed()));
    let denier = Limiter::new(Quota::per_day(1))?;
    let denied = median(|_| black_box(denier.allow().is_allowed()));
    let keys: Vec<String> = (0..100_000).map(|key| format!("user:{key}")).collect();
    let keyed = KeyedLimiter::new(quota(), keys.len())?;
    let of_many = median(|check| black_box(keyed.allow(&keys[spread(check, keys.len())]).is_allowed()));
    let mut policy = Policy::new("per-ip", Limit::new(quota().gcra()?, "gcra"));
    policy.by = vec!["client.ip".to_owned()];
    let gate = Gate::in_memory(PolicySet::new(vec![policy])?, keys.len());
    let gated = median(|check| {
        let request = Descriptor::new()
            .with("client.ip", keys[spread(check, keys.len())].as_str())
            .with("request.method", "GET")
            .with("request.path", "/api/items/42");
        black_box(gate.check(&request, None).is_ok_and(|decision| decision.allowed))
    });
    let mut page = format!(
        "## Checks in a program\n\nOne thread, the machine's clock read on every check, median of {ROUNDS} rounds of {CHECKS}.\n\n| check | ns |\n|---|---|\n"
    );
    for (what, nanos) in [
        ("one limiter, permitted", one),
        ("one limiter, denied", denied),
        ("one of 100,000 keys, permitted", of_many),
        ("gate, one matching policy by client.ip, 100,000 keys", gated),
    ] {
        writeln!(page, "| {what} | {nanos:.0} |")?;
    }
    let row = format!(
        "| a check: one limiter; one of 100,000 keys; a gate with one policy | {one:.0} ns; {of_many:.0} ns; {gated:.0} ns | {machine} |"
    );
    Ok(Measured { page, row })
}

/// Walks over the keys in an order that no prefetcher guesses.
fn spread(check: u32, keys: usize) -> usize {
    (u64::from(check).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % keys
}

/// Returns the nanoseconds of one check: the median of the rounds.
#[allow(clippy::disallowed_methods, reason = "a bench reads the time")]
fn median(mut check: impl FnMut(u32) -> bool) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for number in 0..CHECKS {
                check(number);
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CHECKS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}
