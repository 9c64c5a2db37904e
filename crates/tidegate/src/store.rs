//! Settles lists of charges, each in one step, all or nothing.
//!
//! What a step does is decided by one pure function, [`settle`]: it sees the cells of all charges, asks core for each, and
//! changes them only if every binding charge is allowed. A store brings the cells and takes them back atomically: under
//! locks in memory, by compare-and-set in an engine. So every store gives the same decisions; [`conformance`] holds them to it.
//!
//! There is one trait for stores that answer on the spot and for engines that answer later: [`Store::settle_into`] says which of the two
//! has happened. Nothing is boxed or allocated for an answer on the spot.

mod breaker;
mod breaker_view;
mod cas;
mod cell;
pub mod conformance;
mod divided;
mod draw;
mod ending;
pub mod fallback;
pub(crate) mod kept_back;
pub mod leased;
mod memory;
mod owned;
mod per_limit;
mod plain;
pub mod regional;
mod settle;
pub mod split;
mod step;
mod take;

pub use crate::later::Later;
pub use breaker_view::{BreakerView, Handling};
pub use cas::{ByteMap, CAS_ROUND_TRIPS, CasStore, Read, Versioned, Write, Written};
pub use cell::Cell;
pub use fallback::Fallback;
pub use leased::Leased;
pub(crate) use memory::{Absent, KeptClass, Print, Reading, Taken};
pub use memory::{CapacityError, Export, MemoryStore, Recorder, RestoreError, Seed, TrackedStore};
pub use owned::OwnedStep;
pub use plain::PlainStore;
pub use regional::Regional;
pub use settle::settle;
pub use split::Split;
pub use step::{Charge, DecidedBy, Durable, Ending, OnStoreError, Op, Settled, Settlement, Step, StepClock};

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::Arc;

use crate::block_on::block_on;

/// The outcome of a step: its answer, or why there is none. A refusal is an answer.
pub type Answer = Result<Settled, StoreError>;

/// Whether a step is settled.
#[must_use = "an answer that comes later has to be awaited"]
pub enum Settling {
    /// It is settled, and the answer is in `out`; or it failed, and there is none.
    Done(Result<(), StoreError>),
    /// The engine has yet to be asked.
    ///
    /// If it is dropped after its first poll, it is unknown whether the step was done, as after [`StoreError::Unavailable`].
    Later(Later<Answer>),
}

impl Debug for Settling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done(done) => f.debug_tuple("Done").field(done).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

/// Keeps the state of every key and settles steps over them.
///
/// An implementation has [`Store::settle_into`] and [`Store::occupancy`]; an engine says more of itself by [`Store::caps`] and
/// [`Store::home`], and answers many steps in one exchange by [`Store::settle_each`].
pub trait Store: Debug + Send + Sync {
    /// Settles one step: finds the cells of its charges, runs [`settle`] over them, and keeps the result if it changed.
    ///
    /// All of it happens as if at one instant: no other step sees some of the charges. A store that knows the answer writes it to `out`,
    /// whose memory the caller keeps, and says [`Settling::Done`]; what `out` held before is of no meaning. One that has to ask an engine
    /// leaves `out` alone and says [`Settling::Later`].
    ///
    /// # Errors
    /// [`StoreError`], at once or later, only when no decision could be made. Nothing has changed then, unless an engine's answer was
    /// lost; see [`StoreError::Unavailable`].
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling;

    /// Settles many steps, each all or nothing by itself and as if one after the other; steps may name the same keys. `None` says that
    /// `out` has one answer for each, in order, in place of what it held; else they come later, and `out` is empty.
    ///
    /// The default settles one after the other. An engine sends them in one exchange. A store that knows some of the answers may have
    /// settled those steps when it returns the future, polled or not: a caller who cannot wait asks step by step.
    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        one_by_one(self, steps, out)
    }

    /// Says that steps will soon name these keys. A store in memory reads where their states are, so that all come from memory at once.
    /// Decides and changes nothing. The default does nothing.
    fn fetch(&self, keys: &[&[u8]]) {
        let _ = keys;
    }

    /// Returns how many keys the store holds, and how many it has evicted.
    fn occupancy(&self) -> Occupancy;

    /// Says what callers have to know of the store. The default is a store that answers on the spot.
    fn caps(&self) -> Caps {
        Caps::default()
    }

    /// Says where this store's keys are kept. Called when a ticket is made or settled: a ticket of a store in this process's memory can be
    /// settled nowhere else. The default is a store of this process that cannot be told from another one of the same name.
    fn home(&self) -> Home {
        Home::Process { store: 0 }
    }

    /// Says where the keys of a charge are kept that was made by the store which stands in for this one, if there is such a store.
    fn home_of(&self, by_fallback: bool) -> Home {
        let _ = by_fallback;
        self.home()
    }

    /// Returns how many exchanges the engine has answered so far, whatever came of the steps they were for. Where the number has grown while a step
    /// went without its answer, the engine is there, and the step's key is what could not be had in time. The default is a store that does not
    /// count.
    fn exchanges(&self) -> u64 {
        0
    }

    /// Settles one step, and holds the calling thread while an engine is asked. For tests and for programs without async; never for
    /// async code, whose thread it would hold.
    ///
    /// # Errors
    /// As [`Store::settle_into`].
    fn blocking_settle(&self, step: &Step<'_>) -> Answer {
        let mut settled = Settled::default();
        match self.settle_into(step, &mut settled) {
            Settling::Done(done) => done.map(|()| settled),
            Settling::Later(later) => block_on(later),
        }
    }
}

