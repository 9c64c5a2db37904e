//! Triggers: turn a degrade switch off while a number is beyond a value.
//!
//! `off_when: cpu above 80%, until 70%`: the switch goes off with the first reading above 80 %, and on again with the
//! first one of 70 % or less, but not before it has been off for `hold`. A number that is no longer read says nothing:
//! it turns no switch off, and a switch that is off stays so until `lasting` after the last reading that said so. That
//! end is long, since a source may go silent because of the overload that it measured. Without an end, a feature would
//! stay off for good once the source of its number is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_core::{Criticality, Tick};

use super::source::Source;
use super::when::Condition;
use crate::policy::sensed::Sensed;
use crate::policy::set::{PolicySet, PolicySetError};
use crate::policy::source::SourceError;

/// When a [switch](crate::switches) is off because of a number, for which requests, and for how long.
///
/// Several triggers of one switch are independent of each other: the switch is off for all requests that any of them
/// turns it off for.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::gate::switches::Switches;
/// use tidegate::policy::Trigger;
/// use tidegate::priority::{Criticality, Priority};
///
/// let trigger = Trigger::new("previews", "signal p99 above 500, until 300".parse()?)?
///     .below(Criticality::CriticalPlus)?
///     .hold(Duration::from_secs(10))?;
/// let switches = Switches::new(["previews"])?.with_triggers([trigger])?;
/// switches.report(&"signal p99".parse()?, 501.0)?;
/// assert!(!switches.is_on("previews", Priority::of(Criticality::Critical)));
/// assert!(switches.is_on("previews", Priority::of(Criticality::CriticalPlus)));
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
pub(crate) struct TriggerState {
    /// Whether the condition held at the last reading.
    held: bool,
    since: Tick,
    until: Tick,
}

impl Trigger {
    /// The shortest time that a switch is off, unless a trigger sets another: long enough for the load to show what the
    /// switch has changed.
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
    pub(crate) fn step(&self, state: TriggerState, now: Tick, value: f64) -> TriggerState {
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
    pub(crate) fn reason(&self, value: f64) -> String {
        format!("{}: read as {}", self.off_when, self.off_when.source().rounded(value))
    }
}

impl TriggerState {
    /// Reports whether the switch is off at this time.
    pub(crate) fn is_off(&self, now: Tick) -> bool {
        now < self.until
    }

    /// Returns when the switch is on again unless a reading says otherwise before.
    pub(crate) const fn until(&self) -> Tick {
        self.until
    }
}

fn within(time: Duration, least: Duration) -> Result<Duration, TriggerError> {
    if (least..=Trigger::LONGEST).contains(&time) {
        return Ok(time);
    }
    Err(TriggerError::Time { time, least })
}

/// Why a trigger of a switch is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TriggerError {
    /// The name is not valid for a switch.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The condition is on a switch: switches that turn each other off would depend on the order in which they are
    /// looked at.
    #[error(
        "a switch goes by a number and by no other switch; write a condition such as cpu above 80% in place of \"{condition}\""
    )]
    OnSwitch {
        /// The condition.
        condition: String,
    },
    /// Below the lowest level.
    #[error(
        "no request is below sheddable, so the switch would be off for nobody; use sheddable-plus, critical or critical-plus"
    )]
    Nobody,
    /// A time out of range.
    #[error("{}s is out of range; use {}s to 30day", .time.as_secs_f64(), .least.as_secs())]
    Time {
        /// The time.
        time: Duration,
        /// The shortest possible.
        least: Duration,
    },
}

// The triggers of a policy set, and the switches that it knows.

