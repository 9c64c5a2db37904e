//! The choice between exact time and fast checks.

/// How exactly a limiter measures time, and so how much a check costs.
///
/// All variants count exactly: no unit is lost and none is granted twice, whatever the threads do. They differ in how
/// old the tick under which a unit is charged may be. With `rate` units returning per second, over any span of time:
///
/// | precision | admitted at most | a check costs |
/// |---|---|---|
/// | [`Precision::Exact`] | `burst + rate × span` | a clock read and a compare-exchange |
/// | [`Precision::Shared`] | `burst + rate × (span + tick)` | a load and a compare-exchange; a clock read before a refusal |
/// | [`Precision::Leased`] | `burst + rate × (span + tick)` | a thread's own counter; about every 64th check costs as much as `Shared` |
///
/// `tick` is the greatest age of [`crate::Clock::recent`]: a millisecond for the [`crate::SystemClock`] under load,
/// zero while it is read seldom, and zero for clocks without a cheaper reading. No precision refuses by an old tick:
/// the clock is read before a refusal, so no request is refused too early and the retry time is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// Allows by the process's shared tick and refuses by the clock. The default: the extra term `rate × tick` is at
    /// most a thousandth of what the limit grants in a second.
    #[default]
    Shared,
    /// Reads the clock on every check. For limits of a million per second and more that must hold within a millisecond,
    /// and for comparison with other exact limiters.
    Exact,
    /// Same as `Shared`, and each thread draws up to 64 units ahead and spends them by itself. For one limit that many
    /// threads ask millions of times a second: most checks then touch no shared memory.
    ///
    /// Units that a thread draws are spent from the limit at once. Unspent ones go back when the thread next asks after
    /// the shared tick has moved on, or when the thread ends; so a thread that stops asking keeps at most 64 units. A
    /// draw takes at most an eighth of the remaining units, so near the limit threads take single units, and no unit is
    /// granted twice. An answer's remainder is the limit's remainder at the draw minus the units that this thread has
    /// spent since.
    ///
    /// Only limiters with one limit lease: a [`crate::KeyedLimiter`] treats it as `Shared`.
    Leased,
}
