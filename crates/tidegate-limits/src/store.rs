//! Executes lists of charges, each in one step, all or nothing.
//!
//! One pure function, [`execute()`], decides every step: it takes the cells of all charges, asks core about each, and
//! changes them only if every binding charge is allowed. A store reads the cells and writes them back atomically: under
//! locks in memory, by compare-and-set in an engine. So every store gives the same decisions; [`conformance`] checks
//! that.

mod cell;
pub mod conformance;
mod ending;
mod execute;
mod guards;
pub mod kept_back;
mod memory;
mod owned;
mod per_limit;
mod plain;
mod step;
mod take;

#[doc(hidden)]
pub use cell::Forgotten;
pub use cell::{AfterLoss, Cell};
pub use execute::{execute, execute_within};
pub use guards::{BreakerView, GuardChange, Handling, Moved};
pub(crate) use memory::{Absent, CachedClass, Fingerprint, PermanentLimit, Reading, WordOutcome};
pub use memory::{CapacityError, Export, MemoryStore, Recorder, RestoreError, Seed, TrackedStore};
pub use owned::OwnedStep;
#[doc(hidden)]
pub use per_limit::PerLimit;
pub use plain::PlainStore;
#[doc(hidden)]
pub use plain::refuse_repeated;
pub use step::{
    Charge, ChargeAnswer, ChargeRules, DecidedBy, Durable, Ending, Executed, OnStoreError, Op, Step,
    StepClock,
};

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;

use crate::block_on::block_on;

/// A boxed future of an engine's answer. Nothing happens before its first poll: if it is dropped before that, the
/// engine was not asked.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The outcome of a step: its answer, or the error that prevented a decision. A refusal is an answer, not an error.
pub type StepAnswer = Result<Executed, StoreError>;

/// Whether a step is executed already or will be later.
#[must_use = "an answer that comes later has to be awaited"]
pub enum Execution {
    /// `Ok`: the answer is in `out`. `Err`: no decision was made, and `out` has no answer.
    Done(Result<(), StoreError>),
    /// Not executed yet: polling the future asks the engine.
    ///
    /// If the future is dropped after its first poll, it is unknown whether the step was done, as after
    /// [`StoreError::Unavailable`].
    Later(Later<StepAnswer>),
}

impl Debug for Execution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done(done) => f.debug_tuple("Done").field(done).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

/// Keeps the state of every key and executes steps over them.
///
/// An implementation must provide [`Store::execute_into`] and [`Store::occupancy`]. An engine should also override
/// [`Store::caps`] and [`Store::home`], and [`Store::execute_each`] if it can answer many steps in one exchange. A store
/// around another one names it in [`Store::beneath`], and overrides only what it changes.
pub trait Store: Debug + Send + Sync {
    /// Executes one step: finds the cells of its charges, runs [`execute()`] over them, and keeps the result if it
    /// changed.
    ///
    /// All of it happens as if at one instant: no other step sees only some of the charges done. A store that can
    /// answer now writes the answer to `out`, whose allocation is reused, and returns [`Execution::Done`]; what `out`
    /// held before is overwritten. A store that has to ask an engine leaves `out` alone and returns
    /// [`Execution::Later`].
    ///
    /// # Errors
    /// [`StoreError`], at once or later, only when no decision could be made. Then nothing has changed, unless an
    /// engine's answer was lost; see [`StoreError::Unavailable`].
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution;

