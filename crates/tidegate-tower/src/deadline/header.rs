//! Reads and writes the time left in the headers of a request.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tidegate::deadline::header::{
    ENVOY_TIMEOUT, GRPC_TIMEOUT, read_grpc_timeout, read_millis, write_grpc_timeout,
};

const GRPC: HeaderName = HeaderName::from_static(GRPC_TIMEOUT);

/// The header that has the time of calls other than gRPC's, in whole milliseconds, unless another one is chosen.
pub(super) const MILLIS: HeaderName = HeaderName::from_static(ENVOY_TIMEOUT);

/// Reads how much time a request's caller allows: the least of all values of `grpc-timeout` and of the header `millis`
/// that can be read, since a proxy may wait for less time than its client, and may have added its own header to the
/// client's.
pub(super) fn read(headers: &HeaderMap, millis: &HeaderName) -> Option<Duration> {
    let grpc = shortest(headers, &GRPC, read_grpc_timeout);
    let millis = shortest(headers, millis, read_millis);
    grpc.into_iter().chain(millis).min()
}

/// Returns the shortest of a header's times, in lines of their own or separated by commas, as some proxies join them. Most
/// requests have none, which a single look-up shows.
#[inline]
fn shortest(headers: &HeaderMap, name: &HeaderName, read: fn(&[u8]) -> Option<Duration>) -> Option<Duration> {
    headers.get(name)?;
    let values =
        headers.get_all(name).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    values.filter_map(|value| read(value.trim_ascii())).min()
}

/// Says whether a request is a gRPC call.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Writes how much time is left, into the header `name` unless the request is a gRPC call. Returns `false` if that is zero
/// in the unit of the header.
pub(super) fn write(headers: &mut HeaderMap, is_grpc: bool, name: &HeaderName, left: Duration) -> bool {
    if is_grpc {
        let value = HeaderValue::try_from(write_grpc_timeout(left));
        headers.insert(GRPC, value.expect("digits and a letter are a header's value"));
        return true;
    }
    let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    headers.insert(name, HeaderValue::from(millis));
    millis > 0
}
