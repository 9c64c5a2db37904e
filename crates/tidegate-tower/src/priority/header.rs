//! Reads and writes a request's priority in its headers.

use http::header::{AsHeaderName, HeaderMap, HeaderName, HeaderValue};
use tidegate::Priority;
use tidegate::priority::header::{TIDEGATE_PRIORITY, read_priority};

pub(super) const HEADER: HeaderName = HeaderName::from_static(TIDEGATE_PRIORITY);

/// Reads a priority from a header, written as `sheddable` or `sheddable/17`. Returns `None` if there is no readable
/// one, and if the header came several times: a proxy in front may have added its own to that of a stranger.
///
/// Do not use it on headers that strangers send: a caller that may choose its own priority is refused last. Use it
/// behind a proxy that sets or removes the header, or after the request is authenticated;
/// [`PriorityLayer`](crate::PriorityLayer) has a ceiling for callers that name too high a priority.
///
/// # Examples
/// ```
/// use http::Request;
/// use tidegate::{Bulkhead, Enter};
/// use tidegate_tower::{ConcurrencyLayer, priority_of};
///
/// let entering = |entry: Enter, request: &Request<String>| {
///     // Set by our own gateway, which removes the header from strangers' requests.
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

/// Writes a priority into a header, replacing the request's own; `sent` is the priority that could be read from it.
/// Changes nothing if they are equal.
pub(super) fn write(headers: &mut HeaderMap, name: &HeaderName, sent: Option<Priority>, priority: Priority) {
    if sent != Some(priority) {
        let value = match priority.cohort() {
            0 => HeaderValue::from_static(priority.level().as_str()),
            _ => HeaderValue::try_from(priority.to_string()).expect("words and digits are a header's value"),
        };
        headers.insert(name, value);
    }
}
