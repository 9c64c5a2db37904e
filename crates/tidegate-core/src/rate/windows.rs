//! What all windows share: the wait until the tick at which a request fits, and bounds for settling.

use core::time::Duration;

use crate::decision::{Ask, Receipt, Retry, Transition};
use crate::time::{Rate, Tick, span};

/// Turns the tick at which a request fits into a grant, or into a refusal with the least wait.
///
/// `at` is the tick of the request, or of the last change if that is later; `act` is the first tick from `at` on at
/// which the whole cost fits. Until then `act` does not move, so a refused caller has to wait exactly `act − at −
/// max_wait`, and `room` if that is longer: the wait until the state can keep one more promise. A request that fits
/// only after [`Tick::MAX`] is refused for ever, because no clock gets there.
///
/// # Errors
/// The denial.
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
/// opened ahead of time. As many waiters of one key are served in their order; one more is refused, since a promise
/// that is forgotten could not be undone. A promise takes 16 to 40 bytes, less than the memory of whoever waits for it.
pub(crate) const AHEAD: usize = 4096;

/// The promises ahead for which the byte form of a state has room in an engine that bounds its size.
pub(crate) const AHEAD_IN_ENGINE: usize = 64;

/// The most units that a window counts, limit and debt together: each is at most [`Rate::MAX_COUNT`].
pub(crate) const MOST_UNITS: u64 = 2 * Rate::MAX_COUNT;

/// Returns the units that a settlement books beyond the charge, at most [`Rate::MAX_COUNT`]; zero if there are none.
pub(crate) fn excess(receipt: &Receipt, used: u64) -> u64 {
    used.saturating_sub(receipt.cost.units()).min(Rate::MAX_COUNT)
}

/// Returns by how much a count lies above the limit.
pub(crate) fn above(count: u64, limit: u64) -> u64 {
    count.saturating_sub(limit).min(Rate::MAX_COUNT)
}

/// Returns the time from `at` to a tick that may be later than [`Tick::MAX`].
pub(crate) fn until(at: Tick, tick: u128) -> Duration {
    span(tick.saturating_sub(u128::from(at.as_nanos())))
}

/// Returns a tick in 128 bits, so that the sum of two cannot overflow.
pub(crate) fn wide(tick: Tick) -> u128 {
    u128::from(tick.as_nanos())
}

/// Returns `⌈count · new / old⌉`, at most the largest limit: the same share of another limit.
pub(crate) fn share(count: u64, new: u64, old: u64) -> u64 {
    let scaled = (u128::from(count) * u128::from(new)).div_ceil(u128::from(old.max(1)));
    // Bounded by `Rate::MAX_COUNT`, which fits 64 bits.
    scaled.min(u128::from(Rate::MAX_COUNT)) as u64
}
