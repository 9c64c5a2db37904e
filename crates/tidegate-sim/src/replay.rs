//! Drives real gates with a clock that a log turns, and keeps the account.
//!
//! The same walk as a live check: a descriptor, a gate, a decision; only the clock is virtual. Several policy sets can be
//! driven side by side over one reading of the log, which is how algorithms are compared on the same requests. Nothing is
//! kept per request: memory is that of the gates' stores, of [`Peaks`] and of [`Series`], all bounded beforehand.

mod account;
mod granted;
mod inside;
mod lanes;
mod options;
mod outcome;
mod threshold;
mod trust;

use std::sync::Arc;
use std::time::Duration;

use tidegate::gate::{ChargedLine, Check, Part};
use tidegate::policy::{ChargeOn, Descriptor, Limit, Mode, Policy, PolicySet};
use tidegate::store::CapacityError;
use tidegate::{Charged, Cost, Gate, ManualClock, Outcome as Ended, Tick};

use crate::log::{Record, Wanted};
use crate::peaks::Peaks;
use crate::series::Series;

pub(crate) use lanes::{ADMITTED, DENIED, OFFERED};
pub use options::ReplayOptions;

use account::{Account, PolicyAccount};
pub(crate) use account::{key_name, written_rate};
pub use granted::Granted;
use inside::{Inside, Leaving};
pub(crate) use outcome::share;
pub use outcome::{Outcome, PeakRate, PolicyOutcome, shadow_limit_name};
pub use threshold::{Threshold, ThresholdError, Verdict};
pub use trust::{Doubt, Trust};

/// One policy set under replay.
#[derive(Debug)]
struct Run {
    name: String,
    gate: Gate,
    policies: Arc<PolicySet>,
    reports: bool,
    /// Whether any limit is a guard, whose places are held for as long as requests take.
    holds: bool,
    totals: Totals,
    /// One per policy of the set.
    accounts: Vec<PolicyAccount>,
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
    left_early: u64,
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
    names_users: bool,
    inside: Inside,
    unheld: u64,
    /// Attributes of `by` that no request has had so far.
    unseen: Vec<String>,
    /// What the first request had.
    attributes: Vec<String>,
    /// What the policies look at.
    wanted: Wanted,
}

/// How many attributes of the first request are remembered, to be named where one is missing.
const ATTRIBUTES: usize = 32;

impl Replay {
    /// Makes a replay of named policy sets.
    ///
    /// # Panics
    /// Where [`Replay::try_new`] fails.
    #[must_use]
    pub fn new(sets: Vec<(String, Arc<PolicySet>)>, options: ReplayOptions) -> Self {
        Self::try_new(sets, options).expect("the system has memory for the tables")
    }

    /// Makes a replay of named policy sets, each with room for [`ReplayOptions::store_keys`].
    ///
    /// # Errors
    /// [`CapacityError`] for a number of keys out of range, or where the system hands out no memory for so many.
    pub fn try_new(
        sets: Vec<(String, Arc<PolicySet>)>,
        options: ReplayOptions,
    ) -> Result<Self, CapacityError> {
        let clock = ManualClock::default();
        let applied =
            sets.iter().flat_map(|(_, set)| set.policies()).filter(|policy| policy.mode != Mode::Off);
        let mut unseen: Vec<String> = applied.flat_map(|policy| policy.by.iter().cloned()).collect();
        unseen.sort();
        unseen.dedup();
        let run = |(name, policies): (String, Arc<PolicySet>)| {
            let gate = Gate::in_memory(Arc::clone(&policies), options.store_keys)?;
            Ok(Run {
                name,
                gate: gate.with_clock(clock.clone()),
                reports: policies.policies().iter().any(|policy| policy.charge == ChargeOn::Failure),
                holds: policies.policies().iter().any(has_guards),
                totals: Totals::default(),
                accounts: policies
                    .policies()
                    .iter()
                    .map(|policy| PolicyAccount::new(policy, &options))
                    .collect(),
                series: Series::new(3, options.bins, options.bin_width),
                policies,
            })
        };
        let runs = sets.into_iter().map(run).collect::<Result<Vec<Run>, CapacityError>>()?;
        Ok(Self {
            clock,
            options,
            first: None,
            last: None,
            is_recorded: false,
            names_users: false,
            inside: Inside::default(),
            unheld: 0,
            wanted: Wanted::by(runs.iter().map(|run| run.policies.named()).collect()),
            runs,
            unseen,
            attributes: Vec::new(),
        })
    }

    /// Asks every gate about a request of a log. It stays in places of guards for as long as the log says that it took. The status that the log recorded is reported to `charge: on-failure`; a request
    /// without one stays charged there, as one that nobody reports does live.
    pub fn feed(&mut self, record: &Record<'_>) {
        self.is_recorded = true;
        self.names_users |= !record.user.is_empty();
        let told = Told { status: record.status, signed_in: record.is_signed_in(), took: record.duration };
        // Of the first request all attributes are remembered.
        let request = match self.first {
            None => record.describe(),
            Some(_) => record.describe_only(&self.wanted),
        };
        self.ask(record.time, &request, None, told);
    }

