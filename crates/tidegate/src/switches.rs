//! Degrade switches: features turned off by hand or by a signal, for a while and for a reason.
//!
//! Under overload, the features that users miss least are left out first: recommendations, previews, search as they
//! type. These are known beforehand, so each has a switch: code asks it before the work, and policies can depend on it
//! (`when: switch previews off`, with [`Gate::with_switches`](crate::Gate::with_switches)). A switch is turned off for
//! all requests, or for those below a criticality level. Every change has a reason and may have an end, so that nothing
//! stays off because it was forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::{Criticality, Priority, QuotaError, Tick};

use crate::clock::{Clock, SystemClock};
use crate::observer::{Observer, SwitchTurned, TurnedBy, TurnedOff};

/// Named switches. Clones share them.
///
/// Asking a switch is a look-up in a small map that is read without a lock. Changing one copies the map.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::{Criticality, Priority, switches::{Off, Switches}};
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
    states: Arc<ArcSwap<BTreeMap<Box<str>, State>>>,
    /// Serializes changes, so that concurrent ones are not lost.
    changing: Arc<Mutex<()>>,
    observer: Option<Arc<dyn Observer>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Turned off by hand.
    hand: Option<Until>,
    /// Turned off by a signal.
    signal: Option<Until>,
}

#[derive(Clone, Debug)]
struct Until {
    off: Off,
    since: Tick,
}

/// The priorities for which a switch is off, the reason, and the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    /// The lowest level that the switch stays on for; `None` if it is off for all.
    on_from: Option<Criticality>,
    reason: Arc<str>,
    lasting: Option<Duration>,
}

impl Off {
    /// The switch is off for all requests. The reason is for people.
    #[must_use]
    pub fn for_all(reason: &str) -> Self {
        Self { on_from: None, reason: reason.into(), lasting: None }
    }

    /// The switch is off for requests whose priority is below `level`, and stays on for the others. No request is below
    /// [`Criticality::Sheddable`]: with that level the switch is on for all.
    #[must_use]
    pub fn below(level: Criticality, reason: &str) -> Self {
        Self { on_from: Some(level), ..Self::for_all(reason) }
    }

    /// Turns the switch on again by itself after `time`. Without this, it stays off until it is turned on.
    #[must_use]
    pub const fn lasting(mut self, time: Duration) -> Self {
        self.lasting = Some(time);
        self
    }

    /// Returns the reason.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the lowest level that the switch stays on for; `None` if it is off for all.
    #[must_use]
    pub const fn on_from(&self) -> Option<Criticality> {
        self.on_from
    }

    fn applies(&self, priority: Priority) -> bool {
        usize::from(self.levels()) > priority.level() as usize
    }

    /// Returns the number of levels it is off for, counted from the least important.
    fn levels(&self) -> u8 {
        self.on_from.map_or(Criticality::ALL.len(), |level| level as usize) as u8
    }
}

impl Until {
    /// Returns the tick at which it ends; `None` if it has no end.
    fn end(&self) -> Option<Tick> {
        self.off.lasting.map(|time| self.since.after(time))
    }

    fn is_over(&self, now: Tick) -> bool {
        self.end().is_some_and(|end| now >= end)
    }
}

/// The error if no switch has the given name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no switch `{name}`; there are {}", .known.join(", "))]
pub struct UnknownSwitch {
    /// The name that was asked for.
    pub name: String,
    /// The names of all switches.
    pub known: Vec<String>,
}

