//! Degrade switches: features turned off by hand or by a signal, for a while and for a reason.
//!
//! Code asks a switch before the work, and policies can depend on it (`when: switch previews off`, with
//! [`Gate::with_switches`](crate::Gate::with_switches)). A switch is turned off for all requests, or for those below a
//! criticality level. Every change has a reason and may have an end, so that nothing stays off because it was forgotten.
//! A [`Trigger`] turns a switch off while a number is beyond a value. What is set by hand decides alone until it ends.

mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::{Criticality, Priority, QuotaError, Tick};

use self::state::{State, Until};
pub use crate::policy::Trigger;
use crate::policy::{PolicySet, Source};
pub use state::Off;
use tidegate_limits::clock::{Clock, SystemClock};
use tidegate_limits::observer::{Observer, SwitchTurned, TurnedBy, TurnedOff};

/// Named switches. Clones share them.
///
/// Asking a switch is a look-up in a small map that is read without a lock. Changing one copies the map.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::gate::switches::{Off, Switches};
/// use tidegate::priority::{Criticality, Priority};
///
/// let switches = Switches::new(["recommendations", "previews"])?;
/// assert!(switches.is_on("previews", Priority::default()));
///
/// let off = Off::below(Criticality::CriticalPlus, "database is slow").lasting(Duration::from_secs(600));
/// switches.turn_off("previews", off)?;
/// assert!(!switches.is_on("previews", Priority::of(Criticality::Critical)));
/// assert!(switches.is_on("previews", Priority::of(Criticality::CriticalPlus)));
/// switches.turn_on("previews")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Switches {
    clock: Arc<dyn Clock>,
    states: Arc<ArcSwap<States>>,
    /// Serializes changes, so that concurrent ones are not lost.
    changing: Arc<Mutex<()>>,
    observer: Option<Arc<dyn Observer>>,
}

/// The error if no switch has the given name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no switch `{name}`; there are {}", or_none(.known))]
pub struct UnknownSwitch {
    /// The name that was asked for.
    pub name: String,
    /// The names of all switches.
    pub known: Vec<String>,
}

