//! Retries as headers tell of them: how often a request was tried before, and that it is not to be tried again.

/// Where gRPC clients say how often a call was tried before this try; absent from the first.
pub const GRPC_ATTEMPTS: &str = "grpc-previous-rpc-attempts";

/// Where Envoy says which try this is, counted from 1, if it is told to.
pub const ENVOY_ATTEMPT: &str = "x-envoy-attempt-count";

/// Where a gRPC server says after how many milliseconds to try again; [`NOT_AGAIN`] is not at all.
pub const GRPC_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The value of [`GRPC_PUSHBACK`] that says not to try again.
pub const NOT_AGAIN: &str = "-1";

/// A header by which an HTTP server tells Envoy that it is overloaded and is not to be tried again; its value is not looked at.
pub const ENVOY_OVERLOADED: &str = "x-envoy-overloaded";

/// Reads a [`GRPC_ATTEMPTS`] header: how often it was tried before. `None` where it is no number of up to nine digits.
///
/// # Examples
/// ```
/// use tidegate::retries::header::{read_envoy_attempt, read_grpc_attempts};
///
/// assert_eq!(read_grpc_attempts(b"2"), Some(2), "this is the third try");
/// assert_eq!(read_envoy_attempt(b"3"), Some(2), "and so is this");
/// assert_eq!(read_grpc_attempts(b"-2"), None);
/// ```
///
/// # Source
/// gRPC proposal A6, client retries.
#[must_use]
pub fn read_grpc_attempts(value: &[u8]) -> Option<u32> {
    if value.is_empty() || value.len() > 9 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Below 10⁹.
    Some(value.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0')))
}

/// Reads an [`ENVOY_ATTEMPT`] header: how often it was tried before, one less than it says. `None` where it is no number from 1, of up to nine digits.
#[must_use]
pub fn read_envoy_attempt(value: &[u8]) -> Option<u32> {
    read_grpc_attempts(value)?.checked_sub(1)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_of_tries_is_not_read() {
        for value in [&b""[..], b"-1", b"+1", b" 1", b"1.0", b"1234567890", "１".as_bytes(), b"\xff"] {
            assert_eq!((read_grpc_attempts(value), read_envoy_attempt(value)), (None, None), "{value:?}");
        }
        assert_eq!((read_grpc_attempts(b"0"), read_envoy_attempt(b"0")), (Some(0), None));
        assert_eq!(
            (read_grpc_attempts(b"999999999"), read_envoy_attempt(b"001")),
            (Some(999_999_999), Some(0))
        );
    }
}
