//! Drives real gates with requests from a log or from generated traffic, on a virtual clock that shows their times, and
//! counts the results.
//!
//! Several policy sets can be driven side by side during one reading of the log, to compare algorithms on the same
//! requests. Nothing is kept per request: memory is that of the gates' stores, of [`Peaks`] and of [`Series`], all
//! bounded in advance.

mod account;
mod guards;
mod outcome;
mod run;
mod threshold;

use std::sync::Arc;
use std::time::Duration;

use tidegate::gate::Check;
use tidegate::gate::switches::Off;
use tidegate::policy::{Descriptor, Mode, PolicySet, Source};
use tidegate::store::CapacityError;
use tidegate::{Cost, Outcome as Ended, Tick};

use crate::log::{Record, Wanted};
use crate::traffic::Arrival;
use run::{Inside, Leaving, LogClock, RequestEnding, Run};

pub use crate::peaks::{Distinct, KeyDetail, KeyPeak, PathCount, Peaks};
pub use crate::series::{Point, Series};
pub use crate::unknown::{AssumedOn, UnknownNumber};
pub(crate) use account::{Granted, key_name, written_rate};
pub(crate) use guards::{BreakerBand, BreakerState, GuardLimit, Guards};
pub(crate) use outcome::{ADMITTED, DENIED, OFFERED, WOULD_DENY, share};
pub use outcome::{
    BreakerChange, Doubt, GuardOutcome, Outcome, PeakRate, PolicyOutcome, ServiceOutcome, Trust,
    shadow_limit_name,
};
pub use threshold::{Threshold, ThresholdError, Verdict};

/// How much a replay remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// The most live keys in each gate's store.
    pub store_keys: usize,
    /// The most keys whose peaks are kept, per policy and per shadow limit; about 200 bytes each.
    pub peak_keys: usize,
    /// Whether requests and paths are counted for each of these keys: up to 2 KiB more each, usually about 200 bytes.
    pub details: bool,
    /// The bins of each curve, raised to an even number of at least two.
    pub bins: usize,
    /// The width of a bin at first, and the resolution of its peaks.
    pub bin_width: Duration,
    /// The IPv6 prefix by which clients are named, 1 to 128.
    pub ipv6_prefix: u8,
    /// How long a request is in flight if the log does not have its duration; `None`: it is over at once.
    pub hold: Option<Duration>,
}

impl Default for ReplayOptions {
    /// A million keys in the store, a hundred thousand in the tables, and 240 bins of one second at first.
    fn default() -> Self {
        Self {
            store_keys: 1_000_000,
            peak_keys: 100_000,
            details: false,
            // Each bin is three pixels wide in a chart: a single step is still visible.
            bins: 240,
            bin_width: Duration::from_secs(1),
            ipv6_prefix: 64,
            hold: None,
        }
    }
}

/// Policy sets side by side, driven by one stream of requests.
#[derive(Debug)]
pub struct Replay {
    clock: LogClock,
    runs: Vec<Run>,
    options: ReplayOptions,
    first: Option<Tick>,
    last: Option<Tick>,
    is_recorded: bool,
    names_users: bool,
    inside: Inside,
    is_timed: bool,
    unheld: u64,
    without_status: u64,
    /// Attributes in `by` that no request has had so far.
    unseen: Vec<String>,
    /// The attributes of the first request, and of those read while any of `unseen` was missing.
    attributes: Vec<String>,
    wanted: Wanted,
}

/// The most attributes of requests that are remembered, for messages about a missing one.
const ATTRIBUTES: usize = 32;

/// Requests whose memory is prefetched at once: about as many loads as a core can have in flight.
const TOGETHER: usize = 16;

impl Replay {
    /// Makes a replay of named policy sets, each with room for [`ReplayOptions::store_keys`].
    ///
    /// # Errors
    /// [`CapacityError`] if the number of keys is out of range, or the system has no memory for them.
    pub fn new(sets: Vec<(String, Arc<PolicySet>)>, options: ReplayOptions) -> Result<Self, CapacityError> {
        let clock = LogClock::default();
        let applied =
            sets.iter().flat_map(|(_, set)| set.policies()).filter(|policy| policy.mode != Mode::Off);
        let mut unseen: Vec<String> = applied.flat_map(|policy| policy.by.iter().cloned()).collect();
        unseen.sort();
        unseen.dedup();
        let runs = sets.into_iter().map(|(name, policies)| Run::new(name, policies, &clock, &options));
        let runs = runs.collect::<Result<Vec<Run>, CapacityError>>()?;
        Ok(Self {
            clock,
            options,
            first: None,
            last: None,
            is_recorded: false,
            names_users: false,
            inside: Inside::default(),
            is_timed: false,
            unheld: 0,
            without_status: 0,
            wanted: Wanted::by(
                runs.iter().map(|run| run.policies.attributes_read()).collect(),
                options.details,
            ),
            runs,
            unseen,
            attributes: Vec::new(),
        })
    }

