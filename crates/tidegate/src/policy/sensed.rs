//! What a set of policies makes of the numbers that its conditions and moving rates go by.
//!
//! Readings come in at most ten times a second. Each is compared once, and what follows of it (whether a policy holds, which rate is in
//! force) is left where a check finds it with one load.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::following::FollowingState;
use tidegate_core::{Cost, Tick};

use super::compiled::Compiled;
use super::descriptor::Descriptor;
use super::follows::Follows;
use super::key;
use super::plan::{Line, Plan};
use super::policy::{Limit, Policy};
use super::set::{PolicySet, PolicySetError};
use super::source::Source;
use super::when::Condition;

/// The numbers that a set goes by, and how they stand.
#[derive(Debug)]
pub(crate) struct Sensed {
    sources: Vec<Source>,
    conditioned: Vec<Conditioned>,
    followed: Vec<Followed>,
    /// The tick from which readings are taken again, in nanoseconds.
    due: AtomicU64,
    state: Mutex<State>,
}

/// A policy that holds under conditions, each with the place of its source.
#[derive(Debug)]
struct Conditioned {
    policy: usize,
    conditions: Vec<(usize, Condition)>,
}

/// A limit whose rate moves.
#[derive(Debug)]
struct Followed {
    policy: usize,
    limit: usize,
    source: usize,
    follows: Follows,
}

#[derive(Debug, Default)]
struct State {
    /// By source.
    readings: Vec<Option<Taken>>,
    /// By policy that holds under conditions, and by condition.
    held: Vec<Vec<bool>>,
    /// By limit whose rate moves: the law's state, and when it was last told.
    laws: Vec<(FollowingState, Option<Tick>)>,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    value: f64,
    at: Tick,
}

/// A number that policies go by, as it stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SourceStanding {
    /// Which number.
    pub source: Source,
    /// The last reading, in the unit of the source; `None` where there was none.
    pub value: Option<f64>,
    /// How old that is.
    pub age: Option<Duration>,
}

/// There is no such signal, or its value is no number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// No condition and no rate goes by it.
    #[error("no policy goes by a signal \"{name}\"{}", listed(.known))]
    Unknown {
        /// The name.
        name: String,
        /// The names that policies go by.
        known: Vec<String>,
    },
    /// Infinite, or not a number.
    #[error("{value} is no value of a signal; report a finite number")]
    NotFinite {
        /// The value.
        value: String,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; they go by {}", names.join(", ")) }
}

impl Sensed {
    /// How often readings are taken: the shortest time within which a condition can change.
    const EVERY: Duration = Duration::from_millis(100);

    /// The most conditions and moving rates of one set: all are gone through with each reading.
    pub(super) const MOST: usize = 1024;

    /// The most different numbers that one set goes by.
    pub(super) const MOST_SOURCES: usize = 64;

    /// Collects what policies go by; `None` where they go by nothing.
    ///
    /// # Errors
    /// [`PolicySetError`] for a condition on a policy that has none or more than one key, and for too many of anything.
    pub(super) fn of(policies: &[Policy]) -> Result<Option<Box<Self>>, PolicySetError> {
        let (mut sources, mut conditioned, mut followed) = (Vec::new(), Vec::new(), Vec::new());
        let mut place_of = |source: &Source| {
            sources.iter().position(|other| other == source).unwrap_or_else(|| {
                sources.push(source.clone());
                sources.len() - 1
            })
        };
        let mut count = 0;
        for (policy, asked) in policies.iter().enumerate() {
            let limits = || asked.limits.iter().chain(&asked.shadow_limit);
            let rates = limits().filter_map(|limit| limit.follows.as_ref().map(Follows::source));
            for source in asked.when.iter().map(Condition::source).chain(rates) {
                check_source(asked, source, policies)?;
                count += 1;
            }
            if !asked.when.is_empty() {
                let conditions = asked.when.iter().map(|when| (place_of(when.source()), when.clone()));
                conditioned.push(Conditioned { policy, conditions: conditions.collect() });
            }
            for (limit, of) in limits().enumerate() {
                let Some(follows) = of.follows.clone() else { continue };
                followed.push(Followed { policy, limit, source: place_of(follows.source()), follows });
            }
        }
        if count > Self::MOST || sources.len() > Self::MOST_SOURCES {
            return Err(PolicySetError::TooManyConditions { conditions: count, sources: sources.len() });
        }
        if sources.is_empty() {
            return Ok(None);
        }
        let state = State {
            readings: vec![None; sources.len()],
            held: conditioned.iter().map(|one| vec![false; one.conditions.len()]).collect(),
            laws: followed.iter().map(|one| (one.follows.law().start(Tick::EPOCH), None)).collect(),
        };
        let (due, state) = (AtomicU64::new(0), Mutex::new(state));
        Ok(Some(Box::new(Self { sources, conditioned, followed, due, state })))
    }

