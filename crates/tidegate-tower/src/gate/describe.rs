//! Describes requests to the policies of a gate.

use tidegate::{Cost, Descriptor, Priority, priority};

/// Describes requests to a gate. Implemented for functions that return a descriptor.
///
/// Do not trust what a stranger sends: take a client's address from the connection or from a known proxy, and its
/// account from the component that has authenticated it.
pub trait Describe<Req> {
    /// Returns the attributes that policies match and count by: see [`Descriptor`] for their names. How long the caller
    /// waits need not be among them behind a [`DeadlineLayer`](crate::DeadlineLayer). Without one, policies with a
    /// deadline and queues read `request.header.grpc-timeout` and `request.header.x-envoy-expected-rq-timeout-ms`, if
    /// they are there.
    fn describe(&self, request: &Req) -> Descriptor<'static>;

    /// Returns what the request costs, or its estimated cost. `None`, the default, leaves the cost to the policies.
    fn cost(&self, request: &Req) -> Option<Cost> {
        let _ = request;
        None
    }

    /// Returns how much the request matters. Unless overridden, that is the priority that the task
    /// [carries](tidegate::priority::carried), else [`Criticality::Critical`](tidegate::Criticality::Critical). The
    /// priority decides who is refused first, so do not let strangers choose it.
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
