//! Who a request enters a bulkhead for, and how much it matters.

use tidegate::Enter;

/// Says of a request what its entry into a bulkhead needs to know: its priority, its tenant, its own longest wait. Functions are one.
pub trait Entering<Req>: Clone {
    /// Adds to the entry what the request tells.
    fn enter(&self, entry: Enter, request: &Req) -> Enter;
}

impl<Req, F: Fn(Enter, &Req) -> Enter + Clone> Entering<Req> for F {
    fn enter(&self, entry: Enter, request: &Req) -> Enter {
        self(entry, request)
    }
}

/// All requests are alike.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alike;

impl<Req> Entering<Req> for Alike {
    fn enter(&self, entry: Enter, _: &Req) -> Enter {
        entry
    }
}
