//! Evaluates the conditions and moving rates of a policy set against readings of their numbers.
//!
//! Readings are taken at most ten times a second. Each is compared once, and the result (whether a policy holds, which
//! rate is in force) is stored where a check reads it with one load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;
use tidegate_core::signal_rate::SignalRateState;

use super::compiled::{ALL_LEVELS, Compiled};
use super::policy::Policy;
use super::signal_rate::{Follows, busy_from};
use super::source::Source;
use super::trigger::Trigger;
use super::when::Condition;

/// Why the conditions and moving rates of policies cannot form a set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConditionsError {
    /// A policy depends on another one that it cannot depend on.
    #[error("policy \"{name}\" depends on policy \"{other}\": {why}")]
    GoesBy {
        /// The policy.
        name: String,
        /// The policy that it depends on.
        other: String,
        /// The reason.
        why: &'static str,
    },
    /// A switch goes by a policy that it cannot go by.
    #[error("switch \"{switch}\" depends on policy \"{other}\": {why}")]
    SwitchGoesBy {
        /// The switch.
        switch: String,
        /// The policy that it depends on.
        other: String,
        /// The reason.
        why: &'static str,
    },
    /// There are more than can be evaluated with each reading.
    #[error(
        "{conditions} conditions and moving rates on {sources} different numbers are too many; use up to {} on up to {}",
        Sensed::MOST,
        Sensed::MOST_SOURCES
    )]
    TooMany {
        /// The number of conditions and moving rates.
        conditions: usize,
        /// The number of different sources.
        sources: usize,
    },
}

/// The sources that a set uses, with their readings and results.
#[derive(Debug)]
pub(crate) struct Sensed {
    pub(super) sources: Vec<Source>,
    pub(super) conditioned: Vec<ConditionalPolicy>,
    followed: Vec<FollowingLimit>,
    busy: Vec<CpuLimit>,
    /// The source of each trigger of a switch, and how long its switch goes by a reading. The switches themselves
    /// evaluate their triggers.
    triggered: Vec<(usize, Duration)>,
    /// The tick, in nanoseconds, from which the next readings are due.
    due: AtomicU64,
    pub(super) state: Mutex<State>,
}

/// A policy with conditions, each with the index of its source.
#[derive(Debug)]
pub(super) struct ConditionalPolicy {
    pub(super) policy: usize,
    pub(super) conditions: Vec<(usize, Condition)>,
}

/// A limit whose rate follows a number.
#[derive(Debug)]
struct FollowingLimit {
    policy: usize,
    limit: usize,
    source: usize,
    follows: Follows,
}

/// A limit whose law depends on whether the processor is busy.
#[derive(Debug)]
struct CpuLimit {
    policy: usize,
    limit: usize,
    source: usize,
    /// The processor use, in percent, from which it counts as busy.
    from: f64,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    /// The last reading of each source.
    pub(super) readings: Vec<Option<TimedValue>>,
    /// When the readings were last compared with the conditions.
    pub(super) compared: Tick,
    /// Whether each condition holds, by policy with conditions.
    pub(super) held: Vec<Vec<bool>>,
    /// For each limit whose rate moves: the law's state, and the tick of the last reading that it used.
    laws: Vec<(SignalRateState, Option<Tick>)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TimedValue {
    pub(super) value: f64,
    pub(super) at: Tick,
}

impl Sensed {
    /// The interval between readings: the shortest time in which a condition can change.
    const EVERY: Duration = Duration::from_millis(100);

    /// The most conditions and moving rates of one set: all are evaluated with each reading.
    pub(super) const MOST: usize = 1024;

    /// The most different sources of one set.
    pub(super) const MOST_SOURCES: usize = 64;

    /// Reports whether the set goes by this number.
    #[cfg(feature = "ticket")]
    pub(crate) fn reads(&self, source: &Source) -> bool {
        self.sources.contains(source)
    }

