//! How a limiter weighs speed against the last thousandth of a second.

/// How exactly a limiter takes the time, and so what a check costs: one choice, made when the limiter is built.
///
/// All of them count exactly: no permit is lost and none is given twice, whatever the threads do. What differs is how old the
/// time may be that a permit is booked under. With `rate` units returning per second, over any span of time
///
/// | precision | admitted at most | a check costs |
/// |---|---|---|
/// | [`Precision::Exact`] | `burst + rate × span` | a clock read and a compare-exchange |
/// | [`Precision::Shared`] | `burst + rate × (span + tick)` | a load and a compare-exchange; a clock read before a refusal |
/// | [`Precision::Leased`] | `burst + rate × (span + tick)` | a thread's own counter; the others' price for every 64th |
///
/// `tick` is how old [`crate::Clock::recent`] may be: a millisecond of the [`crate::SystemClock`] under load, nothing while it is
/// asked seldom, and nothing of clocks without a cheaper answer. A refusal is never given by an old tick, by any of them: it comes from
/// a clock read just then, so nobody is refused early and `retry_after` is exact.
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
    /// What is drawn is spent from the limit at once, and given back when the shared tick moves on, when the thread ends, or when
    /// it draws anew; so a thread that stops asking keeps at most 64 units. A draw takes at most an eighth of what remains, so
    /// near the limit threads draw single units, and the total is exact at every moment. A remainder told by an answer is
    /// that of the draw, less what the thread has spent since.
    ///
    /// Only one-limit limiters lease: for a [`crate::KeyedLimiter`] it is `Shared`.
    Leased,
}
