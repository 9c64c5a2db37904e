//! How a request enters a bulkhead: its priority, its tenant and its longest wait.

use tidegate::Enter;

/// Reads from a request how it enters a bulkhead: its priority, its tenant, its longest wait. Implemented for
/// functions.
pub trait Entering<Req>: Clone {
    /// Returns the entry with the request's own settings added.
    fn enter(&self, entry: Enter, request: &Req) -> Enter;
}

impl<Req, F: Fn(Enter, &Req) -> Enter + Clone> Entering<Req> for F {
    fn enter(&self, entry: Enter, request: &Req) -> Enter {
        self(entry, request)
    }
}

/// Treats all requests alike.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alike;

impl<Req> Entering<Req> for Alike {
    fn enter(&self, entry: Enter, _: &Req) -> Enter {
        entry
    }
}
