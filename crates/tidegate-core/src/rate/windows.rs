//! What all windows share: the wait until the tick at which a request fits, and bounds for settling.

use core::time::Duration;

use crate::decision::{Ask, Receipt, Retry, Transition};
use crate::time::{Rate, Tick, span};

/// Turns the tick at which a request fits into a grant, or into a refusal with the least wait.
///
/// `at` is the tick of the request, or of the last change if that is later; `act` is the first tick from `at` on at
/// which the whole cost fits. Until then `act` does not move, so a refused caller has to wait exactly `act − at −
/// max_wait`. A request that fits only after [`Tick::MAX`] is refused for ever, because no clock gets there.
///
/// # Errors
/// The denial.
pub(crate) fn grant<S>(ask: Ask, at: Tick, act: u128) -> Result<(Tick, Duration), Transition<S>> {
    let Ok(act) = u64::try_from(act).map(Tick::from_nanos) else { return Err(Transition::NEVER) };
    let wait = act.since(at);
    if wait > ask.max_wait {
        return Err(Transition::Denied { retry: Retry::After(wait - ask.max_wait) });
    }
    Ok((act, wait))
}

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
