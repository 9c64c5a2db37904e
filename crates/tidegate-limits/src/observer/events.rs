//! Events of limiters, bulkheads and layers.

use std::fmt;
use std::time::Duration;

use tidegate_core::retry::Stop;
use tidegate_core::{Cost, Criticality, Decision, Outcome, Retry, Tick};

use crate::refusal_reason::NoPlace;
use crate::store::StoreError;

/// A change of the number of places of a bulkhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitMoved {
    /// When it changed, by the bulkhead's clock.
    pub at: Tick,
    /// The number of places before.
    pub from: u64,
    /// The number of places after.
    pub to: u64,
}

impl LimitMoved {
    /// Creates the event.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(at: Tick, from: u64, to: u64) -> Self {
        Self { at, from, to }
    }
}

/// An action of a layer around a service on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerEvent<'a> {
    /// The name that the layer was given, or else the word for its kind.
    pub layer: &'a str,
    /// What it did.
    pub did: LayerDid,
    /// The store's error, for [`LayerDid::NotSettled`].
    pub error: Option<&'a StoreError>,
}

impl<'a> LayerEvent<'a> {
    /// Makes an event, for layers in other crates.
    #[must_use]
    pub const fn new(layer: &'a str, did: LayerDid) -> Self {
        Self { layer, did, error: None }
    }

    /// Adds a store's error.
    #[must_use]
    pub const fn with_error(self, error: &'a StoreError) -> Self {
        Self { error: Some(error), ..self }
    }
}

/// An action of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerDid {
    /// It refused a request, or gave up on it.
    Refused {
        /// Why.
        cause: RefusalCause,
        /// When a retry is worthwhile.
        retry: Retry,
    },
    /// A request that it admitted has ended; [`Outcome::Ignored`] if its caller went away before. Reported by layers
    /// that judge how requests end: those of concurrency limits, breakers and gates.
    Ended {
        /// How it ended.
        outcome: Outcome,
    },
    /// The store of a gate did not settle a request that has ended. Limits keep the amount charged, which may be more
    /// or less than was spent, and places are returned if possible. [`LayerEvent::error`] has the reason.
    NotSettled,
    /// It retried a call.
    TriedAgain,
    /// It replaced a failure by a fallback.
    FellBack,
    /// It told the caller of an overloaded answer not to try again, since too many of the requests are retries.
    ToldNotToRetry,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalCause {
    /// Its caller exceeded a rate limit.
    RateLimit,
    /// The limit is one for each key, and its key could not be read from the request.
    NoKey,
    /// A bulkhead gave no place, for this cause: the allowed number of requests is in progress.
    Concurrency(NoPlace),
    /// The service was not ready for it.
    Busy,
    /// The breaker is open, because the service failed too often.
    Open,
    /// The breaker is half-open, and the allowed number of probes is in flight.
    HalfOpen,
    /// The breaker refuses a share of the calls, and this call was one of them.
    Shedding,
    /// A person has forced the breaker open.
    ForcedOpen,
    /// A policy of a gate refused it.
    Policy,
    /// No decision was possible: a store did not answer.
    Undecided,
    /// It was not begun, because its time was up, or would have been before it could end.
    NoTimeLeft,
    /// It was begun, and its time was up before the answer came. It may have taken effect.
    TimedOut,
    /// It was begun, and the time of the request that it belongs to was up before the answer came: less than half of the
    /// usual time was left for the called service. It may have taken effect, and says nothing of that service.
    CutShort,
}

impl fmt::Display for RefusalCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Concurrency(why) => return write!(f, "too many requests at once: {why}"),
            Self::RateLimit => "over the rate limit",
            Self::NoKey => "the request lacks what the limit counts it by",
            Self::Busy => "the service is busy",
            Self::Open => "the breaker is open",
            Self::HalfOpen => "the breaker is half-open, and all its probes are under way: a place is free again when one ends or has \
                 lasted for its `ttl`",
            Self::Shedding => "the breaker refuses a share of the calls, since the service fails",
            Self::ForcedOpen => "a person has forced the breaker open",
            Self::Policy => "a policy refuses the request",
            Self::Undecided => "the limits could not be looked up",
            Self::NoTimeLeft => "no time is left for the request",
            Self::TimedOut => "no answer came in time",
            Self::CutShort => "no answer came in the short time that was left",
        })
    }
}

