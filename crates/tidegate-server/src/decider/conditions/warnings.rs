//! Warns of what works otherwise than meant: numbers and ends of calls that nobody reports, unknown costs, forgotten
//! keys of a full store, and a wall clock that is set back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::policy::{Limit, Mode, Policy, Source};
use tidegate::{Tick, visible};
use tidegate_core::time::MAX_STEP_BACK;

use super::Conditions;
use crate::active_config::{ActiveConfig, Unended};
use crate::text::moment;

/// The most numbers without a reading that are told.
const UNREAD: usize = 5;

/// How long a number may have no reading after a start or a reload before the log tells.
const UNREAD_FOR: Duration = Duration::from_secs(60);

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

impl Conditions {
    /// Describes at most [`UNREAD`] numbers without a reading: what waits for them does nothing.
    pub(crate) fn unread_sources(&self, live: &ActiveConfig) -> Vec<String> {
        self.unread(live).take(UNREAD).map(|source| unread_source(live, &source)).collect()
    }

    /// Describes at most [`UNREAD`] policies of whose calls none was reported as ended.
    pub(crate) fn unended(&self, live: &ActiveConfig) -> Vec<String> {
        live.unended(self.base.now()).take(UNREAD).map(|(policy, calls)| unended(policy, calls)).collect()
    }

    /// Returns the numbers without a reading that should have one.
    pub(super) fn unread<'a>(&'a self, live: &'a ActiveConfig) -> impl Iterator<Item = Source> + 'a {
        let is_told = |source: &Source| match source {
            Source::Signal(_) => true,
            // Without requests there is nothing to measure.
            Source::Latency | Source::InFlight => live.decided(&self.base.metrics) > 0,
            _ => false,
        };
        let sources = self.base.gate.signals().list().into_iter();
        sources.filter(move |one| one.last.is_none() && is_told(&one.source)).map(|one| one.source)
    }

    /// Logs once for each configuration which numbers there has been no reading of for a minute.
    pub(super) fn tell_unread(&self, live: &ActiveConfig) {
        if self.base.now().since(live.since) < UNREAD_FOR || live.unread_is_told.swap(true, Ordering::Relaxed)
        {
            return;
        }
        for sentence in self.unread_sources(live) {
            tracing::warn!("{}", visible::line(&sentence));
        }
    }

    /// Logs once for each configuration of which policies no call was ever reported as ended.
    pub(super) fn tell_unended(&self, live: &ActiveConfig) {
        if live.unended_is_told.load(Ordering::Relaxed) {
            return;
        }
        let unended = self.unended(live);
        if unended.is_empty() || live.unended_is_told.swap(true, Ordering::Relaxed) {
            return;
        }
        for sentence in unended {
            tracing::warn!("{}", visible::line(&sentence));
        }
    }

    /// Logs that the wall clock was set back, once for each step.
    pub(super) fn tell_wall(&self) {
        let now = self.wall.nanos();
        // Relaxed: of several looks, the swap alone decides which tells.
        let before = self.seen.wall.swap(now, Ordering::Relaxed);
        if let Some(sentence) = set_back(before, now) {
            tracing::warn!("{sentence}");
        }
    }

    /// Logs that keys over their limit were forgotten, at most once a minute.
    pub(super) fn tell_forgotten(&self) {
        let forgotten = self.base.store.occupancy().evicted_over_limit;
        let (now, mut told) = (self.base.now(), self.seen.forgotten.lock());
        let is_due = told.is_none_or(|told| now.since(told.at) >= LastTold::EVERY);
        if forgotten > told.map_or(0, |told| told.all) && is_due {
            *told = Some(LastTold { all: forgotten, at: now });
            tracing::warn!(
                forgotten,
                "the store is full, and keys over their limit were forgotten, which may pass again: raise store.keys"
            );
        }
    }