/// Lists names, for people.
fn or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Why switches with triggers cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchesError {
    /// A name is empty, or there are too many.
    #[error(transparent)]
    Names(#[from] QuotaError),
    /// A trigger of a switch that there is not.
    #[error(transparent)]
    Unknown(#[from] UnknownSwitch),
}

/// The state of one switch, for pages and logs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// What was set by hand, off or on for all requests ([`Off::is_for_nobody`]), and its end; no end: it lasts until it
    /// is changed.
    pub by_hand: Option<(Off, Option<Tick>)>,
    /// What was turned off by a signal or a trigger, and its end, if it has one. It has no effect while something is set
    /// by hand.
    pub by_signal: Option<(Off, Option<Tick>)>,
    /// What turns it off.
    pub triggers: Vec<Arc<Trigger>>,
}

impl Standing {
    /// Returns what decides now: what was set by hand, otherwise what signals turned off. `None` if the switch is on for
    /// all requests.
    #[must_use]
    pub fn off(&self) -> Option<&Off> {
        let (off, _) = self.by_hand.as_ref().or(self.by_signal.as_ref())?;
        Some(off).filter(|off| !off.is_for_nobody())
    }
}

impl Switches {
    /// The largest number of switches.
    pub const MOST: usize = 1024;

    /// Makes switches, all of them on.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] if there are more than [`Switches::MOST`], or a name is empty.
    pub fn new<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Result<Self, QuotaError> {
        let states = Arc::new(ArcSwap::from_pointee(all_on(names)?));
        Ok(Self { clock: Arc::new(SystemClock::new()), states, changing: Arc::default(), observer: None })
    }

    /// Sets the clock for ends; the default is the [`SystemClock`].
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Tells `observer` of each change ([`Observer::on_switch`]) made through the returned switches and their clones.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Returns whether a feature is on for a request. A name without a switch is on.
    #[must_use]
    pub fn is_on(&self, name: &str, priority: Priority) -> bool {
        self.why_off(name, priority).is_none()
    }

    /// Returns why a feature is off for a request; `None` if it is on. What is set by hand decides alone until it ends.
    #[must_use]
    pub fn why_off(&self, name: &str, priority: Priority) -> Option<Off> {
        let states = self.states.load();
        let state = states.get(name)?;
        if state.is_untouched() {
            return None;
        }
        state.in_force(self.clock.recent()).filter(|off| off.applies(priority)).cloned()
    }

    /// Returns the number of priority levels a switch is off for, counted from the least important: 0 if it is on for
    /// all, 4 if it is off for all. `None` if no switch has this name.
    pub(crate) fn levels_off(&self, name: &str) -> Option<u8> {
        let states = self.states.load();
        let state = states.get(name)?;
        Some(state.in_force(self.clock.recent()).map_or(0, Off::levels))
    }

    /// Turns a switch off by hand, in place of an earlier setting by hand. Until it ends, signals have no effect.
    ///
    /// # Errors
    /// [`UnknownSwitch`] if there is no switch of this name.
    pub fn turn_off(&self, name: &str, off: Off) -> Result<(), UnknownSwitch> {
        // Off for nobody is on.
        self.turn(name, TurnedBy::Hand, Some(off).filter(|off| !off.is_for_nobody()))
    }

    /// Ends what was set by hand. If a signal has turned the switch off, it is off; see [`Switches::keep_on`].
    ///
    /// # Errors
    /// [`UnknownSwitch`] if there is no switch of this name.
    pub fn turn_on(&self, name: &str) -> Result<(), UnknownSwitch> {
        self.turn(name, TurnedBy::Hand, None)
    }

    /// Keeps a switch on for all requests by hand, whatever signals say, for a time: signals have no effect until it is
    /// over, or until [`Switches::turn_on`]. In place of an earlier setting by hand.
    ///
    /// # Errors
    /// [`UnknownSwitch`] if there is no switch of this name.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::gate::switches::{Off, Switches};
    /// use tidegate::priority::Priority;
    ///
    /// let switches = Switches::new(["previews"])?;
    /// switches.signal("previews", Some(Off::for_all("p99 is 2 s")))?;
    /// switches.keep_on("previews", "a demonstration", Duration::from_secs(3600))?;
    /// assert!(switches.is_on("previews", Priority::default()));
    /// switches.turn_on("previews")?;
    /// assert!(!switches.is_on("previews", Priority::default()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep_on(&self, name: &str, reason: &str, lasting: Duration) -> Result<(), UnknownSwitch> {
        self.turn(name, TurnedBy::Hand, Some(Off::below(Criticality::Sheddable, reason).lasting(lasting)))
    }

    /// Turns a switch off by a signal, such as a latency that is too long, or on (`None`). Of repeated signals the last
    /// one counts. A switch that is set by hand stays as it is; one that a trigger has turned off stays off.
    ///
    /// # Errors
    /// [`UnknownSwitch`] if there is no switch of this name.
    pub fn signal(&self, name: &str, off: Option<Off>) -> Result<(), UnknownSwitch> {
        self.turn(name, TurnedBy::Signal, off.filter(|off| !off.is_for_nobody()))
    }

    /// Returns the state of all switches, by name, without parts that have ended.
    #[must_use]
    pub fn standing(&self) -> Vec<Standing> {
        let now = self.clock.now();
        let states = self.states.load();
        states
            .iter()
            .map(|(name, state)| Standing {
                name: name.to_string(),
                by_hand: shown(state.by_hand(now)),
                by_signal: shown(state.by_signal(now)),
                triggers: state.triggers.iter().map(|armed| Arc::clone(&armed.trigger)).collect(),
            })
            .collect()
    }

    fn turn(&self, name: &str, by: TurnedBy, off: Option<Off>) -> Result<(), UnknownSwitch> {
        let now = self.clock.now();
        let after = off.map(|off| Until { off, since: now });
        let turned = self.change(name, |state| match by {
            TurnedBy::Hand => {
                let before = state.by_hand(now).is_some();
                state.hand = after;
                (before || state.hand.is_some()).then(|| shown(state.by_hand(now)))
            }
            TurnedBy::Signal => {
                let before = state.levels_by_signal(now);
                state.signal = after;
                state.told = state.levels_by_signal(now);
                (before != state.told).then(|| shown(state.by_signal(now)))
            }
        })?;
        if let Some(off) = turned {
            self.tell(now, name, by, off.as_ref().map(|(off, end)| (off, *end)));
        }
        Ok(())
    }

    /// Tells the observer what is off now because of a hand or of signals.
    fn tell(&self, at: Tick, name: &str, by: TurnedBy, off: Option<(&Off, Option<Tick>)>) {
        let Some(observer) = &self.observer else { return };
        let off = off.map(|(off, until)| TurnedOff::new(off.on_from(), until, off.reason()));
        observer.on_switch(&SwitchTurned::new(at, name, by, off));
    }

    /// Replaces the states by those that `make` makes of them, and tells the observer which switches are off for other
    /// levels than before.
    fn put(&self, make: impl FnOnce(&States) -> Result<States, SwitchesError>) -> Result<(), SwitchesError> {
        let now = self.clock.now();
        let mut turned: Vec<(&str, TurnedBy, Option<OffUntil>)> = Vec::new();
        let changing = self.changing.lock();
        let before = self.states.load_full();
        let mut after = make(&before)?;
        for (name, was) in &*before {
            let levels = was.levels_by_signal(now);
            let Some(state) = after.get_mut(name) else {
                // A name without a switch is on.
                turned.extend((levels > 0).then_some((&**name, TurnedBy::Signal, None)));
                turned.extend(was.by_hand(now).map(|_| (&**name, TurnedBy::Hand, None)));
                continue;
            };
            if state.levels_by_signal(now) != levels {
                state.told = state.levels_by_signal(now);
                turned.push((name, TurnedBy::Signal, shown(state.by_signal(now))));
            }
        }
        self.states.store(Arc::new(after));
        drop(changing);
        // Outside the lock: an observer may turn a switch.
        for (name, by, off) in turned {
            self.tell(now, name, by, off.as_ref().map(|(off, end)| (off, *end)));
        }
        Ok(())
    }

    fn change<T>(&self, name: &str, change: impl FnOnce(&mut State) -> T) -> Result<T, UnknownSwitch> {
        let _changing = self.changing.lock();
        let mut states = BTreeMap::clone(&self.states.load());
        let Some(state) = states.get_mut(name) else {
            return Err(unknown(name, &states));
        };
        let changed = change(state);
        self.states.store(Arc::new(states));
        Ok(changed)
    }
}

