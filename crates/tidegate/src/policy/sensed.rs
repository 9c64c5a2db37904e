//! What a set of policies makes of the numbers that its conditions and moving rates go by.
//!
//! Readings come in at most ten times a second. Each is compared once, and what follows of it (whether a policy holds, which rate is in
//! force) is left where a check finds it with one load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;
use tidegate_core::following::FollowingState;

use super::busy;
use super::compiled::{ALL_LEVELS, Compiled};
use super::follows::Follows;
use super::policy::Policy;
use super::source::Source;
use super::when::Condition;

/// Why the conditions and moving rates of policies make no set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConditionsError {
    /// A policy that goes by another one which it cannot go by.
    #[error("policy \"{name}\" depends on policy \"{other}\": {why}")]
    GoesBy {
        /// The policy.
        name: String,
        /// The one it goes by.
        other: String,
        /// Why not.
        why: &'static str,
    },
    /// More than can be gone through with each reading.
    #[error(
        "{conditions} conditions and moving rates on {sources} different numbers are too many; use up to {} on up to {}",
        Sensed::MOST,
        Sensed::MOST_SOURCES
    )]
    TooMany {
        /// How many there are.
        conditions: usize,
        /// On how many numbers.
        sources: usize,
    },
}

/// The numbers that a set goes by, and how they stand.
#[derive(Debug)]
pub(crate) struct Sensed {
    pub(super) sources: Vec<Source>,
    pub(super) conditioned: Vec<Conditioned>,
    followed: Vec<Followed>,
    busy: Vec<Busy>,
    /// The tick from which readings are taken again, in nanoseconds.
    due: AtomicU64,
    pub(super) state: Mutex<State>,
}

/// A policy that holds under conditions, each with the place of its source.
#[derive(Debug)]
pub(super) struct Conditioned {
    pub(super) policy: usize,
    pub(super) conditions: Vec<(usize, Condition)>,
}

/// A limit whose rate moves.
#[derive(Debug)]
struct Followed {
    policy: usize,
    limit: usize,
    source: usize,
    follows: Follows,
}

/// A limit whose law asks whether the processor is busy.
#[derive(Debug)]
struct Busy {
    policy: usize,
    limit: usize,
    source: usize,
    /// From which use on it is, in percent.
    from: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// By source.
    pub(super) readings: Vec<Option<Taken>>,
    /// By policy that holds under conditions, and by condition.
    pub(super) held: Vec<Vec<bool>>,
    /// By limit whose rate moves: the law's state, and when it was last told.
    laws: Vec<(FollowingState, Option<Tick>)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) value: f64,
    pub(super) at: Tick,
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
    /// [`ConditionsError`] for a condition on a policy that has none or more than one key, and for too many of anything.
    pub(super) fn of(policies: &[Policy]) -> Result<Option<Box<Self>>, ConditionsError> {
        let (mut sources, mut conditioned) = (Vec::new(), Vec::new());
        let (mut followed, mut busy) = (Vec::new(), Vec::new());
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
                if let Some(from) = busy::busy_from(of) {
                    busy.push(Busy { policy, limit, source: place_of(&Source::Cpu), from });
                    count += 1;
                }
                let Some(follows) = of.follows.clone() else { continue };
                followed.push(Followed { policy, limit, source: place_of(follows.source()), follows });
            }
        }
        if count > Self::MOST || sources.len() > Self::MOST_SOURCES {
            return Err(ConditionsError::TooMany { conditions: count, sources: sources.len() });
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
        Ok(Some(Box::new(Self { sources, conditioned, followed, busy, due, state })))
    }

    /// Says whether readings are to be taken now, by the caller: of several who ask at the same time, one is told so.
    #[inline]
    pub(crate) fn is_due(&self, now: Tick) -> bool {
        // Relaxed: it only chooses who takes the readings, which the lock orders.
        let due = self.due.load(Ordering::Relaxed);
        let next = now.after(Self::EVERY).as_nanos();
        now.as_nanos() >= due
            && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Takes readings of what `measure` knows.
    pub(super) fn take(
        &self,
        now: Tick,
        mut measure: impl FnMut(&Source) -> Option<f64>,
        compiled: &[Compiled],
    ) {
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
    pub(super) fn conclude(&self, state: &mut State, now: Tick, compiled: &[Compiled]) {
        let State { readings, held, laws } = state;
        for (one, held) in self.conditioned.iter().zip(held) {
            for ((source, condition), held) in one.conditions.iter().zip(&mut *held) {
                let fresh = fresh(readings[*source], condition, now);
                *held = fresh.is_some_and(|value| condition.holds(*held, value));
            }
            compiled[one.policy].set_holding(levels(one, held, readings));
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
        self.set_busy(readings, compiled);
    }

    /// Tells limits whether the processor is busy. While nobody has read that it has time.
    fn set_busy(&self, readings: &[Option<Taken>], compiled: &[Compiled]) {
        for one in &self.busy {
            let is_busy = readings[one.source].is_some_and(|taken| taken.value >= one.from);
            compiled[one.policy].limits[one.limit].set_level(usize::from(is_busy));
        }
    }

    /// Goes on from the readings of another set, and from what its conditions and laws made of them where they are the same.
    pub(super) fn go_on_from(
        &self,
        before: &Self,
        same: impl Fn(usize) -> Option<usize>,
        compiled: &[Compiled],
    ) {
        // Copied, and not held together with the other lock: two sets may go on from each other.
        let before_state = before.state.lock().clone();
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
                Some(other.policy) == same(one.policy)
                    && other.limit == one.limit
                    && other.follows == one.follows
            });
            *law = was.map_or(*law, |was| before_state.laws[was]);
        }
        // In force at once, and not from the next reading on.
        for (one, held) in self.conditioned.iter().zip(&state.held) {
            compiled[one.policy].set_holding(levels(one, held, &state.readings));
        }
        for (one, (law, _)) in self.followed.iter().zip(&state.laws) {
            let level = one.follows.level_of(one.follows.law().rate(law));
            compiled[one.policy].limits[one.limit].set_level(level);
        }
        self.set_busy(&state.readings, compiled);
    }
}

/// Returns for how many levels of priority a policy holds, the least important first: for all while its conditions do, or as many as the
/// switches are off for that it goes by.
fn levels(one: &Conditioned, held: &[bool], readings: &[Option<Taken>]) -> u8 {
    let each = one.conditions.iter().zip(held).map(|((source, condition), held)| match condition.source() {
        _ if !held => 0,
        Source::Switch(_) => readings[*source].map_or(0, |taken| taken.value as u8),
        _ => ALL_LEVELS,
    });
    each.min().unwrap_or(ALL_LEVELS)
}

/// Returns a reading that is not too old for a condition.
fn fresh(reading: Option<Taken>, condition: &Condition, now: Tick) -> Option<f64> {
    reading.filter(|taken| now.since(taken.at) <= condition.stale_after()).map(|taken| taken.value)
}

/// Checks that a policy that another one goes by is there, and counts for all together.
fn check_source(asked: &Policy, source: &Source, policies: &[Policy]) -> Result<(), ConditionsError> {
    let Source::Policy(other) = source else { return Ok(()) };
    let refused =
        |why| Err(ConditionsError::GoesBy { name: asked.name.clone(), other: other.to_string(), why });
    match policies.iter().find(|policy| *policy.name == **other) {
        None => refused("there is no such policy"),
        Some(_) if *asked.name == **other => refused("a policy cannot depend on itself"),
        Some(policy) if !policy.by.is_empty() => {
            refused("it has a key for each caller, and which is meant?; leave out its `by`")
        }
        Some(_) => Ok(()),
    }
}