    /// Logs which policies could not work out the cost of requests, at most once a minute for each.
    pub(super) fn tell_costs(&self, live: &ActiveConfig) {
        let (now, mut told) = (self.base.now(), self.seen.costs.lock());
        told.retain(|name, _| live.set.find(name).is_some());
        for (at, policy) in live.set.policies().iter().enumerate() {
            let errors = live.set.cost_errors(at);
            let Some(why) = &errors.last else { continue };
            let all = errors.at_check.saturating_add(errors.at_settlement);
            let before = told.get(&policy.name);
            let is_due = before.is_none_or(|told| now.since(told.at) >= LastTold::EVERY);
            // A policy that was taken out and comes back counts from 0.
            if before.is_some_and(|told| told.all == all) || !is_due {
                continue;
            }
            told.insert(policy.name.clone(), LastTold { all, at: now });
            tracing::warn!(
                policy = policy.name,
                reason = %visible::line(&why.without_values()),
                checks = errors.at_check,
                settlements = errors.at_settlement,
                on_cost_error = policy.on_cost_error.word(),
                "the cost of requests cannot be worked out: on_cost_error decides checks, and settlements leave what was charged"
            );
        }
    }
}

/// Describes a step back of the wall clock, by how far it was and is ahead of the ticks. `None` for one forward, as
/// after a sleep of the machine, or one as small as a time service makes it.
fn set_back(before: i64, now: i64) -> Option<String> {
    let step = Duration::from_nanos(now.abs_diff(before));
    (now < before && step > MAX_STEP_BACK).then(|| {
        format!(
            "the wall clock was set back by {} s: calendar windows and aligned refills follow it, and a key counts what it has spent in the \
             present window; other limits go on as before",
            step.as_secs()
        )
    })
}

/// Says what follows for a policy, and how to report ends.
fn unended(policy: &Policy, calls: Unended) -> String {
    let limits = || policy.limits.iter().chain(&policy.shadow_limit);
    let then = if limits().any(Limit::is_breaker) {
        "its breaker learns nothing"
    } else if limits().any(Limit::is_guard) {
        "its places return only after their time to live"
    } else if policy.charges_failures() {
        "calls that did not fail are charged too"
    } else {
        "what it charges stays an estimate"
    };
    let Unended { admitted, since } = calls;
    let since = moment(since, Duration::ZERO).unwrap_or_default();
    format!(
        "no call of policy {} was ever reported as ended here ({admitted} admitted since {since}): {then}; settle the ticket of each \
         with POST /v1/settle when its work ends (behind a proxy it is the header x-tidegate-ticket)",
        policy.name
    )
}

/// Says what waits for a number, and what makes a reading.
fn unread_source(live: &ActiveConfig, source: &Source) -> String {
    let enabled = || live.set.policies().iter().filter(|policy| policy.mode != Mode::Off);
    let conditioned = enabled()
        .filter(|policy| policy.when.iter().any(|condition| condition.source() == source))
        .map(|policy| format!("policy {} is not in force", policy.name));
    let follows = |limit: &Limit| limit.follows.as_ref().is_some_and(|follows| follows.source() == source);
    let moved = enabled()
        .filter(|policy| policy.limits.iter().chain(&policy.shadow_limit).any(follows))
        .map(|policy| format!("the rate of policy {} does not move", policy.name));
    let switched = live
        .set
        .triggers()
        .iter()
        .filter(|trigger| trigger.off_when().source() == source)
        .map(|trigger| format!("nothing turns off switch {}", trigger.switch()));
    let waiting: Vec<String> = conditioned.chain(moved).chain(switched).take(UNREAD).collect();
    let (what, then) = match source {
        Source::Signal(name) => {
            (format!("signal {name} was never reported"), format!("POST /v1/signals/{name}"))
        }
        other => (
            format!("{other} was never measured"),
            "it is measured by tickets: settle each with POST /v1/settle when its work ends".to_owned(),
        ),
    };
    format!("{what}; {}; {then}", waiting.join(", "))
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
}
