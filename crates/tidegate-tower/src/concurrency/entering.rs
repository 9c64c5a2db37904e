//! Who a request enters a bulkhead for, and how much it matters.

use http::HeaderMap;
use http::header::AsHeaderName;
use tidegate::{Enter, Priority};

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

/// Reads a priority from a header, written as `sheddable` or `sheddable/17`; `None` where there is none that can be read.
///
/// Not for headers that strangers send: whoever may name its own priority is refused last. Use it behind a proxy that sets the header or
/// takes it away, or after the request has shown who it is.
///
/// # Examples
/// ```
/// use http::Request;
/// use tidegate::{Bulkhead, Enter};
/// use tidegate_tower::{ConcurrencyLayer, priority_of};
///
/// let entering = |entry: Enter, request: &Request<String>| {
///     // Set by our own gateway, which takes away what strangers send under this name.
///     entry.priority(priority_of(request.headers(), "x-priority").unwrap_or_default())
/// };
/// let layer = ConcurrencyLayer::new("pages", Bulkhead::new(64)?).entering(entering);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[must_use]
pub fn priority_of(headers: &HeaderMap, name: impl AsHeaderName) -> Option<Priority> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}
