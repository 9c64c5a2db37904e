//! Why guards refuse: why a bulkhead gave no place, and why a breaker refused a call.

use std::fmt;

use tidegate_core::breaker::Forced;

/// Why a [`Bulkhead`](crate::Bulkhead) refused an entry ([`Denied::no_place`](crate::Denied::no_place)).
///
/// What it says of the free places is a snapshot.
///
/// # Examples
/// ```
/// use tidegate::Bulkhead;
/// use tidegate::bulkhead::NoPlace;
///
/// let reports = Bulkhead::new(1)?;
/// let _permit = reports.try_enter()?;
/// let denied = reports.try_enter().unwrap_err();
/// assert_eq!(denied.no_place, Some(NoPlace::Full));
/// assert_eq!(denied.to_string(), "refused: all places are taken; it is unknown when a retry can pass");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoPlace {
    /// All places are taken, and the caller does not wait, or there is no queue.
    Full,
    /// Enough places are free, but for others: kept for higher priorities or for other tenants, or next for callers that
    /// wait already. The caller does not wait, or there is no queue.
    KeptForOthers,
    /// The queue is full, and nobody in it gives way to this caller.
    QueueFull,
    /// It waited, and gave way to another caller because the queue was full: to one of higher priority, of another
    /// tenant, or a newer one where the newest are served first.
    Displaced,
    /// It waited for the longest wait that the bulkhead allows: that of
    /// [`with_longest_wait`](crate::Bulkhead::with_longest_wait) or of a [short queue](crate::Bulkhead::with_short_queue).
    QueueTimeout,
    /// The time that the caller allowed is over, or the deadline that its task carries; before it came, or while it
    /// waited.
    DeadlineExceeded,
    /// It did not wait, because its turn is expected after its deadline.
    TurnTooLate,
    /// It waited too long in a queue that does not empty ([`QueueOrder::Adaptive`](crate::QueueOrder::Adaptive)).
    StandingQueue,
    /// The [throttle](crate::Bulkhead::with_throttle) shed it on arrival, by its priority.
    Throttled,
    /// It asks for more places than it could have now, however many leave.
    TooManyPlaces,
}

impl NoPlace {
    /// Returns the cause as a word for metrics and logs, such as `queue-full`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::KeptForOthers => "kept-for-others",
            Self::QueueFull => "queue-full",
            Self::Displaced => "displaced",
            Self::QueueTimeout => "queue-timeout",
            Self::DeadlineExceeded => "deadline-exceeded",
            Self::TurnTooLate => "turn-too-late",
            Self::StandingQueue => "standing-queue",
            Self::Throttled => "throttled",
            Self::TooManyPlaces => "too-many-places",
        }
    }
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "all places are taken",
            Self::KeptForOthers => "the free places are kept for others",
            Self::QueueFull => "the queue is full",
            Self::Displaced => "another request took its turn in the full queue",
            Self::QueueTimeout => "the longest wait is over",
            Self::DeadlineExceeded => "its time was up before it had a place",
            Self::TurnTooLate => "its turn would come after its deadline",
            Self::StandingQueue => "it waited too long in a queue that does not empty",
            Self::Throttled => "it was shed on arrival",
            Self::TooManyPlaces => "it asks for more places than it can have",
        })
    }
}

/// Why a breaker refused a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// It is open, because the service failed too often.
    Open,
    /// It is half-open, and the allowed number of probes is in flight.
    HalfOpen,
    /// It refuses a share of the calls, and this call was one of them.
    Shedding,
    /// A person has forced it open.
    Forced(Forced),
}

impl RefusalReason {
    /// Returns the reason as a word for metrics and logs: that of the state of the breaker, such as `half-open`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::HalfOpen => "half-open",
            Self::Shedding => "shedding",
            Self::Forced(_) => "forced-open",
        }
    }
}
