//! What policies go by, as callers see it: taking readings and reports, and telling how things stand.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate_core::{Cost, Criticality, Priority, Tick};

use super::descriptor::Descriptor;
use super::key;
use super::plan::{Line, Plan};
use super::sensed::{Sensed, Taken};
use super::set::PolicySet;
use super::source::Source;

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
    #[error("no policy uses a signal \"{name}\"{}", listed(.known))]
    Unknown {
        /// The name.
        name: String,
        /// The names that policies go by.
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
        sensed.go_on_from(
            other,
            |place| before.find(&self.policies[place].name).map(|(at, _)| at),
            &self.compiled,
        );
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

    /// Returns the names of the switches that policies go by.
    pub fn switches(&self) -> impl Iterator<Item = &str> {
        let sources = self.sensed().map_or(&[][..], |sensed| &sensed.sources);
        sources.iter().filter_map(|source| match source {
            Source::Switch(name) => Some(&**name),
            _ => None,
        })
    }

    /// Says why a policy does not hold at present for requests of a priority; `None` where it does.
    pub(super) fn why_idle(&self, place: usize, priority: Priority) -> Option<String> {
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
                durable: compiled.durable,
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
