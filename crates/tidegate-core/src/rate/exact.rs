//! What several limits compute: exact ratios in 128 bits, with the one operation that needs 256, and the waits of
//! windows.

use core::time::Duration;

use crate::decision::{Ask, Receipt, Retry, Transition};
use crate::time::{Rate, Tick, span};

/// Returns `⌈a · b / d⌉`, exact; saturates at `u128::MAX`, and is `u128::MAX` when `d` is zero.
///
/// For cold paths: long multiplication and a division bit by bit.
pub(crate) fn mul_div_ceil(a: u128, b: u128, d: u128) -> u128 {
    let (quotient, remainder) = mul_div(a, b, d);
    if remainder == 0 { quotient } else { quotient.saturating_add(1) }
}

/// Returns `⌊a · b / d⌋`, exact; saturates like [`mul_div_ceil`].
pub(crate) fn mul_div_floor(a: u128, b: u128, d: u128) -> u128 {
    mul_div(a, b, d).0
}

fn mul_div(a: u128, b: u128, d: u128) -> (u128, u128) {
    if let Some(product) = a.checked_mul(b) {
        return match product.checked_div(d) {
            Some(quotient) => (quotient, product % d),
            None => (u128::MAX, 0),
        };
    }
    let (high, low) = wide_mul(a, b);
    if high >= d {
        return (u128::MAX, 0);
    }
    // `remainder < d` holds before each step, so the quotient fits 128 bits and one bit of carry is enough.
    let (mut remainder, mut quotient) = (high, 0u128);
    for bit in (0..128).rev() {
        let carry = remainder >> 127;
        remainder = (remainder << 1) | ((low >> bit) & 1);
        quotient <<= 1;
        if carry == 1 || remainder >= d {
            remainder = remainder.wrapping_sub(d);
            quotient |= 1;
        }
    }
    (quotient, remainder)
}

/// Returns the greatest common divisor, at least 1.
pub(crate) const fn common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    if a == 0 { 1 } else { a }
}

fn wide_mul(a: u128, b: u128) -> (u128, u128) {
    const HALF: u128 = (1 << 64) - 1;
    let (a1, a0, b1, b0) = (a >> 64, a & HALF, b >> 64, b & HALF);
    let (low, middle_a, middle_b, high) = (a0 * b0, a1 * b0, a0 * b1, a1 * b1);
    let middle = (low >> 64) + (middle_a & HALF) + (middle_b & HALF);
    (high + (middle_a >> 64) + (middle_b >> 64) + (middle >> 64), (middle << 64) | (low & HALF))
}

/// Turns `act`, the first tick from `at` on at which the whole cost fits, into a grant, or into a refusal with the
/// least wait: `act − at − max_wait`, and `room` if that is longer, the wait until the state can keep one more
/// promise. `at` is the tick of the request, or of the last change if that is later. A request that fits only after
/// [`Tick::MAX`] is refused for ever, because no clock gets there.
#[inline]
pub(crate) fn grant<S>(
    ask: Ask,
    at: Tick,
    act: u128,
    room: Duration,
) -> Result<(Tick, Duration), Transition<S>> {
    let Ok(act) = u64::try_from(act).map(Tick::from_nanos) else { return Err(Transition::NEVER) };
    let wait = act.since(at);
    if wait > ask.max_wait || !room.is_zero() {
        return Err(Transition::Denied { retry: Retry::After(wait.saturating_sub(ask.max_wait).max(room)) });
    }
    Ok((act, wait))
}

/// The most promises ahead that a key keeps apart in a window algorithm: reservations in different slots, or windows
/// opened ahead of time. One more is refused, since a promise that is forgotten could not be undone. A promise takes
/// 16 to 40 bytes, less than the memory of whoever waits for it.
pub(crate) const AHEAD: usize = 4096;

/// The promises ahead for which the byte form of a state has room in an engine that bounds its size.
pub(crate) const AHEAD_IN_ENGINE: usize = 64;

/// The most units that a window counts, limit and debt together: each is at most [`Rate::MAX_COUNT`].
pub(crate) const MOST_UNITS: u64 = 2 * Rate::MAX_COUNT;

/// Returns the units that a settlement books beyond the charge, at most [`Rate::MAX_COUNT`]; zero if there are none.
pub(crate) fn excess(receipt: &Receipt, used: u64) -> u64 {
    used.saturating_sub(receipt.cost.units()).min(Rate::MAX_COUNT)
}

pub(crate) fn above(count: u64, limit: u64) -> u64 {
    count.saturating_sub(limit).min(Rate::MAX_COUNT)
}

pub(crate) fn until(at: Tick, tick: u128) -> Duration {
    span(tick.saturating_sub(u128::from(at.as_nanos())))
}

pub(crate) fn wide(tick: Tick) -> u128 {
    u128::from(tick.as_nanos())
}

/// Returns `⌈count · new / old⌉`, at most the largest limit: the same share of another limit.
pub(crate) fn share(count: u64, new: u64, old: u64) -> u64 {
    let scaled = (u128::from(count) * u128::from(new)).div_ceil(u128::from(old.max(1)));
    // Bounded by `Rate::MAX_COUNT`, which fits 64 bits.
    scaled.min(u128::from(Rate::MAX_COUNT)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigUint;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_big_integers(a: u128, b: u128, d: u128, shift in 0u32..128) {
            let d = d >> shift;
            prop_assume!(d > 0);
            let product = BigUint::from(a) * b;
            let max = BigUint::from(u128::MAX);
            prop_assert_eq!(BigUint::from(mul_div_floor(a, b, d)), (&product / d).min(max.clone()));
            prop_assert_eq!(BigUint::from(mul_div_ceil(a, b, d)), ((&product + d - 1u32) / d).min(max));
        }
    }
}
