//! Triggers: turn a degrade switch off while a number is beyond a value.
//!
//! `off_when: cpu above 80%, until 70%`: the switch goes off with the first reading above 80 %, and on again with the
//! first one of 70 % or less, but not before it has been off for `hold`. A number that is no longer read says nothing:
//! it turns no switch off, and a switch that is off then stays so until `lasting` after the last reading that said so.
//! That end exists so that a feature does not stay off because the source of its number is gone; it is long, since a
//! source may well go silent because of the overload that it measured.

mod error;
mod in_set;

pub use error::TriggerError;

use std::time::Duration;

use tidegate_core::{Criticality, Tick};

use super::source::Source;
use super::when::Condition;

/// When a [switch](crate::switches) is off because of a number, for which requests, and for how long.
///
/// Immutable; the state is a [`TriggerState`], which [`Trigger::step`] turns into the next one. Several triggers of one
/// switch are independent of each other: the switch is off for all requests that any of them turns it off for.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::policy::{Trigger, TriggerState};
/// use tidegate::{Criticality, Tick};
///
/// let trigger = Trigger::new("previews", "signal p99 above 500, until 300".parse()?)?
///     .below(Criticality::CriticalPlus)?
///     .hold(Duration::from_secs(10))?;
/// let at = Tick::from_secs;
/// let on = TriggerState::default();
/// assert_eq!(trigger.step(on, at(1), 500.0), on);
/// let off = trigger.step(on, at(2), 501.0);
/// let calm = trigger.step(off, at(5), 300.0);
/// assert!(calm.is_off(at(11)) && !calm.is_off(at(12)), "off for ten seconds at least");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Trigger {
    switch: Box<str>,
    off_when: Condition,
    below: Option<Criticality>,
    hold: Duration,
    lasting: Duration,
}

/// What a trigger knows from its readings: whether its switch is off, since when, and until when. The default is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TriggerState {
    /// Whether the condition held at the last reading.
    held: bool,
    since: Tick,
    until: Tick,
}

impl Trigger {
    /// The shortest time that a switch is off, unless a trigger sets another: long enough for the load to show what
    /// the switch has changed, so that it does not flap.
    pub const HOLD: Duration = Duration::from_secs(10);

    /// How long a switch stays off after the last reading that said so, unless a trigger sets another time.
    pub const LASTING: Duration = Duration::from_secs(600);

    /// The longest time of either kind.
    pub const LONGEST: Duration = Duration::from_secs(30 * 86_400);

    /// Creates a trigger that turns a switch off for all requests while a condition holds. How old a reading may be
    /// ([`Condition::stale_after`]) does not matter to it: see [`Trigger::lasting`].
    ///
    /// # Errors
    /// [`TriggerError::Source`] if the name is not valid for a switch: 1 to 64 letters, digits, `-`, `_` or `.`;
    /// [`TriggerError::OnSwitch`] if the condition is on a switch.
    pub fn new(switch: &str, off_when: Condition) -> Result<Self, TriggerError> {
        if matches!(off_when.source(), Source::Switch(_)) {
            return Err(TriggerError::OnSwitch { condition: off_when.to_string() });
        }
        match format!("switch {switch}").parse()? {
            Source::Switch(switch) => {
                Ok(Self { switch, off_when, below: None, hold: Self::HOLD, lasting: Self::LASTING })
            }
            _ => Err(TriggerError::OnSwitch { condition: off_when.to_string() }),
        }
    }

    /// Turns the switch off only for requests below this level.
    ///
    /// # Errors
    /// [`TriggerError::Nobody`] for [`Criticality::Sheddable`], since no request is below it.
    pub fn below(self, level: Criticality) -> Result<Self, TriggerError> {
        if level == Criticality::Sheddable {
            return Err(TriggerError::Nobody);
        }
        Ok(Self { below: Some(level), ..self })
    }

    /// Sets the shortest time that the switch is off once it is: up to 30 days; zero: it is on again with the first
    /// reading that says so.
    ///
    /// # Errors
    /// [`TriggerError::Time`] if the time is longer.
    pub fn hold(self, hold: Duration) -> Result<Self, TriggerError> {
        Ok(Self { hold: within(hold, Duration::ZERO)?, ..self })
    }

    /// Sets how long the switch stays off after the last reading that said so, if none says otherwise: one second to 30
    /// days.
    ///
    /// # Errors
    /// [`TriggerError::Time`] if the time is out of that range.
    pub fn lasting(self, lasting: Duration) -> Result<Self, TriggerError> {
        Ok(Self { lasting: within(lasting, Duration::from_secs(1))?, ..self })
    }

    /// Returns the name of the switch.
    #[must_use]
    pub fn switch(&self) -> &str {
        &self.switch
    }

    /// Returns the condition under which the switch is off.
    #[must_use]
    pub const fn off_when(&self) -> &Condition {
        &self.off_when
    }

    /// Returns the lowest level that the switch stays on for; `None` if it is off for all.
    #[must_use]
    pub const fn on_from(&self) -> Option<Criticality> {
        self.below
    }

    /// Returns the shortest time that the switch is off.
    #[must_use]
    pub const fn hold_time(&self) -> Duration {
        self.hold
    }

    /// Returns how long the switch stays off after the last reading that said so.
    #[must_use]
    pub const fn lasting_time(&self) -> Duration {
        self.lasting
    }

    /// Returns the state after a reading. `now` is the time of the reading. A value that is infinite or not a number
    /// changes nothing, and neither does time that passes without a reading: [`TriggerState::is_off`] takes the time.
    #[must_use]
    pub fn step(&self, state: TriggerState, now: Tick, value: f64) -> TriggerState {
        if !value.is_finite() {
            return state;
        }
        let off = state.is_off(now);
        // What held before the last end does not count for hysteresis: the switch has been on since.
        if self.off_when.holds(state.held && off, value) {
            let since = if off { state.since } else { now };
            let until = now.after(self.lasting).max(since.after(self.hold));
            return TriggerState { held: true, since, until };
        }
        if !off {
            return TriggerState::default();
        }
        let held_until = state.since.after(self.hold);
        if held_until <= now {
            return TriggerState::default();
        }
        TriggerState { held: false, until: held_until.min(state.until), ..state }
    }

    /// Returns why the switch is off, for people: the condition, and the reading that turned it off.
    #[must_use]
    pub fn reason(&self, value: f64) -> String {
        format!("{}: read as {}", self.off_when, self.off_when.source().rounded(value))
    }
}

impl TriggerState {
    /// Reports whether the switch is off at this time.
    #[must_use]
    pub fn is_off(&self, now: Tick) -> bool {
        now < self.until
    }

    /// Returns when the switch is on again unless a reading says otherwise before.
    #[must_use]
    pub const fn until(&self) -> Tick {
        self.until
    }
}

fn within(time: Duration, least: Duration) -> Result<Duration, TriggerError> {
    if (least..=Trigger::LONGEST).contains(&time) {
        return Ok(time);
    }
    Err(TriggerError::Time { time, least })
}

#[cfg(test)]
mod tests;