    /// Asks every gate about any request, as made-up traffic brings them. Without a cost the policies compute it. Nobody reports how
    /// it ended.
    pub fn feed_request(&mut self, at: Tick, request: &Descriptor<'_>, cost: Option<Cost>) {
        self.ask(at, request, cost, Told::default());
    }

    fn ask(&mut self, at: Tick, request: &Descriptor<'_>, cost: Option<Cost>, told: Told) {
        let mut now = self.last;
        while let Some(leaving) = self.inside.leaves_by(at) {
            now = Some(leaving.at);
            self.clock.set(leaving.at);
            self.runs[leaving.run].leave(&leaving.places);
        }
        if self.first.is_none() {
            self.attributes = request.pairs().take(ATTRIBUTES).map(|(name, _)| name.to_owned()).collect();
        }
        if !self.unseen.is_empty() {
            self.unseen.retain(|name| request.value(name).is_none());
        }
        if now != Some(at) {
            self.first.get_or_insert(at);
            self.last = Some(at);
            self.clock.set(at);
        }
        let hold = told.took.or(self.options.hold);
        if hold.is_none() && self.holds() {
            self.unheld += 1;
        }
        for place in 0..self.runs.len() {
            let asked = self.runs[place].ask(at, request, cost, told, self.options.ipv6_prefix);
            let Some((delay, places)) = asked else { continue };
            let leaving = Leaving { at: at.after(delay).after(hold.unwrap_or_default()), run: place, places };
            if let Some(early) = self.inside.enter(leaving) {
                let run = &mut self.runs[early.run];
                run.totals.left_early += 1;
                run.leave(&early.places);
            }
        }
    }

    /// Says whether any policy counts what is in flight, so that it matters how long requests take.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.runs.iter().any(|run| run.holds)
    }

    /// Says whether any request named its user. Where none did, nobody can say who signed in.
    #[must_use]
    pub const fn names_users(&self) -> bool {
        self.names_users
    }

    /// Returns how many requests left their places at once because nobody said how long they took; see [`Replay::holds`].
    #[must_use]
    pub const fn unheld(&self) -> u64 {
        self.unheld
    }

    /// Returns the attributes that policies are keyed by and that no request had: a name that is misspelt, most often.
    #[must_use]
    pub fn unseen(&self) -> &[String] {
        &self.unseen
    }

    /// Returns the names of what the first request had, 32 at most.
    #[must_use]
    pub fn attributes(&self) -> &[String] {
        &self.attributes
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

    /// Returns the curves of one policy or shadow limit of a run, by its place in [`Outcome::policies`]: lanes matched, passed by it,
    /// and denied by it, in cost units.
    #[must_use]
    pub fn policy_series(&self, run: usize, row: usize) -> Option<&Series> {
        Some(&self.runs.get(run)?.row(row)?.series)
    }

    /// Returns what the limits of one policy or shadow limit of a run grant to a key in the window of [`Replay::policy_peaks`], by its
    /// place in [`Outcome::policies`]; `None` where they cannot tell.
    #[must_use]
    pub fn granted(&self, run: usize, row: usize) -> Option<&Granted> {
        self.runs.get(run)?.row(row)?.granted.as_ref()
    }

    /// Returns the peaks of the keys of one policy or shadow limit of a run, by its place in [`Outcome::policies`].
    #[must_use]
    pub fn policy_peaks(&self, run: usize, row: usize) -> Option<&Peaks> {
        Some(&self.runs.get(run)?.row(row)?.peaks)
    }
}

/// What a log knows of a request's end.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    status: Option<u16>,
    signed_in: bool,
    took: Option<Duration>,
}

/// Says whether any of a policy's limits counts what is in flight.
fn has_guards(policy: &Policy) -> bool {
    policy.limits.iter().chain(&policy.shadow_limit).any(Limit::is_guard)
}

impl Run {
    /// Asks its gate; returns the places that were taken, and how long the request is held back before it needs them.
    fn ask(
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

    fn leave(&mut self, places: &Charged) {
        if self.gate.finish(places, Part::Outcome, Ended::Success, |_| None).is_err() {
            self.totals.errors += 1;
        }
    }

    /// Returns the policies that are not switched off, with their accounts.
    fn applied(&self) -> impl Iterator<Item = (&Policy, &PolicyAccount)> {
        self.policies.policies().iter().zip(&self.accounts).filter(|(policy, _)| policy.mode != Mode::Off)
    }

    fn row(&self, row: usize) -> Option<&Account> {
        self.applied().flat_map(|(_, account)| account.rows()).nth(row)
    }

    fn outcome(&self, first: Option<Tick>, last: Option<Tick>) -> Outcome {
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

#[cfg(test)]
mod tests;
