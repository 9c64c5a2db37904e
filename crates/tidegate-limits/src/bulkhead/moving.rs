//! A limit that a law moves.
//!
//! Each permit that is left brings a sample. Usually no thread waits for another's sample: a thread that finds the law
//! locked puts its sample into an inbox, and the next sample takes it along. So a sample may be late by one permit, and
//! none is lost. A thread that finds the inbox full as well waits for the law.

use std::fmt;
use std::mem;

use tidegate_core::Tick;
use tidegate_core::concurrency::{Concurrency, Law, Sample, Signal};

use crate::sync::{AtomicBool, Mutex, Ordering};

/// The most samples that wait for a locked law: many more than arrive while it processes one, unless the thread that
/// holds it is preempted.
const INBOX: usize = 256;

/// A law, its state, and its inbox.
pub(super) struct Moving {
    /// Held while samples are passed to the law, and while the resulting limit is set under the lock of the queue. Never
    /// taken while that lock is held.
    law: Mutex<Box<dyn ErasedLaw>>,
    inbox: Mutex<Vec<Sample>>,
    /// Whether the law counted work of unknown outcome when it was last told something. Read without its lock.
    counts_ignored: AtomicBool,
}

impl Moving {
    pub(super) fn new<L>(law: L, now: Tick) -> Self
    where
        L: Law + Send + 'static,
        L::State: Send,
    {
        let state = law.start(now);
        Self::with(Box::new(LawWithState { law, state }))
    }

    fn with(law: Box<dyn ErasedLaw>) -> Self {
        Self { law: Mutex::new(law), inbox: Mutex::new(Vec::new()), counts_ignored: AtomicBool::new(false) }
    }

    /// Returns the same law in its initial state.
    pub(super) fn restarted(&self, now: Tick) -> Self {
        Self::with(self.law.lock().restarted(now))
    }

    pub(super) fn limit(&self) -> u64 {
        places(&**self.law.lock())
    }

    /// Says whether the law counts work of unknown outcome now. Usually not, and such work then ends without its lock.
    #[inline]
    pub(super) fn counts_ignored(&self) -> bool {
        // A hint: the law decides under its lock.
        self.counts_ignored.load(Ordering::Relaxed)
    }

    /// Passes a sample of work whose outcome is unknown to the law if it counts such work now. Waits for the law's lock.
    /// `apply` sets the resulting limit.
    pub(super) fn count_ignored<T>(&self, sample: &Sample, apply: impl FnOnce(u64) -> T) -> Option<T> {
        let mut law = self.law.lock();
        if !law.counts_ignored() {
            return None;
        }
        law.learn(sample);
        self.note(&**law);
        Some(apply(places(&**law)))
    }

    fn note(&self, law: &dyn ErasedLaw) {
        self.counts_ignored.store(law.counts_ignored(), Ordering::Relaxed);
    }

    /// Passes a sample to the law, or leaves it in the inbox. `apply` sets the resulting limit.
    pub(super) fn learn<T>(&self, sample: Sample, apply: impl FnOnce(u64) -> T) -> Option<T> {
        let mut law = match self.law.try_lock() {
            Some(law) => law,
            None => {
                let mut inbox = self.inbox.lock();
                if inbox.len() < INBOX {
                    inbox.push(sample);
                    return None;
                }
                drop(inbox);
                self.law.lock()
            }
        };
        // A separate statement: a lock taken in the head of the loop would be held until the loop ends.
        let earlier = mem::take(&mut *self.inbox.lock());
        for earlier in earlier {
            law.learn(&earlier);
        }
        law.learn(&sample);
        self.note(&**law);
        Some(apply(places(&**law)))
    }

    /// Tells the law how much of the machine is in use. `apply` sets the resulting limit.
    pub(super) fn sense<T>(&self, at: Tick, signal: Signal, apply: impl FnOnce(u64) -> T) -> T {
        let mut law = self.law.lock();
        law.sense(at, signal);
        self.note(&**law);
        apply(places(&**law))
    }
}

impl fmt::Debug for Moving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.law.lock().fmt(f)
    }
}

fn places(law: &dyn ErasedLaw) -> u64 {
    law.limit().clamp(1, Concurrency::MAX_PLACES)
}

/// A law with its state; erases the law's type.
trait ErasedLaw: fmt::Debug + Send {
    fn learn(&mut self, sample: &Sample);
    fn counts_ignored(&self) -> bool;
    fn sense(&mut self, at: Tick, signal: Signal);
    fn limit(&self) -> u64;
    fn restarted(&self, now: Tick) -> Box<dyn ErasedLaw>;
}

#[derive(Debug)]
struct LawWithState<L: Law> {
    law: L,
    state: L::State,
}

impl<L> ErasedLaw for LawWithState<L>
where
    L: Law + Send + 'static,
    L::State: Send,
{
    fn learn(&mut self, sample: &Sample) {
        self.law.learn(&mut self.state, sample);
    }

    fn counts_ignored(&self) -> bool {
        self.law.counts_ignored(&self.state)
    }

    fn sense(&mut self, at: Tick, signal: Signal) {
        self.law.sense(&mut self.state, at, signal);
    }

    fn limit(&self) -> u64 {
        self.law.limit(&self.state)
    }

    fn restarted(&self, now: Tick) -> Box<dyn ErasedLaw> {
        let state = self.law.start(now);
        Box::new(Self { law: self.law.clone(), state })
    }
}