/// The state of one switch, for pages and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// The part that was turned off by hand, and its end.
    pub by_hand: Option<(Off, Option<Tick>)>,
    /// The part that was turned off by a signal, and its end.
    pub by_signal: Option<(Off, Option<Tick>)>,
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

    /// Replaces the set of names. A switch whose name stays keeps its state; a new one is on.
    ///
    /// # Errors
    /// The same as [`Switches::new`]; nothing is changed then.
    pub fn rename<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<(), QuotaError> {
        let mut states = all_on(names)?;
        let _changing = self.changing.lock();
        for (name, state) in &**self.states.load() {
            if let Some(kept) = states.get_mut(name) {
                *kept = state.clone();
            }
        }
        self.states.store(Arc::new(states));
        Ok(())
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

    /// Returns why a feature is off for a request; `None` if it is on. A change by hand comes before one by a signal.
    #[must_use]
    pub fn why_off(&self, name: &str, priority: Priority) -> Option<Off> {
        let states = self.states.load();
        let state = states.get(name)?;
        if state.hand.is_none() && state.signal.is_none() {
            return None;
        }
        let now = self.clock.recent();
        let both = [&state.hand, &state.signal].into_iter().flatten();
        both.filter(|until| !until.is_over(now))
            .map(|until| &until.off)
            .find(|off| off.applies(priority))
            .cloned()
    }

    /// Returns the number of priority levels a switch is off for, counted from the least important: 0 if it is on for
    /// all, 4 if it is off for all. `None` if no switch has this name.
    #[must_use]
    pub fn levels_off(&self, name: &str) -> Option<u8> {
        let states = self.states.load();
        let state = states.get(name)?;
        let now = self.clock.recent();
        let both = [&state.hand, &state.signal].into_iter().flatten();
        let off = both.filter(|until| !until.is_over(now)).map(|until| until.off.levels());
        Some(off.max().unwrap_or(0))
    }

    /// Turns a switch off by hand, in place of an earlier turn-off by hand.
    ///
    /// # Errors
    /// [`UnknownSwitch`] if there is no switch of this name.
    pub fn turn_off(&self, name: &str, off: Off) -> Result<(), UnknownSwitch> {
        self.turn(name, TurnedBy::Hand, Some(off))
    }

    /// Turns a switch on again that was turned off by hand. If a signal has turned it off too, it stays off.
    ///
    /// # Errors
    /// [`UnknownSwitch`] if there is no switch of this name.
    pub fn turn_on(&self, name: &str) -> Result<(), UnknownSwitch> {
        self.turn(name, TurnedBy::Hand, None)
    }

    /// Turns a switch off or on by a signal, such as a latency that is too long or a queue that is too full. Of
    /// repeated signals the last one counts. A switch that was turned off by hand stays off.
    ///
    /// # Errors
    /// [`UnknownSwitch`] if there is no switch of this name.
    pub fn signal(&self, name: &str, off: Option<Off>) -> Result<(), UnknownSwitch> {
        self.turn(name, TurnedBy::Signal, off)
    }

    /// Returns the state of all switches, by name, without parts that have ended.
    #[must_use]
    pub fn standing(&self) -> Vec<Standing> {
        let now = self.clock.now();
        let shown = |until: &Option<Until>| {
            let until = until.as_ref().filter(|until| !until.is_over(now))?;
            Some((until.off.clone(), until.end()))
        };
        let states = self.states.load();
        states
            .iter()
            .map(|(name, state)| Standing {
                name: name.to_string(),
                by_hand: shown(&state.hand),
                by_signal: shown(&state.signal),
            })
            .collect()
    }

    fn turn(&self, name: &str, by: TurnedBy, off: Option<Off>) -> Result<(), UnknownSwitch> {
        let now = self.clock.now();
        // Off for nobody is on.
        let after = off.filter(|off| off.levels() > 0).map(|off| Until { off, since: now });
        let before = self.change(name, |state| {
            let turned = match by {
                TurnedBy::Hand => &mut state.hand,
                TurnedBy::Signal => &mut state.signal,
            };
            std::mem::replace(turned, after.clone())
        })?;
        let Some(observer) = &self.observer else { return Ok(()) };
        let before = before.filter(|before| !before.is_over(now));
        let levels = |until: &Option<Until>| until.as_ref().map_or(0, |until| until.off.levels());
        let anew = by == TurnedBy::Hand && (before.is_some() || after.is_some());
        if anew || levels(&before) != levels(&after) {
            let off = after.as_ref().map(|after| TurnedOff {
                on_from: after.off.on_from,
                until: after.end(),
                reason: &after.off.reason,
            });
            observer.on_switch(&SwitchTurned { at: now, name, by, off });
        }
        Ok(())
    }

    fn change<T>(&self, name: &str, change: impl FnOnce(&mut State) -> T) -> Result<T, UnknownSwitch> {
        let _changing = self.changing.lock();
        let mut states = BTreeMap::clone(&self.states.load());
        let Some(state) = states.get_mut(name) else {
            let known = states.keys().map(ToString::to_string).collect();
            return Err(UnknownSwitch { name: name.to_owned(), known });
        };
        let changed = change(state);
        self.states.store(Arc::new(states));
        Ok(changed)
    }
}

/// Makes the states of switches that are all on.
fn all_on<N: AsRef<str>>(
    names: impl IntoIterator<Item = N>,
) -> Result<BTreeMap<Box<str>, State>, QuotaError> {
    let mut states = BTreeMap::new();
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

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
