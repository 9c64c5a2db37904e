//! What was seen last of policies with conditions and of switches, and how to tell what has changed since.
//!
//! What is remembered is one word for each policy with conditions and for each switch of the file.

use std::collections::HashMap;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::policy::{Holding, Limit, PolicySet};
use tidegate::switches::{Off, Standing};
use tidegate::{Criticality, Tick};
use tidegate_core::time::MAX_STEP_BACK;

use crate::active_config::most_of;

/// How often a running server looks.
pub(crate) const WATCHED_EVERY: Duration = Duration::from_secs(1);

/// What was seen last. A policy that is not here was not in force; a switch, not set.
#[derive(Debug, Default)]
pub(super) struct LastSeen {
    /// Policies in force, with the level below which they are.
    pub(super) policies: Mutex<HashMap<String, Option<Criticality>>>,
    /// Policies whose conditions do not hold because a number is not known.
    pub(super) unknown: Mutex<HashMap<String, UnknownNumber>>,
    /// Policies whose cost could not be determined for some requests.
    pub(super) costs: Mutex<HashMap<String, LastTold>>,
    /// Keys over their limit that the store has forgotten.
    pub(super) forgotten: Mutex<Option<LastTold>>,
    /// Switches that something was set for.
    pub(super) switches: Mutex<HashMap<String, Standing>>,
    /// How far the wall clock was ahead of the ticks, in nanoseconds.
    pub(super) wall: AtomicI64,
}

/// A policy that is out of force because a number is not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnknownNumber {
    pub(super) since: Tick,
    /// Whether the log has told.
    pub(super) told: bool,
}

impl UnknownNumber {
    /// After how long the log tells: at the start, whoever reports a number needs a moment.
    pub(super) const TOLD_AFTER: Duration = Duration::from_secs(30);
}

/// What the log has told about something that is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastTold {
    /// How many there were.
    pub(super) all: u64,
    pub(super) at: Tick,
}

impl LastTold {
    /// How often the log tells about one thing.
    pub(super) const EVERY: Duration = Duration::from_secs(60);
}

/// How a part of a switch changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// Somebody turned it.
    By,
    /// Its time was over.
    Over,
}

/// Returns how a part of a switch changed between two looks; `None` if it did not.
pub(super) fn turned(
    before: Option<&(Off, Option<Tick>)>,
    after: Option<&(Off, Option<Tick>)>,
    now: Tick,
) -> Option<Turned> {
    match (before, after) {
        (before, after) if before == after => None,
        (Some((_, Some(until))), None) if *until <= now => Some(Turned::Over),
        _ => Some(Turned::By),
    }
}

/// Describes a step of the wall clock between two looks, by how far it was and is ahead of the ticks; `None` for one
/// forward, as after a sleep of the machine, or as small as a time service makes it.
pub(super) fn set_back(before: i64, now: i64) -> Option<String> {
    let step = Duration::from_nanos(now.abs_diff(before));
    (now < before && step > MAX_STEP_BACK).then(|| {
        format!(
            "the wall clock was set back by {} s: calendar windows and aligned refills follow it, and a key counts what it has spent in the \
             present window; other limits go on as before",
            step.as_secs()
        )
    })
}

/// Returns true or false, or `None` if it is not known.
pub(crate) fn known(holding: Holding) -> Option<bool> {
    match holding {
        Holding::Yes { .. } => Some(true),
        Holding::Unknown => None,
        _ => Some(false),
    }
}

/// Returns a rate in units a second.
pub(crate) fn per_second(rate: tidegate_core::Rate) -> f64 {
    rate.count() as f64 / rate.period().as_secs_f64()
}

/// Returns the most units that a policy grants one key at once now; `None` if unlimited.
pub(super) fn most_in_force(set: &PolicySet, at: usize) -> Option<u64> {
    let policy = &set.policies()[at];
    // Breakers are left out, as in the gauge of limits that do not move.
    let counting = policy.limits.iter().enumerate().filter(|(_, limit)| !limit.is_breaker());
    let quota = |(index, limit): (usize, &Limit)| {
        let quota = set.limit_in_force(at, index).or(limit.terms.quota.as_ref())?;
        Some(most_of(quota))
    };
    counting.filter_map(quota).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_is_set_back_is_told_once_a_step() {
        let second = 1_000_000_000;
        let told = set_back(3600 * second, -82_800 * second).unwrap();
        assert!(told.starts_with("the wall clock was set back by 86400 s: "), "{told}");
        for (before, now) in [(0, -10 * second), (-82_800 * second, -82_800 * second), (0, 86_400 * second)] {
            assert_eq!(set_back(before, now), None);
        }
        assert!(set_back(i64::MAX, i64::MIN).is_some());
    }

    #[test]
    fn an_end_that_has_come_is_told_apart_from_a_hand() {
        let off = |until: Option<u64>| (Off::for_all("moved"), until.map(Tick::from_secs));
        let (now, ends, stays) = (Tick::from_secs(10), off(Some(10)), off(None));
        assert_eq!(turned(None, None, now), None);
        assert_eq!(turned(Some(&ends), Some(&ends), now), None);
        assert_eq!(turned(None, Some(&ends), now), Some(Turned::By));
        assert_eq!(turned(Some(&ends), None, now), Some(Turned::Over));
        assert_eq!(turned(Some(&ends), None, Tick::from_secs(9)), Some(Turned::By));
        assert_eq!(turned(Some(&stays), None, now), Some(Turned::By));
        assert_eq!(turned(Some(&stays), Some(&ends), now), Some(Turned::By));
    }
}