    /// Asks every gate about a request of a log. The request holds its places in guards for the duration in the log,
    /// and leaves them with the outcome that its status implies, which is also reported to policies with `charge:
    /// on-failure`. Without a status it stays charged there, and guards learn nothing from it.
    pub fn feed(&mut self, record: &Record<'_>) {
        // All attributes of the first request, and of others for a message about one that is missing.
        let request = match self.first {
            Some(_) if self.unseen.is_empty() => record.describe_only(&self.wanted),
            _ => record.describe(),
        };
        self.feed_described(record, &request);
    }

    /// Asks every gate about consecutive requests of a log, as [`Replay::feed`] does for each. Faster by a sixth if the
    /// keys do not fit the processor's caches, since the memory of several requests is prefetched at once; see
    /// [`Log::read_together`](crate::log::Log::read_together).
    pub fn feed_all(&mut self, mut records: &[Record<'_>]) {
        if let (None, [first, rest @ ..]) = (self.first, records) {
            self.feed(first);
            records = rest;
        }
        let all = Wanted::ALL;
        for records in records.chunks(TOGETHER) {
            let mut requests: [Descriptor<'_>; TOGETHER] = std::array::from_fn(|_| Descriptor::new());
            let wanted = if self.unseen.is_empty() { &self.wanted } else { &all };
            for (record, request) in records.iter().zip(&mut requests) {
                record.describe_into(wanted, request);
            }
            self.runs.iter().for_each(|run| run.fetch(&requests[..records.len()]));
            for (record, request) in records.iter().zip(&requests) {
                self.feed_described(record, request);
            }
        }
    }

    fn feed_described(&mut self, record: &Record<'_>, request: &Descriptor<'_>) {
        self.is_recorded = true;
        self.names_users |= !record.user.is_empty();
        let outcome = record.status.map(Ended::from_status);
        self.without_status += u64::from(outcome.is_none());
        let ending = RequestEnding { outcome, signed_in: record.is_signed_in(), took: record.duration };
        self.ask(record.time, Check::of(request), ending);
    }

    /// Asks every gate about a request that is not from a log. Without a cost, the policies compute it. No outcome is
    /// reported.
    pub fn feed_request(&mut self, at: Tick, request: &Descriptor<'_>, cost: Option<Cost>) {
        self.ask(at, Check::of(request).maybe_cost(cost), RequestEnding::default());
    }

    /// Asks every gate about a request of generated traffic. It holds its places in guards for the duration in its
    /// segment, and leaves them with the outcome given there: success by default.
    pub fn feed_arrival(&mut self, arrival: &Arrival, request: &Descriptor<'_>) {
        let ending = RequestEnding { outcome: arrival.outcome, signed_in: false, took: arrival.took };
        let check = Check::of(request).maybe_cost(Some(arrival.cost)).priority(arrival.priority);
        self.ask(arrival.at, check, ending);
    }

    /// Ends the log or the traffic: all requests still inside a guard leave.
    pub fn finish(&mut self) {
        while let Some(leaving) = self.inside.leaves_by(Tick::MAX) {
            self.leave(&leaving);
        }
    }

    fn leave(&mut self, leaving: &Leaving) {
        self.clock.set(leaving.at);
        self.runs[leaving.run].leave(leaving.at, leaving);
    }

    fn ask(&mut self, at: Tick, check: Check<'_, '_>, ending: RequestEnding) {
        let request = check.request;
        let mut now = self.last;
        while let Some(leaving) = self.inside.leaves_by(at) {
            now = Some(leaving.at);
            self.leave(&leaving);
        }
        if self.first.is_none() || !self.unseen.is_empty() {
            for (name, _) in request.pairs() {
                if self.attributes.len() < ATTRIBUTES && !self.attributes.iter().any(|known| known == name) {
                    self.attributes.push(name.to_owned());
                }
            }
            self.unseen.retain(|name| request.value(name).is_none());
        }
        if now != Some(at) {
            self.first.get_or_insert(at);
            self.last = Some(at);
            self.clock.set(at);
        }
        let hold = ending.took.or(self.options.hold);
        let ending = RequestEnding { took: hold, ..ending };
        if hold.is_some() {
            self.is_timed = true;
        } else if self.holds() || self.runs.iter().any(|run| run.measures) {
            self.unheld += 1;
        }
        for place in 0..self.runs.len() {
            let asked = self.runs[place].ask(at, check, ending, self.options.ipv6_prefix);
            let Some(admitted) = asked else { continue };
            let silent = if self.is_recorded { Ended::Ignored } else { Ended::Success };
            let leaving = Leaving {
                at: at.after(admitted.delay).after(hold.unwrap_or_default()),
                run: place,
                places: admitted.places,
                entered: admitted.entered,
                took: hold,
                outcome: ending.outcome.unwrap_or(silent),
                work: admitted.work,
            };
            if let Some(early) = self.inside.enter(leaving) {
                self.runs[early.run].leave_early(at, &early);
            }
        }
    }

    /// Says whether any policy limits what is in flight, so that durations matter.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.runs.iter().any(|run| run.guards.is_some())
    }

    /// Says whether any policy has a circuit breaker or a limit that a law adjusts, so that outcomes matter.
    #[must_use]
    pub fn judges(&self) -> bool {
        let guards = self.runs.iter().filter_map(|run| run.guards.as_ref());
        guards.flat_map(Guards::limits).any(GuardLimit::judges)
    }

    /// Returns how many requests of a log had no status. Breakers and laws learn nothing from these.
    #[must_use]
    pub const fn without_status(&self) -> u64 {
        self.without_status
    }

    /// Says whether any request named its user. If none did, it is unknown which keys signed in.
    #[must_use]
    pub const fn names_users(&self) -> bool {
        self.names_users
    }

    /// Returns how many requests counted as over at once because their duration was unknown. 0 if no policy limits what
    /// is in flight and none uses it.
    #[must_use]
    pub const fn unheld(&self) -> u64 {
        self.unheld
    }

    /// Returns the numbers that policies use and that the requests do not tell, with what became of the policies. For
    /// switches see [`Replay::assumed_on`].
    #[must_use]
    pub fn unknown_numbers(&self) -> Vec<UnknownNumber> {
        let mut all = Vec::new();
        let of = |run: &Run| UnknownNumber::of(&run.policies, |source| self.why_unknown(source));
        for unknown in self.runs.iter().flat_map(of) {
            if !all.contains(&unknown) {
                all.push(unknown);
            }
        }
        all
    }

    /// Returns the attributes that policies are keyed by and that no request had: usually misspelt names.
    #[must_use]
    pub fn unseen(&self) -> &[String] {
        &self.unseen
    }

    /// Returns the attributes of the first request, and of all requests if [`Replay::unseen`] names any; at most 32.
    #[must_use]
    pub fn attributes(&self) -> &[String] {
        &self.attributes
    }

    /// Returns the results, one outcome per policy set.
    #[must_use]
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.runs.iter().map(|run| run.outcome(self.first, self.last)).collect()
    }

