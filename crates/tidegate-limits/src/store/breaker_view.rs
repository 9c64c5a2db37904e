//! Operators' requests to breakers, and the reports that they get.

use tidegate_core::breaker::{CircuitBreakerState, Condition, Forced, Totals, WouldTrip};

/// An operator's request to the breakers of a step.
#[derive(Clone, Copy, Debug)]
pub enum Handling<'a> {
    /// Reads the state and changes nothing.
    Look,
    /// Forces them into a state.
    Force(&'a Forced),
    /// Ends the forced state; a breaker that was forced open is then tried by probes.
    Release,
    /// Carries the state over to the limit of the charge, as its next use would, if the key is still under another
    /// limit. Applies to limits of every kind.
    Adopt,
}

/// The state of a breaker, as reported to operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerView {
    /// Its state.
    pub condition: Condition,
    /// The calls in its window, or those of the present step of a half-open breaker.
    pub totals: Totals,
    /// The state that an operator has forced it into, if any.
    pub forced: Option<Forced>,
    /// How often it would have opened since it was forced to measure only.
    pub would_trip: Option<WouldTrip>,
    pub(crate) state: CircuitBreakerState,
}