    /// Says whether readings are to be taken now, by the caller: of several who ask at the same time, one is told so.
    #[inline]
    pub(crate) fn is_due(&self, now: Tick) -> bool {
        // Relaxed: it only chooses who takes the readings, which the lock orders.
        let due = self.due.load(Ordering::Relaxed);
        let next = now.after(Self::EVERY).as_nanos();
        now.as_nanos() >= due && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Takes readings of what `measure` knows.
    fn take(&self, now: Tick, mut measure: impl FnMut(&Source) -> Option<f64>, compiled: &[Compiled]) {
        // Measured before the lock is taken: that may ask a store.
        let values: Vec<_> = self.sources.iter().map(&mut measure).collect();
        let mut state = self.state.lock();
        for (reading, value) in state.readings.iter_mut().zip(values) {
            if let Some(value) = value.filter(|value| value.is_finite()) {
                *reading = Some(Taken { value, at: now });
            }
        }
        self.conclude(&mut state, now, compiled);
    }

    /// Makes of the readings whether policies hold, and which rates are in force.
    fn conclude(&self, state: &mut State, now: Tick, compiled: &[Compiled]) {
        let State { readings, held, laws } = state;
        for (one, held) in self.conditioned.iter().zip(held) {
            for ((source, condition), held) in one.conditions.iter().zip(&mut *held) {
                let fresh = fresh(readings[*source], condition, now);
                *held = fresh.is_some_and(|value| condition.holds(*held, value));
            }
            compiled[one.policy].set_holding(held.iter().all(|held| *held));
        }
        for (one, (law, told)) in self.followed.iter().zip(laws) {
            let Some(Taken { value, at }) = readings[one.source] else { continue };
            if told.is_none_or(|told| told < at) {
                one.follows.law().sense(law, at, value);
                *told = Some(at);
            }
            let level = one.follows.level_of(one.follows.law().rate(law));
            compiled[one.policy].limits[one.limit].set_level(level);
        }
    }

    /// Goes on from the readings of another set, and from what its conditions and laws made of them where they are the same.
    fn go_on_from(&self, before: &Self, same: impl Fn(usize) -> Option<usize>) {
        let before_state = before.state.lock();
        let mut state = self.state.lock();
        for (at, source) in self.sources.iter().enumerate() {
            let was = before.sources.iter().position(|other| other == source);
            state.readings[at] = was.and_then(|was| before_state.readings[was]);
        }
        for (one, held) in self.conditioned.iter().zip(&mut state.held) {
            let was = before.conditioned.iter().position(|other| Some(other.policy) == same(one.policy));
            let Some(was) = was else { continue };
            let conditions = before.conditioned[was].conditions.iter().zip(&before_state.held[was]);
            for ((_, condition), held) in one.conditions.iter().zip(held) {
                *held = conditions.clone().any(|((_, other), held)| other == condition && *held);
            }
        }
        for (one, law) in self.followed.iter().zip(&mut state.laws) {
            let was = before.followed.iter().position(|other| {
                Some(other.policy) == same(one.policy) && other.limit == one.limit && other.follows == one.follows
            });
            *law = was.map_or(*law, |was| before_state.laws[was]);
        }
    }
}

/// Returns a reading that is not too old for a condition.
fn fresh(reading: Option<Taken>, condition: &Condition, now: Tick) -> Option<f64> {
    reading.filter(|taken| now.since(taken.at) <= condition.stale_after()).map(|taken| taken.value)
}

/// Checks that a policy that another one goes by is there, and counts for all together.
fn check_source(asked: &Policy, source: &Source, policies: &[Policy]) -> Result<(), PolicySetError> {
    let Source::Policy(other) = source else { return Ok(()) };
    let refused = |why| {
        Err(PolicySetError::GoesBy { name: asked.name.clone(), other: other.to_string(), why })
    };
    match policies.iter().find(|policy| *policy.name == **other) {
        None => refused("there is no such policy"),
        Some(_) if *asked.name == **other => refused("a policy cannot go by itself"),
        Some(policy) if !policy.by.is_empty() => refused("it has a key for each caller, and which is meant?; leave out its `by`"),
        Some(_) => Ok(()),
    }
}

impl PolicySet {
    /// Returns what the set goes by, if it goes by anything.
    #[inline]
    pub(crate) fn sensed(&self) -> Option<&Sensed> {
        self.sensed.as_deref()
    }

