//! What policies are told of a request.

use tidegate::{Cost, Descriptor, Priority, priority};

/// Describes requests to a gate. Functions that return a descriptor are one.
///
/// What a stranger sends is an attribute like any other, and proves nothing: a client's address comes from the connection or from a proxy
/// that is known, its account from whatever has checked it.
pub trait Describe<Req> {
    /// Returns the attributes that policies go by: see [`Descriptor`] for their names.
    fn describe(&self, request: &Req) -> Descriptor<'static>;

    /// Returns what the request costs, or is estimated to; `None`, unless it is overridden, leaves it to the policies.
    fn cost(&self, request: &Req) -> Option<Cost> {
        let _ = request;
        None
    }

    /// Returns how much the request matters: unless it is overridden, what the task [carries](tidegate::priority::carried); without that,
    /// [`Criticality::Critical`](tidegate::Criticality::Critical). Whoever decides it decides who is refused first, so it is not for strangers to say.
    fn priority(&self, request: &Req) -> Priority {
        let _ = request;
        priority::carried().unwrap_or_default()
    }
}

impl<Req, F: Fn(&Req) -> Descriptor<'static>> Describe<Req> for F {
    fn describe(&self, request: &Req) -> Descriptor<'static> {
        self(request)
    }
}
