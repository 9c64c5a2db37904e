//! What all windows share: the wait until the tick at which an ask fits, and the bounds of what is settled.

use core::time::Duration;

use crate::decision::{Ask, Receipt, Retry, Transition};
use crate::time::{Rate, Tick, span};

/// Turns the tick at which an ask fits into a grant, or into a refusal with the least wait.
///
/// `at` is the tick of the ask after standing still, `act` the first tick at or after it where the whole cost fits. Until then the
/// place does not move, so a refused caller is `act − at − max_wait` away from a yes, and not a nanosecond less. An ask that fits
/// only after [`Tick::MAX`] is refused for good: no clock gets there.
///
/// # Errors
/// The transition that refuses.
pub(crate) fn grant<S>(ask: Ask, at: Tick, act: u128) -> Result<(Tick, Duration), Transition<S>> {
    let Ok(act) = u64::try_from(act).map(Tick::from_nanos) else { return Err(Transition::NEVER) };
    let wait = act.since(at);
    if wait > ask.max_wait {
        return Err(Transition::Denied { retry: Retry::After(wait - ask.max_wait) });
    }
    Ok((act, wait))
}

/// The most units a window counts, limit and debt together: both are at most [`Rate::MAX_COUNT`].
pub(crate) const MOST_UNITS: u64 = 2 * Rate::MAX_COUNT;

/// Returns what a settlement books beyond what was charged, at most [`Rate::MAX_COUNT`]; zero when nothing.
pub(crate) fn excess(receipt: &Receipt, used: u64) -> u64 {
    used.saturating_sub(receipt.cost.units()).min(Rate::MAX_COUNT)
}

/// Returns by how much a count lies above the limit.
pub(crate) fn above(count: u64, limit: u64) -> u64 {
    count.saturating_sub(limit).min(Rate::MAX_COUNT)
}

/// Returns how long it is from `at` to a tick that may lie behind [`Tick::MAX`].
pub(crate) fn until(at: Tick, tick: u128) -> Duration {
    span(tick.saturating_sub(u128::from(at.as_nanos())))
}

/// Returns a tick in 128 bits, where no sum of two overflows.
pub(crate) fn wide(tick: Tick) -> u128 {
    u128::from(tick.as_nanos())
}

/// Returns `⌈count · new / old⌉`, at most the largest limit: the same share of another limit.
pub(crate) fn share(count: u64, new: u64, old: u64) -> u64 {
    let scaled = (u128::from(count) * u128::from(new)).div_ceil(u128::from(old.max(1)));
    // Bounded by the limit's maximum, which fits.
    scaled.min(u128::from(Rate::MAX_COUNT)) as u64
}
