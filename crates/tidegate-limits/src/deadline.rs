//! Deadlines: when a caller wants an answer, read from a header, carried through the task, and sent on to the next
//! service.

mod step;

use std::cell::Cell;
use std::thread::LocalKey;
use std::time::Instant;

pub use step::{OutOfTime, Step, StepCounts, StepError};
use tidegate_core::Tick;
pub use tidegate_core::deadline::Timeouts;

use crate::clock::Clock;
use crate::task_local::{self, Carried};

/// The end of a wait: a tick of the limiter's clock, or an `Instant` of the machine.
///
/// An `Instant` is converted to a tick when the wait begins ([`Clock::tick_of`]). Methods take `impl Into<Deadline>`;
/// with the feature `tokio` also an instant of tokio's clock.
///
/// # Examples
/// ```
/// use std::time::{Duration, Instant};
/// use tidegate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_minute(1))?;
/// let deadline = Instant::now() + Duration::from_secs(2);
/// assert!(limiter.wait(1).until(deadline).blocking().is_ok());
/// assert!(limiter.wait(1).until(deadline).blocking().is_err(), "at once: the next unit is a minute away");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// A tick of the limiter's clock.
    Tick(Tick),
    /// A reading of the machine's monotonic clock.
    Instant(Instant),
}

impl Deadline {
    /// Returns the deadline as a tick of `clock`. A tick is returned unchanged: it must be of that clock.
    #[must_use]
    pub fn at(self, clock: &(impl Clock + ?Sized)) -> Tick {
        match self {
            Self::Tick(tick) => tick,
            Self::Instant(instant) => clock.tick_of(instant),
        }
    }
}

impl From<Tick> for Deadline {
    fn from(tick: Tick) -> Self {
        Self::Tick(tick)
    }
}

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Self {
        Self::Instant(instant)
    }
}

#[cfg(feature = "tokio")]
impl From<tokio::time::Instant> for Deadline {
    fn from(instant: tokio::time::Instant) -> Self {
        Self::Instant(instant.into_std())
    }
}

thread_local! {
    static CARRIED: Cell<Option<Deadline>> = const { Cell::new(None) };
}

impl Carried for Deadline {
    fn slot() -> &'static LocalKey<Cell<Option<Self>>> {
        &CARRIED
    }
}

/// A future with a deadline: see [`carry_through`].
pub type Carrying<F> = task_local::Carrying<Deadline, F>;

/// Returns the deadline of the current work: that of the innermost enclosing [`carry`] or [`carry_through`]. `None`
/// outside of them, and in tasks and threads started inside them: pass the deadline on to those explicitly.
///
/// Costs one load from thread-local memory.
#[must_use]
pub fn carried() -> Option<Deadline> {
    CARRIED.get()
}

/// Runs a function during which [`carried()`] returns `deadline`.
pub fn carry<T>(deadline: impl Into<Deadline>, work: impl FnOnce() -> T) -> T {
    task_local::carry(Some(deadline.into()), work)
}

/// Returns a future during whose polls [`carried()`] returns `deadline`, on any thread.
///
/// The future does not end at the deadline by itself; the code that runs it has to enforce it.
///
/// # Cancel safety
/// Dropping it drops the future.
///
/// # Examples
/// ```
/// use tidegate::deadline::Deadline;
/// use tidegate::{Tick, deadline};
///
/// async fn deep_within() -> Option<Deadline> {
///     deadline::carried()
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let until = Deadline::from(Tick::from_secs(5));
/// assert_eq!(deadline::carry_through(until, deep_within()).await, Some(until));
/// # }
/// ```
pub fn carry_through<F: Future>(deadline: impl Into<Deadline>, future: F) -> Carrying<F> {
    task_local::carry_through(Some(deadline.into()), future)
}

pub(crate) fn carry_nothing<F: Future>(future: F) -> Carrying<F> {
    task_local::carry_through(None, future)
}

/// Deadlines in headers. They hold the time that is left rather than a point in time, since the clocks of two
/// machines differ.
pub mod header {
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
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::header::{read_grpc_timeout, read_millis, write_grpc_timeout};

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
