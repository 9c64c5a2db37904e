//! Batches steps of this process that name the same keys, so that they are executed together.
//!
//! When several writers have read the same version of a key, one wins, and each other one starts over. To keep a
//! process from competing with itself, steps that name a key of a batch under way wait and become the next batch, with
//! one read and one write for all. The more steps there are, the more of them share a round trip. Compare-and-set
//! alone makes it correct: no batch relies on being alone.
//!
//! # Who drives a batch
//! There is no background task: every future that waits for a batch polls it, including those that wait to be in the
//! next one. So a future that is held without being polled blocks no other. When all callers whose steps are in a
//! batch have gone, the batch is abandoned, and the waiting steps form the next one.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{mem, slice};

use futures_util::FutureExt as _;
use futures_util::future::{AbortHandle, Abortable, Shared as Joint, join_all};
use parking_lot::Mutex;
use tidegate_core::Tick;
use tidegate_core::bytes::DecodeError;
use tidegate_limits::clock::HeldTime;
use tidegate_limits::store::{
    Cell, Charge, DecidedBy, Executed, Later, OwnedStep, Step, StepAnswer, StepClock, StoreError,
    execute_within,
};
use twox_hash::XxHash64;

use super::{Read, Write};

/// The most keys of a batch, unless one step has more: an engine takes 128 operations in a transaction (etcd).
const MOST_KEYS: usize = 64;

/// The most steps of a batch: deciding them takes about a millisecond.
const MOST_STEPS: usize = 512;

#[derive(Debug)]
pub(super) struct BatchedStep {
    pub(super) step: OwnedStep,
    keys: Vec<Arc<[u8]>>,
    standing: Mutex<Standing>,
}

#[derive(Debug)]
enum Standing {
    /// In this batch, or waiting for it to end.
    Waits(Arc<Batch>),
    Answered(Box<StepAnswer>),
    Gone,
}

#[derive(Debug)]
pub(super) struct Batch {
    work: Arc<BatchWork>,
    exchange: Joint<Abortable<Later<()>>>,
    abort: AbortHandle,
}

#[derive(Debug)]
pub(super) struct BatchWork {
    pub(super) keys: Vec<Arc<[u8]>>,
    pub(super) tag: u64,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    members: Vec<Arc<BatchedStep>>,
    waiting: Vec<Arc<BatchedStep>>,
    /// Whether all callers of its members have gone, so that no step may join.
    given_up: bool,
}

#[derive(Debug, Default)]
pub(super) struct Batches {
    by_key: Mutex<HashMap<Arc<[u8]>, Weak<Batch>>>,
}

type Execute<'s> = &'s (dyn Fn(Arc<BatchWork>) -> Later<()> + Send + Sync);

impl Batches {
    pub(super) async fn execute(&self, step: OwnedStep, execute: Execute<'_>) -> StepAnswer {
        let asked = BatchedStep::of(step);
        let _leave = LeaveOnDrop(self, &asked);
        self.join(slice::from_ref(&asked), execute);
        self.answer_to(&asked, execute).await
    }

    /// Executes steps concurrently; those with keys in common in their order, as one batch from the start.
    pub(super) async fn execute_each(&self, steps: Vec<OwnedStep>, execute: Execute<'_>) -> Vec<StepAnswer> {
        let all: Vec<Arc<BatchedStep>> = steps.into_iter().map(BatchedStep::of).collect();
        let _leave: Vec<_> = all.iter().map(|asked| LeaveOnDrop(self, asked)).collect();
        with_keys_in_common(&all).iter().for_each(|steps| self.join(steps, execute));
        join_all(all.iter().map(|asked| self.answer_to(asked, execute))).await
    }

    async fn answer_to(&self, asked: &BatchedStep, execute: Execute<'_>) -> StepAnswer {
        loop {
            let batch = match &*asked.standing.lock() {
                Standing::Waits(batch) => Arc::clone(batch),
                Standing::Answered(answer) => return StepAnswer::clone(answer),
                Standing::Gone => unreachable!("only this future leaves"),
            };
            // The batch has ended or was abandoned: the waiting steps form the next one.
            let _ = batch.exchange.clone().await;
            self.follow(&batch, execute);
        }
    }

