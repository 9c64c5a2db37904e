//! How much a request matters, in its headers.

use http::header::{AsHeaderName, HeaderMap, HeaderName, HeaderValue};
use tidegate::Priority;
use tidegate::priority::header::{TIDEGATE_PRIORITY, read_priority};

pub(super) const HEADER: HeaderName = HeaderName::from_static(TIDEGATE_PRIORITY);

/// Reads a priority from a header, written as `sheddable` or `sheddable/17`; `None` where there is none that can be read, and where the header
/// came several times: a proxy in front may have added its own to that of a stranger.
///
/// Not for headers that strangers send: whoever may name its own priority is refused last. Use it behind a proxy that sets the header or
/// takes it away, or after the request has shown who it is; [`PriorityLayer`](crate::PriorityLayer) has a ceiling for those who name too much.
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
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    read_priority(value.as_bytes())
}

/// Writes a priority into a header, in place of what a request says there; `said` is what can be read of that. Nothing changes where it says so already.
pub(super) fn tell(headers: &mut HeaderMap, name: &HeaderName, said: Option<Priority>, priority: Priority) {
    if said != Some(priority) {
        let value = match priority.cohort() {
            0 => HeaderValue::from_static(priority.level().as_str()),
            _ => HeaderValue::try_from(priority.to_string()).expect("words and digits are a header's value"),
        };
        headers.insert(name, value);
    }
}
