//! The choice between exact time and fast checks.

/// How exactly a limiter takes the time, and so what a check costs: one choice, made when the limiter is built.
///
/// All of them count exactly: no permit is lost and none is given twice, whatever the threads do. They differ in how old the tick may be
/// under which a permit is booked. With `rate` units returning per second, over any span of time:
///
/// | precision | admitted at most | a check costs |
/// |---|---|---|
/// | [`Precision::Exact`] | `burst + rate × span` | a clock read and a compare-exchange |
/// | [`Precision::Shared`] | `burst + rate × (span + tick)` | a load and a compare-exchange; a clock read before a refusal |
/// | [`Precision::Leased`] | `burst + rate × (span + tick)` | a thread's own counter; every 64th check or so costs what `Shared` costs |
///
/// `tick` is the greatest age of [`crate::Clock::recent`]: a millisecond for the [`crate::SystemClock`] under load, zero while it is asked
/// seldom, and zero for clocks without a cheaper reading. No precision refuses by an old tick: the clock is read first, so nobody is
/// refused early and `retry_after` is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// Permits by the process's shared tick and refuses by the clock. The default: the term `rate × tick` is a thousandth of
    /// what a limit lets through in a second.
    #[default]
    Shared,
    /// Reads the clock on every check. For limits of a million a second and more that must hold within a millisecond, and
    /// for comparing with other exact limiters.
    Exact,
    /// As `Shared`, and each thread draws up to 64 units ahead and spends them by itself. For one limit that many threads
    /// ask millions of times a second: they then share nothing on most checks.
    ///
    /// What a thread draws is spent from the limit at once. What is left of it goes back when the thread next asks after the shared tick
    /// has moved on, or when the thread ends; so a thread that stops asking keeps at most 64 units. A draw takes at most an eighth of what
    /// remains, so near the limit threads take single units, and no unit is given twice. An answer's remainder is what the limit had at the
    /// draw, less what this thread has spent since.
    ///
    /// Only one-limit limiters lease: for a [`crate::KeyedLimiter`] it is `Shared`.
    Leased,
}