/// One decision of a limiter. Plain numbers, `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// When the limiter was asked, by its clock.
    pub at: Tick,
    /// The units asked for.
    pub cost: Cost,
    /// The longest delay the caller accepted; zero for an allow, [`Duration::MAX`] for a wait without a deadline.
    pub max_wait: Duration,
    /// The decision, by the binding quota.
    pub decision: Decision,
    /// The index of the quota that `decision` comes from, from 0.
    pub binding: usize,
    /// The digest of the key that was charged; `None` for a limiter or a policy without keys.
    pub key: Option<KeyDigest>,
    /// Whether the limit is measured only, and refuses nothing: a shadow limit of a policy, or a policy in shadow mode.
    pub shadow: bool,
}

impl Event {
    /// Creates the event of an enforced decision at a cost of 1, for a caller who does not wait.
    #[doc(hidden)]
    #[must_use]
    pub const fn at_once(at: Tick, decision: Decision, binding: usize, key: Option<KeyDigest>) -> Self {
        Self { at, cost: Cost::ONE, max_wait: Duration::ZERO, decision, binding, key, shadow: false }
    }
}

/// A number that stands for a key: equal for equal keys of one limiter, but unrelated between limiters or processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyDigest(#[doc(hidden)] pub u64);

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A switch that was turned, by hand or by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwitchTurned<'a> {
    /// When, by the clock of the switches.
    pub at: Tick,
    /// Its name.
    pub name: &'a str,
    /// Who turned it. What a hand sets decides alone until it ends; signals are told of in the meantime too.
    pub by: TurnedBy,
    /// What [`SwitchTurned::by`] keeps off from now on; `None` if it turned the switch on.
    pub off: Option<TurnedOff<'a>>,
}

impl<'a> SwitchTurned<'a> {
    /// Creates the event.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(at: Tick, name: &'a str, by: TurnedBy, off: Option<TurnedOff<'a>>) -> Self {
        Self { at, name, by, off }
    }
}

/// Who turned a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnedBy {
    /// A person, or a program on a person's behalf.
    Hand,
    /// A signal.
    Signal,
}

/// The priorities for which a switch is off, until when, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TurnedOff<'a> {
    /// The least level for which it stays on; `None` if it is off for all. [`Criticality::Sheddable`], the least
    /// of all: a hand keeps it on.
    pub on_from: Option<Criticality>,
    /// When it turns on by itself; `None` if it has to be turned on.
    pub until: Option<Tick>,
    /// Why.
    pub reason: &'a str,
}

impl<'a> TurnedOff<'a> {
    /// Creates the description.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(on_from: Option<Criticality>, until: Option<Tick>, reason: &'a str) -> Self {
        Self { on_from, until, reason }
    }
}

/// An event of work that was given to a pool for blocking work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolDid {
    /// Refused: every thread was busy and every place taken.
    Refused,
    /// The time was up while the work waited: it was not begun.
    NotBegun,
    /// The time was up while the work was running: its caller was released, and the work continues.
    StillRunning,
    /// The work has ended; reported on the thread that ran it. Its caller may have gone before.
    Ended {
        /// Whether it panicked.
        panicked: bool,
        /// How long it took, by the pool's clock.
        took: Duration,
    },
}

/// What happened to one of many identical calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CoalesceDid {
    /// The call was made: no other call with the key was in flight.
    Called,
    /// The caller waits for the call of another.
    Joined,
    /// A call has ended. A call whose waiters have all gone is dropped, which is not reported.
    Ended {
        /// Whether it panicked.
        panicked: bool,
    },
}

/// What became of work that a [`Step`](crate::deadline::Step) was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepDid {
    /// It was done in time, well or not.
    Done {
        /// How long it took, by the step's clock.
        took: Duration,
    },
    /// It was not begun: it could not have been done in the time left.
    NotBegun,
    /// It was dropped when its time was up: at least half of its usual time.
    CutOff,
    /// It was dropped when its time was up: less than half of its usual time.
    CutShort,
}

/// What a [`Retrier`](crate::retries::Retrier) decided after a try that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryDecided {
    /// When it was decided, by the retrier's clock.
    pub at: Tick,
    /// How often the call has been tried so far, the first try included.
    pub times: u32,
    /// How the last try ended.
    pub outcome: Outcome,
    /// The tick of the next try, or why there is none.
    pub next: Result<Tick, Stop>,
}
