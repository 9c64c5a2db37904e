//! Degrade switches: features turned off by hand or by a signal, for a while and for a reason.
//!
//! When there is too much to do, what users miss least is left out first: recommendations, previews, a search as they type. Which these are is
//! known beforehand, so each has a switch: code asks it before the work, and policies go by it (`when: switch previews off`, with
//! [`Gate::with_switches`](crate::Gate::with_switches)). A switch is turned off for all, or for what matters less than a level; every change has
//! a reason and may have an end, so that nothing stays off because somebody forgot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::{Criticality, Priority, QuotaError, Tick};

use crate::clock::{Clock, SystemClock};

/// Named switches. Clones share them.
///
/// Asking one is a look-up in a small map that is read without a lock; changing one copies the map.
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
    /// Held while a change is made, so that two changes do not undo each other.
    changing: Arc<Mutex<()>>,
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

/// Which priorities a switch is off for, why, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    /// The least level that it stays on for; `None` where it is off for all.
    on_from: Option<Criticality>,
    reason: Arc<str>,
    lasting: Option<Duration>,
}

impl Off {
    /// Off for everybody.
    #[must_use]
    pub fn for_all(reason: &str) -> Self {
        Self { on_from: None, reason: reason.into(), lasting: None }
    }

    /// Off for what matters less than a level.
    #[must_use]
    pub fn below(level: Criticality, reason: &str) -> Self {
        Self { on_from: Some(level), ..Self::for_all(reason) }
    }

    /// On again by itself after a time; without it, when somebody turns it on.
    #[must_use]
    pub const fn lasting(mut self, time: Duration) -> Self {
        self.lasting = Some(time);
        self
    }

    /// Returns why.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the least level that it stays on for; `None` where it is off for all.
    #[must_use]
    pub const fn on_from(&self) -> Option<Criticality> {
        self.on_from
    }

    fn applies(&self, priority: Priority) -> bool {
        usize::from(self.levels()) > priority.level() as usize
    }

    /// Returns for how many levels it is off, the least important first.
    fn levels(&self) -> u8 {
        self.on_from.map_or(Criticality::ALL.len(), |level| level as usize) as u8
    }
}

impl Until {
    /// The tick at which it ends; `None` where somebody has to end it.
    fn end(&self) -> Option<Tick> {
        self.off.lasting.map(|time| self.since.after(time))
    }

    fn is_over(&self, now: Tick) -> bool {
        self.end().is_some_and(|end| now >= end)
    }
}

/// There is no switch of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no switch `{name}`; there are {}", .known.join(", "))]
pub struct UnknownSwitch {
    /// The name that was asked for.
    pub name: String,
    /// All names.
    pub known: Vec<String>,
}

/// One switch, as it stands: for pages and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// What was turned off by hand, and when it ends.
    pub by_hand: Option<(Off, Option<Tick>)>,
    /// What was turned off by a signal, and when it ends.
    pub by_signal: Option<(Off, Option<Tick>)>,
}

impl Switches {
    /// The most switches.
    pub const MOST: usize = 1024;

    /// Makes switches, all of them on.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] where there are more than [`Switches::MOST`], or one has no name.
    pub fn new<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Result<Self, QuotaError> {
        let states = Arc::new(ArcSwap::from_pointee(all_on(names)?));
        Ok(Self { clock: Arc::new(SystemClock::new()), states, changing: Arc::default() })
    }

    /// Puts other names in place of those that there are. A switch whose name stays goes on as it stands; a new one is on.
    ///
    /// # Errors
    /// As [`Switches::new`]; nothing is changed then.
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

    /// Sets the clock that ends go by; the [`SystemClock`] unless set.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Says whether a feature is to be had by a request. A name that is not among the switches is on: what nobody can turn off is not off.
    #[must_use]
    pub fn is_on(&self, name: &str, priority: Priority) -> bool {
        self.why_off(name, priority).is_none()
    }

    /// Returns why a feature is off for a request; `None` where it is on. What was turned off by hand comes first.
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

    /// Returns for how many levels of priority a switch is off, the least important first: 0 where it is on for all, 4 where it is off for all;
    /// `None` where there is no such switch.
    #[must_use]
    pub fn levels_off(&self, name: &str) -> Option<u8> {
        let states = self.states.load();
        let state = states.get(name)?;
        let now = self.clock.recent();
        let both = [&state.hand, &state.signal].into_iter().flatten();
        let off = both.filter(|until| !until.is_over(now)).map(|until| until.off.levels());
        Some(off.max().unwrap_or(0))
    }

    /// Turns a switch off by hand.
    ///
    /// # Errors
    /// [`UnknownSwitch`].
    pub fn turn_off(&self, name: &str, off: Off) -> Result<(), UnknownSwitch> {
        let since = self.clock.now();
        self.change(name, |state| state.hand = Some(Until { off, since }))
    }

    /// Takes back what was done by hand; what a signal turned off stays off.
    ///
    /// # Errors
    /// [`UnknownSwitch`].
    pub fn turn_on(&self, name: &str) -> Result<(), UnknownSwitch> {
        self.change(name, |state| state.hand = None)
    }

    /// Turns a switch off, or on again, as a signal says: a latency that is too long, a queue that is too full. Told over and over, it is off for as
    /// long as the last one said. A hand that turned it off is not overruled.
    ///
    /// # Errors
    /// [`UnknownSwitch`].
    pub fn signal(&self, name: &str, off: Option<Off>) -> Result<(), UnknownSwitch> {
        let since = self.clock.now();
        self.change(name, |state| state.signal = off.map(|off| Until { off, since }))
    }

