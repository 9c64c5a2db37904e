//! Events of switches, pools, coalesced calls, steps and retriers.

use std::time::Duration;

use tidegate_core::retry::Stop;
use tidegate_core::{Criticality, Outcome, Tick};

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
    /// What is off because of them from now on; `None` if they turned it on.
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
    /// The least level for which it stays on; `None` if it is off for all. The least of all levels: a hand keeps it on.
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
