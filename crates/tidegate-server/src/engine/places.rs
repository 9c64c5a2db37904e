//! The requests in flight and their limits, for metrics and for people.

use std::collections::HashMap;

use tidegate::gate::PlacesStanding;

use super::Engine;
use crate::live::Live;

impl Engine {
    /// Returns the standing of places by policy name, for each policy that has a single key. If there are several
    /// limits, the smallest counts.
    pub(crate) fn places(&self, live: &Live) -> HashMap<String, PlacesStanding> {
        let mut places: HashMap<String, PlacesStanding> = HashMap::new();
        for one in self.gate.places() {
            // The gate's set is this one, except for a moment during a reload.
            let Some(policy) = live.set.policies().get(one.policy) else { continue };
            let fewest = places.entry(policy.name.clone()).or_insert(one);
            if one.standing.limit < fewest.standing.limit {
                *fewest = one;
            }
        }
        places
    }

    /// Sets the gauges of places.
    pub(super) fn show_places(&self, live: &Live) {
        let places = self.places(live);
        for policy in live.set.policies() {
            match places.get(&policy.name) {
                Some(one) => {
                    self.metrics.protection.show_places(&policy.name, one.standing.limit, one.in_use());
                }
                None => self.metrics.protection.forget_places(&policy.name),
            }
        }
    }
}
