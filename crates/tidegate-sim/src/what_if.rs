//! Computes what many limits would have done to one log, side by side during one reading.
//!
//! For each candidate, a rate and a burst, it counts the requests denied and the keys hit, exactly as a gate with that
//! `gcra` limit would have decided them. A hundred gates would take a hundred times the memory and time. As long as a
//! candidate has denied no request of a key, its state for the key depends on the rate alone, so all candidates of one
//! rate share one state. And among these, the one with the smallest burst denies first. So a key takes one number per
//! rate, plus a state for each candidate that has denied one of its requests.
//!
//! The candidates replace the limit of one policy. The match, the key, the lists and the cost come from the policy; its
//! limits, tiers and overrides are ignored, and so are denials by other policies.

mod key_table;

use std::time::Duration;

use serde::Serialize;
use tidegate::limiter::Rate;
use tidegate::policy::{
    Access, ChargeOn, CostErrors, Descriptor, Limit, Mode, OnCostError, Policy, PolicySet, PolicySetError,
};
use tidegate::{Cost, Quota, QuotaError, Tick};

use self::key_table::{Key, KeyTable, State};
use crate::log::{Record, Wanted};
use crate::meter::Meter;
use crate::peaks::Distinct;
use crate::replay::key_name;

/// A limit to try: `gcra` with this rate and burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How fast capacity returns.
    pub rate: Rate,
    /// The largest cost granted at once, in cost units, 1 or more.
    pub burst: u64,
}

/// Enough for a curve, and a bound on the memory per key.
pub(crate) const MAX_CANDIDATES: usize = 1_024;

/// Why candidates cannot be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WhatIfError {
    /// More candidates than 1,024.
    #[error("{count} limits are too many to try at once; use at most {MAX_CANDIDATES}")]
    TooMany {
        /// The number of candidates.
        count: usize,
    },
    /// The rate or the burst is out of range.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// A limit that takes about 292 years or more to refill: its levels would not be exact.
    #[error("a burst of {burst} at {count} per {period:?} takes too long to return; use a smaller burst")]
    TooSlow {
        /// The burst.
        burst: u64,
        /// The count of the rate.
        count: u64,
        /// The period of the rate.
        period: Duration,
    },
    /// The policy charges by the outcome of requests, or charges refused ones too.
    #[error(
        "policy \"{policy}\" has charge: on-failure or always; the effect of other limits on it needs a replay of its own"
    )]
    ChargesOtherwise {
        /// The name of the policy.
        policy: String,
    },
    /// The policy is invalid in a set.
    #[error(transparent)]
    Policy(#[from] PolicySetError),
}

/// How much a [`WhatIf`] remembers and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhatIfOptions {
    /// The most keys remembered at once, at least two: about 200 bytes each, and 8 more per distinct rate. Beyond it,
    /// keys that are as good as new (nothing denied, every bucket drained) are forgotten first, which changes no
    /// decision.
    pub keys: usize,
    /// The window of [`KeyHit::peak`].
    pub window: Duration,
    /// How many of the keys hit are named for each candidate.
    pub named: usize,
    /// The IPv6 prefix by which clients are keyed, 1 to 128.
    pub ipv6_prefix: u8,
}

impl Default for WhatIfOptions {
    /// A hundred thousand keys, peaks per minute, twenty names per candidate, IPv6 networks of 64 bits.
    fn default() -> Self {
        Self { keys: 100_000, window: Duration::from_secs(60), named: 20, ipv6_prefix: 64 }
    }
}

/// The candidates of one rate, smallest burst first.
#[derive(Clone, Debug)]
struct Group {
    meter: Meter,
    /// The position of the first one in [`WhatIf::ordered`].
    from: usize,
    to: usize,
}

#[derive(Clone, Copy, Debug)]
struct Ordered {
    /// The highest level allowed.
    full: u64,
    /// Its position in the list that was given.
    given: usize,
}

