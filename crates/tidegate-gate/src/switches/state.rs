//! The state of one switch: what turned it off, and which of these decides.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Criticality, Priority, Tick};

use crate::policy::{Trigger, TriggerState};

/// The state of one switch. The default is on.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Set by hand. It decides alone until it ends.
    pub(super) hand: Option<Until>,
    /// Turned off by a signal that somebody sends.
    pub(super) signal: Option<Until>,
    pub(super) triggers: Vec<Armed>,
    /// The number of levels that an observer was last told to be off because of signals and triggers.
    pub(super) told: u8,
}

/// A trigger with its state.
#[derive(Clone, Debug)]
pub(super) struct Armed {
    pub(super) trigger: Arc<Trigger>,
    pub(super) state: TriggerState,
    /// What is off, with the reason, since the trigger last went off.
    off: Option<Off>,
}

impl Armed {
    pub(super) fn new(trigger: &Trigger) -> Self {
        Self { trigger: Arc::new(trigger.clone()), state: TriggerState::default(), off: None }
    }

    /// Takes the state after a reading.
    pub(super) fn set(&mut self, next: TriggerState, now: Tick, value: f64) {
        if !next.is_off(now) {
            self.off = None;
        } else if !self.state.is_off(now) || self.off.is_none() {
            let reason = self.trigger.reason(value);
            let off = Off::for_all(&reason);
            self.off = Some(self.trigger.on_from().map_or(off, |level| Off::below(level, &reason)));
        }
        self.state = next;
    }
}

impl State {
    /// Reports whether nothing was ever set, so that it is on at any time.
    pub(super) fn is_untouched(&self) -> bool {
        self.hand.is_none() && self.signal.is_none() && self.triggers.iter().all(|one| one.off.is_none())
    }

    /// Returns what was set by hand, with its end.
    pub(super) fn by_hand(&self, now: Tick) -> Option<(&Off, Option<Tick>)> {
        let hand = self.hand.as_ref().filter(|until| !until.is_over(now))?;
        Some((&hand.off, hand.end()))
    }

    /// Returns what signals and triggers turned off, with its end: of several that which is off for the most levels.
    pub(super) fn by_signal(&self, now: Tick) -> Option<(&Off, Option<Tick>)> {
        let sent = self.signal.iter().filter(|until| !until.is_over(now));
        let sent = sent.map(|until| (&until.off, until.end()));
        let armed = self.triggers.iter().filter(|one| one.state.is_off(now));
        let armed = armed.filter_map(|one| Some((one.off.as_ref()?, Some(one.state.until()))));
        sent.chain(armed).reduce(|most, one| if one.0.levels() > most.0.levels() { one } else { most })
    }

    /// Returns what decides: what was set by hand, otherwise what signals turned off.
    pub(super) fn in_force(&self, now: Tick) -> Option<&Off> {
        self.by_hand(now).or_else(|| self.by_signal(now)).map(|(off, _)| off)
    }

    /// Returns the number of levels that are off because of signals and triggers.
    pub(super) fn levels_by_signal(&self, now: Tick) -> u8 {
        self.by_signal(now).map_or(0, |(off, _)| off.levels())
    }
}

// What is off when a switch is off: for which priorities, why, and until when.

/// The priorities for which a switch is off, the reason, and the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    /// The lowest level that the switch stays on for; `None` if it is off for all.
    on_from: Option<Criticality>,
    reason: Arc<str>,
    pub(super) lasting: Option<Duration>,
}

impl Off {
    /// Turns a switch off for all requests. The reason is for people.
    #[must_use]
    pub fn for_all(reason: &str) -> Self {
        Self { on_from: None, reason: reason.into(), lasting: None }
    }

    /// Turns a switch off for requests whose priority is below `level`; it stays on for the others. No request is below
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

    /// Returns the lowest level that the switch stays on for; `None` if it is off for all. The lowest of all levels means
    /// that it is on for all, see [`Switches::keep_on`](super::Switches::keep_on).
    #[must_use]
    pub const fn on_from(&self) -> Option<Criticality> {
        self.on_from
    }

    /// Reports whether it is off for nobody.
    #[must_use]
    pub fn is_for_nobody(&self) -> bool {
        self.levels() == 0
    }

    pub(super) fn applies(&self, priority: Priority) -> bool {
        usize::from(self.levels()) > priority.level() as usize
    }

    /// Returns the number of levels it is off for, counted from the least important.
    pub(super) fn levels(&self) -> u8 {
        self.on_from.map_or(Criticality::ALL.len(), |level| level as usize) as u8
    }
}

/// An [`Off`] since some time.
#[derive(Clone, Debug)]
pub(super) struct Until {
    pub(super) off: Off,
    pub(super) since: Tick,
}

impl Until {
    /// Returns the tick at which it ends; `None` if it has no end.
    pub(super) fn end(&self) -> Option<Tick> {
        self.off.lasting.map(|time| self.since.after(time))
    }

    pub(super) fn is_over(&self, now: Tick) -> bool {
        self.end().is_some_and(|end| now >= end)
    }
}
