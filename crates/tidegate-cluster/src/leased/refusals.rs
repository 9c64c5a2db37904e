//! Remembers the engine's refusals for one key, so that the node does not repeat a request that would be refused again.
//!
//! A refusal is remembered for at most as long as units may be held: the engine may grant earlier than it said, when
//! units come back or the key is reset. Callers are still told the time that the engine named.

use std::time::Duration;

use tidegate_core::{Cost, Retry, Tick};

/// After this time, a refusal whose end the engine does not know is tried again.
const AFTER_AN_UNKNOWN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Hash)]
struct EngineRefusal {
    /// The units refused; covers all larger costs.
    units: u64,
    /// The units to be left for higher priorities; covers all requests that have to leave more.
    kept_back: u64,
    /// The tick from which the engine may be asked again.
    again: Tick,
    /// The tick at which the units may be spent, as told to callers.
    until: Tick,
}

impl EngineRefusal {
    const fn covers(&self, units: u64, kept_back: u64) -> bool {
        units >= self.units && kept_back >= self.kept_back
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Refusals {
    /// The last draw that was refused, because not even one unit was left.
    draw: Option<EngineRefusal>,
    /// The last request that the engine decided alone and refused; does not cover smaller costs.
    request: Option<EngineRefusal>,
    /// Answers to requests sent up to this tick are ignored: they may be from before units came back.
    cleared: Tick,
}

impl Refusals {
    pub(super) fn of(&self, cost: Cost, kept_back: u64, now: Tick) -> Option<Duration> {
        let both = [&self.draw, &self.request].into_iter().flatten();
        let holds = |refusal: &&EngineRefusal| now < refusal.again && refusal.covers(cost.units(), kept_back);
        both.filter(holds).map(|refusal| refusal.until.since(now)).max()
    }

    pub(super) fn forbid_draw(&self, kept_back: u64, now: Tick) -> bool {
        self.draw.is_some_and(|refusal| now < refusal.again && refusal.covers(1, kept_back))
    }

    /// Forgets a refused draw that may be tried again; returns whether there was one.
    pub(super) fn lapse(&mut self, now: Tick) -> bool {
        self.draw.take_if(|refusal| refusal.again <= now).is_some()
    }

    /// Notes a refused draw. Units drawn at the named time may be spent `ahead` later.
    pub(super) fn add_draw(
        &mut self,
        kept_back: u64,
        retry: Retry,
        sent: Tick,
        ahead: Duration,
        lasts: Duration,
    ) {
        // Counted from the sending: a request sent at that tick reaches the engine no earlier than it said.
        let after = retry.after().unwrap_or(AFTER_AN_UNKNOWN);
        let (again, until) = (sent.after(after.min(lasts)), sent.after(after.saturating_add(ahead)));
        self.draw = Some(EngineRefusal { units: 1, kept_back, again, until });
    }

    pub(super) fn add_request(
        &mut self,
        cost: Cost,
        kept_back: u64,
        after: Duration,
        sent: Tick,
        lasts: Duration,
    ) {
        let (again, until) = (sent.after(after.min(lasts)), sent.after(after));
        let new = EngineRefusal { units: cost.units(), kept_back, again, until };
        let known = self.request.filter(|known| sent < known.again);
        // A refusal that says more is kept: one that covers smaller costs covers this one too.
        if sent > self.cleared && known.is_none_or(|known| !known.covers(new.units, new.kept_back)) {
            self.request = Some(new);
        }
    }

    pub(super) fn end_draw(&mut self, kept_back: u64) {
        self.draw.take_if(|refusal| kept_back >= refusal.kept_back);
    }

    pub(super) fn end_for(&mut self, cost: Cost, kept_back: u64) {
        for refusal in [&mut self.draw, &mut self.request] {
            refusal.take_if(|refusal| refusal.covers(cost.units(), kept_back));
        }
    }

    pub(super) fn clear(&mut self, now: Tick) {
        *self = Self { cleared: now, ..Self::default() };
    }

    /// Returns all that determines what is asked next.
    #[cfg(test)]
    pub(super) fn model_state(&self) -> impl std::hash::Hash + use<> {
        (self.draw, self.request)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::Quota;

    use super::super::leasable::{LeaseOptions, Terms};
    use super::super::lease::{GivenBack, Lease, Lookup};
    use super::*;
    use crate::Part;

    const LASTS: Duration = Duration::from_secs(1);
    const HOURS: Duration = Duration::from_secs(36_000);

    fn at(ms: u64) -> Tick {
        Tick::from_nanos(1_000_000_000 + ms * 1_000_000)
    }

    fn units(units: u64) -> Cost {
        Cost::new(units).unwrap()
    }

    #[test]
    fn a_refusal_holds_for_as_long_as_units_may_be_held_and_tells_what_the_engine_said() {
        let mut refusals = Refusals::default();
        let ahead = Duration::from_millis(100);
        refusals.add_draw(0, Retry::After(HOURS), at(0), ahead, LASTS);
        assert_eq!(refusals.of(Cost::ONE, 0, at(0)), Some(HOURS + ahead));
        assert!(refusals.forbid_draw(0, at(999)) && !refusals.lapse(at(999)));
        assert_eq!(refusals.of(Cost::ONE, 0, at(1000)), None);
        assert!(!refusals.forbid_draw(0, at(1000)) && refusals.lapse(at(1000)));
    }

    #[test]
    fn the_fast_path_refuses_what_a_look_refuses() {
        let quota = Arc::new(Quota::per_second(10).burst(100).gcra().unwrap());
        let (outstanding, strict, target) = (500, true, Duration::from_millis(50));
        let options = LeaseOptions { outstanding, strict, target, lasts: LASTS, nodes: 1 };
        let mut lease = Lease::new(Arc::new(Terms::of(&quota, &options).unwrap()));
        lease.refused_alone(units(4), 2, HOURS, at(0));
        for (cost, kept_back, ms, is_refused) in
            [(4, 2, 1, true), (5, 3, 999, true), (3, 2, 1, false), (4, 1, 1, false), (4, 2, 1000, false)]
        {
            let (cost, now) = (units(cost), at(ms));
            let at_once = lease.clone().refuse_at_once(cost, kept_back, now);
            let found = lease.clone().look_up(cost, kept_back, now, Part::WHOLE, &mut GivenBack::new());
            assert_eq!(at_once.is_some(), is_refused, "{cost:?}, {kept_back}, {ms} ms");
            assert_eq!(matches!(found, Lookup::Refused(_)), is_refused, "{found:?}");
            assert!(at_once.is_none_or(|wait| found == Lookup::Refused(wait)));
        }
    }

    #[test]
    fn a_large_cost_that_is_refused_says_nothing_of_smaller_ones_nor_of_draws() {
        let mut refusals = Refusals::default();
        refusals.add_request(units(40), 5, LASTS, at(0), LASTS);
        assert!(refusals.of(units(39), 5, at(1)).is_none() && refusals.of(units(40), 4, at(1)).is_none());
        assert!(refusals.of(units(41), 6, at(1)).is_some() && !refusals.forbid_draw(9, at(1)));
        refusals.add_request(units(50), 5, HOURS, at(1), LASTS);
        assert!(refusals.of(units(40), 5, at(2)).is_some(), "what says more is kept");
        refusals.end_for(units(39), 5);
        assert!(refusals.of(units(40), 5, at(2)).is_some());
        refusals.end_for(units(40), 5);
        assert!(refusals.of(units(40), 5, at(2)).is_none());
    }

    #[test]
    fn a_draw_for_high_priority_leaves_what_is_known_of_low_priority() {
        let mut refusals = Refusals::default();
        refusals.add_draw(10, Retry::After(LASTS), at(0), Duration::ZERO, LASTS);
        assert!(refusals.forbid_draw(10, at(1)) && !refusals.forbid_draw(9, at(1)));
        refusals.end_draw(0);
        assert!(refusals.of(Cost::ONE, 10, at(1)).is_some());
        refusals.end_draw(10);
        assert!(refusals.of(Cost::ONE, 10, at(1)).is_none());
    }

    #[test]
    fn an_answer_to_what_was_asked_before_units_came_back_says_nothing() {
        let mut refusals = Refusals::default();
        refusals.clear(at(5));
        refusals.add_request(Cost::ONE, 0, HOURS, at(5), LASTS);
        assert!(refusals.of(Cost::ONE, 0, at(6)).is_none());
        refusals.add_request(Cost::ONE, 0, HOURS, at(6), LASTS);
        assert!(refusals.of(Cost::ONE, 0, at(7)).is_some());
    }
}