/// Settles steps one after the other.
fn one_by_one<S: Store + ?Sized>(
    store: &S,
    steps: &[Step<'_>],
    out: &mut Vec<Answer>,
) -> Option<Later<Vec<Answer>>> {
    out.clear();
    let mut later: Vec<Settling> = Vec::new();
    for step in steps {
        let mut settled = Settled::default();
        match store.settle_into(step, &mut settled) {
            Settling::Done(done) if later.is_empty() => out.push(done.map(|()| settled)),
            // It follows a step that comes later: its answer is kept until then.
            Settling::Done(done) => {
                let answer = done.map(|()| settled);
                later.push(Settling::Later(Box::pin(std::future::ready(answer))));
            }
            asked @ Settling::Later(_) => later.push(asked),
        }
    }
    if later.is_empty() {
        return None;
    }
    let mut answers = mem::take(out);
    Some(Box::pin(async move {
        for asked in later {
            if let Settling::Later(asked) = asked {
                answers.push(asked.await);
            }
        }
        answers
    }))
}

/// Stores are shared by gates, and by whoever looks how full they are.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        (**self).settle_into(step, out)
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        (**self).settle_each(steps, out)
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
}

/// What callers have to know of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// Whether the store has a clock of its own, by which [`StepClock::Engine`] decides.
    pub own_clock: bool,
    /// Whether all keys of a step have to lie on one machine, named by [`Step::tag`]. Charges of other tags are steps of their own.
    pub one_tag: bool,
    /// Whether the store may answer later.
    pub may_wait: bool,
    /// Whether only steps with a strict charge ([`Durable::Strict`]) are answered later. All others are then asked as those of a store that
    /// always answers on the spot. Without meaning where `may_wait` is `false`.
    pub later_if_strict: bool,
    /// The largest cell that the store takes, in bytes; `None` where it has no bound. Limits whose states may be larger are refused with
    /// [`StoreError::CellTooLarge`].
    pub largest_cell: Option<usize>,
    /// Whether the store always decides, as one in this process's memory does: there is no outage to prepare for.
    pub always_decides: bool,
}

impl Caps {
    /// The capabilities of an engine: it may answer later, and takes cells of at most 4 KiB.
    pub const ENGINE: Self = Self {
        own_clock: false,
        one_tag: false,
        may_wait: true,
        later_if_strict: false,
        largest_cell: Some(4096),
        always_decides: false,
    };

    /// Says whether any step may be answered later, strict or not.
    #[must_use]
    pub const fn waits_often(&self) -> bool {
        self.may_wait && !self.later_if_strict
    }
}

/// Where a store's keys are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In this process's memory, and gone when it ends.
    Process {
        /// Tells the stores of all processes apart; drawn when the store is made.
        store: u64,
    },
    /// In an engine, shared by every node that is connected to it.
    Nodes,
}

impl Home {
    /// Returns the home of a new store of this process.
    #[must_use]
    pub fn of_process() -> Self {
        // Hashed with a key that the system draws at random: two stores have the same number with odds of 2^-64.
        Self::Process { store: RandomState::new().hash_one(0) }
    }
}

/// Why a store could not decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Two charges of one step name the same key; add their costs or make two steps.
    #[error("two charges of one step have the same key; add their costs or settle them one after the other")]
    RepeatedKey,
    /// The store asks an engine and has to be awaited; whoever asked could not wait. Nothing was asked of the engine.
    #[error("the store has to be awaited, and this call does not wait; use its async twin")]
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
    /// A policy says where it is decided, and there is no store of that kind.
    #[error("no store decides policies with `share: {share}`; give the gate one, or leave `share` out")]
    NoStore {
        /// The policy's `share:` word.
        share: &'static str,
    },
    /// Checks of one call bring different quotas for one key, which one step cannot decide. Nothing was asked of a store.
    #[error(
        "two checks of one call bring different quotas for one key of policy `{policy}`; give both the same, or ask one after the other"
    )]
    TwoQuotas {
        /// The policy's name.
        policy: String,
    },
    /// What a check gives as its cost is none: zero or less, or more than a `u64` holds. Nothing was asked of a store.
    #[error("the cost of a check is not a number from 1 to {}; peek to look without spending", u64::MAX)]
    NotACost,
    /// Compare-and-set lost against other writers too often.
    #[error("gave up after {attempts} conflicting writes; the key is too contended for this store")]
    Contended {
        /// How often it was tried.
        attempts: u32,
    },
    /// Bytes in the store are no state. A step that forgets the key mends it ([`Op::Reset`], [`Ending::Forget`]).
    #[error(
        "the stored state of a key cannot be read (charge {} of the step, digest {digest:016x}); reset the key, and it starts anew",
        .charge + 1
    )]
    Corrupt {
        /// The place of the key's charge in the step.
        charge: usize,
        /// The digest of the key (XXH64 of its bytes, seed 0); the key itself holds what callers sent.
        digest: u64,
        /// What is wrong with the bytes.
        source: tidegate_core::bytes::DecodeError,
    },
    /// The engine did not answer. The only error after which a step may have been done all the same: answers get lost on their way.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// What the engine said.
        reason: String,
    },
}

/// How full a store is, and what it had to give up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// The most keys it can hold; 0 when unbounded.
    pub capacity: usize,
    /// Slots in use, forgettable ones included.
    pub used: usize,
    /// Live keys that were given up for lack of room, nearest to full first.
    pub evicted: u64,
    /// How many of the evicted keys were over their limit: callers who got a fresh start too early.
    pub evicted_over_limit: u64,
}