    /// Makes steps with keys in common wait for a batch that has one of the keys, or makes a new batch of them.
    fn join(&self, steps: &[Arc<BatchedStep>], execute: Execute<'_>) {
        let mut by_key = self.by_key.lock();
        let mut keys = steps.iter().flat_map(|asked| &asked.keys);
        let found = keys.find_map(|key| by_key.get(key)?.upgrade());
        if let Some(batch) = found {
            for asked in steps {
                // Set before the step is on the list: a listed step that is not in this state counts as gone.
                *asked.standing.lock() = Standing::Waits(Arc::clone(&batch));
                batch.work.wait(asked);
            }
        } else {
            let batch = Batch::of(steps.iter().cloned(), execute);
            batch.add_to(&mut by_key);
            steps.iter().for_each(|asked| *asked.standing.lock() = Standing::Waits(Arc::clone(&batch)));
        }
    }

    /// Makes the next batch of the steps that waited for one that is over; once, however often it is called.
    fn follow(&self, over: &Arc<Batch>, execute: Execute<'_>) {
        let mut by_key = self.by_key.lock();
        let lists = mem::take(&mut *over.work.lists.lock());
        over.remove_from(&mut by_key);
        let left: Vec<_> = lists.waiting.into_iter().filter(|asked| asked.waits()).collect();
        if left.is_empty() {
            return;
        }
        let batch = Batch::of(left.iter().cloned(), execute);
        batch.add_to(&mut by_key);
        for asked in left {
            let mut standing = asked.standing.lock();
            if matches!(*standing, Standing::Waits(_)) {
                *standing = Standing::Waits(Arc::clone(&batch));
            }
        }
    }

    fn leave(&self, asked: &BatchedStep) {
        let Standing::Waits(batch) = mem::replace(&mut *asked.standing.lock(), Standing::Gone) else {
            return;
        };
        batch.work.without_the_gone(&batch.abort);
        let mut by_key = self.by_key.lock();
        // True if no other step is left: each step that leaves drops its reference under this lock.
        if Arc::strong_count(&batch) == 1 {
            batch.remove_from(&mut by_key);
        }
        drop(batch);
    }
}

struct LeaveOnDrop<'a>(&'a Batches, &'a BatchedStep);

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

/// Groups steps that have keys in common, directly or through other steps. Each group keeps the order.
fn with_keys_in_common(all: &[Arc<BatchedStep>]) -> Vec<Vec<Arc<BatchedStep>>> {
    let mut part_of: Vec<usize> = (0..all.len()).collect();
    let mut first: HashMap<&[u8], usize> = HashMap::new();
    for (at, asked) in all.iter().enumerate() {
        for key in &asked.keys {
            let met = *first.entry(key).or_insert(at);
            let (from, to) = (part_of[at], part_of[met]);
            part_of.iter_mut().filter(|part| **part == from).for_each(|part| *part = to);
        }
    }
    let mut parts = vec![Vec::new(); all.len()];
    for (asked, part) in all.iter().zip(part_of) {
        parts[part].push(Arc::clone(asked));
    }
    parts.retain(|part| !part.is_empty());
    parts
}

impl BatchedStep {
    fn of(step: OwnedStep) -> Arc<Self> {
        let keys = step.with(|step| step.charges.iter().map(|charge| charge.key.into()).collect());
        Arc::new(Self { step, keys, standing: Mutex::new(Standing::Gone) })
    }

    fn waits(&self) -> bool {
        matches!(*self.standing.lock(), Standing::Waits(_))
    }

    pub(super) fn answer(&self, answer: StepAnswer) {
        let mut standing = self.standing.lock();
        if matches!(*standing, Standing::Waits(_)) {
            *standing = Standing::Answered(Box::new(answer));
        }
    }
}

impl Batch {
    /// Makes a batch; steps that do not fit wait for it to end.
    fn of(steps: impl Iterator<Item = Arc<BatchedStep>>, execute: Execute<'_>) -> Arc<Self> {
        let (mut members, mut keys, mut waiting) = (Vec::new(), Vec::<Arc<[u8]>>::new(), Vec::new());
        for asked in steps {
            let new: Vec<_> = asked.keys.iter().filter(|key| !keys.contains(key)).cloned().collect();
            let fits = keys.len() + new.len() <= MOST_KEYS && members.len() < MOST_STEPS;
            // Once a step did not fit, all later steps wait behind it.
            if members.is_empty() || (fits && waiting.is_empty()) {
                keys.extend(new);
                members.push(asked);
            } else {
                waiting.push(asked);
            }
        }
        keys.sort_unstable();
        let tag = members.first().map_or(0, |asked| asked.step.tag());
        let lists = Mutex::new(Lists { members, waiting, given_up: false });
        let work = Arc::new(BatchWork { keys, tag, lists });
        let (abort, registration) = AbortHandle::new_pair();
        let exchange = Abortable::new(execute(Arc::clone(&work)), registration).shared();
        Arc::new(Self { work, exchange, abort })
    }