    /// Collects the sources of the policies and of the triggers of switches; `None` if they use none.
    ///
    /// # Errors
    /// [`ConditionsError`] for a condition on a policy that does not exist, is the policy itself or has more than one
    /// key, and if there are too many conditions or sources.
    pub(super) fn of(
        policies: &[Policy],
        triggers: &[Trigger],
    ) -> Result<Option<Box<Self>>, ConditionsError> {
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
            // A canary's rate does not move.
            let limits = || asked.limits.iter().chain(&asked.shadow_limit);
            let rates = limits().filter_map(|limit| limit.follows.as_ref().map(Follows::source));
            for source in asked.when.iter().map(Condition::source).chain(rates) {
                check_source(&asked.name, source, policies)?;
                count += 1;
            }
            if !asked.when.is_empty() {
                let conditions = asked.when.iter().map(|when| (place_of(when.source()), when.clone()));
                conditioned.push(ConditionalPolicy { policy, conditions: conditions.collect() });
            }
            for (limit, of) in limits().enumerate() {
                if let Some(from) = busy_from(of) {
                    busy.push(CpuLimit { policy, limit, source: place_of(&Source::Cpu), from });
                    count += 1;
                }
                let Some(follows) = of.follows.clone() else { continue };
                followed.push(FollowingLimit { policy, limit, source: place_of(follows.source()), follows });
            }
        }
        for trigger in triggers {
            let other = trigger.off_when().source();
            check_source("", other, policies).map_err(|error| of_switch(trigger, error))?;
        }
        let triggered: Vec<_> = triggers
            .iter()
            .map(|trigger| (place_of(trigger.off_when().source()), trigger.lasting_time()))
            .collect();
        count += triggered.len();
        if count > Self::MOST || sources.len() > Self::MOST_SOURCES {
            return Err(ConditionsError::TooMany { conditions: count, sources: sources.len() });
        }
        if sources.is_empty() {
            return Ok(None);
        }
        let state = State {
            readings: vec![None; sources.len()],
            compared: Tick::EPOCH,
            held: conditioned.iter().map(|one| vec![false; one.conditions.len()]).collect(),
            laws: followed.iter().map(|one| (one.follows.law().start(Tick::EPOCH), None)).collect(),
        };
        let (due, state) = (AtomicU64::new(0), Mutex::new(state));
        Ok(Some(Box::new(Self { sources, conditioned, followed, busy, triggered, due, state })))
    }

