//! What a leased store tells of itself.

/// How the leases of this node go: numbers for metrics, since the store was made unless another span is named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseHealth {
    /// Keys of which something is held or was asked lately.
    pub keys: usize,
    /// Units that could be spent now out of pockets, and those in the hands of requests that wait for another limit's engine. The sum over all
    /// nodes and one key is what admissions may exceed the engine's limit by, at most.
    pub outstanding: u64,
    /// Units drawn whose time has not come.
    pub reserved: u64,
    /// Charges granted out of pockets.
    pub granted: u64,
    /// Charges refused without asking the engine.
    pub refused: u64,
    /// Steps decided by the engine, in whole or in part.
    pub central: u64,
    /// Calls to the engine: draws, units given back, and steps that it decided.
    pub messages: u64,
    /// How many of them were draws.
    pub draws: u64,
    /// Units drawn.
    pub drawn: u64,
    /// Units given back, because they were not needed in time.
    pub returned: u64,
    /// Units that were to be given back, and of which nobody knows whether they were.
    pub burned: u64,
}

impl LeaseHealth {
    /// Returns the part of the units drawn that was of use, in thousandths, rounded down: those that were not given back or lost, and are not
    /// held now. 1000 where nothing was drawn.
    #[must_use]
    pub fn used_per_mille(&self) -> u64 {
        let held = self.outstanding.saturating_add(self.reserved);
        let unused = self.returned.saturating_add(self.burned).saturating_add(held);
        let used = u128::from(self.drawn.saturating_sub(unused));
        match self.drawn {
            0 => 1000,
            // At most a thousand.
            drawn => u64::try_from(used * 1000 / u128::from(drawn)).unwrap_or(1000),
        }
    }
}
