//! What alerts are judged by: of each second the policies that refuse more than is usual, of each minute the keys.

use std::ops::RangeInclusive;

use tidegate_server::{OpenBreaker, Vitals};

use super::live;
use super::{Judged, State, Watch};
use crate::alerts::{Before, Key, Second, UnusualPolicy};
use crate::busiest::KeyMinute;
use crate::numbers::Series;

/// Keys of a policy, of each order, whose last minute is judged.
const KEYS_JUDGED: usize = 64;

/// A minute that was shorter or longer, in seconds, is not judged: the first of a process, and after a step of the clock.
const JUDGED_MINUTE: RangeInclusive<u64> = 45..=120;

impl Watch {
    /// Judges the second that has ended, and the minute if it has ended with it.
    pub(super) fn judge_alerts(&self, now: u64, vitals: &Vitals, breakers: Vec<OpenBreaker>, dropped: u64) {
        let unusual = {
            let mut state = self.state.lock();
            let ended = state.busiest.last_minute().filter(|(_, to)| *to == now);
            if let Some((from, to)) =
                ended.filter(|(from, to)| JUDGED_MINUTE.contains(&to.saturating_sub(*from)))
            {
                let keys = state.keys_of_minute((to - from) as f64);
                let state = &*state;
                self.alerts.minute(from, &keys, &|policy, key| {
                    let (units, refused) = state.busiest.before_the_minutes(policy, key);
                    Before { passed: units / state.units_a_pass(policy), refused }
                });
            }
            state.unusual_policies()
        };
        self.alerts.second(&Second {
            now,
            unusual,
            breakers,
            rolled_back: self.canaries.rolled_back(),
            store: vitals.store,
            store_away: vitals.store_away.as_deref(),
            refused: vitals.refused.as_deref(),
            dropped,
        });
    }
}

impl State {
    /// Returns the units that a pass of a policy takes on average.
    fn units_a_pass(&self, policy: u16) -> f64 {
        self.units_a_pass.get(&policy).copied().unwrap_or(1.0)
    }

    /// Returns what keys did in the minute that has just ended, which took so many seconds.
    fn keys_of_minute(&mut self, seconds: f64) -> Vec<Key> {
        for (policy, counts) in &self.recent.minute().policies {
            let passed = [Series::Allowed, Series::Delayed, Series::Over];
            let passed = passed.into_iter().map(|series| counts.of(series)).fold(0, u64::saturating_add);
            if passed > 0 {
                // Some that this policy let pass took nothing, since another one refused them.
                let units = (counts.of(Series::AdmittedUnits) as f64 / passed as f64).max(1.0);
                self.units_a_pass.insert(*policy, units);
            }
        }
        let keys = self.busiest.keys_of_last_minute(KEYS_JUDGED).into_iter();
        let key = |minute: KeyMinute| {
            let KeyMinute { policy, key, refused, admitted } = minute;
            Some(Key {
                policy,
                key,
                name: self.board.name_of(policy)?,
                shown: live::shown_key(self.busiest.name_of(policy, key).as_ref(), key, false),
                refused,
                passed: admitted / self.units_a_pass(policy),
                per_second: admitted / seconds,
                rate: self.board.per_second(policy),
            })
        };
        keys.filter_map(key).collect()
    }

    /// Returns the policies that refuse more than is usual now.
    fn unusual_policies(&self) -> Vec<UnusualPolicy> {
        if self.judged.values().all(|judged| judged.above_since.is_none()) {
            return Vec::new();
        }
        let minute = self.recent.minute();
        let unusual = |(policy, judged): (&Option<u16>, &Judged)| {
            let (policy, since) = ((*policy)?, judged.above_since?);
            let share = minute.policies.get(&policy)?.refused().share()?;
            let usual = judged.usual.as_ref()?.high;
            Some(UnusualPolicy { name: self.board.name_of(policy)?, since, share, usual })
        };
        self.judged.iter().filter_map(unusual).collect()
    }
}
