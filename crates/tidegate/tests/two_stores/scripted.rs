//! A store that follows a script: it answers, fails, falls silent or panics, before or after it has executed a step.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use crate::byte_map::pending;
use parking_lot::Mutex;
use tidegate::store::{
    Caps, Executed, Execution, Home, Later, Occupancy, OwnedStep, PlainStore, Step, StepAnswer, Store,
    StoreError,
};

/// What happens to one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// It is answered after this many polls.
    Late(u32),
    /// It is answered at once, without a future.
    AtOnce,
    /// It fails, and nothing was executed.
    FailsBefore,
    /// It was executed, but the answer is lost.
    FailsAfter,
    /// It was executed, but the answer lacks a line.
    Short,
    PanicsBefore,
    PanicsAfter,
    /// It is executed and answered when the silence ends.
    Silent,
    /// It is executed at once, and answered when the silence ends.
    SilentAfter,
}

impl Behaviour {
    /// All behaviours.
    pub(crate) const ALL: [Self; 10] = [
        Self::Late(0),
        Self::Late(3),
        Self::AtOnce,
        Self::FailsBefore,
        Self::FailsAfter,
        Self::Short,
        Self::PanicsBefore,
        Self::PanicsAfter,
        Self::Silent,
        Self::SilentAfter,
    ];
}

/// A plain map that follows behaviours: each step takes the next one, and is answered late if there is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scripted {
    pub(crate) plain: Arc<PlainStore>,
    behaviours: Arc<Mutex<VecDeque<Behaviour>>>,
    silent: Arc<AtomicBool>,
}

impl Scripted {
    pub(crate) fn next(&self, behaviour: Behaviour) {
        *self.behaviours.lock() = VecDeque::from([behaviour]);
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Drops unused behaviours, and ends all silence.
    pub(crate) fn speak(&self) {
        self.behaviours.lock().clear();
        self.silent.store(false, Ordering::Relaxed);
    }

    async fn answer(self, step: OwnedStep, behaviour: Behaviour) -> StepAnswer {
        let execute = || step.with(|step| self.plain.blocking_execute(step));
        let silence =
            || poll_fn(|_| if self.silent.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) });
        match behaviour {
            Behaviour::Late(polls) => {
                pending(u64::from(polls)).await;
                execute()
            }
            Behaviour::AtOnce => execute(),
            Behaviour::FailsBefore => Err(StoreError::Contended { attempts: 1 }),
            Behaviour::FailsAfter => {
                execute()?;
                Err(StoreError::Unavailable { reason: "the answer is lost".to_owned() })
            }
            Behaviour::Short => {
                let mut executed = execute()?;
                executed.lines.pop();
                Ok(executed)
            }
            Behaviour::PanicsBefore => panic!("before it has settled"),
            Behaviour::PanicsAfter => {
                execute()?;
                panic!("after it has settled")
            }
            Behaviour::Silent => {
                silence().await;
                execute()
            }
            Behaviour::SilentAfter => {
                let executed = execute();
                silence().await;
                executed
            }
        }
    }
}

impl Store for Scripted {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        let behaviour = self.behaviours.lock().pop_front().unwrap_or(Behaviour::Late(1));
        if behaviour == Behaviour::AtOnce {
            return self.plain.execute_into(step, out);
        }
        Execution::Later(Box::pin(self.clone().answer(OwnedStep::of(step), behaviour)))
    }

    fn occupancy(&self) -> Occupancy {
        self.plain.occupancy()
    }

    fn caps(&self) -> Caps {
        Caps::ENGINE
    }

    fn home(&self) -> Home {
        Home::Nodes
    }
}

/// How a future ended.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    Done(T),
    /// Its caller gave up after the given number of polls.
    Dropped,
    Panicked,
}

/// Polls a future at most this often, and then drops it.
pub(crate) fn drive<T>(future: impl Future<Output = T>, polls: u32) -> Ended<T> {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        let poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Ready(output)) => return Ended::Done(output),
            Ok(Poll::Pending) => {}
            Err(_) => return Ended::Panicked,
        }
    }
    Ended::Dropped
}

/// The background work of a gate, run by hand.
#[derive(Clone, Default)]
pub(crate) struct BackgroundTasks(Arc<Mutex<Vec<Later<()>>>>);

impl BackgroundTasks {
    pub(crate) fn take(&self) -> impl Fn(Later<()>) + Send + Sync + 'static {
        let background = self.0.clone();
        move |later| background.lock().push(later)
    }

    /// Runs each task to its end, or for a hundred polls.
    pub(crate) fn run(&self) {
        let mut later = std::mem::take(&mut *self.0.lock());
        for _ in 0..100 {
            later.retain_mut(|later| {
                later.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
            });
        }
        self.0.lock().append(&mut later);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.0.lock().is_empty()
    }
}
