//! The time that a request's caller still waits, as its headers state it.

use std::time::Duration;

use super::access::AccessEntry;
use super::descriptor::Descriptor;
use tidegate_limits::deadline::header::{read_grpc_timeout, read_millis, write_grpc_timeout};

/// The attributes that state how long the caller waits.
pub(crate) const TIME_LEFT: [&str; 2] =
    ["request.header.grpc-timeout", "request.header.x-envoy-expected-rq-timeout-ms"];

/// Returns how long the caller of a request still waits, and the header that says so: of several headers the one with
/// the least time. `None` if no header has a readable value. The headers need no trust: a wrong time harms only the caller.
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
    let (left, name, value) = shortest_time_left(request)?;
    Some((left, AccessEntry::Attribute { name: name.to_owned(), value: value.to_owned() }))
}

/// As [`time_left`], with the attribute's name and value.
pub(crate) fn shortest_time_left<'a>(
    request: &'a Descriptor<'_>,
) -> Option<(Duration, &'static str, &'a str)> {
    let said = TIME_LEFT.into_iter().filter_map(|name| {
        let value = request.value(name)?;
        let read = if name == TIME_LEFT[0] { read_grpc_timeout } else { read_millis };
        Some((read(value.as_bytes())?, name, value))
    });
    said.min_by_key(|(left, ..)| *left)
}

/// Adds the time for which the caller of a request still waits, unless an attribute states no more.
pub(crate) fn state_time_left(request: &mut Descriptor<'_>, left: Duration) {
    if shortest_time_left(request).is_none_or(|(said, ..)| left < said) {
        request.push(TIME_LEFT[0], write_grpc_timeout(left));
    }
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

    #[test]
    fn only_a_shorter_time_is_added() {
        let [grpc, envoy] = TIME_LEFT;
        for (name, said, pairs) in [(envoy, "20", 1), (grpc, "30m", 1), (grpc, "1S", 2), (grpc, "soon", 2)] {
            let mut request = Descriptor::new().with(name, said);
            state_time_left(&mut request, Duration::from_millis(30));
            assert_eq!(request.pairs().count(), pairs, "{said}");
            assert!(time_left(&request).is_some_and(|(left, _)| left <= Duration::from_millis(30)), "{said}");
        }
    }
}
