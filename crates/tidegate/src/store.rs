//! Settles a list of charges in one step, all or nothing.
//!
//! What a step does is decided by one pure function, [`settle`]: it sees the cells of all charges, asks core for each, and
//! changes them only if every binding charge is allowed. A store brings the cells and takes them back atomically: under
//! locks in memory, by compare-and-set in an engine. So every store gives the same decisions; [`conformance`] holds them to it.

mod cas;
pub mod conformance;
mod ending;
mod memory;
mod plain;
mod settle;

pub use cas::{ByteMap, CasStore, Versioned};
pub use ending::Ending;
pub use memory::MemoryStore;
pub(crate) use memory::{Class, Print, Reading, Taken};
pub use plain::PlainStore;
pub use settle::{Cell, Charge, Op, Settled, Settlement, Step, settle};

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};

/// Keeps the state of every key and settles steps over them.
pub trait Store: Debug + Send + Sync {
    /// Settles one step: finds the cells of its charges, runs [`settle`] over them, and keeps the result if it changed.
    ///
    /// All of it happens as if at one instant: no other step sees some of the charges.
    ///
    /// # Errors
    /// [`StoreError`] only when no decision could be made. A refusal is a [`Settled`], not an error. Nothing has changed then, unless
    /// an engine's answer was lost; see [`StoreError::Unavailable`].
    fn settle(&self, step: &Step<'_>) -> Result<Settled, StoreError>;

    /// Settles one step into an answer that the caller keeps. Called by the gate: the answer is large, and in memory moving it
    /// would cost as much as deciding.
    ///
    /// # Errors
    /// As [`Store::settle`]; the answer then says nothing.
    fn settle_into(&self, step: &Step<'_>, settled: &mut Settled) -> Result<(), StoreError> {
        *settled = self.settle(step)?;
        Ok(())
    }

    /// Settles one step like [`Store::settle_into`], for a caller who will not end its charges: receipts may be absent from the answer,
    /// and whatever else it says is the same. Making them is a part of what a check costs, and most checks want none.
    ///
    /// # Errors
    /// As [`Store::settle`]; the answer then says nothing.
    fn settle_for_good(&self, step: &Step<'_>, settled: &mut Settled) -> Result<(), StoreError> {
        self.settle_into(step, settled)
    }

    /// Returns how full the store is.
    fn occupancy(&self) -> Occupancy;

    /// Says whose keys these are. Called when a ticket is made or settled: one of a store that is this process's own can be settled
    /// nowhere else. The default is a store of this process that cannot tell itself from another of the same name.
    fn home(&self) -> Home {
        Home::Process { store: 0 }
    }
}

/// Whose keys a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Of this process alone; gone when it ends.
    Process {
        /// Tells the stores of all processes apart; drawn when the store is made.
        store: u64,
    },
    /// Of every node that is connected to the same engine.
    Nodes,
}

impl Home {
    /// Returns the home of a new store of this process.
    #[must_use]
    pub fn of_process() -> Self {
        // Keyed anew each time, from the system's randomness: distinct but for odds of 2^-64.
        Self::Process { store: RandomState::new().hash_one(0) }
    }
}

/// Why a store could not decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Two charges of one step name the same key; merge their costs or make two steps.
    #[error("two charges of one step have the same key; add their costs or settle them one after the other")]
    RepeatedKey,
    /// Compare-and-set lost against other writers too often.
    #[error("gave up after {attempts} conflicting writes; the key is too contended for this store")]
    Contended {
        /// How often it was tried.
        attempts: u32,
    },
    /// Bytes in the store are no state.
    #[error("a stored state cannot be read")]
    Corrupt(#[from] tidegate_core::bytes::DecodeError),
    /// The engine did not answer. The only error after which a step may have been done all the same: answers get lost on their way.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// What it said.
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
    /// Of those, keys that were over their limit: callers who got a fresh start too early.
    pub evicted_over_limit: u64,
}