    fn add_to(self: &Arc<Self>, by_key: &mut HashMap<Arc<[u8]>, Weak<Self>>) {
        by_key.extend(self.work.keys.iter().map(|key| (Arc::clone(key), Arc::downgrade(self))));
    }

    fn remove_from(self: &Arc<Self>, by_key: &mut HashMap<Arc<[u8]>, Weak<Self>>) {
        for key in &self.work.keys {
            if by_key.get(key).is_some_and(|latest| Weak::as_ptr(latest) == Arc::as_ptr(self)) {
                by_key.remove(key);
            }
        }
    }
}

impl BatchWork {
    pub(super) fn members(&self) -> Vec<Arc<BatchedStep>> {
        let mut lists = self.lists.lock();
        lists.members.retain(|asked| asked.waits());
        lists.members.clone()
    }

    /// Adds waiting steps that name only keys of the batch, and no key of an earlier one that has to go on waiting.
    /// Returns whether any was added.
    pub(super) fn take_in(&self) -> bool {
        let lists = &mut *self.lists.lock();
        if lists.given_up {
            return false;
        }
        let before = lists.members.len();
        let mut left = HashSet::new();
        for asked in mem::take(&mut lists.waiting) {
            let fits =
                asked.keys.iter().all(|key| self.keys.binary_search(key).is_ok() && !left.contains(key));
            match fits && lists.members.len() < MOST_STEPS {
                true => lists.members.push(asked),
                false => {
                    left.extend(asked.keys.iter().cloned());
                    lists.waiting.push(asked);
                }
            }
        }
        lists.members.len() > before
    }

    fn wait(&self, asked: &Arc<BatchedStep>) {
        let mut lists = self.lists.lock();
        // Keeps the list at most twice as long as the number of waiting steps.
        if lists.waiting.len() == lists.waiting.capacity() {
            lists.waiting.retain(|asked| asked.waits());
        }
        lists.waiting.push(Arc::clone(asked));
    }

    fn without_the_gone(&self, abort: &AbortHandle) {
        let given_up = {
            let mut lists = self.lists.lock();
            lists.given_up |= !lists.members.iter().any(|asked| asked.waits());
            lists.given_up
        };
        if given_up {
            abort.abort();
        }
    }
}

/// How far ahead another node's clock may be for its ticks to count as the present, as in [`HeldTime`]; beyond, it is
/// followed at half its speed.
const FAR: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub(super) struct BatchTimes {
    /// The latest tick of this node; other nodes' ticks are in the states.
    here: HeldTime,
    /// The same for cells that clocks of other nodes wrote more than [`FAR`] ahead.
    ahead: HeldTime,
}

/// The outcome of the steps of a batch.
pub(super) struct Decided {
    /// An answer for each step, which is valid once the writes are done.
    pub(super) answers: Vec<StepAnswer>,
    /// The values to write; empty where no step changed anything.
    pub(super) writes: Vec<Write>,
}

/// The state of one key of the batch.
struct ReadCell {
    cell: Result<Option<Cell>, DecodeError>,
    /// The tick of the last step that named the key and changed something.
    changed_at: Option<Tick>,
}