/// Many limits tried side by side on one stream of requests.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::limiter::Rate;
/// use tidegate::policy::{Descriptor, Limit, Policy};
/// use tidegate::{Quota, Tick};
/// use tidegate_sim::what_if::{Candidate, WhatIf, WhatIfOptions};
///
/// let mut policy = Policy::new("per-ip", Limit::new(Quota::per_second(1).gcra()?, "1/s"));
/// policy.by = vec!["client.ip".to_owned()];
/// let rate = Rate::new(60, Duration::from_secs(60))?;
/// let candidates = [1, 5, 10].map(|burst| Candidate { rate, burst });
/// let mut what_if = WhatIf::new(&policy, &candidates, WhatIfOptions::default())?;
/// let request = Descriptor::new().with("client.ip", "192.0.2.1");
/// for second in [0, 0, 0, 0, 0, 0, 10] {
///     what_if.ask(Tick::from_secs(second), &request, None, false);
/// }
/// let denied: Vec<u64> = what_if.outcomes().iter().map(|outcome| outcome.denied).collect();
/// assert_eq!(denied, [5, 1, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct WhatIf {
    asking: Asking,
    candidates: Vec<Candidate>,
    groups: Vec<Group>,
    ordered: Vec<Ordered>,
    keys: KeyTable,
    options: WhatIfOptions,
    requests: u64,
    /// Requests denied, for each candidate in the order of `ordered`.
    denied: Vec<u64>,
}

impl WhatIf {
    /// Makes a trial of candidates for the limit of a policy, in any order.
    ///
    /// # Errors
    /// [`WhatIfError`] if there are too many candidates, a candidate is not a valid limit or refills too slowly to be
    /// exact, or the policy is not valid, or has `charge: on-failure` or `always`.
    pub fn new(
        policy: &Policy,
        candidates: &[Candidate],
        options: WhatIfOptions,
    ) -> Result<Self, WhatIfError> {
        if candidates.len() > MAX_CANDIDATES {
            return Err(WhatIfError::TooMany { count: candidates.len() });
        }
        let mut places: Vec<usize> = (0..candidates.len()).collect();
        let order = |place: &usize| {
            let Candidate { rate, burst } = candidates[*place];
            (rate.reduced(), burst)
        };
        places.sort_by_key(order);
        let (mut groups, mut ordered) = (Vec::<Group>::new(), Vec::with_capacity(places.len()));
        for given in places {
            let Candidate { rate, burst } = candidates[given];
            // Reject limits that a gate would reject.
            Quota::per(rate.count(), rate.period()).burst(burst).gcra()?;
            let meter = Meter::new(rate);
            let too_slow = WhatIfError::TooSlow { burst, count: rate.count(), period: rate.period() };
            ordered.push(Ordered { full: meter.full(burst).ok_or(too_slow)?, given });
            match groups.last_mut() {
                Some(group) if group.meter == meter => group.to = ordered.len(),
                _ => groups.push(Group { meter, from: ordered.len() - 1, to: ordered.len() }),
            }
        }
        Ok(Self {
            asking: Asking::new(policy, options.ipv6_prefix)?,
            candidates: candidates.to_vec(),
            keys: KeyTable::new(
                options.keys,
                options.window,
                groups.iter().map(|group| group.meter).collect(),
            ),
            groups,
            denied: vec![0; ordered.len()],
            ordered,
            options,
            requests: 0,
        })
    }

    pub(crate) fn feed(&mut self, record: &Record<'_>) {
        let request = self.asking.describe(record);
        self.ask(record.time, &request, None, record.is_signed_in());
    }

