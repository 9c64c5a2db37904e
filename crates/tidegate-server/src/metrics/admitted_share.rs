//! Compares what this node admits under a policy, by leases, an engine or alone, with the limit in the file.
//!
//! A policy is judged only if its limit defines exactly what it allows: it is enforced, has no `by` and one limit,
//! a rate and a burst, the same for all requests, that delays none and whose charges are not changed afterwards.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate::gate::{GateDecision, LimitDecision};
use tidegate::policy::{Mode, Policy};
use tidegate::{Quota, Tick};
use tidegate_core::envelope::Envelope;
use tidegate_core::{Rate, Replace};

use super::labels::PolicyLabel;
use super::new_series;

/// Judges the decisions under one policy.
#[derive(Debug)]
pub(crate) struct Judge {
    judged: Mutex<Judged>,
}

#[derive(Debug)]
struct Judged {
    quota: Arc<Quota>,
    rate: Rate,
    envelope: Envelope,
    asked: u64,
}

impl Judge {
    /// Makes the judge of a policy, or keeps the previous one; `None` if it cannot be judged. `settles`: its charges
    /// are settled later.
    ///
    /// A changed limit counts from the tick `changes`; what was spent stays spent, as in the limit itself, and
    /// results stay, unless `replace` says otherwise: then a new judge is made. Without a tick, the limit stays:
    /// the policy is not in force.
    pub(crate) fn of(
        policy: &Policy,
        settles: bool,
        before: Option<&Arc<Self>>,
        changes: Option<Tick>,
    ) -> Option<Arc<Self>> {
        let [limit] = &*policy.limits else { return None };
        let one_for_all = policy.by.is_empty() && limit.tiers.is_none() && limit.overrides.is_empty();
        let binds = policy.mode == Mode::Enforce && !policy.lets_through() && limit.max_wait.is_zero();
        if !one_for_all || !binds || settles || limit.follows.is_some() {
            return None;
        }
        let quota = limit.terms.quota.as_ref()?;
        let (envelope, (rate, burst)) = (Envelope::of(quota)?, quota.flow()?);
        if let Some(before) = before {
            let judged = &mut *before.judged.lock();
            let goes_on = match changes.filter(|_| judged.quota != *quota) {
                None => true,
                Some(at) if limit.replace == Replace::AsIs => {
                    (judged.quota, judged.rate) = (Arc::clone(quota), rate);
                    judged.envelope.change(at, rate, burst).is_ok()
                }
                Some(_) => false,
            };
            if goes_on {
                return Some(Arc::clone(before));
            }
        }
        let judged = Mutex::new(Judged { quota: Arc::clone(quota), rate, envelope, asked: 0 });
        Some(Arc::new(Self { judged }))
    }

    pub(crate) fn note(&self, decision: &GateDecision, line: &LimitDecision) {
        // Only another policy refused, so nothing was charged here.
        let concerns = decision.allowed || !line.decision.is_allowed();
        if concerns && decision.brought.is_none() && !line.cost_is_unknown() {
            self.ask(decision.at, line.cost.units(), decision.allowed);
        }
    }

    fn ask(&self, at: Tick, units: u64, admitted: bool) {
        let mut judged = self.judged.lock();
        judged.envelope.ask(at, units, admitted);
        judged.asked = judged.asked.saturating_add(units);
    }
}

