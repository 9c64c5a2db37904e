//! Decides which limits can be leased, and on what terms.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::time::{nanos, span};
use tidegate_core::{Quota, Rate};

use super::allowance::MANY;
use crate::Part;
use tidegate_limits::store::PerLimit;

/// The least that a node must be allowed to hold for a lease to be worth it: below, each request would need its own
/// draw.
pub(super) const LEAST_HELD: u64 = 2;

/// A part of the burst of fewer units is not worth it: one request more or less is a large part of it.
pub(super) const FEW: u64 = 16;

/// The longest time that a draw reserves ahead: hardly noticed, and short enough to limit what an idle node strands.
pub(super) const LONGEST_AHEAD: Duration = Duration::from_millis(100);

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
    /// The most nodes that there may ever be.
    pub(super) nodes: u64,
}

/// Returns the most units of a limit that a node holds near the engine if each has an even part; `None` if the limit is not
/// leased.
pub(super) fn most_held(quota: &Arc<Quota>, settled: bool, options: &LeaseOptions) -> Option<u64> {
    let terms = Terms::of(quota, options)?;
    let part = Part::even(options.nodes).at(tidegate_core::Tick::EPOCH);
    let (held, burst) = (terms.allowance(part, terms.limit), terms.part_of_burst(part));
    let held = if settled || burst < FEW { held } else { held.max(burst.min(MANY)) };
    (held >= LEAST_HELD).then_some(held)
}

/// How one limit is leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) engine: Arc<Quota>,
    /// The units that the whole limit grants at once.
    pub(super) limit: u64,
    /// The rate; `None` for a window, whose units end with the window in which they were drawn.
    pub(super) rate: Option<Rate>,
    /// The most units that all nodes together may hold in any case. 0 if that is too little for an even part to be of
    /// use: then the engine has the whole burst, and nodes hold only what they know to be missing at the engine.
    pub(super) outstanding: u64,
    /// How far ahead units are reserved of a key of which a node holds its part of that only.
    pub(super) ahead: Duration,
    pub(super) target: Duration,
    pub(super) lasts: Duration,
}

impl Terms {
    /// Returns the terms of a limit; `None` where it is decided by the engine alone.
    pub(super) fn of(quota: &Arc<Quota>, options: &LeaseOptions) -> Option<Self> {
        let LeaseOptions { outstanding, strict, target, lasts, nodes } = *options;
        if let Quota::FixedWindow(window) = &**quota {
            // Units drawn in a window are spent in it, so the window never grants more than its limit, whatever nodes
            // hold.
            let limit = window.limit();
            let (engine, ahead) = (Arc::clone(quota), Duration::ZERO);
            let outstanding = limit / 2;
            return Some(Self { engine, limit, rate: None, outstanding, ahead, target, lasts });
        }
        let (rate, limit) = quota.flow()?;
        let wanted = part_of(limit, outstanding, 1000);
        let outstanding = if wanted / nodes.max(1) < LEAST_HELD { 0 } else { wanted };
        let engine = if strict && outstanding > 0 {
            Arc::new(quota.with_less_burst(limit - outstanding)?)
        } else {
            Arc::clone(quota)
        };
        let ahead = time_of(rate, outstanding).min(LONGEST_AHEAD);
        Some(Self { engine, limit, rate: Some(rate), outstanding, ahead, target, lasts })
    }

    pub(super) const fn is_window(&self) -> bool {
        self.rate.is_none()
    }

    /// Returns how many units a node with the given part may hold, when the engine has `remaining` units left.
    pub(super) fn allowance(&self, part: u32, remaining: u64) -> u64 {
        let all = if self.is_window() { self.outstanding.min(remaining / 2) } else { self.outstanding };
        part_of(all, u64::from(part), u64::from(Part::WHOLE))
    }

    /// Returns whether a node with the given part may give back units of a key that it no longer knows.
    pub(super) fn may_give(&self, units: u64, part: u32) -> bool {
        self.is_window() || units <= self.allowance(part, 0)
    }

    /// Returns a part of what the engine's limit grants at once; 0 for a window, of which nodes hold a part of what remains
    /// only.
    pub(super) fn part_of_burst(&self, part: u32) -> u64 {
        let burst = if self.is_window() { 0 } else { self.engine_burst() };
        part_of(burst, u64::from(part), u64::from(Part::WHOLE))
    }

    /// Returns the burst of the engine's limit.
    pub(super) fn engine_burst(&self) -> u64 {
        self.engine.capacity()
    }

    /// Returns whether any node may ever hold more than its part of `O`.
    pub(super) fn may_be_held_beyond(&self) -> bool {
        !self.is_window() && self.engine_burst() >= FEW
    }

    /// Returns how many units come back within a span, rounded up; none in a window.
    pub(super) fn refill(&self, span: Duration) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        let units = u128::from(nanos(span)) * u128::from(rate.count());
        u64::try_from(units.div_ceil(u128::from(nanos(rate.period())))).unwrap_or(u64::MAX)
    }

    /// Returns the rate in thousandths of a unit a second; for a window, there is none.
    pub(super) fn rate_in_thousandths(&self) -> u64 {
        let in_a_second =
            |rate: Rate| u128::from(rate.count()) * 1_000_000_000_000 / u128::from(nanos(rate.period()));
        self.rate.map_or(u64::MAX, |rate| u64::try_from(in_a_second(rate)).unwrap_or(u64::MAX).max(1))
    }

    /// Returns in which time a number of units comes back, rounded down.
    pub(super) fn time_of(&self, units: u64) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| time_of(rate, units))
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

    pub(super) const fn nodes(&self) -> u64 {
        self.options.nodes
    }

    /// Returns the terms of a limit. From the second call on, costs a lookup in a map.
    pub(super) fn of(&self, quota: &Arc<Quota>) -> Option<Arc<Terms>> {
        self.met.with(quota, || Terms::of(quota, &self.options).map(Arc::new), Option::clone)
    }
}

pub(super) fn part_of(number: u64, part: u64, whole: u64) -> u64 {
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
        nodes: 1,
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
        // Of forty, two nodes could hold a unit each: the engine keeps the whole burst.
        for (burst, nodes, outstanding) in [(20, 1, 0), (39, 1, 0), (40, 1, 2), (100, 10, 0), (400, 10, 20)] {
            let small = Arc::new(Quota::per_second(1000).burst(burst).gcra().unwrap());
            let terms = Terms::of(&small, &LeaseOptions { nodes, ..OPTIONS }).unwrap();
            assert_eq!((terms.outstanding, terms.engine_burst()), (outstanding, burst - outstanding));
        }
        let leased = quotas().iter().filter(|quota| Terms::of(quota, &OPTIONS).is_some()).count();
        // The five of GCRA, two windows, the token bucket, the bucket that starts nearly empty, the leaky bucket.
        assert_eq!(leased, 10);
    }

    #[test]
    fn a_limit_has_the_same_terms_each_time() {
        let all = AllTerms::new(OPTIONS);
        let quota = Arc::new(Quota::per_second(1000).burst(200).gcra().unwrap());
        assert!(Arc::ptr_eq(&all.of(&quota).unwrap(), &all.of(&quota).unwrap()));
    }
}
