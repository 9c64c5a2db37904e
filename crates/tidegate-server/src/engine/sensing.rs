//! The numbers that policies go by.

use tidegate::policy::{SignalError, SourceStanding};

use super::Engine;

impl Engine {
    /// Takes the value of a signal that a user reports.
    ///
    /// # Errors
    /// [`SignalError`] where no policy goes by it, or it is not finite.
    pub(crate) fn report_signal(&self, name: &str, value: f64) -> Result<(), SignalError> {
        self.gate.report_signal(name, value)
    }

    /// Returns every number that policies go by, as it was read last.
    pub(crate) fn sources(&self) -> Vec<SourceStanding> {
        self.gate.sources()
    }
}
