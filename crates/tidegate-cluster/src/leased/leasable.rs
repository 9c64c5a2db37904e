//! Decides which limits can be leased, and on what terms.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::time::{nanos, span};
use tidegate_core::{Quota, Rate};

use crate::Part;
use tidegate_limits::store::PerLimit;

/// The least that a node must be allowed to hold for a lease to be worth it: below, each request would need its own
/// draw.
pub(super) const LEAST_HELD: u64 = 2;

/// The longest time that a draw reserves ahead: hardly noticed, and short enough to limit what an idle node strands.
const LONGEST_AHEAD: Duration = Duration::from_millis(100);

/// The options of a deployment for all its leases; the same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseOptions {
    /// How many thousandths of a burst all nodes together may hold.
    pub(super) outstanding: u64,
    /// Whether the engine's limit is smaller by the units that nodes may hold.
    pub(super) strict: bool,
    /// The time of its own demand that a node draws at once.
    pub(super) target: Duration,
    pub(super) lasts: Duration,
}

/// Returns the most units of a limit that one of `nodes` nodes holds if each has an even part; `None` if the limit is
/// not leased.
pub(super) fn most_held(quota: &Arc<Quota>, nodes: u64, options: &LeaseOptions) -> Option<u64> {
    let terms = Terms::of(quota, options)?;
    let held = terms.allowance(Part::even(nodes).at(tidegate_core::Tick::EPOCH), terms.limit);
    (held >= LEAST_HELD).then_some(held)
}

/// How one limit is leased.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) engine: Arc<Quota>,
    /// The units that the whole limit grants at once.
    pub(super) limit: u64,
    /// Whether units end with the window in which they were drawn.
    pub(super) window: bool,
    /// The most units that all nodes together may hold.
    pub(super) outstanding: u64,
    pub(super) ahead: Duration,
    pub(super) target: Duration,
    pub(super) lasts: Duration,
}

impl Terms {
    /// Returns the terms of a limit; `None` where it is decided by the engine alone.
    pub(super) fn of(quota: &Arc<Quota>, options: &LeaseOptions) -> Option<Self> {
        let LeaseOptions { outstanding, strict, target, lasts } = *options;
        if let Quota::FixedWindow(window) = &**quota {
            // Units drawn in a window are spent in it, so the window never grants more than its limit, whatever nodes
            // hold.
            let limit = window.limit();
            let (engine, ahead) = (Arc::clone(quota), Duration::ZERO);
            let outstanding = limit / 2;
            return Some(Self { engine, limit, window: true, outstanding, ahead, target, lasts });
        }
        let (rate, limit) = quota.flow()?;
        let outstanding = part_of(limit, outstanding, 1000);
        if outstanding == 0 {
            return None;
        }
        let engine =
            if strict { Arc::new(quota.with_less_burst(limit - outstanding)?) } else { Arc::clone(quota) };
        let ahead = time_of(rate, outstanding).min(LONGEST_AHEAD);
        Some(Self { engine, limit, window: false, outstanding, ahead, target, lasts })
    }

    /// Returns how many units a node with the given part may hold, when the engine has `remaining` units left.
    pub(super) fn allowance(&self, part: u32, remaining: u64) -> u64 {
        let all = if self.window { self.outstanding.min(remaining / 2) } else { self.outstanding };
        part_of(all, u64::from(part), u64::from(Part::WHOLE))
    }
}

#[derive(Debug)]
pub(super) struct AllTerms {
    options: LeaseOptions,
    /// `None` where a limit cannot be leased.
    met: PerLimit<Option<Arc<Terms>>>,
}

impl AllTerms {
    pub(super) fn new(options: LeaseOptions) -> Self {
        Self { options, met: PerLimit::default() }
    }

    /// Returns the terms of a limit. From the second call on, costs a lookup in a map.
    pub(super) fn of(&self, quota: &Arc<Quota>) -> Option<Arc<Terms>> {
        self.met.with(quota, || Terms::of(quota, &self.options).map(Arc::new), Option::clone)
    }
}

fn part_of(number: u64, part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(number) * u128::from(part) / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

fn time_of(rate: Rate, units: u64) -> Duration {
    span(u128::from(units) * u128::from(nanos(rate.period())) / u128::from(rate.count()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_limits::store::conformance::quotas;

    const OPTIONS: LeaseOptions = LeaseOptions {
        outstanding: 50,
        strict: true,
        target: Duration::from_millis(50),
        lasts: Duration::from_secs(1),
    };

    #[test]
    fn the_engines_limit_and_what_nodes_hold_are_the_limit() {
        let quota = Arc::new(Quota::per_second(1000).burst(200).gcra().unwrap());
        let terms = Terms::of(&quota, &OPTIONS).unwrap();
        assert_eq!(terms.engine.flow().unwrap().1 + terms.outstanding, 200);
        assert_eq!((terms.outstanding, terms.ahead), (10, Duration::from_millis(10)));
        for nodes in 1..30 {
            let each = terms.allowance(Part::even(nodes).at(tidegate_core::Tick::EPOCH), 0);
            assert!(each * nodes <= terms.outstanding);
        }
        let loose = Terms::of(&quota, &LeaseOptions { strict: false, ..OPTIONS }).unwrap();
        assert!(Arc::ptr_eq(&loose.engine, &quota));
    }

    #[test]
    fn small_limits_and_those_that_are_no_flow_are_left_to_the_engine() {
        let small = Arc::new(Quota::per_second(1000).burst(19).gcra().unwrap());
        assert_eq!(Terms::of(&small, &OPTIONS), None);
        let options = LeaseOptions { outstanding: 500, ..OPTIONS };
        let leased = quotas().iter().filter(|quota| Terms::of(quota, &options).is_some()).count();
        // Two of GCRA, two windows, the token bucket, the bucket that starts nearly empty, the leaky bucket. The other three of
        // GCRA too: they grant three at once.
        assert_eq!(leased, 10);
    }

    #[test]
    fn a_limit_has_the_same_terms_each_time() {
        let all = AllTerms::new(OPTIONS);
        let quota = Arc::new(Quota::per_second(1000).burst(200).gcra().unwrap());
        assert!(Arc::ptr_eq(&all.of(&quota).unwrap(), &all.of(&quota).unwrap()));
    }
}
