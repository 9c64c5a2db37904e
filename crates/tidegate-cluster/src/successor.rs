//! A store that takes over the counters of another one, each key at its first use.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use futures_util::future::try_join_all;
use parking_lot::RwLock;
use smallvec::SmallVec;
use tidegate_limits::store::{
    Caps, Cell, Charge, Executed, Execution, Handling, Later, Occupancy, Op, OwnedStep, Step, StepAnswer,
    Store, StoreError,
};

/// The most keys that a process remembers as taken over. One that it forgets is asked for again, which changes nothing.
const MOST_KEYS: usize = 1 << 20;

/// So many threads may look for keys at once without waiting for each other.
const SETS: usize = 64;

/// A store that takes the place of a former one. At the first use of a key it copies the key's cell, with all that was
/// spent, unless it has one for the key. After that it is asked alone.
///
/// A step that names a new key costs one exchange with the former store, and one more if that has a cell. Steps without
/// new keys cost a lookup. Takes nine bytes for each of up to a million keys.
///
/// # Never more than the limit
/// What the former store has granted stays granted, to the nanosecond, and receipts of it can be ended here. That holds
/// as long as nobody else uses the former store: nodes that still do grant each limit once more. Here it is only read,
/// except that a key which is reset is reset in both.
///
/// A cell that was copied only fills up in the former store, so one that is copied again, by another node or after a
/// restart, holds nothing that is not spent. When the limit with the longest time to fill up has filled up, the former
/// store may go.
///
/// Guards (places, breakers, adaptive limits) begin anew: their work is in progress elsewhere.
///
/// # Errors
/// A step that names a new key fails if the former store does: a limit that looks full because nobody could be asked
/// would grant everything again.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tidegate::store::{Charge, MemoryStore, Op, PlainStore, Step, Store, Successor};
/// use tidegate::{Cost, Quota, Tick};
///
/// let once = Arc::new(Quota::per_hour(1).gcra()?);
/// let charges = [Charge::new(b"ann", &once, Cost::ONE)];
/// let step = Step::new(Tick::from_secs(1000), Op::Take, &charges);
/// let former = Arc::new(PlainStore::default());
/// assert!(former.blocking_execute(&step)?.allowed);
///
/// let store = Successor::new(Arc::new(MemoryStore::with_capacity(1000)?), former);
/// assert!(!store.blocking_execute(&step)?.allowed, "spent is spent");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Successor {
    shared: Arc<Stores>,
}

#[derive(Debug)]
struct Stores {
    store: Arc<dyn Store>,
    former: Arc<dyn Store>,
    /// Hashes of the keys that were taken over.
    taken: [RwLock<HashSet<u64>>; SETS],
    hasher: RandomState,
}

impl Successor {
    /// Makes a store that takes over the counters of `former`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, former: Arc<dyn Store>) -> Self {
        let taken = std::array::from_fn(|_| RwLock::default());
        Self { shared: Arc::new(Stores { store, former, taken, hasher: RandomState::new() }) }
    }
}

impl Store for Successor {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        if self.shared.is_asked_alone(step) {
            return self.shared.store.execute_into(step, out);
        }
        let (shared, step) = (Arc::clone(&self.shared), OwnedStep::of(step));
        Execution::Later(Box::pin(async move { shared.execute(&step).await }))
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        if steps.iter().all(|step| self.shared.is_asked_alone(step)) {
            return self.shared.store.execute_each(steps, out);
        }
        out.clear();
        let shared = Arc::clone(&self.shared);
        let steps: Vec<OwnedStep> = steps.iter().map(OwnedStep::of).collect();
        Some(Box::pin(async move { shared.execute_each(&steps).await }))
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&*self.shared.store)
    }

    fn occupancy(&self) -> Occupancy {
        self.shared.store.occupancy()
    }

    /// Steps that name a new key are answered later, and fail if the former store does.
    fn caps(&self) -> Caps {
        let mut caps = self.shared.store.caps();
        let former = self.shared.former.caps();
        caps.always_decides &= former.always_decides;
        (caps.may_wait, caps.later_if_strict) = (true, false);
        caps
    }
}

async fn ask(store: &dyn Store, step: &OwnedStep) -> StepAnswer {
    let mut executed = Executed::default();
    let execution = step.with(|step| store.execute_into(step, &mut executed));
    match execution {
        Execution::Done(done) => done.map(|()| executed),
        Execution::Later(later) => later.await,
    }
}

impl Stores {
    fn set_and_hash(&self, key: &[u8]) -> (&RwLock<HashSet<u64>>, u64) {
        let hash = self.hasher.hash_one(key);
        // Below the number of sets.
        (&self.taken[(hash >> 32) as usize % SETS], hash)
    }

    fn is_new(&self, charge: &Charge<'_>) -> bool {
        let (set, hash) = self.set_and_hash(charge.key);
        !charge.quota.is_guard() && !set.read().contains(&hash)
    }

    fn is_asked_alone(&self, step: &Step<'_>) -> bool {
        !matches!(step.op, Op::Reset) && !step.charges.iter().any(|charge| self.is_new(charge))
    }

    async fn execute(&self, step: &OwnedStep) -> StepAnswer {
        match step.with(|step| matches!(step.op, Op::Reset)) {
            true => drop(ask(&*self.former, step).await?),
            false => self.take_over(step).await?,
        }
        ask(&*self.store, step).await
    }

    /// Takes all keys over at the same time, and then asks for all steps in one call; one after the other if a key is
    /// reset among them, or cannot be taken over.
    async fn execute_each(&self, steps: &[OwnedStep]) -> Vec<StepAnswer> {
        let resets = steps.iter().any(|step| step.with(|step| matches!(step.op, Op::Reset)));
        let taken = async { try_join_all(steps.iter().map(|step| self.take_over(step))).await.is_ok() };
        if !resets && taken.await {
            let mut answers = Vec::new();
            let all: Vec<&OwnedStep> = steps.iter().collect();
            return match OwnedStep::with_each(&all, |steps| self.store.execute_each(steps, &mut answers)) {
                Some(later) => later.await,
                None => answers,
            };
        }
        let mut answers = Vec::with_capacity(steps.len());
        for step in steps {
            answers.push(self.execute(step).await);
        }
        answers
    }

    /// Copies the cells of keys that are new here. Two steps may copy one at the same time: the second changes nothing.
    async fn take_over(&self, step: &OwnedStep) -> Result<(), StoreError> {
        let asked = step.with(|step| {
            let new = step.charges.iter().filter(|charge| self.is_new(charge));
            let charges: SmallVec<[Charge<'_>; 4]> = new.copied().collect();
            OwnedStep::of(&Step { op: Op::Breaker(Handling::Copy), charges: &charges, ..*step })
        });
        if asked.with(|step| step.charges.is_empty()) {
            return Ok(());
        }
        let cells: Vec<Option<Cell>> = ask(&*self.former, &asked).await?.cells;
        if cells.iter().any(Option::is_some) {
            let taken = asked
                .with(|step| OwnedStep::of(&Step { op: Op::Breaker(Handling::TakeOver(&cells)), ..*step }));
            ask(&*self.store, &taken).await?;
        }
        asked.with(|step| step.charges.iter().for_each(|charge| self.remember(charge.key)));
        Ok(())
    }

    fn remember(&self, key: &[u8]) {
        let (set, hash) = self.set_and_hash(key);
        let mut set = set.write();
        if set.len() >= MOST_KEYS / SETS {
            set.clear();
        }
        set.insert(hash);
    }
}
