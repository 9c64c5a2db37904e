//! One policy set under replay: its gate, and the account of what the gate decided.

use std::sync::Arc;
use std::time::Duration;

use tidegate::gate::{ChargedLine, Check, Part};
use tidegate::policy::{ChargeOn, Descriptor, Limit, Mode, Policy, PolicySet};
use tidegate::store::CapacityError;
use tidegate::{Charged, Cost, Gate, Outcome as Ended, Tick};

use super::account::{Account, PolicyAccount};
use super::lanes::{ADMITTED, DENIED, OFFERED};
use super::log_clock::LogClock;
use super::options::ReplayOptions;
use super::outcome::Outcome;
use crate::series::Series;

/// Policies whose accounts are fetched for each request: of many, few match it.
const LIKELY: usize = 4;

/// One policy set under replay.
#[derive(Debug)]
pub(super) struct Run {
    name: String,
    gate: Gate,
    pub(super) policies: Arc<PolicySet>,
    reports: bool,
    /// Whether any limit is a guard, whose places are held for as long as requests take.
    pub(super) holds: bool,
    totals: Totals,
    /// One per policy of the set.
    accounts: Vec<PolicyAccount>,
    pub(super) series: Series,
}

/// Counts over a whole run.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    requests: u64,
    denied: u64,
    by_list: u64,
    delayed: u64,
    shadow_denied: u64,
    errors: u64,
    left_early: u64,
}

/// What a log knows of a request's end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) status: Option<u16>,
    pub(super) signed_in: bool,
    pub(super) took: Option<Duration>,
}

/// Says whether any of a policy's limits counts what is in flight.
fn has_guards(policy: &Policy) -> bool {
    policy.limits.iter().chain(&policy.shadow_limit).any(Limit::is_guard)
}

impl Run {
    /// Makes a run with room for [`ReplayOptions::store_keys`].
    pub(super) fn new(
        name: String,
        policies: Arc<PolicySet>,
        clock: &LogClock,
        options: &ReplayOptions,
    ) -> Result<Self, CapacityError> {
        let gate = Gate::in_memory(Arc::clone(&policies), options.store_keys)?;
        Ok(Self {
            name,
            gate: gate.with_clock(clock.clone()),
            reports: policies.policies().iter().any(|policy| policy.charge == ChargeOn::Failure),
            holds: policies.policies().iter().any(has_guards),
            totals: Totals::default(),
            accounts: policies.policies().iter().map(|policy| PolicyAccount::new(policy, options)).collect(),
            series: Series::new(3, options.bins, options.bin_width),
            policies,
        })
    }

    /// Fetches the memory of what it keeps for the keys of requests that come next.
    pub(super) fn fetch(&self, requests: &[Descriptor<'_>]) {
        self.gate.fetch(requests);
        for (policy, account) in self.policies.policies().iter().zip(&self.accounts).take(LIKELY) {
            account.own.fetch(policy, requests);
        }
    }

    /// Asks its gate; returns the places that were taken, and how long the request is held back before it needs them.
    pub(super) fn ask(
        &mut self,
        at: Tick,
        request: &Descriptor<'_>,
        cost: Option<Cost>,
        told: Told,
        ipv6_prefix: u8,
    ) -> Option<(Duration, Charged)> {
        self.totals.requests += 1;
        self.series.add(at, OFFERED, 1);
        let mut charged = Charged::default();
        let decided = match told.status {
            Some(_) if self.reports => self.gate.charge(Check::of(request).maybe_cost(cost), &mut charged),
            _ if self.holds => self.gate.charge(Check::of(request).maybe_cost(cost), &mut charged),
            _ => self.gate.check(Check::of(request).maybe_cost(cost)),
        };
        let Ok(decision) = decided else {
            self.totals.errors += 1;
            return None;
        };
        if decision.allowed {
            self.series.add(at, ADMITTED, 1);
            self.totals.delayed += u64::from(!decision.wait.is_zero());
        } else {
            self.series.add(at, DENIED, 1);
            self.totals.denied += 1;
        }
        if let Some(refusal) = &decision.denied_by_list {
            self.totals.by_list += 1;
            if let Some(policy) = refusal.policy {
                self.accounts[policy].own.denied_by_list += 1;
            }
        }
        let policies = self.policies.policies();
        let mut shadow_denied = false;
        for lines in decision.limits.chunk_by(|a, b| a.policy == b.policy) {
            let place = lines[0].policy;
            shadow_denied |= lines.iter().any(|line| !line.binding && !line.decision.is_allowed());
            self.accounts[place].note(&policies[place], at, request, lines, told.signed_in, ipv6_prefix);
        }
        self.totals.shadow_denied += u64::from(shadow_denied);
        let mut places = Charged::default();
        if self.holds {
            places = charged.only(|line| self.is_place(line));
            charged = charged.only(|line| !self.is_place(line));
        }
        if charged.awaits_report()
            && let Some(status) = told.status
            && self.gate.finish(&charged, Part::Outcome, Ended::from_status(status), |_| None).is_err()
        {
            self.totals.errors += 1;
        }
        (!places.is_empty()).then_some((decision.wait, places))
    }

    fn is_place(&self, line: &ChargedLine<'_>) -> bool {
        let policy = self.policies.find(line.policy).map(|(_, policy)| policy);
        policy.and_then(|policy| policy.limit(line.limit)).is_some_and(Limit::is_guard)
    }

    pub(super) fn leave(&mut self, places: &Charged) {
        if self.gate.finish(places, Part::Outcome, Ended::Success, |_| None).is_err() {
            self.totals.errors += 1;
        }
    }

    /// Lets go of places before their time, because there is no room for all who are inside.
    pub(super) fn leave_early(&mut self, places: &Charged) {
        self.totals.left_early += 1;
        self.leave(places);
    }

    /// Returns the policies that are not switched off, with their accounts.
    fn applied(&self) -> impl Iterator<Item = (&Policy, &PolicyAccount)> {
        self.policies.policies().iter().zip(&self.accounts).filter(|(policy, _)| policy.mode != Mode::Off)
    }

    pub(super) fn row(&self, row: usize) -> Option<&Account> {
        self.applied().flat_map(|(_, account)| account.rows()).nth(row)
    }

    pub(super) fn outcome(&self, first: Option<Tick>, last: Option<Tick>) -> Outcome {
        let Totals { requests, denied, by_list, delayed, shadow_denied, errors, left_early } = self.totals;
        Outcome {
            name: self.name.clone(),
            requests,
            allowed: requests - denied - errors,
            denied,
            denied_by_list: by_list,
            delayed,
            shadow_denied,
            errors,
            left_early,
            evicted: self.gate.occupancy().evicted,
            first,
            last,
            policies: self.applied().flat_map(|(policy, account)| account.outcomes(policy)).collect(),
        }
    }
}