fn unknown(name: &str, states: &States) -> UnknownSwitch {
    UnknownSwitch { name: name.to_owned(), known: states.keys().map(ToString::to_string).collect() }
}

/// The switches, by name.
type States = BTreeMap<Box<str>, State>;

/// What is off, and its end.
type OffUntil = (Off, Option<Tick>);

fn shown(part: Option<(&Off, Option<Tick>)>) -> Option<OffUntil> {
    part.map(|(off, end)| (off.clone(), end))
}

/// Makes the states of switches that are all on.
fn all_on<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Result<States, QuotaError> {
    let mut states = States::new();
    for name in names {
        let name = name.as_ref();
        let parameter = |want| QuotaError::Parameter { name: "switch", value: format!("`{name}`"), want };
        if name.is_empty() {
            return Err(parameter("is not a name; use a word such as recommendations"));
        }
        states.insert(name.into(), State::default());
        if states.len() > Switches::MOST {
            return Err(parameter("is one too many; use 1024 or fewer"));
        }
    }
    Ok(states)
}

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
    /// [`Gate::with_switches`](crate::Gate::with_switches).
    ///
    /// # Errors
    /// [`SwitchesError`] if the set names more switches than there may be. A set of a policy file never does.
    pub fn of(policies: &PolicySet) -> Result<Self, SwitchesError> {
        Self::new(policies.switches())?.with_triggers(policies.triggers().to_vec())
    }

    /// Takes over the switches and triggers of other policies. A switch whose name stays keeps its state, and so does a
    /// trigger that stays the same. What is gone is on: the observer is told.
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
    /// use tidegate::gate::switches::Switches;
    /// use tidegate::policy::{Source, Trigger};
    /// use tidegate::priority::{Criticality, Priority};
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
                let off = shown(state.by_signal(now));
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
            let mut states = all_on(names)?;
            for (name, state) in &mut states {
                if let Some(kept) = before.get(name) {
                    *state = State { triggers: Vec::new(), ..kept.clone() };
                }
            }
            for trigger in triggers {
                let Some(state) = states.get_mut(trigger.switch()) else {
                    return Err(unknown(trigger.switch(), &states).into());
                };
                let kept = before.get(trigger.switch()).map_or(&[][..], |before| &before.triggers);
                let kept = kept.iter().find(|armed| *armed.trigger == *trigger);
                state.triggers.push(kept.cloned().unwrap_or_else(|| state::Armed::new(trigger)));
            }
            Ok(states)
        })
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
