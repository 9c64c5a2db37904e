//! Deadlines in headers. They hold the time that is left rather than a point in time, since the clocks of two
//! machines differ.

use std::time::Duration;

/// gRPC's header for the time left: up to eight digits and a unit, such as `250m` for 250 milliseconds.
pub const GRPC_TIMEOUT: &str = "grpc-timeout";

/// Envoy's header for the time that it gives the service behind it, in milliseconds.
pub const ENVOY_TIMEOUT: &str = "x-envoy-expected-rq-timeout-ms";

const EIGHT_DIGITS: u128 = 99_999_999;

const UNITS: [(u8, u128); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60_000_000_000),
    (b'H', 3_600_000_000_000),
];

/// Reads the value of a [`GRPC_TIMEOUT`] header; `None` if it is not valid. Zero is valid, and means that the caller
/// no longer waits.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::deadline::header::read_grpc_timeout;
///
/// assert_eq!(read_grpc_timeout(b"250m"), Some(Duration::from_millis(250)));
/// assert_eq!(read_grpc_timeout(b"2H"), Some(Duration::from_secs(7200)));
/// assert_eq!(read_grpc_timeout(b"250ms"), None);
/// assert_eq!(read_grpc_timeout(b"123456789S"), None, "nine digits");
/// ```
///
/// # Source
/// gRPC over HTTP/2, "Requests": `Timeout → TimeoutValue TimeoutUnit`.
#[must_use]
pub fn read_grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    let (_, nanos) = UNITS.iter().find(|(letter, _)| letter == unit)?;
    let count = number(digits, 8)?;
    // 99,999,999 hours are below 2⁶⁹ nanoseconds.
    let nanos = u128::from(count) * nanos;
    Some(Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32))
}

/// Writes the value of a [`GRPC_TIMEOUT`] header in the smallest unit that needs no more than eight digits, rounded
/// down so that the next service is not given more time than there is. A time above 99,999,999 hours is written as
/// 99,999,999 hours.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::deadline::header::write_grpc_timeout;
///
/// assert_eq!(write_grpc_timeout(Duration::from_millis(95)), "95000000n");
/// assert_eq!(write_grpc_timeout(Duration::from_secs(1)), "1000000u");
/// ```
#[must_use]
pub fn write_grpc_timeout(left: Duration) -> String {
    let nanos = left.as_nanos();
    let fits = UNITS.iter().find(|(_, unit)| nanos / unit <= EIGHT_DIGITS);
    match fits {
        Some((letter, unit)) => format!("{}{}", nanos / unit, char::from(*letter)),
        None => format!("{EIGHT_DIGITS}H"),
    }
}

/// Reads the value of an [`ENVOY_TIMEOUT`] header: whole milliseconds, up to twenty digits; `None` if it is not
/// valid.
#[must_use]
pub fn read_millis(value: &[u8]) -> Option<Duration> {
    number(value, 20).map(Duration::from_millis)
}

/// Reads one to `most` digits; `None` for anything else, or if the number exceeds 64 bits.
fn number(digits: &[u8], most: usize) -> Option<u64> {
    if digits.is_empty() || digits.len() > most || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_timeout_is_not_read() {
        for value in [
            &b""[..],
            b"S",
            b"12",
            b"12s",
            b"-1S",
            b"+1S",
            b" 1S",
            b"1 S",
            b"1.5S",
            b"1S ",
            b"123456789n",
            "１S".as_bytes(),
        ] {
            assert_eq!(read_grpc_timeout(value), None, "{value:?}");
        }
        assert_eq!(read_grpc_timeout(b"00000001S"), Some(Duration::from_secs(1)));
        assert_eq!(read_grpc_timeout(b"0n"), Some(Duration::ZERO));
        assert_eq!(read_grpc_timeout(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for value in [&b""[..], b"1.5", b"-1", b"18446744073709551616", b"000000000000000000001"] {
            assert_eq!(read_millis(value), None, "{value:?}");
        }
        assert_eq!(read_millis(b"1500"), Some(Duration::from_millis(1500)));
    }

    #[test]
    fn each_unit_is_used_where_the_one_below_takes_nine_digits() {
        let secs = Duration::from_secs;
        for (left, written) in [
            (Duration::ZERO, "0n"),
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_nanos(100_000_999), "100000u"),
            (secs(100), "100000m"),
            (secs(100_000), "100000S"),
            (secs(100_000_000), "1666666M"),
            (secs(60 * 100_000_000), "1666666H"),
            (Duration::MAX, "99999999H"),
        ] {
            assert_eq!(write_grpc_timeout(left), written);
        }
    }

    proptest! {
        /// A written value reads back as no more time than there was, and less by at most one part in a million.
        #[test]
        fn the_next_service_is_told_no_more_than_there_is(secs in 0..1_u64 << 36, nanos in 0..1_000_000_000_u32) {
            let left = Duration::new(secs, nanos);
            let told = read_grpc_timeout(write_grpc_timeout(left).as_bytes()).unwrap();
            prop_assert!(told <= left);
            prop_assert!(left - told <= left / 1_000_000);
        }
    }
}
