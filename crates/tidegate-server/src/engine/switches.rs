//! Degrade switches: those that policies go by.

use std::sync::Arc;

use tidegate::Clock;
use tidegate::policy::PolicySet;
use tidegate::switches::{Off, Standing, Switches, UnknownSwitch};

use super::Engine;

/// Who turns a switch; what one turned off, the other does not turn on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A person.
    Hand,
    /// Whatever watches a number, and tells it over and over.
    Signal,
}

impl Engine {
    /// Makes the switches that policies go by, all of them on.
    pub(super) fn make_switches(policies: &PolicySet, clock: &Arc<dyn Clock>) -> Switches {
        let switches = Switches::new(policies.switches());
        switches.expect("a set goes by fewer switches than there may be").with_clock(Arc::clone(clock))
    }

    /// Returns all switches as they stand, by name.
    pub(crate) fn switches(&self) -> Vec<Standing> {
        self.switches.standing()
    }

    /// Turns a switch off, or on with `None`; policies go by it at once.
    ///
    /// # Errors
    /// [`UnknownSwitch`] where no policy goes by that name.
    pub(crate) fn turn_switch(&self, name: &str, by: By, off: Option<Off>) -> Result<(), UnknownSwitch> {
        match (by, off) {
            (By::Hand, Some(off)) => self.switches.turn_off(name, off)?,
            (By::Hand, None) => self.switches.turn_on(name)?,
            (By::Signal, off) => self.switches.signal(name, off)?,
        }
        self.gate.notice_switches();
        Ok(())
    }

    /// Takes over the names of other policies, before these are in force; switches that stay go on as they stand.
    pub(super) fn rename_switches(&self, policies: &PolicySet) {
        let renamed = self.switches.rename(policies.switches());
        renamed.expect("a set goes by fewer switches than there may be");
    }
}