    /// Tries any request. `cost` is the cost given by the caller; a policy with a cost rule of its own uses that
    /// instead. An earlier time counts as the latest of its key.
    pub fn ask(&mut self, at: Tick, request: &Descriptor<'_>, cost: Option<Cost>, signed_in: bool) {
        let Self { asking, keys, groups, ordered, denied, .. } = self;
        let Some(charge) = asking.find(request, cost) else { return };
        self.requests += 1;
        let units = charge.cost.units();
        let (key, passed) = keys.see(&charge.key, at, units, || asking.name(request));
        key.signed_in |= signed_in;
        // In the order of candidates. Within a rate, those that have denied the key something come first.
        let mut place = 0;
        for (group, level) in groups.iter().zip(&mut key.levels) {
            let mut candidate = group.from;
            while let Some(state) = key.states.get_mut(place).filter(|state| state.candidate < group.to) {
                let drained = group.meter.drained(state.level, passed);
                let charged = group.meter.charged(drained, units);
                state.level = if charged <= ordered[candidate].full { charged } else { drained };
                if charged > ordered[candidate].full {
                    state.denied += 1;
                    denied[candidate] += 1;
                }
                (place, candidate) = (place + 1, candidate + 1);
            }
            let drained = group.meter.drained(*level, passed);
            let charged = group.meter.charged(drained, units);
            while candidate < group.to && charged > ordered[candidate].full {
                key.states.insert(place, State { candidate, level: drained, denied: 1 });
                denied[candidate] += 1;
                (place, candidate) = (place + 1, candidate + 1);
            }
            *level = charged;
        }
    }

    #[must_use]
    pub(crate) const fn requests(&self) -> u64 {
        self.requests
    }

    #[must_use]
    pub(crate) fn keys(&self) -> Distinct {
        self.keys.distinct()
    }

    /// Returns how many keys were evicted while in use, for lack of room. Above zero, denials may be too few.
    #[must_use]
    pub(crate) const fn evicted(&self) -> u64 {
        self.keys.evicted()
    }

    /// Says whether any key was forgotten. If so, the figures of a key (its requests, its peak, whether it signed in)
    /// count from when it was last remembered.
    #[must_use]
    pub(crate) const fn has_forgotten(&self) -> bool {
        self.keys.has_forgotten()
    }

    /// Returns how many requests each candidate would have denied, in the order given.
    #[must_use]
    pub(crate) fn denied(&self) -> Vec<u64> {
        let mut denied = vec![0; self.ordered.len()];
        for (ordered, count) in self.ordered.iter().zip(&self.denied) {
            denied[ordered.given] = *count;
        }
        denied
    }

    /// Returns what each candidate would have done, in the order given. Walks all keys once.
    #[must_use]
    pub fn outcomes(&self) -> Vec<WhatIfOutcome> {
        let mut hit: Vec<Vec<(u64, &Key)>> = vec![Vec::new(); self.ordered.len()];
        for key in self.keys.iter() {
            for state in &key.states {
                hit[state.candidate].push((state.denied, key));
            }
        }
        let (requests, keys, named) = (self.requests, self.keys().about(), self.options.named);
        let ordered = self.ordered.iter().zip(&self.denied).zip(hit);
        let mut outcomes: Vec<_> = ordered
            .map(|((ordered, denied), hit)| {
                let candidate = self.candidates[ordered.given];
                (ordered.given, WhatIfOutcome::new(candidate, *denied, hit, requests, keys, named))
            })
            .collect();
        outcomes.sort_by_key(|(given, _)| *given);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// Returns all keys that a candidate would have hit, by the candidate's position in the given list; in no
    /// particular order. Walks all keys.
    pub(crate) fn hit_by(&self, candidate: usize) -> impl Iterator<Item = HitName<'_>> {
        let ordered = self.ordered.iter().position(|ordered| ordered.given == candidate);
        let hit = move |key: &'_ Key| {
            let wanted = ordered?;
            let place = key.states.binary_search_by_key(&wanted, |state| state.candidate).ok()?;
            Some(key.states[place].denied)
        };
        let named = move |key| hit(key).map(|denied| (key, denied));
        let named = self.keys.iter().filter_map(named);
        named.map(|(key, denied)| HitName { key: &key.name, denied, signed_in: key.signed_in })
    }
}

/// The requests and keys that one limit would have denied.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIfOutcome {
    /// The limit.
    pub candidate: Candidate,
    /// Requests it would have denied.
    pub denied: u64,
    /// Their share of the requests that the policy matched, 0 to 1.
    pub denied_share: f64,
    /// Keys with at least one denied request.
    pub keys_hit: u64,
    /// Their share of all keys, 0 to 1.
    pub keys_hit_share: f64,
    /// How many of them belong to a user who signed in and was served.
    pub keys_hit_signed_in: u64,
    /// The keys hit, most denied first, ties by name; at most [`WhatIfOptions::named`].
    pub hit: Vec<KeyHit>,
}

