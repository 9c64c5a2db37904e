//! What people ask of breakers, and what they are told.

use tidegate_core::breaker::{Condition, Forced, Totals, WouldTrip};

/// What a person does with the breakers of a step.
#[derive(Clone, Copy, Debug)]
pub enum Handling<'a> {
    /// Looks, and changes nothing.
    Look,
    /// Puts them in a state.
    Force(&'a Forced),
    /// Ends what was forced; a breaker that was forced open is then tried by probes.
    Release,
}

/// How a breaker stands, as people are told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerView {
    /// Its state.
    pub condition: Condition,
    /// The calls in its window, or of the present step of a half-open one.
    pub totals: Totals,
    /// What a person has forced it to.
    pub forced: Option<Forced>,
    /// What it would have done since it was made to measure only.
    pub would_trip: Option<WouldTrip>,
}
