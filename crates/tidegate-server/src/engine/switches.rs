//! Degrade switches: turns and lists those of the policy file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Clock;
use tidegate::policy::PolicySet;
use tidegate::switches::{Off, Standing, Switches, UnknownSwitch};

use super::Engine;
use crate::metrics::Metrics;

/// Who turns a switch. A switch that one has turned off is not turned on by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwitchedBy {
    /// An operator.
    Hand,
    /// A monitor that watches a number and reports it repeatedly.
    Signal,
}

/// What a switch is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Off.
    Off(Off),
    /// On for all requests for this long, whatever signals say, and why.
    KeptOn(Duration, String),
    /// On, unless the other of the two turned it off.
    On,
}

impl Engine {
    /// Makes the switches that policies and triggers name, all turned on, and their series.
    pub(super) fn make_switches(policies: &PolicySet, clock: &Arc<dyn Clock>, metrics: &Metrics) -> Switches {
        policies.switches().for_each(|name| metrics.switches.add(name));
        Switches::of(policies).expect(FEW).with_clock(Arc::clone(clock))
    }

    /// Returns the state of all switches, by name.
    pub(crate) fn switches(&self) -> Vec<Standing> {
        self.switches.standing()
    }

    /// Turns a switch. Policies follow at once. A signal cannot keep a switch on: that is the same as `On`.
    ///
    /// # Errors
    /// [`UnknownSwitch`] if neither a policy nor the section `switches` has that name.
    pub(crate) fn turn_switch(
        &self,
        name: &str,
        by: SwitchedBy,
        setting: Setting,
    ) -> Result<(), UnknownSwitch> {
        match (by, setting) {
            (SwitchedBy::Hand, Setting::Off(off)) => self.switches.turn_off(name, off)?,
            (SwitchedBy::Hand, Setting::KeptOn(time, reason)) => {
                self.switches.keep_on(name, &reason, time)?;
            }
            (SwitchedBy::Hand, Setting::On) => self.switches.turn_on(name)?,
            (SwitchedBy::Signal, Setting::Off(off)) => self.switches.signal(name, Some(off))?,
            (SwitchedBy::Signal, Setting::KeptOn(..) | Setting::On) => self.switches.signal(name, None)?,
        }
        self.base.gate.notice_switches();
        self.tell_conditions();
        Ok(())
    }

    /// Takes over the switches of new policies, before these are in force. Switches that remain keep their state.
    pub(super) fn follow_switches(&self, policies: &PolicySet) {
        // The lock keeps whoever tells of switches from making series of one that is gone.
        let _seen = self.seen.switches.lock();
        let before = self.switches.standing();
        self.switches.follow(policies).expect(FEW);
        let names: BTreeSet<&str> = policies.switches().collect();
        let gone = before.iter().filter(|one| !names.contains(&*one.name));
        gone.for_each(|one| self.metrics.switches.forget(&one.name));
        names.iter().for_each(|name| self.metrics.switches.add(name));
    }
}

/// Why a policy set of a file always makes switches.
const FEW: &str = "a set has fewer switches than there may be, and triggers of those alone";