    /// Says whether times are dates, because the requests came from a log.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Returns the curves of a run, in requests: lane 0 is offered, 1 admitted, 2 denied, and 3 admitted although a shadow
    /// would have denied it. `None` if there is no such run.
    #[must_use]
    pub fn series(&self, run: usize) -> Option<&Series> {
        self.runs.get(run).map(|run| &run.series)
    }

    /// Returns the figures of a run's guards; `None` if its policies have none.
    pub(crate) fn guards(&self, run: usize) -> Option<&Guards> {
        self.runs.get(run)?.guards.as_ref()
    }

    pub(crate) fn policy_name(&self, run: usize, policy: usize) -> Option<&str> {
        self.runs.get(run)?.policies.policies().get(policy).map(|policy| policy.name.as_str())
    }

    /// What the limits of a row of [`Outcome::policies`] grant to a key in the window of [`Replay::policy_peaks`];
    /// `None` if that cannot be told from the limits.
    #[must_use]
    pub(crate) fn granted(&self, run: usize, row: usize) -> Option<&Granted> {
        self.runs.get(run)?.row(row)?.granted.as_ref()
    }

    /// Returns the peaks of the keys of one row of a run's [`Outcome::policies`]; `None` if there is no such run or
    /// row.
    #[must_use]
    pub fn policy_peaks(&self, run: usize, row: usize) -> Option<&Peaks> {
        Some(&self.runs.get(run)?.row(row)?.peaks)
    }
}

impl Replay {
    /// Turns a switch off for the whole replay, in each policy set that has it. Call it before the first request.
    ///
    /// # Errors
    /// The names of the switches of all sets, sorted, if none of them has this switch.
    pub fn turn_off(&mut self, name: &str) -> Result<(), Vec<String>> {
        let mut known = Vec::new();
        let mut is_known = false;
        for run in &mut self.runs {
            known.extend(run.policies.switches().map(str::to_owned));
            let off = Off::for_all("off throughout the replay");
            if run.switches.as_ref().is_some_and(|switches| switches.turn_off(name, off).is_ok()) {
                run.off.push(name.to_owned());
                is_known = true;
            }
        }
        known.sort();
        known.dedup();
        if is_known { Ok(()) } else { Err(known) }
    }

    /// Returns the switches that were taken as on because the requests do not tell what turns them off.
    #[must_use]
    pub fn assumed_on(&self) -> Vec<AssumedOn> {
        let mut all = Vec::new();
        for run in &self.runs {
            let is_off = |switch: &str| run.off.iter().any(|off| off == switch);
            for assumed in AssumedOn::of(&run.policies, |source| self.why_unknown(source)) {
                if !is_off(&assumed.switch) && !all.contains(&assumed) {
                    all.push(assumed);
                }
            }
        }
        all
    }

    /// Returns why a number is not known; `None` if it is.
    fn why_unknown(&self, source: &Source) -> Option<String> {
        let teller = if self.is_recorded { "the log" } else { "the traffic" };
        match source {
            Source::InFlight | Source::Latency if !self.is_timed => {
                Some(format!("{teller} does not say how long requests took"))
            }
            // What turns a switch is reported of the switch.
            Source::InFlight | Source::Latency | Source::Rate | Source::Policy(_) | Source::Switch(_) => None,
            other => Some(format!("{teller} does not say what `{other}` was")),
        }
    }
}

#[cfg(test)]
mod tests;
