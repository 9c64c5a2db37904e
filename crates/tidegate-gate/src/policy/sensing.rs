//! The interface to the sources of conditions and moving rates: takes readings and reports, and returns their standing.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate_core::{Cost, Criticality, Priority, Tick};

use super::descriptor::Descriptor;
use super::key;
use super::plan::{Line, Plan};
use super::sensed::{Sensed, TimedValue, fresh};
use super::set::PolicySet;
use super::source::Source;

/// A source that policies use, with its last reading.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SourceStanding {
    /// Which number.
    pub source: Source,
    /// The reading that policies and switches go by, in the unit of the source; `None` if there is none yet, or if it is
    /// stale for each of them. A moving rate goes by a reading of any age, and a switch for as long as its trigger
    /// [lasts](super::Trigger::lasting).
    pub value: Option<f64>,
    /// The last reading, stale or not; `None`: there is no reading yet.
    pub last: Option<f64>,
    /// The age of the last reading; `None`: there is no reading yet.
    pub age: Option<Duration>,
}

/// The error if no policy and no switch uses a reported signal, or its value is not a finite number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// No condition, no rate and no switch uses the signal.
    #[error("no policy and no switch uses a signal \"{name}\"{}", listed(.known))]
    Unknown {
        /// The name.
        name: String,
        /// The names of the signals that policies and switches use.
        known: Vec<String>,
    },
    /// Infinite, or not a number.
    #[error("{value} is not a value of a signal; report a finite number")]
    NotFinite {
        /// The value.
        value: String,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; they use {}", names.join(", ")) }
}

impl PolicySet {
    /// Returns the sources of the set, if it uses any.
    #[inline]
    pub(crate) fn sensed(&self) -> Option<&Sensed> {
        self.sensed.as_deref()
    }

    /// Takes readings of all sources that `measure` knows; others keep their last reading.
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
        state.readings[at] = Some(TimedValue { value, at: now });
        sensed.conclude(&mut state, now, &self.compiled);
        Ok(())
    }

    /// Takes over the readings of another set. Policies are compared by name.
    pub(super) fn sense_on_from(&self, before: &Self) {
        let (Some(sensed), Some(other)) = (self.sensed(), before.sensed()) else { return };
        sensed.go_on_from(
            other,
            |place| before.find(&self.policies[place].name).map(|(at, _)| at),
            &self.compiled,
        );
    }

    /// Returns the sources that policies use, with their last readings. Takes a short lock that readings take too;
    /// checks do not.
    #[must_use]
    pub fn sources(&self, now: Tick) -> Vec<SourceStanding> {
        let Some(sensed) = self.sensed() else { return Vec::new() };
        let state = sensed.state.lock();
        let each = sensed.sources.iter().zip(&state.readings).enumerate();
        each.map(|(at, (source, taken))| SourceStanding {
            source: source.clone(),
            value: taken.filter(|_| sensed.goes_by(at, *taken, now)).map(|taken| taken.value),
            last: taken.map(|taken| taken.value),
            age: taken.map(|taken| now.since(taken.at)),
        })
        .collect()
    }

    /// Returns why the conditions of the policy at an index keep it out of force for requests of a priority; `None` if it is
    /// in force. Takes a short lock if it is not.
    ///
    /// # Panics
    /// If the set has no policy of this index.
    #[must_use]
    pub fn why_idle(&self, place: usize, priority: Priority) -> Option<String> {
        if self.compiled[place].holds(priority) {
            return None;
        }
        let sensed = self.sensed()?;
        let state = sensed.state.lock();
        let at = sensed.conditioned.iter().position(|one| one.policy == place)?;
        let mut why = String::new();
        for ((source, condition), held) in sensed.conditioned[at].conditions.iter().zip(&state.held[at]) {
            let switch = matches!(condition.source(), Source::Switch(_));
            if *held && !switch {
                continue;
            }
            let separator = if why.is_empty() { "" } else { "; " };
            // Writing to a string does not fail.
            let _ = match state.readings[*source] {
                None => write!(why, "{separator}{condition}: it is not known"),
                Some(_) if switch && !*held => write!(why, "{separator}{condition}: it is on"),
                Some(taken) if switch => {
                    let from =
                        Criticality::ALL.get(taken.value as usize).filter(|from| **from <= priority.level());
                    let Some(from) = from else { continue };
                    write!(why, "{separator}{condition}: it is on from {from} up")
                }
                Some(taken) => {
                    let value = condition.source().rounded(taken.value);
                    if fresh(Some(taken), condition, state.compared).is_some() {
                        write!(why, "{separator}{condition}: last read as {value}")
                    } else {
                        let age = condition.stale_after().as_secs_f64();
                        write!(
                            why,
                            "{separator}{condition}: it is not known; last read as {value}, more than {age}s ago"
                        )
                    }
                }
            };
        }
        Some(why)
    }

    /// Makes a plan with a charge of one unit for each limit of a policy without `by`, for reading how much is in use.
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
                rules: ready.rules,
                inline_quota: false,
                by_fallback: false,
            });
        }
        plan
    }
}