/// Decides steps in their order over the values that were read; each step sees the changes of those before it.
///
/// All keys of a step that changed something are written. So a successful write proves that no other writer has changed
/// a permitted step's keys since they were read. A refusal is based on the values that were read.
pub(super) fn decide(
    times: &BatchTimes,
    steps: &[&OwnedStep],
    keys: &[Arc<[u8]>],
    read: &Read,
    largest_cell: Option<usize>,
) -> Decided {
    let values = read.values.len();
    if values != keys.len() {
        let reason = format!("it returned {values} values for {} keys", keys.len());
        let error = StoreError::Unavailable { reason };
        return Decided { answers: vec![Err(error); steps.len()], writes: Vec::new() };
    }
    let slot =
        |value: Option<&[u8]>| ReadCell { cell: value.map(Cell::decode).transpose(), changed_at: None };
    let mut slots: Vec<ReadCell> = read.values.iter().map(|read| slot(read.value.as_deref())).collect();
    let places: HashMap<&[u8], usize> = keys.iter().enumerate().map(|(at, key)| (&**key, at)).collect();
    let decide = |step: &&OwnedStep| decide_one(times, step, &places, &mut slots, read.now, largest_cell);
    let answers = steps.iter().map(decide).collect();
    let mut writes = Vec::new();
    for ((key, slot), versioned) in keys.iter().zip(&slots).zip(&read.values) {
        let (Some(now), Ok(cell)) = (slot.changed_at, &slot.cell) else { continue };
        let keep = cell.as_ref().and_then(Cell::full_at);
        let keep = keep.map(|full| full.since(now).saturating_add(Write::MARGIN));
        let value = cell.as_ref().map(Cell::encode);
        writes.push(Write { key: Arc::clone(key), version: versioned.version, value, keep });
    }
    Decided { answers, writes }
}

fn decide_one(
    times: &BatchTimes,
    step: &OwnedStep,
    places: &HashMap<&[u8], usize>,
    slots: &mut [ReadCell],
    by_engine: Option<Tick>,
    largest_cell: Option<usize>,
) -> StepAnswer {
    step.with(|lent| {
        let places: Vec<usize> =
            lent.charges.iter().filter_map(|charge| places.get(charge.key).copied()).collect();
        let mut cells = Vec::with_capacity(places.len());
        let mut repaired = false;
        for (at, place) in places.iter().enumerate() {
            cells.push(match &slots[*place].cell {
                Ok(cell) => cell.clone(),
                // Bytes that do not decode are an error, except for a step that forgets the key, which replaces them.
                Err(_) if step.forgets(at) => {
                    repaired = true;
                    None
                }
                Err(source) => {
                    let digest = lent.charges.get(at).map_or(0, |charge| XxHash64::oneshot(0, charge.key));
                    return Err(StoreError::Corrupt { charge: at, digest, source: *source });
                }
            });
        }
        let by_engine = by_engine.filter(|_| matches!(lent.clock, StepClock::Engine));
        let mut now = times.here.hold(by_engine.unwrap_or(lent.now));
        if by_engine.is_none() {
            now = times.among_nodes(now, lent, &cells);
        }
        let (mut executed, changed): (Executed, bool) =
            execute_within(&Step { now, ..*lent }, &mut cells, largest_cell);
        executed.by = DecidedBy::Engine;
        let mended = repaired && executed.allowed;
        if !changed && !mended {
            return Ok(executed);
        }
        let too_large = |cell: &Cell| largest_cell.map(|most| (cell.encode().len(), most));
        let too_large = cells.iter().flatten().filter_map(too_large).find(|(bytes, most)| bytes > most);
        if let Some((bytes, most)) = too_large {
            return Err(StoreError::CellTooLarge { bytes, most });
        }
        for (place, cell) in places.iter().zip(cells) {
            slots[*place] = ReadCell { cell: Ok(cell), changed_at: Some(now) };
        }
        Ok(executed)
    })
}

impl BatchTimes {
    /// Returns the tick to decide by where nodes decide by their own clocks: this node's tick, or a later one if
    /// another node has written a cell far ahead of it.
    ///
    /// Such a cell is not set back, as a single node does after its own clock was set back: that would grant its units
    /// again each time that two nodes take turns.
    fn among_nodes(&self, now: Tick, step: &Step<'_>, cells: &[Option<Cell>]) -> Tick {
        let far_ahead = |(charge, cell): (&Charge<'_>, &Option<Cell>)| {
            let cell = cell.as_ref()?;
            // The charge's quota knows how far this node's wall clock is ahead.
            let quota = if cell.is_under(charge) { charge.quota } else { &cell.quota };
            quota.far_ahead(&cell.state, now)
        };
        let Some(latest) = step.charges.iter().zip(cells).filter_map(far_ahead).max() else { return now };
        if latest.since(now) <= FAR {
            return latest;
        }
        if latest > self.ahead.latest() {
            self.ahead.hold(latest);
        }
        self.ahead.hold(now)
    }
}
