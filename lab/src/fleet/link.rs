//! The simulated wire between a node and the engine.

use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::store::{
    Caps, Executed, Execution, Home, Later, Occupancy, OwnedStep, Step, StepAnswer, Store, StoreError,
};
use tidegate_sim::traffic::Chance;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WireCondition {
    pub(crate) delay: Duration,
    /// The most time added to the delay, drawn evenly: messages may overtake each other.
    pub(crate) jitter: Duration,
    /// How many messages in a million are lost, each way.
    pub(crate) lost: u32,
    /// How many requests in a million arrive twice.
    pub(crate) doubled: u32,
    pub(crate) passes: Passes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Passes {
    #[default]
    All,
    /// Requests pass; answers are lost.
    Requests,
    /// No message passes, and the sender gets no error.
    Nothing,
}

impl WireCondition {
    /// A wire within one building: about half a millisecond each way.
    pub(crate) const FAIR: Self = Self {
        delay: Duration::from_micros(400),
        jitter: Duration::from_micros(200),
        lost: 0,
        doubled: 0,
        passes: Passes::All,
    };

    pub(crate) const fn passing(self, passes: Passes) -> Self {
        Self { passes, ..self }
    }

    /// Draws how long a message takes, in nanoseconds; `None` if it is lost.
    pub(super) fn carries(&self, chance: &mut Chance) -> Option<u64> {
        if chance.below(1_000_000) < self.lost {
            return None;
        }
        let jitter = u32::try_from(self.jitter.as_micros()).unwrap_or(u32::MAX);
        let more = Duration::from_micros(u64::from(chance.below(jitter.max(1))));
        Some(nanos(self.delay + more))
    }

    pub(super) fn doubles(&self, chance: &mut Chance) -> bool {
        chance.below(1_000_000) < self.doubled
    }
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The engine as seen from a node: every step is a message, and its answer arrives over the wire.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remote {
    outbox: Arc<Mutex<Vec<Message>>>,
}

#[derive(Debug)]
pub(super) struct Message {
    pub(super) steps: Vec<OwnedStep>,
    pub(super) slot: Arc<Slot>,
}

/// Receives the answers to one message; a second set is ignored.
#[derive(Default)]
pub(super) struct Slot {
    inside: Mutex<(Option<Vec<StepAnswer>>, Option<Waker>)>,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}

impl Slot {
    pub(super) fn fill(&self, answers: Vec<StepAnswer>) {
        let mut inside = self.inside.lock();
        if inside.0.is_none() {
            inside.0 = Some(answers);
        }
        let waker = inside.1.take();
        drop(inside);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn answers(&self) -> Vec<StepAnswer> {
        std::future::poll_fn(|cx| {
            let mut inside = self.inside.lock();
            match inside.0.take() {
                Some(answers) => Poll::Ready(answers),
                None => {
                    inside.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Remote {
    pub(super) fn sent(&self) -> Vec<Message> {
        std::mem::take(&mut *self.outbox.lock())
    }

    fn ask(&self, steps: Vec<OwnedStep>) -> Later<Vec<StepAnswer>> {
        let outbox = Arc::clone(&self.outbox);
        Box::pin(async move {
            let slot = Arc::new(Slot::default());
            outbox.lock().push(Message { steps, slot: Arc::clone(&slot) });
            slot.answers().await
        })
    }
}

impl Store for Remote {
    fn execute_into(&self, step: &Step<'_>, _: &mut Executed) -> Execution {
        let asked = self.ask(vec![OwnedStep::of(step)]);
        Execution::Later(Box::pin(async move { asked.await.pop().unwrap_or_else(|| Err(refused())) }))
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        out.clear();
        Some(self.ask(steps.iter().map(OwnedStep::of).collect()))
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy::default()
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::ENGINE;
        caps.own_clock = true;
        caps
    }

    fn home(&self) -> Home {
        Home::Nodes
    }
}

pub(super) fn refused() -> StoreError {
    StoreError::Unavailable { reason: "connection refused".to_owned() }
}
