//! Decides what a limit refused again: by the state that it had then, under its own terms or under others.
//!
//! Nothing is read from the store for this, neither at the refusal, which would pay for it, nor later, when the state is
//! another one. What a refusal shows determines the state for most limits ([`Quota::state_seen`]); for the others there
//! is no answer rather than a guess.

use std::sync::Arc;
use std::time::Duration;

use tidegate::limiter::{Ask, Decision, Replace};
use tidegate::{Cost, Quota, Tick};
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm, State, Transition};

/// How a limit was asked, and what it answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AskedLimit {
    pub(crate) quota: Arc<Quota>,
    /// The cost, and what was kept back from it.
    pub(crate) cost: Cost,
    pub(crate) max_wait: Duration,
    /// The ruling, and the standing before it.
    pub(crate) decision: Decision,
}

impl AskedLimit {
    /// Returns the state that the limit had; `None` if what was seen does not tell.
    pub(crate) fn state(&self, at: Tick) -> Option<State> {
        self.quota.state_seen(self.ask(at), &self.decision)
    }

    /// Decides the same charge by the same state under other terms: what was spent is carried over to them, as after a
    /// change of the configuration. `None` if the state is not known.
    pub(crate) fn under(&self, quota: &Quota, max_wait: Duration, at: Tick) -> Option<Decision> {
        let state = self.state(at)?;
        let state = match *quota == *self.quota {
            true => state,
            false => quota.carry(&self.quota, &state, at, Replace::AsIs),
        };
        let ruling = match quota.decide(&state, Ask::within(at, self.cost, max_wait)) {
            Transition::Allowed { wait, .. } => Ruling::Allowed { wait },
            Transition::Denied { retry } => Ruling::Denied { retry },
        };
        Some(Decision { ruling, standing: quota.standing(&state, at) })
    }

    fn ask(&self, at: Tick) -> Ask {
        Ask::within(at, self.cost, self.max_wait)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::limiter::Retry;

    use super::*;

    /// Returns what a limit shows of a refusal after `spent` units were taken at `at`.
    fn refused(quota: Quota, spent: u64, at: Tick) -> AskedLimit {
        let ask = Ask::allow(at, Cost::new(spent).unwrap());
        let Transition::Allowed { next, .. } = quota.decide(&quota.fresh(at), ask) else { panic!("fits") };
        let Transition::Denied { retry } = quota.decide(&next, Ask::allow(at, Cost::ONE)) else {
            panic!("is spent")
        };
        let decision = Decision { ruling: Ruling::Denied { retry }, standing: quota.standing(&next, at) };
        AskedLimit { quota: Arc::new(quota), cost: Cost::ONE, max_wait: Duration::ZERO, decision }
    }

    #[test]
    fn the_same_terms_decide_the_same_and_larger_ones_allow() {
        let at = Tick::from_secs(1_800_000_000);
        let of = |burst| Quota::per_second(3).burst(burst);
        for (quota, larger) in [
            (of(5).gcra(), of(6).gcra()),
            (of(5).token_bucket(), of(6).token_bucket()),
            (of(5).leaky_bucket(), of(6).leaky_bucket()),
            (Quota::per_minute(5).fixed_window(), Quota::per_minute(6).fixed_window()),
            (of(5).gcra(), Quota::per_minute(9).sliding_log()),
        ] {
            let (quota, larger) = (quota.unwrap(), larger.unwrap());
            let asked = refused(quota.clone(), 5, at);
            assert_eq!(asked.under(&quota, Duration::ZERO, at), Some(asked.decision), "{quota:?}");
            let other = asked.under(&larger, Duration::ZERO, at).unwrap();
            assert!(other.is_allowed(), "{other:?} of {larger:?}");
            let smaller = Quota::per_hour(1).gcra().unwrap();
            let Ruling::Denied { retry: Retry::After(_) } =
                asked.under(&smaller, Duration::ZERO, at).unwrap().ruling
            else {
                panic!("{quota:?}")
            };
        }
        let log = refused(Quota::per_minute(5).sliding_log().unwrap(), 5, at);
        assert_eq!(
            log.under(&Quota::per_minute(9).gcra().unwrap(), Duration::ZERO, at),
            None,
            "its state is not known"
        );
    }
}
