//! A test engine with moods: it answers now or later, fails, or hangs until it is told to answer.

#![allow(dead_code, reason = "each test program uses a part")]

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tidegate::store::{
    Caps, DecidedBy, Executed, Execution, Home, Later, Occupancy, OwnedStep, PlainStore, Step, StepAnswer,
    Store, StoreError,
};

/// How the engine treats a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Now,
    Later,
    Errs,
    Contended,
    Hangs,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Engine(Arc<Parts>);

#[derive(Debug, Default)]
struct Parts {
    store: PlainStore,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    mood: Mood,
    asked: usize,
    /// How many steps were asked and are neither answered nor dropped.
    open: usize,
    /// The hanging calls, woken when they may be answered.
    hanging: Vec<Waker>,
    /// How many exchanges the engine reports as answered.
    exchanges: u64,
    /// How often hanging steps were released.
    released: u64,
}

impl Engine {
    pub(crate) fn be(&self, mood: Mood) {
        self.0.state.lock().mood = mood;
    }

    /// Returns how many steps it was asked to execute.
    pub(crate) fn asked(&self) -> usize {
        self.0.state.lock().asked
    }

    pub(crate) fn open(&self) -> usize {
        self.0.state.lock().open
    }

    /// Reports an answered exchange that executed no step, as when other writers win the key.
    pub(crate) fn answers_exchanges(&self) {
        self.0.state.lock().exchanges += 1;
    }

    /// Releases all hanging calls.
    pub(crate) fn answer_all(&self) {
        let wakers = {
            let mut state = self.0.state.lock();
            state.released += 1;
            std::mem::take(&mut state.hanging)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn now(&self, step: &Step<'_>) -> StepAnswer {
        let executed = self.0.store.blocking_execute(step)?;
        Ok(Executed { by: DecidedBy::Engine, ..executed })
    }

    async fn later(self, step: OwnedStep) -> StepAnswer {
        let open = Open::of(&self);
        self.released(open.hangs_since).await;
        step.with(|step| self.now(step))
    }

    /// Waits until the calls that hang since then are released; `None` does not wait.
    async fn released(&self, since: Option<u64>) {
        std::future::poll_fn(|cx| {
            let mut state = self.0.state.lock();
            match since {
                Some(since) if state.released == since => {
                    state.hanging.push(cx.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }
}

struct Open<'e> {
    engine: &'e Engine,
    hangs_since: Option<u64>,
}

impl<'e> Open<'e> {
    fn of(engine: &'e Engine) -> Self {
        let mut state = engine.0.state.lock();
        state.asked += 1;
        state.open += 1;
        let hangs_since = (state.mood == Mood::Hangs).then_some(state.released);
        drop(state);
        Self { engine, hangs_since }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.engine.0.state.lock().open -= 1;
    }
}

impl Store for Engine {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        let mood = self.0.state.lock().mood;
        match mood {
            Mood::Later | Mood::Hangs => Execution::Later(Box::pin(self.clone().later(OwnedStep::of(step)))),
            mood => {
                self.0.state.lock().asked += 1;
                Execution::Done(match mood {
                    Mood::Errs => Err(StoreError::Unavailable { reason: "connection refused".to_owned() }),
                    Mood::Contended => Err(StoreError::Contended { attempts: 64 }),
                    _ => self.now(step).map(|executed| *out = executed),
                })
            }
        }
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        let mood = self.0.state.lock().mood;
        out.clear();
        if !matches!(mood, Mood::Later | Mood::Hangs) {
            for step in steps {
                let mut executed = Executed::default();
                let Execution::Done(done) = self.execute_into(step, &mut executed) else { unreachable!() };
                out.push(done.map(|()| executed));
            }
            return None;
        }
        let (engine, steps) = (self.clone(), steps.iter().map(OwnedStep::of).collect::<Vec<_>>());
        Some(Box::pin(async move {
            let open = Open::of(&engine);
            engine.released(open.hangs_since).await;
            steps.iter().map(|step| step.with(|step| engine.now(step))).collect()
        }))
    }

    fn occupancy(&self) -> Occupancy {
        self.0.store.occupancy()
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::ENGINE;
        // The engine is a plain map, which takes states of any size.
        caps.largest_cell = None;
        caps
    }

    fn home(&self) -> Home {
        Home::Nodes
    }

    fn exchanges(&self) -> u64 {
        self.0.state.lock().exchanges
    }
}

/// An answer that is polled without waiting for it.
pub(crate) struct Waiting<T>(Later<T>);

impl<T: Send + 'static> Waiting<T> {
    pub(crate) fn of(later: Later<T>) -> Self {
        Self(later)
    }

    pub(crate) fn ready(answer: T) -> Self {
        Self(Box::pin(std::future::ready(answer)))
    }

    pub(crate) fn poll(&mut self) -> Poll<T> {
        self.0.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }
}