    /// Reports whether the caller must take readings now. Of several concurrent callers, only one gets `true`.
    #[inline]
    pub(crate) fn is_due(&self, now: Tick) -> bool {
        // Relaxed: it only chooses who takes the readings; the lock orders them.
        let due = self.due.load(Ordering::Relaxed);
        let next = now.after(Self::EVERY).as_nanos();
        now.as_nanos() >= due
            && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Takes readings of all sources that `measure` knows.
    pub(super) fn take(
        &self,
        now: Tick,
        mut measure: impl FnMut(&Source) -> Option<f64>,
        compiled: &[Compiled],
    ) {
        // Measured before the lock is taken, since measuring may ask a store.
        let values: Vec<_> = self.sources.iter().map(&mut measure).collect();
        let mut state = self.state.lock();
        for (reading, value) in state.readings.iter_mut().zip(values) {
            if let Some(value) = value.filter(|value| value.is_finite()) {
                *reading = Some(TimedValue { value, at: now });
            }
        }
        self.conclude(&mut state, now, compiled);
    }

    /// Derives from the readings which policies hold and which rates are in force.
    pub(super) fn conclude(&self, state: &mut State, now: Tick, compiled: &[Compiled]) {
        let State { readings, compared, held, laws } = state;
        *compared = now;
        for (one, held) in self.conditioned.iter().zip(held) {
            for ((source, condition), held) in one.conditions.iter().zip(&mut *held) {
                let fresh = fresh(readings[*source], condition, now);
                *held = fresh.is_some_and(|value| condition.holds(*held, value));
            }
            compiled[one.policy].set_holding(levels(one, held, readings));
        }
        for (one, (law, told)) in self.followed.iter().zip(laws) {
            let Some(TimedValue { value, at }) = readings[one.source] else { continue };
            if told.is_none_or(|told| told < at) {
                one.follows.law().sense(law, at, value);
                *told = Some(at);
            }
            let level = one.follows.level_of(one.follows.law().rate(law));
            compiled[one.policy].limits[one.limit].set_level(level);
        }
        self.set_busy(readings, compiled);
    }

    /// Returns whether a condition, a moving rate or a switch goes by this reading of a source.
    pub(super) fn goes_by(&self, source: usize, reading: Option<TimedValue>, now: Tick) -> bool {
        let moves = self.followed.iter().map(|one| one.source).chain(self.busy.iter().map(|one| one.source));
        let mut conditions = self.conditioned.iter().flat_map(|one| &one.conditions);
        let age = reading.map(|taken| now.since(taken.at));
        let mut triggered = self.triggered.iter();
        moves.clone().any(|of| of == source)
            || triggered.any(|(of, lasting)| *of == source && age.is_some_and(|age| age < *lasting))
            || conditions.any(|(of, condition)| *of == source && fresh(reading, condition, now).is_some())
    }

    /// Tells limits whether the processor is busy. Without a reading it counts as idle.
    fn set_busy(&self, readings: &[Option<TimedValue>], compiled: &[Compiled]) {
        for one in &self.busy {
            let is_busy = readings[one.source].is_some_and(|taken| taken.value >= one.from);
            compiled[one.policy].limits[one.limit].set_level(usize::from(is_busy));
        }
    }

    /// Takes over the readings of another set, and the results of those conditions and laws that are the same.
    pub(super) fn go_on_from(
        &self,
        before: &Self,
        same: impl Fn(usize) -> Option<usize>,
        compiled: &[Compiled],
    ) {
        // Copied, so that the two locks are never held together: two sets may take over from each other.
        let before_state = before.state.lock().clone();
        let mut state = self.state.lock();
        state.compared = before_state.compared;
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
        // The results are in force at once, not only from the next reading on.
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

/// Returns the number of levels of priority that a policy holds for, the least important first: all of them while its
/// conditions hold, or as many as its switches are off for.
fn levels(one: &ConditionalPolicy, held: &[bool], readings: &[Option<TimedValue>]) -> u8 {
    let each = one.conditions.iter().zip(held).map(|((source, condition), held)| match condition.source() {
        _ if !held => 0,
        Source::Switch(_) => readings[*source].map_or(0, |taken| taken.value as u8),
        _ => ALL_LEVELS,
    });
    each.min().unwrap_or(ALL_LEVELS)
}

/// Returns a reading, if it is not too old for a condition.
pub(super) fn fresh(reading: Option<TimedValue>, condition: &Condition, now: Tick) -> Option<f64> {
    reading.filter(|taken| now.since(taken.at) <= condition.stale_after()).map(|taken| taken.value)
}

/// Checks that the policy that something depends on exists and has one key for all requests. `name` is the policy that
/// depends on it; empty for a switch.
fn check_source(name: &str, source: &Source, policies: &[Policy]) -> Result<(), ConditionsError> {
    let Source::Policy(other) = source else { return Ok(()) };
    let refused = |why| Err(ConditionsError::GoesBy { name: name.to_owned(), other: other.to_string(), why });
    match policies.iter().find(|policy| *policy.name == **other) {
        None => refused("there is no such policy"),
        Some(_) if *name == **other => refused("a policy cannot depend on itself"),
        Some(policy) if !policy.by.is_empty() => {
            refused("it has `by`, so each of its keys has a figure of its own; name a policy without `by`")
        }
        Some(_) => Ok(()),
    }
}

/// Returns an error about what a trigger depends on as one of its switch.
fn of_switch(trigger: &Trigger, error: ConditionsError) -> ConditionsError {
    match error {
        ConditionsError::GoesBy { other, why, .. } => {
            ConditionsError::SwitchGoesBy { switch: trigger.switch().to_owned(), other, why }
        }
        error => error,
    }
}
