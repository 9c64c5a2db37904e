//! A memory store that records which of its slots change, and the [`Recorder`] that hands out the changes to be stored
//! elsewhere.

mod read;
mod recorder;

use super::capacity::CapacityError;
use super::seed::Seed;
use super::table::{Keep, Table};
use super::{Export, MemoryStore};
use crate::store::{Answer, Later, Occupancy, Settled, Settling, Step, Store};
pub use recorder::Recorder;

/// A [`MemoryStore`] that records which of its slots change, for a [`Recorder`] that hands them out to be stored
/// elsewhere.
///
/// It decides as the memory store does, in the same kind of table. A check that changes a slot also sets a bit, unless
/// the bit is set already. Takes 27 bytes per key of the capacity, 51 where keys are kept in full. A clone shares the
/// table.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tidegate::store::{Charge, Op, Seed, Step, Store, TrackedStore};
/// use tidegate::{Cost, Quota, Tick};
///
/// let seed = Seed::random();
/// let store = TrackedStore::with_seed(1000, &seed)?;
/// let mut recorder = store.recorder();
/// let once = Arc::new(Quota::per_hour(1).gcra()?);
/// let charges = [Charge::new(b"ann", &once, Cost::ONE)];
/// let step = Step::new(Tick::from_secs(1), Op::Take, &charges);
/// assert!(store.blocking_settle(&step)?.allowed);
/// let piece = recorder.changes(|| Duration::ZERO).expect("a key was charged");
/// recorder.kept();
///
/// let next = TrackedStore::with_seed(1000, &seed)?;
/// next.recorder().restore(&piece, Tick::from_secs(2))?;
/// assert!(!next.blocking_settle(&step)?.allowed, "spent is spent");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrackedStore {
    memory: MemoryStore,
}

impl TrackedStore {
    /// Makes an empty store with room for `keys` live keys, 1 to [`MemoryStore::MAX_KEYS`], which are hashed under `seed`.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub fn with_seed(keys: usize, seed: &Seed) -> Result<Self, CapacityError> {
        let memory = MemoryStore::made(keys, |keys| Table::tracked(keys, Keep::Fingerprints, seed))?;
        Ok(Self { memory })
    }

    /// As [`TrackedStore::with_seed`], but compares whole keys, as [`MemoryStore::with_full_keys`].
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub fn with_full_keys_and_seed(keys: usize, seed: &Seed) -> Result<Self, CapacityError> {
        let memory = MemoryStore::made(keys, |keys| Table::tracked(keys, Keep::Keys, seed))?;
        Ok(Self { memory })
    }

    /// Exports the table as [`MemoryStore::export`] does.
    ///
    /// # Panics
    /// Never: the store was made under a seed.
    #[must_use]
    pub fn export(&self) -> Export<'_> {
        self.memory.export().expect("a tracked store has a seed that another process may know")
    }

    /// Returns a number that is the same for every store that hashes keys as this one does: under the same seed, by the
    /// same functions. It does not reveal the seed.
    #[must_use]
    pub fn probe(&self) -> u64 {
        self.table().probe()
    }

    fn table(&self) -> &Table {
        &self.memory.shared.table
    }
}

impl Store for TrackedStore {
    #[inline]
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        Settling::Done(match step.receipts {
            true => self.memory.settle_step::<true, true>(step, out),
            false => self.memory.settle_step::<false, true>(step, out),
        })
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        self.memory.settle_batch::<true>(steps, out);
        None
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&self.memory)
    }

    fn occupancy(&self) -> Occupancy {
        self.memory.occupancy()
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
