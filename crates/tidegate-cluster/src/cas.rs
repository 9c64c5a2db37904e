//! A store over any engine that offers compare-and-set on bytes.
//!
//! The engine keeps a value and a version under each key, and writes several keys at once if none has changed since it
//! was read. The decision is the same pure [`execute`](tidegate_limits::store::execute()) as in memory; a write that
//! loses decides again.

mod batch;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::Tick;
use tidegate_limits::store::refuse_repeated;
use tidegate_limits::store::{
    Caps, Executed, Execution, Home, Later, Occupancy, Op, OwnedStep, Step, StepAnswer, Store, StoreError,
    one_by_one,
};

use self::batch::{BatchTimes, BatchWork, Batches, Decided, decide};

/// The most attempts for a batch. Each lost write is another node's progress.
const ATTEMPTS: u32 = 64;

/// The most steps of one call that are executed at the same time.
const MOST_AT_ONCE: usize = 64;

/// The round trips of a step without competing writes: a read and a write. A step that changes nothing, such as a
/// refusal, takes only the read. A lost write takes one more where the engine returns what the keys hold instead, and
/// two where it does not. Steps of one process that name the same keys share round trips.
pub const CAS_ROUND_TRIPS: u32 = 2;

/// Executes steps over a [`ByteMap`]: each attempt takes one read, and one write if something changed.
///
/// # Steps on one key
/// Steps of this process that name a key of a step under way wait, and share the next read and write. So a process has
/// at most one write of a key under way. Each step is all or nothing by itself; steps executed together are executed in
/// order.
///
/// # Time
/// Where the engine has no clock ([`Read::now`]), each node decides by its own. A cell written by a clock more than ten
/// seconds ahead is decided at that clock's tick until this node's has caught up. So clocks that differ by `s` grant
/// the refill of `s` once for each key, and not at each turn of the nodes. A clock more than five minutes ahead is
/// followed at half its speed, so that an error of a day does not stop a limit for a day.
#[derive(Debug, Default)]
pub struct CasStore<M> {
    shared: Arc<MapAndClock<M>>,
    batches: Arc<Batches>,
}

#[derive(Debug, Default)]
struct MapAndClock<M> {
    map: M,
    times: BatchTimes,
    /// The number of exchanges that were answered. Relaxed: it is only compared with its value one deadline earlier.
    exchanges: AtomicU64,
}

impl<M: ByteMap> CasStore<M> {
    /// Wraps an engine.
    #[must_use]
    pub fn new(map: M) -> Self {
        let shared = MapAndClock { map, times: BatchTimes::default(), exchanges: AtomicU64::new(0) };
        Self { shared: Arc::new(shared), batches: Arc::default() }
    }
}

impl<M: ByteMap> Store for CasStore<M> {
    fn execute_into(&self, step: &Step<'_>, _: &mut Executed) -> Execution {
        if let Err(error) = refuse_repeated(step) {
            return Execution::Done(Err(error));
        }
        let (shared, batches) = (Arc::clone(&self.shared), Arc::clone(&self.batches));
        let step = OwnedStep::of(step);
        Execution::Later(Box::pin(
            async move { batches.execute(step, &|work| shared.execute_later(work)).await },
        ))
    }

    /// Executes up to 64 steps at the same time; steps with a key in common share reads and writes. A step with another
    /// tick than the one before waits for all before it, because time does not step back. If the engine has a clock,
    /// all steps are executed one after the other.
    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        if self.caps().own_clock {
            return one_by_one(self, steps, out);
        }
        out.clear();
        let executable: Vec<_> =
            steps.iter().map(|step| refuse_repeated(step).map(|()| OwnedStep::of(step))).collect();
        if executable.is_empty() {
            return None;
        }
        let (shared, batches) = (Arc::clone(&self.shared), Arc::clone(&self.batches));
        Some(Box::pin(async move {
            let execute = |work| shared.execute_later(work);
            let alike = |one: &Result<OwnedStep, _>, next: &Result<OwnedStep, _>| match (one, next) {
                (Ok(one), Ok(next)) => one.now() == next.now(),
                _ => false,
            };
            let mut answers = Vec::with_capacity(executable.len());
            for steps in executable.chunk_by(alike).flat_map(|alike| alike.chunks(MOST_AT_ONCE)) {
                match steps {
                    [Err(error)] => answers.push(Err(error.clone())),
                    _ => {
                        let steps = steps.iter().flatten().cloned().collect();
                        answers.extend(batches.execute_each(steps, &execute).await);
                    }
                }
            }
            answers
        }))
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy { used: self.shared.map.len(), ..Occupancy::default() }
    }

    fn caps(&self) -> Caps {
        self.shared.map.caps()
    }

    fn home(&self) -> Home {
        Home::Nodes
    }

    fn exchanges(&self) -> u64 {
        self.shared.exchanges.load(Ordering::Relaxed)
    }
}

impl<M: ByteMap> MapAndClock<M> {
    fn execute_later(self: &Arc<Self>, work: Arc<BatchWork>) -> Later<()> {
        let shared = Arc::clone(self);
        Box::pin(async move { shared.execute(&work).await })
    }

    async fn execute(&self, work: &BatchWork) {
        if let Err(error) = self.try_to_execute(work).await {
            work.members().iter().for_each(|asked| asked.answer(Err(error.clone())));
        }
    }