    /// Executes many steps as if one after the other, each all or nothing by itself; steps may name the same keys.
    /// Returns `None` if all answers are in `out`, one for each step, in order, replacing its former contents.
    /// Otherwise `out` is empty, and the future returns the answers.
    ///
    /// The default executes one after the other. An engine sends all of them in one exchange. A store that can answer
    /// some of the steps now may have executed them when it returns the future, whether or not the future is polled: a
    /// caller who cannot wait has to ask step by step.
    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        one_by_one(self, steps, out)
    }

    /// Returns the store that this one wraps: the defaults of the methods below answer as that one does. The default,
    /// `None`, is for a store that keeps keys itself.
    fn beneath(&self) -> Option<&dyn Store> {
        None
    }

    /// Announces that steps will soon name these keys. A store in memory prefetches their states, so that the cache
    /// misses overlap. Decides and changes nothing. The default does nothing.
    fn fetch(&self, keys: &[&[u8]]) {
        if let Some(store) = self.beneath() {
            store.fetch(keys);
        }
    }

    /// Returns how many keys the store holds, and how many it has evicted.
    fn occupancy(&self) -> Occupancy;

    /// Returns the properties of the store that callers have to know. The default describes a store that answers on the
    /// spot.
    fn caps(&self) -> Caps {
        self.beneath().map_or_else(Caps::default, Store::caps)
    }

    /// Returns where this store's keys are kept. Called when a ticket is made or settled: a ticket of a store in this
    /// process's memory can be settled nowhere else. The default is a store of this process that cannot be told from
    /// another one with the same default.
    fn home(&self) -> Home {
        self.beneath().map_or(Home::Process { store: 0 }, Store::home)
    }

    /// Returns where the key of a charge is kept. `by_fallback` says that the charge was made by the store that stands
    /// in for this one, if there is such a store.
    fn home_of(&self, by_fallback: bool) -> Home {
        self.beneath().map_or_else(|| self.home(), |store| store.home_of(by_fallback))
    }

    /// Returns how many exchanges the engine has answered so far, including those whose steps failed. If the number has
    /// grown while a step timed out, the engine is up, and only this step could not be executed in time. The
    /// default, 0, is for stores that do not count.
    fn exchanges(&self) -> u64 {
        self.beneath().map_or(0, Store::exchanges)
    }

    /// Returns how often the engine's clock was found set back so far. The default, 0, is for stores that decide by their
    /// callers' clocks.
    fn clock_set_back(&self) -> u64 {
        self.beneath().map_or(0, Store::clock_set_back)
    }

    /// Returns how often a key was found whose state the engine has lost so far. The default, 0, is for stores that do
    /// not notice losses.
    fn losses(&self) -> u64 {
        self.beneath().map_or(0, Store::losses)
    }

    /// Executes one step, and blocks the calling thread while an engine is asked. For tests and for programs without
    /// async; never call it in async code, whose thread it would block.
    ///
    /// # Errors
    /// As [`Store::execute_into`].
    fn blocking_execute(&self, step: &Step<'_>) -> StepAnswer {
        let mut executed = Executed::default();
        match self.execute_into(step, &mut executed) {
            Execution::Done(done) => done.map(|()| executed),
            Execution::Later(later) => block_on(later),
        }
    }
}

/// Executes steps one after the other, as [`Store::execute_each`] does by default.
pub fn one_by_one<S: Store + ?Sized>(
    store: &S,
    steps: &[Step<'_>],
    out: &mut Vec<StepAnswer>,
) -> Option<Later<Vec<StepAnswer>>> {
    out.clear();
    let mut later: Vec<Later<StepAnswer>> = Vec::new();
    for step in steps {
        let mut executed = Executed::default();
        match store.execute_into(step, &mut executed) {
            Execution::Done(done) if later.is_empty() => out.push(done.map(|()| executed)),
            // An earlier step comes later: this answer is kept until then, so that the order stays.
            Execution::Done(done) => later.push(Box::pin(std::future::ready(done.map(|()| executed)))),
            Execution::Later(asked) => later.push(asked),
        }
    }
    if later.is_empty() {
        return None;
    }
    let mut answers = mem::take(out);
    Some(Box::pin(async move {
        for asked in later {
            answers.push(asked.await);
        }
        answers
    }))
}

/// A shared store: gates share it with code that reads its occupancy.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        (**self).execute_into(step, out)
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        (**self).execute_each(steps, out)
    }

    fn beneath(&self) -> Option<&dyn Store> {
        (**self).beneath()
    }

    fn fetch(&self, keys: &[&[u8]]) {
        (**self).fetch(keys);
    }

    fn occupancy(&self) -> Occupancy {
        (**self).occupancy()
    }

    fn caps(&self) -> Caps {
        (**self).caps()
    }

    fn home(&self) -> Home {
        (**self).home()
    }

    fn home_of(&self, by_fallback: bool) -> Home {
        (**self).home_of(by_fallback)
    }

    fn exchanges(&self) -> u64 {
        (**self).exchanges()
    }

    fn clock_set_back(&self) -> u64 {
        (**self).clock_set_back()
    }

    fn losses(&self) -> u64 {
        (**self).losses()
    }
}

/// The properties of a store that callers have to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// Whether the store has a clock of its own, which decides steps with [`StepClock::Engine`].
    pub own_clock: bool,
    /// Whether all keys of a step have to be on one machine, which [`Step::tag`] selects. Charges with different tags
    /// then have to be separate steps.
    pub one_tag: bool,
    /// Whether the store may answer later.
    pub may_wait: bool,
    /// Whether only steps with a strict charge ([`Durable::Strict`]) are answered later; all others are always answered
    /// on the spot. Ignored where `may_wait` is `false`.
    pub later_if_strict: bool,
    /// The largest cell that the store takes, in bytes; `None` where there is no bound. Limits whose states may be
    /// larger are refused with [`StoreError::CellTooLarge`].
    pub largest_cell: Option<usize>,
    /// Whether a charge stays spent if its caller goes away, unless the step asked for receipts: nodes that hold units
    /// rely on it that none come back.
    pub keeps_abandoned: bool,
    /// Whether the store always decides, as a store in this process's memory does: there is no outage to prepare for.
    pub always_decides: bool,
}

