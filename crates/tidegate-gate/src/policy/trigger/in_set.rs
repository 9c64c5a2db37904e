//! The triggers of a policy set, and the switches that it knows.

use std::collections::BTreeSet;

use super::Trigger;
use crate::policy::sensed::Sensed;
use crate::policy::set::{PolicySet, PolicySetError};
use crate::policy::source::Source;

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
    /// use tidegate::policy::{PolicySet, Trigger};
    /// use tidegate::switches::Switches;
    /// use tidegate::{Gate, Priority};
    ///
    /// let trigger = Trigger::new("previews", "signal queue-length above 1000, until 800".parse()?)?;
    /// let set = PolicySet::new(Vec::new())?.with_triggers(vec![trigger])?;
    /// let switches = Switches::of(&set)?;
    /// let gate = Gate::in_memory(set, 1000)?.with_switches(switches.clone());
    ///
    /// gate.report_signal("queue-length", 1200.0)?;
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
