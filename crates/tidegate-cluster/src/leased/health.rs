//! The statistics of a leased store.

/// The statistics of this node's leases, for metrics; totals count since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseHealth {
    /// Keys with units held or with recent requests.
    pub keys: usize,
    /// Units in batches that could be spent now, plus units taken by requests that wait for another limit's engine. The
    /// sum for one key over all nodes is the most by which admissions may exceed the engine's limit.
    pub outstanding: u64,
    /// Units drawn that may not be spent yet.
    pub reserved: u64,
    /// Charges granted out of batches.
    pub granted: u64,
    /// Charges refused without asking the engine.
    pub refused: u64,
    /// Steps decided by the engine, in whole or in part.
    pub central: u64,
    /// Calls to the engine: draws, units given back, and steps that it decided.
    pub messages: u64,
    /// How many of these calls were draws.
    pub draws: u64,
    /// Units drawn.
    pub drawn: u64,
    /// Units given back, because they were not needed in time.
    pub returned: u64,
    /// Units that were sent back, but without an answer, so that it is unknown whether they came back.
    pub burned: u64,
}

impl LeaseHealth {
    /// Returns the part of the drawn units that was used, in thousandths, rounded down: units that were not given back
    /// or lost, and are not held now. 1000 if nothing was drawn.
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