/// A key that a limit would have hit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyHit {
    /// The key, as replays show it.
    pub key: String,
    /// How many of its requests would have been denied.
    pub denied: u64,
    /// How many requests it made.
    pub requests: u64,
    /// The most it asked for within one window, in cost units.
    pub peak: u64,
    /// Whether a user signed in with this key and was served.
    pub signed_in: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HitName<'w> {
    pub(crate) key: &'w str,
    pub(crate) denied: u64,
    pub(crate) signed_in: bool,
}

impl WhatIfOutcome {
    fn new(
        candidate: Candidate,
        denied: u64,
        mut hit: Vec<(u64, &Key)>,
        requests: u64,
        keys: u64,
        named: usize,
    ) -> Self {
        let share =
            |part: u64, whole: u64| if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) };
        let keys_hit = hit.len() as u64;
        let keys_hit_signed_in = hit.iter().filter(|(_, key)| key.signed_in).count() as u64;
        hit.sort_unstable_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.name.cmp(&other.name)));
        hit.truncate(named);
        let name = |(denied, key): &(u64, &Key)| KeyHit {
            key: key.name.to_string(),
            denied: *denied,
            requests: key.requests,
            peak: key.peak.peak(),
            signed_in: key.signed_in,
        };
        Self {
            candidate,
            denied,
            denied_share: share(denied, requests),
            keys_hit,
            keys_hit_share: share(keys_hit, keys),
            keys_hit_signed_in,
            hit: hit.iter().map(name).collect(),
        }
    }
}

/// Finds the key and the cost of a request under the policy whose limits are tried, as a gate does.
#[derive(Debug)]
pub(crate) struct Asking {
    set: PolicySet,
    wanted: Wanted,
    ipv6_prefix: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct RequestCharge {
    /// The bytes of the key, as in stores.
    pub(crate) key: Vec<u8>,
    pub(crate) cost: Cost,
}

impl Asking {
    pub(crate) fn new(policy: &Policy, ipv6_prefix: u8) -> Result<Self, WhatIfError> {
        if policy.charge != ChargeOn::Check {
            return Err(WhatIfError::ChargesOtherwise { policy: policy.name.clone() });
        }
        let mut policy = policy.clone();
        // A placeholder, so that a request has a key.
        policy.limits = vec![Limit::new(Quota::per_second(1).gcra()?, "tried")];
        (policy.shadow_limit, policy.canary) = (None, None);
        policy.mode = Mode::Enforce;
        policy.share = None;
        policy.on_cost_error = OnCostError::Deny;
        let set = PolicySet::with(vec![policy], Access::default(), ipv6_prefix)?;
        Ok(Self { wanted: Wanted::by(vec![set.named()], false), set, ipv6_prefix })
    }

    pub(crate) fn describe<'r>(&self, record: &'r Record<'_>) -> Descriptor<'r> {
        record.describe_only(&self.wanted)
    }

    /// Finds the key and the cost of a request; `None` if the policy does not match it, a list decides, or its cost
    /// cannot be determined.
    pub(crate) fn find(&self, request: &Descriptor<'_>, cost: Option<Cost>) -> Option<RequestCharge> {
        if self.set.access(request).is_some() {
            return None;
        }
        let mut plan = self.set.plan(request, cost);
        let line = plan.lines.first().filter(|line| !line.cost_is_unknown())?;
        let (at, cost) = (line.key.clone(), line.cost);
        // In place: the key is nearly always all that the plan's memory holds.
        plan.keys.truncate(at.end);
        drop(plan.keys.drain(..at.start));
        Some(RequestCharge { key: plan.keys, cost })
    }

    /// Requests whose cost the policy could not determine.
    pub(crate) fn unknown_costs(&self) -> CostErrors {
        self.set.cost_errors(0)
    }

    pub(crate) fn name(&self, request: &Descriptor<'_>) -> String {
        key_name(&self.set.policies()[0], request, self.ipv6_prefix)
    }
}

#[cfg(test)]
mod tests;
