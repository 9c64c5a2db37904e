//! One policy set in a replay: its gate, the figures of what the gate decided, and the requests that hold places in
//! guards or count as in flight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::concurrency::signals::Reading;
use tidegate::gate::switches::Switches;
use tidegate::gate::{Charged, ChargedLine, Check, LimitDecision, Part};
use tidegate::policy::{ChargeOn, Descriptor, Limit, Mode, Over, Policy, PolicySet, Source};
use tidegate::store::CapacityError;
use tidegate::{Gate, Outcome as Ended, Tick};

use super::ReplayOptions;
use super::account::{Account, PolicyAccount};
use super::guards::{Entered, Guards};
use super::outcome::{ADMITTED, DENIED, LANES, OFFERED, Outcome, PolicyOutcome, WOULD_DENY};
use crate::series::Series;

/// The most policies whose entries are prefetched for each request: with many policies, few match.
const LIKELY: usize = 4;

#[derive(Debug)]
pub(super) struct Run {
    name: String,
    gate: Gate,
    pub(super) policies: Arc<PolicySet>,
    /// The gate has them too.
    pub(super) switches: Option<Switches>,
    /// Those that are off for the whole replay.
    pub(super) off: Vec<String>,
    reports: bool,
    /// The figures of the guards, if any limit is a guard. Their places are held for the duration of each request.
    pub(super) guards: Option<Guards>,
    /// Conditions or moving rates use the requests in flight or their latency.
    pub(super) measures: bool,
    totals: Totals,
    accounts: Vec<PolicyAccount>,
    pub(super) series: Series,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    requests: u64,
    denied: u64,
    by_list: u64,
    delayed: u64,
    shadow_denied: u64,
    marked: u64,
    demoted: u64,
    errors: u64,
    left_early: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestEnding {
    pub(super) outcome: Option<Ended>,
    pub(super) signed_in: bool,
    pub(super) took: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Admitted {
    /// How long the request waits first.
    pub(super) delay: Duration,
    pub(super) places: Charged,
    pub(super) entered: Entered,
    /// Delay included; `None`: it does not count as work.
    pub(super) work: Option<Duration>,
}

fn has_guards(policy: &Policy) -> bool {
    policy.limits.iter().chain(&policy.shadow_limit).any(Limit::is_guard)
}

/// All of them on; `None` if there are none.
fn switches(policies: &PolicySet) -> Option<Switches> {
    policies.switches().next()?;
    // Fails for more than 1,024 switches; a set names at most that many.
    Switches::of(policies).ok()
}

impl Run {
    pub(super) fn new(
        name: String,
        policies: Arc<PolicySet>,
        clock: &LogClock,
        options: &ReplayOptions,
    ) -> Result<Self, CapacityError> {
        let gate = Gate::in_memory(Arc::clone(&policies), options.store_keys)?;
        // The load of this machine is ignored: it is not the machine that served the requests.
        let mut gate = gate.with_clock(clock.clone()).with_machine(Reading::default);
        let switches = switches(&policies).map(|switches| switches.with_clock(clock.clone()));
        if let Some(switches) = &switches {
            gate = gate.with_switches(switches.clone());
        }
        let of_work = |source: &Source| matches!(source, Source::InFlight | Source::Latency);
        Ok(Self {
            name,
            measures: gate.signals().list().iter().any(|standing| of_work(&standing.source)),
            gate,
            switches,
            off: Vec::new(),
            reports: policies.policies().iter().any(|policy| policy.charge == ChargeOn::Failure),
            guards: (policies.policies().iter().any(has_guards))
                .then(|| Guards::of(&policies, options.bins, options.bin_width)),
            totals: Totals::default(),
            accounts: policies.policies().iter().map(|policy| PolicyAccount::new(policy, options)).collect(),
            series: Series::new(LANES, options.bins, options.bin_width),
            policies,
        })
    }

    pub(super) fn fetch(&self, requests: &[Descriptor<'_>]) {
        self.gate.fetch(requests);
        for (policy, account) in self.policies.policies().iter().zip(&self.accounts).take(LIKELY) {
            account.own.fetch(policy, requests);
        }
    }

    /// Returns what the request holds until it leaves, if anything.
    pub(super) fn ask(
        &mut self,
        at: Tick,
        check: Check<'_, '_>,
        ending: RequestEnding,
        ipv6_prefix: u8,
    ) -> Option<Admitted> {
        let request = check.request;
        self.totals.requests += 1;
        self.series.add(at, OFFERED, 1);
        let mut charged = Charged::default();
        let decided = match ending.outcome {
            Some(_) if self.reports => self.gate.charge(check, &mut charged).now(),
            _ if self.guards.is_some() => self.gate.charge(check, &mut charged).now(),
            _ => self.gate.check(check).now(),
        };
        // Looked at where it lies: it is large.
        let Ok(decision) = &decided else {
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
        if let Some(refusal) = &decision.refusal {
            match refusal.policy {
                // A limit began the block: it is the policy's own refusal.
                Some(policy) if refusal.block.as_ref().is_some_and(|block| block.by_limit) => {
                    let words = &self.policies.policies()[policy];
                    self.accounts[policy].own.note_blocked(words, at, request, ending.signed_in, ipv6_prefix);
                }
                policy => {
                    self.totals.by_list += 1;
                    if let Some(policy) = policy {
                        self.accounts[policy].own.denied_by_list += 1;
                    }
                }
            }
        }
        let policies = self.policies.policies();
        let mut shadow_denied = false;
        for lines in decision.limits.chunk_by(|a, b| a.policy == b.policy) {
            let place = lines[0].policy;
            let in_shadow = |line: &LimitDecision| {
                !line.binding
                    && (!policies[place].lets_through() || policies[place].is_shadow_limit(line.limit))
            };
            shadow_denied |= lines.iter().any(|line| in_shadow(line) && !line.decision.is_allowed());
            self.accounts[place].note(&policies[place], at, request, lines, ending.signed_in, ipv6_prefix);
        }
        self.totals.shadow_denied += u64::from(shadow_denied);
        if shadow_denied && decision.allowed {
            self.series.add(at, WOULD_DENY, 1);
        }
        if decision.allowed {
            let (mut marked, mut demoted) = (false, false);
            decision.over().for_each(|(_, over)| match over {
                Over::Demote { .. } => demoted = true,
                _ => marked = true,
            });
            self.totals.marked += u64::from(marked);
            self.totals.demoted += u64::from(demoted);
        }
        let mut places = Charged::default();
        if self.guards.is_some() {
            places = charged.only(|line| self.is_place(line));
            charged = charged.only(|line| !self.is_place(line));
        }
        if charged.awaits_report()
            && let Some(outcome) = ending.outcome
            && self.gate.finish(&charged, Part::Outcome, outcome, |_| None).now().is_err()
        {
            self.totals.errors += 1;
        }
        let entered = self
            .guards
            .as_mut()
            .map(|guards| guards.note(at, &self.policies, request, decision, &places, ipv6_prefix));
        let is_work = self.measures && decision.allowed;
        let work = ending.took.filter(|_| is_work).map(|took| decision.wait.saturating_add(took));
        if work.is_some() {
            self.gate.signals().begin_work();
        }
        (work.is_some() || !places.is_empty()).then(|| Admitted {
            delay: decision.wait,
            places,
            entered: entered.unwrap_or_default(),
            work,
        })
    }

    fn is_place(&self, line: &ChargedLine<'_>) -> bool {
        let policy = self.policies.find(line.policy).map(|(_, policy)| policy);
        policy.and_then(|policy| policy.limit(line.limit)).is_some_and(Limit::is_guard)
    }

    pub(super) fn leave(&mut self, at: Tick, leaving: &Leaving) {
        if let Some(took) = leaving.work {
            self.gate.signals().end_work(took);
        }
        if leaving.places.is_empty() {
            return;
        }
        if self.gate.finish(&leaving.places, Part::Outcome, leaving.outcome, |_| None).now().is_err() {
            self.totals.errors += 1;
        }
        if let Some(guards) = &mut self.guards {
            guards.leave(at, &leaving.entered, leaving.took, leaving.outcome);
        }
    }

    /// Makes a request leave its places early, because too many requests are inside.
    pub(super) fn leave_early(&mut self, at: Tick, leaving: &Leaving) {
        self.totals.left_early += 1;
        self.leave(at, leaving);
    }

    fn applied(&self) -> impl Iterator<Item = (&Policy, &PolicyAccount)> {
        self.policies.policies().iter().zip(&self.accounts).filter(|(policy, _)| policy.mode != Mode::Off)
    }

    pub(super) fn row(&self, row: usize) -> Option<&Account> {
        self.applied().flat_map(|(_, account)| account.rows()).nth(row)
    }

    fn policy_outcomes(&self) -> Vec<PolicyOutcome> {
        let all = self.policies.policies().iter().zip(&self.accounts).enumerate();
        let applied = all.filter(|(_, (policy, _))| policy.mode != Mode::Off);
        let outcomes = applied.flat_map(|(at, (policy, account))| {
            account.outcomes(policy).map(move |mut outcome| {
                if let Some(guards) = &self.guards {
                    outcome.guards = guards.outcomes(&self.policies, at, outcome.shadow_limit_of.is_some());
                }
                outcome
            })
        });
        outcomes.collect()
    }

    pub(super) fn outcome(&self, first: Option<Tick>, last: Option<Tick>) -> Outcome {
        let Totals { requests, denied, by_list, delayed, shadow_denied, marked, demoted, errors, left_early } =
            self.totals;
        let policies = || self.policies.policies().iter().filter(|policy| policy.lets_through());
        Outcome {
            name: self.name.clone(),
            requests,
            allowed: requests - denied - errors,
            denied,
            denied_by_list: by_list,
            delayed,
            shadow_denied,
            marked: policies().any(|policy| policy.over == Over::Mark).then_some(marked),
            demoted: policies().any(|policy| policy.over != Over::Mark).then_some(demoted),
            errors,
            left_early,
            evicted: self.gate.occupancy().evicted,
            first,
            last,
            service: self.guards.as_ref().map(Guards::service),
            policies: self.policy_outcomes(),
        }
    }
}

/// The most requests inside at once, over all runs; about 300 bytes each. Beyond it, the next one to leave leaves
/// early, and is counted.
const MOST: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) at: Tick,
    pub(super) run: usize,
    pub(super) places: Charged,
    pub(super) entered: Entered,
    pub(super) took: Option<Duration>,
    pub(super) outcome: Ended,
    /// How long the gate counts it as work, if it does.
    pub(super) work: Option<Duration>,
}

/// Ordered by tick, then by arrival.
#[derive(Debug)]
struct Ordered {
    arrival: u64,
    leaving: Leaving,
}

impl Ordered {
    fn key(&self) -> (Tick, u64) {
        (self.leaving.at, self.arrival)
    }
}

impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[derive(Debug, Default)]
pub(super) struct Inside {
    heap: BinaryHeap<Reverse<Ordered>>,
    arrivals: u64,
}

impl Inside {
    /// Removes and returns the next request that leaves at `at` or earlier. One that leaves at a tick makes room for
    /// one that arrives at that tick.
    pub(super) fn leaves_by(&mut self, at: Tick) -> Option<Leaving> {
        if self.heap.peek()?.0.leaving.at > at {
            return None;
        }
        self.heap.pop().map(|Reverse(ordered)| ordered.leaving)
    }

    /// Adds a request. If there is no room for both, removes and returns the next one to leave.
    pub(super) fn enter(&mut self, leaving: Leaving) -> Option<Leaving> {
        let early = if self.heap.len() >= MOST { self.heap.pop() } else { None };
        self.arrivals += 1;
        self.heap.push(Reverse(Ordered { arrival: self.arrivals, leaving }));
        early.map(|Reverse(ordered)| ordered.leaving)
    }
}

/// A clock at the current time of the log; clones share the time. No task sleeps on it, so setting it costs one write.
#[derive(Clone, Debug, Default)]
pub(super) struct LogClock {
    nanos: Arc<AtomicU64>,
}

impl LogClock {
    pub(super) fn set(&self, tick: Tick) {
        // Relaxed: one thread writes and reads.
        self.nanos.store(tick.as_nanos(), Ordering::Relaxed);
    }
}

impl Clock for LogClock {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}
