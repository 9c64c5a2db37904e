//! The signals and other measured numbers that policies depend on.

use tidegate::policy::{SignalError, SourceStanding};

use super::Engine;

impl Engine {
    /// Takes the value of a signal that a user reports.
    ///
    /// # Errors
    /// [`SignalError`] if no policy uses the signal, or the value is not finite.
    pub(crate) fn report_signal(&self, name: &str, value: f64) -> Result<(), SignalError> {
        self.gate.report_signal(name, value)
    }

    /// Returns every number that policies depend on, with its last value.
    pub(crate) fn sources(&self) -> Vec<SourceStanding> {
        self.gate.sources()
    }
}
