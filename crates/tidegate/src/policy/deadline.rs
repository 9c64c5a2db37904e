//! The time that a request's caller still waits, as its headers state it.

use std::time::Duration;

use super::access::AccessEntry;
use super::descriptor::Descriptor;
use crate::deadline::header::{read_grpc_timeout, read_millis};

/// The attributes that state how long the caller waits.
pub(crate) const TIME_LEFT: [&str; 2] =
    ["request.header.grpc-timeout", "request.header.x-envoy-expected-rq-timeout-ms"];

/// Returns how long the caller of a request still waits, and the header that says so: of several headers the one with
/// the least time. `None` if no header has a readable value. The headers need no trust: a caller that overstates the
/// time is only answered late, and one that understates it harms only itself.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::policy::{Descriptor, time_left};
///
/// let request = Descriptor::new().with("request.header.grpc-timeout", "50m");
/// assert_eq!(time_left(&request).map(|(left, _)| left), Some(Duration::from_millis(50)));
/// ```
#[must_use]
pub fn time_left(request: &Descriptor<'_>) -> Option<(Duration, AccessEntry)> {
    let said = TIME_LEFT.into_iter().filter_map(|name| {
        let value = request.value(name)?;
        let read = if name == TIME_LEFT[0] { read_grpc_timeout } else { read_millis };
        Some((read(value.as_bytes())?, name, value))
    });
    let (left, name, value) = said.min_by_key(|(left, ..)| *left)?;
    Some((left, AccessEntry::Attribute { name: name.to_owned(), value: value.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_what_can_be_read_holds() {
        let [grpc, envoy] = TIME_LEFT;
        let left = |grpc_says: &str, envoy_says: &str| {
            let request = Descriptor::new().with(grpc, grpc_says).with(envoy, envoy_says);
            time_left(&request).map(|(left, _)| left.as_millis())
        };
        assert_eq!(left("50m", "20"), Some(20));
        assert_eq!(left("50m", "soon"), Some(50));
        assert_eq!(left("-1m", ""), None);
        assert_eq!(left("0n", "999999999999999999999999"), Some(0));
        assert_eq!(time_left(&Descriptor::new()), None);
    }
}
