//! Drives real gates with a clock that a log turns, and keeps the account.
//!
//! The same walk as a live check: a descriptor, a gate, a decision; only the clock is virtual. Several policy sets can be
//! driven side by side over one reading of the log, which is how algorithms are compared on the same requests. Nothing is
//! kept per request: memory is that of the gates' stores, of [`Peaks`] and of [`Series`], all bounded beforehand.

mod account;
mod outcome;
mod threshold;

use std::sync::Arc;

use tidegate::gate::Part;
use tidegate::policy::{ChargeOn, Descriptor, Mode, PolicySet};
use tidegate::{Charged, Cost, Gate, ManualClock, Outcome as Ended, Tick};

use crate::log::Record;
use crate::peaks::Peaks;
use crate::series::Series;

use account::Account;
pub(crate) use account::written_rate;
pub use outcome::{Outcome, PeakRate, PolicyOutcome};
pub use threshold::{Threshold, ThresholdError, Verdict};

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// Live keys in each gate's store.
    pub store_keys: usize,
    /// Keys whose peaks are kept per policy; about 200 bytes each.
    pub peak_keys: usize,
    /// Bins of each curve.
    pub bins: usize,
    /// Width of a bin at first, and the resolution of its peaks.
    pub bin_width: std::time::Duration,
    /// IPv6 prefix by which clients are named, as the policies key them.
    pub ipv6_prefix: u8,
}

impl Default for ReplayOptions {
    /// A million keys in the store, a hundred thousand in the tables, 240 bins from one second up.
    fn default() -> Self {
        Self {
            store_keys: 1_000_000,
            peak_keys: 100_000,
            // A bin is three pixels of a chart, one of its steps still a visible one.
            bins: 240,
            bin_width: std::time::Duration::from_secs(1),
            ipv6_prefix: 64,
        }
    }
}

/// Lanes of the curves of a whole run.
pub(crate) const OFFERED: usize = 0;
pub(crate) const ADMITTED: usize = 1;
pub(crate) const DENIED: usize = 2;

/// One policy set under replay.
#[derive(Debug)]
struct Run {
    name: String,
    gate: Gate,
    policies: Arc<PolicySet>,
    reports: bool,
    totals: Totals,
    accounts: Vec<Account>,
    series: Series,
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
}

/// Policy sets side by side, driven by one stream of requests.
#[derive(Debug)]
pub struct Replay {
    clock: ManualClock,
    runs: Vec<Run>,
    options: ReplayOptions,
    first: Option<Tick>,
    last: Option<Tick>,
    is_recorded: bool,
}

impl Replay {
    /// Makes a replay of named policy sets.
    #[must_use]
    pub fn new(sets: Vec<(String, Arc<PolicySet>)>, options: ReplayOptions) -> Self {
        let clock = ManualClock::default();
        let runs = sets
            .into_iter()
            .map(|(name, policies)| Run {
                name,
                gate: Gate::in_memory(Arc::clone(&policies), options.store_keys).with_clock(clock.clone()),
                reports: policies.policies().iter().any(|policy| policy.charge == ChargeOn::Failure),
                totals: Totals::default(),
                accounts: policies.policies().iter().map(|policy| Account::new(policy, &options)).collect(),
                series: Series::new(3, options.bins, options.bin_width),
                policies,
            })
            .collect();
        Self { clock, runs, options, first: None, last: None, is_recorded: false }
    }

    /// Asks every gate about a request of a log. The status that the log recorded is reported to `charge: on-failure`; a request
    /// without one stays charged there, as one that nobody reports does live.
    pub fn feed(&mut self, record: &Record<'_>) {
        self.is_recorded = true;
        let signed_in = !record.user.is_empty() && record.status.is_some_and(|status| status < 400);
        let told = Told { status: record.status, signed_in };
        self.ask(record.time, &record.describe(), None, told);
    }

    /// Asks every gate about any request, as made-up traffic brings them. Without a cost the policies compute it. Nobody reports how
    /// it ended.
    pub fn feed_request(&mut self, at: Tick, request: &Descriptor<'_>, cost: Option<Cost>) {
        self.ask(at, request, cost, Told::default());
    }

    fn ask(&mut self, at: Tick, request: &Descriptor<'_>, cost: Option<Cost>, told: Told) {
        if self.last != Some(at) {
            self.first.get_or_insert(at);
            self.last = Some(at);
            self.clock.set(at);
        }
        for run in &mut self.runs {
            run.ask(at, request, cost, told, self.options.ipv6_prefix);
        }
    }

    /// Returns what became of it, one outcome per policy set.
    #[must_use]
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.runs.iter().map(|run| run.outcome(self.first, self.last)).collect()
    }

    /// Says whether times are dates: requests came from a log.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Returns the curves of a run: lanes offered, admitted and denied, in requests.
    #[must_use]
    pub fn series(&self, run: usize) -> Option<&Series> {
        self.runs.get(run).map(|run| &run.series)
    }

    /// Returns the curves of one policy of a run: lanes matched, passed by it, and denied by it, in cost units.
    #[must_use]
    pub fn policy_series(&self, run: usize, policy: usize) -> Option<&Series> {
        Some(&self.runs.get(run)?.accounts.get(policy)?.series)
    }

    /// Returns the peaks of the keys of one policy of a run.
    #[must_use]
    pub fn policy_peaks(&self, run: usize, policy: usize) -> Option<&Peaks> {
        Some(&self.runs.get(run)?.accounts.get(policy)?.peaks)
    }
}

/// What a log knows of a request's end.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    status: Option<u16>,
    signed_in: bool,
}

impl Run {
    fn ask(&mut self, at: Tick, request: &Descriptor<'_>, cost: Option<Cost>, told: Told, ipv6_prefix: u8) {
        self.totals.requests += 1;
        self.series.add(at, OFFERED, 1);
        let mut charged = Charged::default();
        let decided = match told.status {
            Some(_) if self.reports => self.gate.charge(request, cost, &mut charged),
            _ => self.gate.check(request, cost),
        };
        let Ok(decision) = decided else {
            self.totals.errors += 1;
            return;
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
                self.accounts[policy].denied_by_list += 1;
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
        if charged.awaits_report()
            && let Some(status) = told.status
            && self.gate.finish(&charged, Part::Outcome, Ended::from_status(status), |_| None).is_err()
        {
            self.totals.errors += 1;
        }
    }

    fn outcome(&self, first: Option<Tick>, last: Option<Tick>) -> Outcome {
        let Totals { requests, denied, by_list, delayed, shadow_denied, errors } = self.totals;
        let policies = self.policies.policies().iter().zip(&self.accounts);
        Outcome {
            name: self.name.clone(),
            requests,
            allowed: requests - denied - errors,
            denied,
            denied_by_list: by_list,
            delayed,
            shadow_denied,
            errors,
            evicted: self.gate.occupancy().evicted,
            first,
            last,
            policies: policies
                .filter(|(policy, _)| policy.mode != Mode::Off)
                .map(|(p, a)| a.outcome(p))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests;
