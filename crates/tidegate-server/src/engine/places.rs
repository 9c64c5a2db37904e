//! How many requests are in flight, and may be: for metrics and for people.

use std::collections::HashMap;

use tidegate::gate::PlacesStanding;

use super::Engine;
use crate::live::Live;

impl Engine {
    /// Returns how the places of each policy stand that has one key, by the name of the policy: of several limits, the one with the fewest.
    pub(crate) fn places(&self, live: &Live) -> HashMap<String, PlacesStanding> {
        let mut places: HashMap<String, PlacesStanding> = HashMap::new();
        for one in self.gate.places() {
            // The gate's set is this one, but for the moment of a reload.
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
