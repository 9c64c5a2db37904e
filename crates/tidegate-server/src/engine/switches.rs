//! Degrade switches: turns and lists those that policies refer to.

use std::sync::Arc;

use tidegate::Clock;
use tidegate::policy::PolicySet;
use tidegate::switches::{Off, Standing, Switches, UnknownSwitch};

use super::Engine;

/// Who turns a switch. A switch that one has turned off is not turned on by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwitchedBy {
    /// An operator.
    Hand,
    /// A monitor that watches a number and reports it repeatedly.
    Signal,
}

impl Engine {
    /// Makes the switches that policies refer to, all turned on.
    pub(super) fn make_switches(policies: &PolicySet, clock: &Arc<dyn Clock>) -> Switches {
        let switches = Switches::new(policies.switches());
        switches.expect("a set goes by fewer switches than there may be").with_clock(Arc::clone(clock))
    }

    /// Returns the state of all switches, by name.
    pub(crate) fn switches(&self) -> Vec<Standing> {
        self.switches.standing()
    }

    /// Turns a switch off, or on with `None`. Policies follow at once.
    ///
    /// # Errors
    /// [`UnknownSwitch`] if no policy refers to that name.
    pub(crate) fn turn_switch(
        &self,
        name: &str,
        by: SwitchedBy,
        off: Option<Off>,
    ) -> Result<(), UnknownSwitch> {
        match (by, off) {
            (SwitchedBy::Hand, Some(off)) => self.switches.turn_off(name, off)?,
            (SwitchedBy::Hand, None) => self.switches.turn_on(name)?,
            (SwitchedBy::Signal, off) => self.switches.signal(name, off)?,
        }
        self.gate.notice_switches();
        self.tell_conditions();
        Ok(())
    }

    /// Takes over the switch names of new policies, before these are in force. Switches that remain keep their state.
    pub(super) fn rename_switches(&self, policies: &PolicySet) {
        let renamed = self.switches.rename(policies.switches());
        renamed.expect("a set goes by fewer switches than there may be");
    }
}