impl PolicySet {
    /// Adds what turns switches off, in place of earlier triggers. A gate of this set then reads the numbers that they
    /// use, and turns its switches: those of [`Switches::of`](crate::switches::Switches::of).
    ///
    /// # Errors
    /// [`PolicySetError::Conditions`] if a trigger is on a policy that does not exist or has a key for each caller, and
    /// if there are more than 1,024 conditions and triggers, or more than 64 different numbers.
    ///
    /// # Examples
    /// ```
    /// use tidegate::Gate;
    /// use tidegate::gate::switches::Switches;
    /// use tidegate::policy::{PolicySet, Trigger};
    /// use tidegate::priority::Priority;
    ///
    /// let trigger = Trigger::new("previews", "signal queue-length above 1000, until 800".parse()?)?;
    /// let set = PolicySet::new(Vec::new())?.with_triggers(vec![trigger])?;
    /// let switches = Switches::of(&set)?;
    /// let gate = Gate::in_memory(set, 1000)?.with_switches(switches.clone());
    ///
    /// gate.signals().report("queue-length", 1200.0)?;
    /// let off = switches.why_off("previews", Priority::default()).expect("it is off");
    /// assert_eq!(off.reason(), "signal queue-length above 1000, until 800: read as 1200");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_triggers(mut self, triggers: Vec<Trigger>) -> Result<Self, PolicySetError> {
        self.sensed = Sensed::of(&self.policies, &triggers)?;
        self.triggers = triggers;
        let prepared =
            self.sensed.is_some() || self.demotes() || self.charges_always() || self.blocks_over(false);
        self.shares = self.shares.with_prepared(prepared);
        Ok(self)
    }

    /// Returns what turns switches off, in order.
    #[must_use]
    pub fn triggers(&self) -> &[Trigger] {
        &self.triggers
    }

    /// Returns the names of the switches that policies use or triggers turn off, each once, sorted.
    pub fn switches(&self) -> impl Iterator<Item = &str> {
        let sources = self.sensed().map_or(&[][..], |sensed| &sensed.sources);
        let used = sources.iter().filter_map(|source| match source {
            Source::Switch(name) => Some(&**name),
            _ => None,
        });
        used.chain(self.triggers.iter().map(Trigger::switch)).collect::<BTreeSet<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn trigger() -> Trigger {
        let condition = "signal p99 above 500, until 300".parse().unwrap();
        Trigger::new("previews", condition).unwrap().hold(10 * SECOND).unwrap().lasting(60 * SECOND).unwrap()
    }

    /// A table of (second, reading) and (whether it is off right after it, the second at which it ends by itself).
    #[test]
    fn it_is_off_from_its_value_to_its_end_and_for_as_long_as_it_holds() {
        let trigger = trigger();
        let mut state = TriggerState::default();
        for (second, value, until) in [
            (1, 500.0, None),
            (2, 501.0, Some(62)),
            (3, 301.0, Some(63)),
            (4, 300.0, Some(12)),
            // Between the two marks while it is only held: nothing begins anew.
            (5, 450.0, Some(12)),
            // Beyond the mark within the hold: still the same time off.
            (6, 501.0, Some(66)),
            (7, f64::NAN, Some(66)),
            (8, f64::INFINITY, Some(66)),
            (12, 299.0, None),
            (13, 499.0, None),
            (14, 501.0, Some(74)),
            // A second before its end the last reading still counts, and between the marks it lasts.
            (73, 301.0, Some(133)),
            // After the end it has been on: between the marks it stays on.
            (133, 301.0, None),
        ] {
            let now = Tick::from_secs(second);
            state = trigger.step(state, now, value);
            let shown = state.is_off(now).then(|| state.until().as_nanos() / 1_000_000_000);
            assert_eq!(shown, until, "at {second} s with {value}");
        }
    }

    #[test]
    fn without_a_reading_it_ends_by_itself_and_begins_never() {
        let trigger = trigger();
        let off = trigger.step(TriggerState::default(), Tick::from_secs(1), 900.0);
        assert!(off.is_off(Tick::from_secs(60)) && !off.is_off(Tick::from_secs(61)));
        assert!(
            !TriggerState::default().is_off(Tick::EPOCH)
                && !TriggerState::default().is_off(Tick::from_secs(1))
        );
    }

    #[test]
    fn a_clock_that_steps_back_turns_nothing_on_early() {
        let trigger = trigger();
        let off = trigger.step(TriggerState::default(), Tick::from_secs(100), 900.0);
        let calm = trigger.step(off, Tick::from_secs(90), 0.0);
        assert_eq!(calm.until(), Tick::from_secs(110));
    }

    #[test]
    fn mistakes_name_what_would_work() {
        let condition = |text: &str| text.parse::<Condition>().unwrap();
        let error = Trigger::new("a b", condition("cpu above 80%")).unwrap_err().to_string();
        assert!(error.contains("\"a b\" is not a name of a switch"), "{error}");
        let error = Trigger::new("a", condition("switch b off")).unwrap_err().to_string();
        assert!(error.contains("by no other switch"), "{error}");
        assert_eq!(trigger().below(Criticality::Sheddable), Err(TriggerError::Nobody));
        assert!(
            trigger().hold(Trigger::LONGEST).is_ok() && trigger().hold(Trigger::LONGEST + SECOND).is_err()
        );
        assert!(trigger().lasting(SECOND).is_ok() && trigger().lasting(Duration::ZERO).is_err());
    }

    proptest::proptest! {
        /// Once off, it is off for `hold`, whatever the readings say; and it goes off only with a reading above its value.
        #[test]
        fn it_is_never_off_for_less_than_its_hold(steps in proptest::collection::vec((0_u64..20, 0_u32..1000), 1..60)) {
            let trigger = trigger();
            let (mut state, mut now, mut went_off) = (TriggerState::default(), 0, None);
            for (pause, value) in steps {
                now += pause;
                let at = Tick::from_secs(now);
                let was_off = state.is_off(at);
                if let Some(since) = went_off {
                    proptest::prop_assert!(was_off || now >= since + 10, "on again at {now}, off since {since}");
                    went_off = went_off.filter(|_| was_off);
                }
                state = trigger.step(state, at, f64::from(value));
                if state.is_off(at) && !was_off {
                    proptest::prop_assert!(value > 500);
                    went_off = Some(now);
                }
                proptest::prop_assert!(state.until() <= at.after(60 * SECOND));
            }
        }
    }
}
