//! Readings for the triggers of switches.

use std::sync::Arc;

use super::state::State;
use super::{OffUntil, States, Switches, SwitchesError};
use crate::policy::{PolicySet, Source, Trigger};
use tidegate_limits::observer::TurnedBy;

/// The error if no trigger uses a reported number, or the value is not a finite number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// No trigger uses the number.
    #[error("no switch goes by {name}; they go by {}", .known.join(", "))]
    Unknown {
        /// The number.
        name: String,
        /// The numbers that triggers use.
        known: Vec<String>,
    },
    /// Infinite, or not a number.
    #[error("{value} is not a reading; report a finite number")]
    NotFinite {
        /// The value.
        value: String,
    },
}

impl Switches {
    /// Makes the switches that the policies of a set use and its triggers turn off, all of them on, for
    /// [`Gate::with_switches`](tidegate_limits::Gate::with_switches).
    ///
    /// # Errors
    /// [`SwitchesError`] if the set names more switches than there may be. A set of a policy file never does.
    pub fn of(policies: &PolicySet) -> Result<Self, SwitchesError> {
        Self::new(policies.switches())?.with_triggers(policies.triggers().to_vec())
    }

    /// Takes over the switches and triggers of other policies. A switch whose name stays keeps its state, and so does a
    /// trigger that stays the same. What a trigger that is gone turned off is on, and so is a switch that is gone: the
    /// observer is told.
    ///
    /// # Errors
    /// The same as [`Switches::of`]; nothing is changed then.
    pub fn follow(&self, policies: &PolicySet) -> Result<(), SwitchesError> {
        self.replace(policies.switches(), policies.triggers())
    }

    /// Adds triggers, in place of earlier ones: tell them each reading by [`Switches::report`]. A gate does so by itself
    /// for the triggers of its policies ([`PolicySet::with_triggers`]).
    ///
    /// # Errors
    /// [`SwitchesError::Unknown`] if there is no switch of a trigger's name.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{Source, Trigger};
    /// use tidegate::switches::Switches;
    /// use tidegate::{Criticality, Priority};
    ///
    /// let trigger = Trigger::new("previews", "latency above 500ms, until 300ms".parse()?)?;
    /// let trigger = trigger.below(Criticality::CriticalPlus)?;
    /// let switches = Switches::new(["previews"])?.with_triggers([trigger])?;
    ///
    /// switches.report(&Source::Latency, 820.5)?;
    /// let off = switches.why_off("previews", Priority::default()).expect("it is off");
    /// assert_eq!(off.reason(), "latency above 500ms, until 300ms: read as 820.5ms");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_triggers(self, triggers: impl IntoIterator<Item = Trigger>) -> Result<Self, SwitchesError> {
        let triggers: Vec<_> = triggers.into_iter().collect();
        let names: Vec<_> = self.states.load().keys().cloned().collect();
        self.replace(names.iter().map(|name| &**name), &triggers)?;
        Ok(self)
    }

    /// Tells the triggers a reading, in the unit of its source: percent, milliseconds, requests a second or a plain
    /// number. Call it with each reading; whatever is not reported turns nothing off. The switches follow at once.
    ///
    /// Takes a short lock, and looks at each trigger. Copies the map of switches if a switch of the source is off or
    /// turned.
    ///
    /// # Errors
    /// [`ReportError`] if no trigger uses the source, or the value is not finite; nothing changes then.
    pub fn report(&self, source: &Source, value: f64) -> Result<(), ReportError> {
        if !value.is_finite() {
            return Err(ReportError::NotFinite { value: value.to_string() });
        }
        let states = self.states.load();
        let triggers = states.values().flat_map(|state| &state.triggers);
        let sources = triggers.map(|armed| armed.trigger.off_when().source());
        if !sources.clone().any(|known| known == source) {
            let mut known: Vec<_> = sources.map(ToString::to_string).collect();
            known.sort();
            known.dedup();
            return Err(ReportError::Unknown { name: source.to_string(), known });
        }
        self.take(&[(source.clone(), value)]);
        Ok(())
    }

    /// Reports whether any switch has a trigger.
    pub(crate) fn have_triggers(&self) -> bool {
        self.states.load().values().any(|state| !state.triggers.is_empty())
    }

    /// Takes readings; those that no trigger uses are ignored. Returns whether a switch was turned.
    pub(crate) fn take(&self, readings: &[(Source, f64)]) -> bool {
        let now = self.clock.now();
        let mut turned: Vec<(Box<str>, Option<OffUntil>)> = Vec::new();
        let changing = self.changing.lock();
        let before = self.states.load();
        let mut after: Option<States> = None;
        for (name, state) in &**before {
            for (at, armed) in state.triggers.iter().enumerate() {
                let source = armed.trigger.off_when().source();
                let Some((_, value)) = readings.iter().find(|(of, _)| of == source) else { continue };
                let next = armed.trigger.step(armed.state, now, *value);
                if next == armed.state {
                    continue;
                }
                let states = after.get_or_insert_with(|| States::clone(&before));
                if let Some(state) = states.get_mut(name) {
                    state.triggers[at].set(next, now, *value);
                }
            }
        }
        let Some(mut after) = after else { return false };
        for (name, state) in after.iter_mut().filter(|(_, state)| !state.triggers.is_empty()) {
            let levels = state.levels_by_signal(now);
            // What was told may have ended by itself since: then the same levels are off anew.
            let ended = before.get(name).is_some_and(|was| was.levels_by_signal(now) != levels);
            if state.told != levels || ended {
                state.told = levels;
                let off = super::shown(state.by_signal(now));
                turned.push((name.clone(), off));
            }
        }
        self.states.store(Arc::new(after));
        drop(changing);
        // Outside the lock: an observer may turn a switch.
        for (name, off) in &turned {
            self.tell(now, name, TurnedBy::Signal, off.as_ref().map(|(off, end)| (off, *end)));
        }
        !turned.is_empty()
    }

    /// Replaces names and triggers; what stays keeps its state.
    fn replace<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
        triggers: &[Trigger],
    ) -> Result<(), SwitchesError> {
        self.put(|before| {
            let mut states = super::all_on(names)?;
            for (name, state) in &mut states {
                if let Some(kept) = before.get(name) {
                    *state = State { triggers: Vec::new(), ..kept.clone() };
                }
            }
            for trigger in triggers {
                let Some(state) = states.get_mut(trigger.switch()) else {
                    return Err(super::unknown(trigger.switch(), &states).into());
                };
                let kept = before.get(trigger.switch()).map_or(&[][..], |before| &before.triggers);
                let kept = kept.iter().find(|armed| *armed.trigger == *trigger);
                state.triggers.push(kept.cloned().unwrap_or_else(|| super::state::Armed::new(trigger)));
            }
            Ok(states)
        })
    }
}
