//! Computes the units that the limits of a policy grant to one key within the window of its peaks.

use std::time::Duration;

use tidegate::policy::Limit;

/// The most that is granted to one key in any window, and the limit that grants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The amount, in cost units.
    pub units: u64,
    /// The label of the limit.
    pub limit: String,
    /// Whether tiers or overrides give some keys a different limit.
    pub has_exceptions: bool,
}

impl Granted {
    /// Returns the least that any of several limits grants; `None` if it is known for none of them.
    ///
    /// A waiting request is granted at the time it asks, for later use, so the longest accepted wait is added to the
    /// window.
    pub(super) fn least(limits: &[Limit], window: Duration) -> Option<Self> {
        let granted = |limit: &Limit| {
            let quota = limit.terms.quota.as_ref()?;
            let units = quota.granted_within(window.saturating_add(limit.max_wait))?;
            let has_exceptions = limit.tiers.is_some() || !limit.overrides.is_empty();
            Some(Self { units, limit: limit.terms.label.clone(), has_exceptions })
        };
        limits.iter().filter_map(granted).min_by_key(|granted| granted.units)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Quota;

    use super::*;

    #[test]
    fn the_least_of_several_limits_is_named() {
        let minute = Duration::from_secs(60);
        let burst = Limit::new(Quota::per_second(2).burst(20).gcra().unwrap(), "gcra 2/s burst 20");
        let log = Limit::new(Quota::per_minute(50).sliding_log().unwrap(), "sliding-log 50/min");
        let guard = Limit::new(Quota::concurrency(5, minute).unwrap(), "concurrency 5");
        let least = |limits: &[Limit]| Granted::least(limits, minute).map(|least| (least.units, least.limit));
        assert_eq!(least(std::slice::from_ref(&burst)), Some((140, "gcra 2/s burst 20".to_owned())));
        assert_eq!(least(&[burst.clone(), log, guard.clone()]), Some((50, "sliding-log 50/min".to_owned())));
        assert_eq!(least(&[guard]), None);
        let mut patient = burst;
        patient.max_wait = Duration::from_secs(10);
        assert_eq!(least(&[patient]), Some((160, "gcra 2/s burst 20".to_owned())));
    }
}
