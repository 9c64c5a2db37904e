//! Retries in headers: how often a request was tried before, and that it must not be retried.

/// The header in which gRPC clients state how often a call was tried before this try; absent from the first.
pub const GRPC_ATTEMPTS: &str = "grpc-previous-rpc-attempts";

/// The header in which Envoy, if configured to, states the number of this try, counted from 1.
pub const ENVOY_ATTEMPT: &str = "x-envoy-attempt-count";

/// The header in which a gRPC server states after how many milliseconds to retry; [`NOT_AGAIN`] forbids it.
pub const GRPC_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The value of [`GRPC_PUSHBACK`] that forbids a retry.
pub const NOT_AGAIN: &str = "-1";

/// The header by which an HTTP server tells Envoy that it is overloaded and must not be retried; its value is
/// ignored.
pub const ENVOY_OVERLOADED: &str = "x-envoy-overloaded";

/// Reads a [`GRPC_ATTEMPTS`] header: how often the call was tried before. `None` if it is not a number of up to nine
/// digits.
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
    // Below 10⁹, so it fits.
    Some(value.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0')))
}

/// Reads an [`ENVOY_ATTEMPT`] header: how often the call was tried before, one less than the header's number. `None`
/// if it is not a number from 1, of up to nine digits.
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