    /// Returns all switches as they stand, by name; what is over is not shown.
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

    fn change(&self, name: &str, change: impl FnOnce(&mut State)) -> Result<(), UnknownSwitch> {
        let _changing = self.changing.lock();
        let mut states = BTreeMap::clone(&self.states.load());
        let Some(state) = states.get_mut(name) else {
            let known = states.keys().map(ToString::to_string).collect();
            return Err(UnknownSwitch { name: name.to_owned(), known });
        };
        change(state);
        self.states.store(Arc::new(states));
        Ok(())
    }
}

/// Makes the states of switches that are on.
fn all_on<N: AsRef<str>>(
    names: impl IntoIterator<Item = N>,
) -> Result<BTreeMap<Box<str>, State>, QuotaError> {
    let mut states = BTreeMap::new();
    for name in names {
        let name = name.as_ref();
        let parameter = |want| QuotaError::Parameter { name: "switch", value: format!("`{name}`"), want };
        if name.is_empty() {
            return Err(parameter("is no name; use a word such as recommendations"));
        }
        states.insert(name.into(), State::default());
        if states.len() > Switches::MOST {
            return Err(parameter("is one too many; use 1024 or fewer"));
        }
    }
    Ok(states)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const MINUTE: Duration = Duration::from_secs(60);

    fn switches() -> (Switches, ManualClock) {
        let clock = ManualClock::default();
        let switches = Switches::new(["previews", "search"]).expect("switches").with_clock(clock.clone());
        (switches, clock)
    }

    #[test]
    fn what_was_turned_off_for_a_while_is_on_again_after_it() {
        let (switches, clock) = switches();
        switches.turn_off("previews", Off::for_all("too busy").lasting(MINUTE)).unwrap();
        clock.advance(MINUTE - Duration::from_nanos(1));
        let off = switches.why_off("previews", Priority::default()).unwrap();
        assert_eq!((off.reason(), switches.is_on("search", Priority::default())), ("too busy", true));
        clock.advance(Duration::from_nanos(1));
        assert!(switches.is_on("previews", Priority::default()));
        assert_eq!(switches.standing()[0].by_hand, None);
    }

    #[test]
    fn a_level_and_what_is_above_it_stay_on() {
        let (switches, _) = switches();
        switches.turn_off("search", Off::below(Criticality::Critical, "a failing disk")).unwrap();
        let on = Criticality::ALL.map(|level| switches.is_on("search", Priority::of(level)));
        assert_eq!(on, [false, false, true, true]);
    }

    #[test]
    fn a_signal_does_not_overrule_a_hand_nor_a_hand_a_signal() {
        let (switches, clock) = switches();
        switches.turn_off("search", Off::for_all("by hand")).unwrap();
        switches.signal("search", None).unwrap();
        assert!(!switches.is_on("search", Priority::default()));
        switches.signal("search", Some(Off::for_all("p99 is 2 s").lasting(MINUTE))).unwrap();
        switches.turn_on("search").unwrap();
        let why = switches.why_off("search", Priority::default()).unwrap();
        assert_eq!(why.reason(), "p99 is 2 s");
        assert_eq!(switches.standing()[1].by_signal.as_ref().unwrap().1, Some(Tick::from_secs(60)));
        clock.advance(MINUTE);
        assert!(switches.is_on("search", Priority::default()), "the signal has gone silent");
    }

    #[test]
    fn names_that_are_not_known_are_told_and_are_on() {
        let (switches, _) = switches();
        let said = switches.turn_off("serach", Off::for_all("too busy")).unwrap_err().to_string();
        assert_eq!(said, "there is no switch `serach`; there are previews, search");
        assert!(switches.is_on("serach", Priority::default()));
        let said = Switches::new([""]).unwrap_err().to_string();
        assert_eq!(said, "switch `` is no name; use a word such as recommendations");
        assert!(Switches::new((0..1025).map(|number| number.to_string())).is_err());
    }

    #[test]
    fn what_stays_among_the_names_stays_as_it_is() {
        let (switches, clock) = switches();
        switches
            .turn_off("search", Off::below(Criticality::Critical, "a failing disk").lasting(MINUTE))
            .unwrap();
        switches.rename(["search", "prices"]).unwrap();
        let levels = ["search", "prices", "previews"].map(|name| switches.levels_off(name));
        assert_eq!(levels, [Some(2), Some(0), None]);
        assert!(switches.rename([""]).is_err() && switches.levels_off("search") == Some(2));
        switches.signal("search", Some(Off::for_all("p99 is 2 s"))).unwrap();
        assert_eq!(switches.levels_off("search"), Some(4), "the hand's and the signal's, whichever is more");
        switches.signal("search", None).unwrap();
        clock.advance(MINUTE);
        assert_eq!(switches.levels_off("search"), Some(0));
    }

    /// Two threads change two switches: neither change is lost.
    #[test]
    fn changes_made_together_are_both_made() {
        let (switches, _) = switches();
        std::thread::scope(|scope| {
            for name in ["previews", "search"] {
                let switches = switches.clone();
                scope.spawn(move || {
                    for _ in 0..1000 {
                        switches.turn_off(name, Off::for_all("a try")).unwrap();
                        assert!(!switches.is_on(name, Priority::default()));
                        switches.turn_on(name).unwrap();
                        assert!(switches.is_on(name, Priority::default()));
                    }
                });
            }
        });
    }
}
