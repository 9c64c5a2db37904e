//! Reads and writes a request's priority in its headers.

use http::header::{AsHeaderName, HeaderMap, HeaderName, HeaderValue};
use tidegate::Priority;
use tidegate::priority::header::{TIDEGATE_PRIORITY, read_priority};

pub(super) const HEADER: HeaderName = HeaderName::from_static(TIDEGATE_PRIORITY);

/// Reads a priority from a header, written as `sheddable` or `sheddable/17`. Of several values, in lines of their own or
/// separated by commas, the lowest that can be read counts: a proxy in front may have added its own to that of a stranger,
/// who gains nothing by it. Returns `None` if none can be read.
///
/// Do not use it on headers that strangers send: a caller that may choose its own priority is refused last. Use it
/// behind a proxy that sets or removes the header, or after the request is authenticated;
/// [`PriorityLayer`](crate::PriorityLayer) has a ceiling for callers that name too high a priority.
///
/// # Examples
/// ```
/// use http::Request;
/// use tidegate::{Bulkhead, Enter};
/// use tidegate_tower::ConcurrencyLayer;
/// use tidegate_tower::parameter::priority_of;
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
    let lines = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
    lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .filter_map(|value| read_priority(value.trim_ascii()))
        .min()
}

/// Writes a priority into a header, replacing what the request has there. Changes nothing if that is this priority alone.
pub(super) fn write(headers: &mut HeaderMap, name: &HeaderName, priority: Priority) {
    let mut lines = headers.get_all(name).into_iter();
    let is_said = lines.next().is_some_and(|line| read_priority(line.as_bytes()) == Some(priority));
    if !is_said || lines.next().is_some() {
        let value = match priority.cohort() {
            0 => HeaderValue::from_static(priority.level().as_str()),
            _ => HeaderValue::try_from(priority.to_string()).expect("words and digits are a header's value"),
        };
        headers.insert(name, value);
    }
}