    /// Takes readings of what `measure` knows; nothing for what it does not know.
    pub(crate) fn sense(&self, now: Tick, measure: impl FnMut(&Source) -> Option<f64>) {
        if let Some(sensed) = self.sensed() {
            sensed.take(now, measure, &self.compiled);
        }
    }

    /// Takes the value of a signal that a user reports.
    pub(crate) fn report(&self, name: &str, value: f64, now: Tick) -> Result<(), SignalError> {
        if !value.is_finite() {
            return Err(SignalError::NotFinite { value: value.to_string() });
        }
        let sources = self.sensed().map_or(&[][..], |sensed| &sensed.sources);
        let signals = sources.iter().enumerate().filter_map(|(at, source)| match source {
            Source::Signal(name) => Some((at, &**name)),
            _ => None,
        });
        let found = signals.clone().find(|(_, known)| *known == name);
        let (Some((at, _)), Some(sensed)) = (found, self.sensed()) else {
            let known = signals.map(|(_, name)| name.to_owned()).collect();
            return Err(SignalError::Unknown { name: name.to_owned(), known });
        };
        let mut state = sensed.state.lock();
        state.readings[at] = Some(Taken { value, at: now });
        sensed.conclude(&mut state, now, &self.compiled);
        Ok(())
    }

    /// Goes on from what another set had read, by the names of policies.
    pub(super) fn sense_on_from(&self, before: &Self) {
        let (Some(sensed), Some(other)) = (self.sensed(), before.sensed()) else { return };
        sensed.go_on_from(other, |place| before.find(&self.policies[place].name).map(|(at, _)| at));
    }

    /// Returns the numbers that policies go by, as they stand. A short lock, which readings take too; checks do not.
    #[must_use]
    pub fn sources(&self, now: Tick) -> Vec<SourceStanding> {
        let Some(sensed) = self.sensed() else { return Vec::new() };
        let state = sensed.state.lock();
        let each = sensed.sources.iter().zip(&state.readings);
        each.map(|(source, taken)| SourceStanding {
            source: source.clone(),
            value: taken.map(|taken| taken.value),
            age: taken.map(|taken| now.since(taken.at)),
        })
        .collect()
    }

    /// Says why a policy does not hold at present; `None` where it does.
    pub(super) fn why_idle(&self, place: usize) -> Option<String> {
        if self.compiled[place].holds() {
            return None;
        }
        let sensed = self.sensed()?;
        let state = sensed.state.lock();
        let at = sensed.conditioned.iter().position(|one| one.policy == place)?;
        let mut why = String::new();
        for ((source, condition), held) in sensed.conditioned[at].conditions.iter().zip(&state.held[at]) {
            if *held {
                continue;
            }
            let separator = if why.is_empty() { "" } else { "; " };
            // Writing to a string does not fail.
            let _ = match state.readings[*source] {
                None => write!(why, "{separator}{condition}: it is not known"),
                Some(taken) => {
                    let value = condition.source().written(taken.value);
                    write!(why, "{separator}{condition}: last read as {value}")
                }
            };
        }
        Some(why)
    }

    /// Lists a charge of one unit for each limit of a policy without `by`, to see how much is in use.
    pub(crate) fn plan_of_one_key(&self, place: usize) -> Plan<'_> {
        let mut plan = Plan::default();
        let descriptor = Descriptor::new();
        let (policy, compiled) = (&self.policies[place], &self.compiled[place]);
        for (at, ready) in compiled.limits.iter().enumerate() {
            let Some(quota) = ready.quota(&descriptor, || policy.limit(at)) else { continue };
            let start = plan.keys.len();
            plan.keys.extend_from_slice(&ready.prefix);
            key::push_values(&mut plan.keys, &policy.by, &descriptor, self.ipv6_prefix);
            plan.lines.push(Line {
                policy: place,
                limit: at,
                key: start..plan.keys.len(),
                quota,
                cost: Cost::ONE,
                kept_back: 0,
                max_wait: Duration::ZERO,
                binding: true,
                on_failure: false,
                on_error: compiled.on_error,
                share: compiled.share,
                passing: false,
                by_fallback: false,
                replace: ready.replace,
                owner: ready.owner,
            });
        }
        plan
    }
}

impl Limit {
    /// Makes a limit whose rate follows a number; `label` is how people read it.
    pub fn following(follows: Follows, label: impl Into<String>) -> Self {
        let ceiling = follows.ceiling().clone();
        Self { follows: Some(follows), ..Self::new(ceiling, label) }
    }
}
