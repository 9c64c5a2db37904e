//! What is off when a switch is off: for which priorities, why, and until when.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Criticality, Priority, Tick};

/// The priorities for which a switch is off, the reason, and the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    /// The lowest level that the switch stays on for; `None` if it is off for all.
    on_from: Option<Criticality>,
    reason: Arc<str>,
    pub(super) lasting: Option<Duration>,
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

    /// Returns the lowest level that the switch stays on for; `None` if it is off for all. The lowest of all levels: it
    /// is on for all, see [`Switches::keep_on`](super::Switches::keep_on).
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
