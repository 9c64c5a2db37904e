//! The state of one switch: what turned it off, and which of these decides.

use std::sync::Arc;

use tidegate_core::Tick;

use super::off::{Off, Until};
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
