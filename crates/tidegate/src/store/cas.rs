//! A store over any engine that offers compare-and-set on bytes.
//!
//! The engine knows nothing of limits: it keeps a value and a version under a key, and writes several keys at once if none has
//! changed since it was read. The decision is the same pure [`settle`](super::settle()) as in memory, run again when a write loses. Steps of one
//! process that name the same keys are settled together, so that they do not compete with each other.

mod batch;
mod byte_map;
mod decide;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::batch::{BatchWork, Batches};
pub use self::byte_map::{ByteMap, Read, Versioned, Write, Written};
use self::decide::{Decided, Times, decide};
use super::plain::refuse_repeated;
use super::step::{Settled, Step};
use super::{Answer, Caps, Home, Occupancy, OwnedStep, Settling, Store, StoreError, one_by_one};
use crate::later::Later;

/// How often a batch is tried before it gives up. Each loss means that another node has won, so the engine as a whole goes on.
const ATTEMPTS: u32 = 64;

/// How many steps of one call are settled at the same time, with an exchange each at most.
const MOST_AT_ONCE: usize = 64;

/// The round trips of a step that nobody else writes into: a read and a write. One that changes nothing, as a refusal, takes the read alone; a
/// write that came too late takes one more where the engine tells what the keys hold instead, and two where it does not. Steps of one process that
/// name the same keys share them.
pub const CAS_ROUND_TRIPS: u32 = 2;

/// Settles steps over a [`ByteMap`]: one read, and if something changed one write per attempt.
///
/// # Steps on one key
/// While steps are under way, others of this process that name one of their keys wait, and share the next read and write: so a process has one
/// write of a key under way, whatever the number of steps. Every step is all or nothing by itself, and those that are settled together are settled
/// one after the other.
///
/// # Time
/// Where the engine has no clock ([`Read::now`]), each node decides by its own. A cell that another node has written by a clock more than ten
/// seconds ahead is decided by that node's tick: it stands still until this node's clock has caught up. So clocks that are apart by `s`
/// grant what comes back in `s` once for each key, and not each time that the nodes take turns. A clock more than five minutes ahead is
/// followed at half its speed, so that one that was wrong by a day does not stop a limit for a day.
#[derive(Debug, Default)]
pub struct CasStore<M> {
    shared: Arc<Shared<M>>,
    batches: Arc<Batches>,
}

#[derive(Debug, Default)]
struct Shared<M> {
    map: M,
    times: Times,
    /// How many exchanges were answered. Relaxed: it is compared with what it was a deadline ago.
    exchanges: AtomicU64,
}

impl<M: ByteMap> CasStore<M> {
    /// Wraps an engine.
    #[must_use]
    pub fn new(map: M) -> Self {
        let shared = Shared { map, times: Times::default(), exchanges: AtomicU64::new(0) };
        Self { shared: Arc::new(shared), batches: Arc::default() }
    }
}

impl<M: ByteMap> Store for CasStore<M> {
    fn settle_into(&self, step: &Step<'_>, _: &mut Settled) -> Settling {
        if let Err(error) = refuse_repeated(step) {
            return Settling::Done(Err(error));
        }
        let (shared, batches) = (Arc::clone(&self.shared), Arc::clone(&self.batches));
        let step = OwnedStep::of(step);
        Settling::Later(Box::pin(
            async move { batches.settle(step, &|work| shared.settle_later(work)).await },
        ))
    }

    /// Steps with a key in common share reads and writes, all others are settled at the same time, up to 64; but each after those whose tick is
    /// another one, because time does not step back. So is each where the engine has a clock.
    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        if self.caps().own_clock {
            return one_by_one(self, steps, out);
        }
        out.clear();
        let settleable: Vec<_> =
            steps.iter().map(|step| refuse_repeated(step).map(|()| OwnedStep::of(step))).collect();
        if settleable.is_empty() {
            return None;
        }
        let (shared, batches) = (Arc::clone(&self.shared), Arc::clone(&self.batches));
        Some(Box::pin(async move {
            let settle = |work| shared.settle_later(work);
            let alike = |one: &Result<OwnedStep, _>, next: &Result<OwnedStep, _>| match (one, next) {
                (Ok(one), Ok(next)) => one.now() == next.now(),
                _ => false,
            };
            let mut answers = Vec::with_capacity(settleable.len());
            for steps in settleable.chunk_by(alike).flat_map(|alike| alike.chunks(MOST_AT_ONCE)) {
                match steps {
                    [Err(error)] => answers.push(Err(error.clone())),
                    _ => {
                        let steps = steps.iter().flatten().cloned().collect();
                        answers.extend(batches.settle_each(steps, &settle).await);
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

impl<M: ByteMap> Shared<M> {
    fn settle_later(self: &Arc<Self>, work: Arc<BatchWork>) -> Later<()> {
        let shared = Arc::clone(self);
        Box::pin(async move { shared.settle(&work).await })
    }

    /// Settles the steps of a batch and answers each.
    async fn settle(&self, work: &BatchWork) {
        if let Err(error) = self.try_to_settle(work).await {
            work.members().iter().for_each(|asked| asked.answer(Err(error.clone())));
        }
    }

    /// Counts an exchange that is answered.
    async fn answered<T>(&self, exchange: Later<Result<T, StoreError>>) -> Result<T, StoreError> {
        let answer = exchange.await?;
        self.exchanges.fetch_add(1, Ordering::Relaxed);
        Ok(answer)
    }

    async fn try_to_settle(&self, work: &BatchWork) -> Result<(), StoreError> {
        // What the keys hold, and whether that was read after all of the steps were asked: only then a refusal may go by it.
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
                    Written::Nothing(now) => {
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
