//! What switches, pools, coalesced calls and retriers tell observers.

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
    /// Who turned it. What a hand and a signal turned off is off until both have turned it on.
    pub by: TurnedBy,
    /// What is off by them from now on; `None` where they turned it on.
    pub off: Option<TurnedOff<'a>>,
}

/// Who turned a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnedBy {
    /// A person, or a program for one.
    Hand,
    /// A signal.
    Signal,
}

/// For whom a switch is off, until when, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TurnedOff<'a> {
    /// The least level that it stays on for; `None` where it is off for all.
    pub on_from: Option<Criticality>,
    /// When it is on again by itself; `None` where somebody has to turn it on.
    pub until: Option<Tick>,
    /// Why.
    pub reason: &'a str,
}

/// What became of work that was handed to a pool for blocking work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolDid {
    /// It refused work: every thread was busy and every place taken.
    Refused,
    /// The time was up while work waited: it was not begun.
    NotBegun,
    /// The time was up while work was under way: its caller was freed, and it goes on.
    StillRunning,
    /// Work has ended, told on the thread that did it. Its caller may have gone before.
    Ended {
        /// Whether it panicked.
        panicked: bool,
        /// How long it took, by the pool's clock.
        took: Duration,
    },
}

/// What was done about one of many identical calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CoalesceDid {
    /// The call went out: nobody else had one of the key in flight.
    Called,
    /// The caller waits for the call of another.
    Joined,
    /// A call has ended. One that all who waited for it have left is dropped, which is not told.
    Ended {
        /// Whether it panicked.
        panicked: bool,
    },
}

/// What a [`Retrier`](crate::retries::Retrier) decided after a try that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryDecided {
    /// When, by the retrier's clock.
    pub at: Tick,
    /// How often the call has been tried by now, the first try included.
    pub times: u32,
    /// How the last try ended.
    pub outcome: Outcome,
    /// When it is tried again, or why it is not.
    pub next: Result<Tick, Stop>,
}