/// Registers the results of all judges.
pub(crate) fn show<'a>(registry: &mut Registry, judges: impl Iterator<Item = (&'a str, &'a Judge)>) {
    let excess: Family<PolicyLabel, Gauge> = new_series(
        registry,
        "policy_excess_units",
        "The largest number of units, over all spans of time, by which this node admitted more than the limit allows in the span",
    );
    let rates: Family<PolicyLabel, Gauge<f64, AtomicU64>> =
        new_series(registry, "policy_rate", "Units that the limit allows a second in the long run");
    let [asked, admitted, ideal] = [
        ("policy_asked_units", "Units asked of the limit on this node"),
        ("policy_admitted_units", "Units admitted on this node"),
        ("policy_ideal_units", "Units that the limit would have admitted if only this node used it"),
    ]
    .map(|(name, help)| new_series::<Family<PolicyLabel, Counter>>(registry, name, help));
    for (policy, judge) in judges {
        let label = PolicyLabel { policy: policy.to_owned() };
        let judged = judge.judged.lock();
        let used = judged.envelope.utilisation();
        excess.get_or_create(&label).set(i64::try_from(judged.envelope.excess()).unwrap_or(i64::MAX));
        rates.get_or_create(&label).set(judged.rate.count() as f64 / judged.rate.period().as_secs_f64());
        for (counters, units) in [(&asked, judged.asked), (&admitted, used.admitted), (&ideal, used.ideal)] {
            counters.get_or_create(&label).inc_by(units);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate::policy::Limit;

    use super::*;

    fn policy(quota: Quota) -> Policy {
        Policy::new("all", Limit::new(quota, "all"))
    }

    fn gcra(per_second: u64) -> Policy {
        policy(Quota::per_second(per_second).burst(5).gcra().unwrap())
    }

    fn shown(judge: &Judge) -> String {
        let mut registry = Registry::with_prefix("tidegate");
        show(&mut registry, [("all", judge)].into_iter());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn what_was_admitted_beyond_the_limit_is_told_and_what_was_refused_within_it() {
        let judge = Judge::of(&gcra(10), false, None, None).unwrap();
        let at = Tick::from_secs(1000);
        (0..8).for_each(|ask| judge.ask(at, 1, ask < 5));
        let exact = shown(&judge);
        assert!(exact.contains("tidegate_policy_excess_units{policy=\"all\"} 0\n"), "{exact}");
        assert!(exact.contains("tidegate_policy_rate{policy=\"all\"} 10.0\n"), "{exact}");
        for (name, units) in [("asked", 8), ("admitted", 5), ("ideal", 5)] {
            let line = format!("tidegate_policy_{name}_units_total{{policy=\"all\"}} {units}\n");
            assert!(exact.contains(&line), "{line}{exact}");
        }
        // A tenth of a second returns one unit, and three pass.
        judge.ask(at.after(Duration::from_millis(100)), 3, true);
        assert!(
            shown(&judge).contains("tidegate_policy_excess_units{policy=\"all\"} 2\n"),
            "{}",
            shown(&judge)
        );
        // A second later five units would pass, and none does.
        judge.ask(at.after(Duration::from_millis(1100)), 5, false);
        let idle = shown(&judge);
        assert!(idle.contains("admitted_units_total{policy=\"all\"} 8\n"), "{idle}");
        assert!(idle.contains("ideal_units_total{policy=\"all\"} 10\n"), "{idle}");
    }

    /// Regression: each change of a limit made a new judge with a full burst, which forgot earlier excess.
    #[test]
    fn a_limit_that_is_changed_live_stays_spent_and_what_was_noted_stays_noted() {
        let judge = Judge::of(&gcra(10), false, None, None).unwrap();
        let at = Tick::from_secs(1000);
        (0..6).for_each(|_| judge.ask(at, 1, true));
        let aside = Judge::of(&gcra(100), false, Some(&judge), None).unwrap();
        assert!(Arc::ptr_eq(&aside, &judge));
        assert!(shown(&judge).contains("tidegate_policy_rate{policy=\"all\"} 10.0\n"), "not in force");
        let changed = Judge::of(&gcra(100), false, Some(&judge), Some(at)).unwrap();
        assert!(Arc::ptr_eq(&changed, &judge));
        assert!(shown(&judge).contains("tidegate_policy_excess_units{policy=\"all\"} 1\n"), "from before");
        // All five units are spent. Ten milliseconds return one, and three pass.
        judge.ask(at.after(Duration::from_millis(10)), 3, true);
        let told = shown(&judge);
        assert!(told.contains("tidegate_policy_rate{policy=\"all\"} 100.0\n"), "{told}");
        assert!(told.contains("tidegate_policy_excess_units{policy=\"all\"} 2\n"), "{told}");
        for (name, units) in [("asked", 9), ("admitted", 9), ("ideal", 5)] {
            let line = format!("tidegate_policy_{name}_units_total{{policy=\"all\"}} {units}\n");
            assert!(told.contains(&line), "{line}{told}");
        }
    }

    #[test]
    fn a_judge_outlives_a_reload_and_judges_what_it_can() {
        let judge = Judge::of(&gcra(10), false, None, None).unwrap();
        let now = Some(Tick::from_secs(1000));
        assert!(Arc::ptr_eq(&Judge::of(&gcra(10), false, Some(&judge), now).unwrap(), &judge));
        let mut fresh = gcra(11);
        fresh.limits[0].replace = Replace::Reset;
        assert!(!Arc::ptr_eq(&Judge::of(&fresh, false, Some(&judge), now).unwrap(), &judge));
        let mut shadow = gcra(10);
        shadow.mode = Mode::Shadow;
        let mut waits = gcra(10);
        waits.limits[0].max_wait = Duration::from_secs(1);
        let others =
            [gcra(10).by(["client.ip"]), shadow, waits, policy(Quota::per_second(5).sliding_log().unwrap())];
        assert!(others.iter().all(|other| Judge::of(other, false, None, None).is_none()));
        assert!(
            Judge::of(&gcra(10), true, None, None).is_none(),
            "what is settled later is not what was charged"
        );
    }
}