    async fn answered<T>(&self, exchange: Later<Result<T, StoreError>>) -> Result<T, StoreError> {
        let answer = exchange.await?;
        self.exchanges.fetch_add(1, Ordering::Relaxed);
        Ok(answer)
    }

    async fn try_to_execute(&self, work: &BatchWork) -> Result<(), StoreError> {
        // `held`: what the keys hold, if a failed write returned it. `is_fresh`: whether that was read after all steps
        // of the batch were asked; only then may a refusal be based on it.
        let (mut held, mut is_fresh) = (None, true);
        for _ in 0..ATTEMPTS {
            let read = match held.take() {
                Some(read) => read,
                None => {
                    is_fresh = true;
                    self.answered(self.map.read(work.tag, &work.keys)).await?
                }
            };
            let members = work.members();
            let steps: Vec<&OwnedStep> = members.iter().map(|asked| &asked.step).collect();
            let most = self.map.caps().largest_cell;
            let Decided { answers, writes } = decide(&self.times, &steps, &work.keys, &read, most);
            if !writes.is_empty() {
                let all_keys = writes.len() == work.keys.len();
                match self.answered(self.map.write_if_unchanged(work.tag, writes)).await? {
                    Written::All => {}
                    // Charged again, a request may count twice, which grants nobody more. Units that are given back may
                    // not.
                    Written::Unknown(_) if !members.iter().all(|asked| asked.step.with(only_charges)) => {
                        let reason = "a server failed during a write; it may have been executed".to_owned();
                        return Err(StoreError::Unavailable { reason });
                    }
                    Written::Nothing(now) | Written::Unknown(now) => {
                        held = now.filter(|_| all_keys);
                        is_fresh = !work.take_in();
                        continue;
                    }
                }
            } else if !is_fresh {
                continue;
            }
            for (asked, answer) in members.iter().zip(answers) {
                asked.answer(answer);
            }
            return Ok(());
        }
        Err(StoreError::Contended { attempts: ATTEMPTS })
    }
}

fn only_charges(step: &Step<'_>) -> bool {
    matches!(step.op, Op::Take | Op::Draw | Op::Peek)
}

// The interface of an engine for compare-and-set: bytes with versions.

/// A value and the version at which it was read; an absent key has a version too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versioned {
    /// The bytes; `None` for an absent key.
    pub value: Option<Vec<u8>>,
    /// A number that changes with every write of the key.
    pub version: u64,
}

/// The values that an engine has read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// The values, in the order of the keys.
    pub values: Vec<Versioned>,
    /// The engine's time, where it has a clock.
    pub now: Option<Tick>,
}

/// One key to write, with the version that it must still have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: Arc<[u8]>,
    /// The version that the key must still have.
    pub version: u64,
    /// The new value; `None` deletes the key.
    pub value: Option<Vec<u8>>,
    /// How long the value has to be kept from now on; after that it is equivalent to a deleted key. Never less than
    /// [`Write::MARGIN`]; `None` is for ever.
    ///
    /// Whether an engine deletes the value at that time or later, decisions and settlements are the same, even where
    /// the algorithm of the limit has changed meanwhile. Only the marks of receipts
    /// ([`Receipt::mark`](field@tidegate_core::Receipt::mark)) may differ.
    pub keep: Option<Duration>,
}

impl Write {
    /// How much longer values are kept than they matter by the clock that decided: the clocks of nodes may differ by
    /// that much, and engines round times to live, some to zero, which is an error.
    pub const MARGIN: Duration = Duration::from_secs(1);
}

/// The outcome of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// All values were written.
    All,
    /// Nothing was written, because a key had another version. Contains what the keys hold now, in their order, if the
    /// engine returns it in the same round trip; it is at least as new as the refusal.
    Nothing(Option<Read>),
    /// It is unknown whether anything was written: a try was not answered, and the next one lost, maybe against it.
    /// Contains the same.
    Unknown(Option<Read>),
}

/// The interface of an engine. Both calls do nothing before they are polled, and complete in bounded time, with an
/// error if the engine does not answer: steps of this process on the same keys wait for each other.
///
/// An engine that does not expire keys may ignore [`Write::keep`]; then they accumulate: one for each key ever charged,
/// and one or two for each ticket.
pub trait ByteMap: Debug + Send + Sync + 'static {
    /// Reads keys. Called once per batch of steps, and after a lost write that did not return what the keys hold; `tag`
    /// is that of the steps, see [`Step::tag`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the engine does not answer.
    fn read(&self, tag: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>>;

    /// Writes all values if every key still has the given version, or none. An engine that can should also return, in
    /// the same round trip, what the keys of a refused write hold: the next attempt then takes half as long.
    ///
    /// A driver that makes a write again, because it does not know whether the first try was executed, must not return
    /// [`Written::Nothing`] if the second one loses: it may have lost against the first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the engine does not answer; it is then unknown whether it wrote.
    fn write_if_unchanged(&self, tag: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>>;

    /// Returns the number of keys, as far as is known without asking the engine.
    fn len(&self) -> usize;

    /// Returns whether there are no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the properties of the engine that callers have to know.
    fn caps(&self) -> Caps {
        Caps::ENGINE
    }
}