impl Caps {
    /// The properties of an engine: it may answer later, and takes cells of at most 4 KiB.
    pub const ENGINE: Self = Self {
        own_clock: false,
        one_tag: false,
        may_wait: true,
        later_if_strict: false,
        largest_cell: Some(4096),
        keeps_abandoned: false,
        always_decides: false,
    };

    /// Returns whether any step may be answered later, strict or not.
    #[must_use]
    pub const fn waits_often(&self) -> bool {
        self.may_wait && !self.later_if_strict
    }
}

/// Where a store's keys are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In this process's memory; lost when the process ends.
    Process {
        /// A random number that tells the stores of all processes apart; drawn when the store is made.
        store: u64,
    },
    /// In an engine, shared by every node that is connected to it.
    Nodes,
}

impl Home {
    /// Returns the home of a new store of this process.
    #[must_use]
    pub fn of_process() -> Self {
        // Hashed with a random key from the system: two stores have the same number with odds of 2^-64.
        Self::Process { store: RandomState::new().hash_one(0) }
    }
}

/// Why a store could not decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Two charges of one step name the same key; add their costs or make two steps.
    #[error("two charges of one step have the same key; add their costs or execute them one after the other")]
    RepeatedKey,
    /// The store asks an engine and has to be awaited, but the call was one that does not wait. The engine was not
    /// asked.
    #[error("the store must be awaited, but this call does not wait; await it in place of calling `now`")]
    MustWait,
    /// A state is larger than the engine takes.
    #[error(
        "the state of a key takes {bytes} bytes, and the store takes {most} at most; choose an algorithm with a smaller state"
    )]
    CellTooLarge {
        /// The size of the state in bytes.
        bytes: usize,
        /// The largest size that the engine takes, in bytes.
        most: usize,
    },
    /// A policy's `share:` names a kind of store that the gate does not have.
    #[error("no store decides policies with `share: {share}`; give the gate one, or leave `share` out")]
    NoStore {
        /// The policy's `share:` word.
        share: &'static str,
    },
    /// Checks of one call give different quotas for one key, which one step cannot decide. No store was asked.
    #[error(
        "two checks of one call bring different quotas for one key of policy `{policy}`; give both the same, or ask one after the other"
    )]
    TwoQuotas {
        /// The policy's name.
        policy: String,
    },
    /// The cost of a check is out of range: zero or less, or more than a `u64` holds. No store was asked.
    #[error("the cost of a check is not a number from 1 to {}; peek to look without spending", u64::MAX)]
    NotACost,
    /// Compare-and-set lost to other writers too often.
    #[error("gave up after {attempts} conflicting writes; the key is too contended for this store")]
    Contended {
        /// The number of attempts.
        attempts: u32,
    },
    /// Bytes in the store do not decode as a state. A step that forgets the key repairs it ([`Op::Reset`],
    /// [`Ending::Forget`]).
    #[error(
        "the stored state of a key cannot be read (charge {} of the step, digest {digest:016x}); reset the key, and it starts anew",
        .charge + 1
    )]
    Corrupt {
        /// The index of the key's charge in the step, from 0.
        charge: usize,
        /// The digest of the key (XXH64 of its bytes, seed 0); the key itself may contain data of callers.
        digest: u64,
        /// What is wrong with the bytes.
        source: tidegate_core::bytes::DecodeError,
    },
    /// The deadline of a check passed before the check was decided. A gate makes this
    /// error, and no store does. The store may be well: only the caller's time was too short. What the check had taken
    /// is given back, and what an engine is still being asked to take is given back in the background.
    #[error("the deadline of the check passed before it was decided")]
    DeadlinePassed,
    /// The engine did not answer. The only error after which the step may have been done all the same: the answer may
    /// have been lost on its way.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// What the engine said.
        reason: String,
    },
}

/// How full a store is, and how many keys it evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// The most keys it can hold; 0 when unbounded.
    pub capacity: usize,
    /// Slots in use, including those whose limit is full again, which may be reused.
    pub used: usize,
    /// Live keys that were evicted for lack of room, nearest to full first.
    pub evicted: u64,
    /// How many of the evicted keys were over their limit: their callers got a fresh limit too early.
    pub evicted_over_limit: u64,
}
