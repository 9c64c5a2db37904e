//! A test engine: a store that answers later, for one step or many in one exchange, and not at all while it is away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tidegate::store::{
    Caps, DecidedBy, Executed, Execution, Home, Later, Occupancy, OwnedStep, PlainStore, Step, StepAnswer,
    Store, StoreError,
};

use tidegate_server::OpenStore;

use super::{Running, start_with};

pub(crate) const ANSWERS: u8 = 0;
pub(crate) const HANGS: u8 = 1;
pub(crate) const ERRS: u8 = 2;

/// The engine. Clones share its state. It cannot decide steps of more than seven units.
#[derive(Clone, Debug, Default)]
pub(crate) struct Engine {
    store: Arc<PlainStore>,
    mood: Arc<AtomicU8>,
    exchanges: Arc<AtomicU64>,
}

impl Engine {
    pub(crate) fn be(&self, mood: u8) {
        self.mood.store(mood, Ordering::Relaxed);
    }

    /// Returns how often it was asked: once for each step, or for many together.
    pub(crate) fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::Relaxed)
    }

    async fn exchange(self, steps: Vec<OwnedStep>) -> Vec<StepAnswer> {
        self.exchanges.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        let refused = || StoreError::Unavailable { reason: "connection refused".to_owned() };
        match self.mood.load(Ordering::Relaxed) {
            ANSWERS => steps.iter().map(|step| self.execute(step)).collect(),
            HANGS => std::future::pending().await,
            _ => steps.iter().map(|_| Err(refused())).collect(),
        }
    }

    fn execute(&self, step: &OwnedStep) -> StepAnswer {
        if step.with(|step| step.charges.iter().any(|charge| charge.cost.units() > 7)) {
            return Err(StoreError::Contended { attempts: 1 });
        }
        let executed = step.with(|step| self.store.blocking_execute(step))?;
        Ok(Executed { by: DecidedBy::Engine, ..executed })
    }
}

impl Store for Engine {
    fn execute_into(&self, step: &Step<'_>, _: &mut Executed) -> Execution {
        let exchange = self.clone().exchange(vec![OwnedStep::of(step)]);
        Execution::Later(Box::pin(async { exchange.await.remove(0) }))
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        out.clear();
        let steps = steps.iter().map(OwnedStep::of).collect();
        Some(Box::pin(self.clone().exchange(steps)))
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }

    fn caps(&self) -> Caps {
        Caps::ENGINE
    }

    fn home(&self) -> Home {
        Home::Nodes
    }
}

/// Starts a server with an engine.
pub(crate) async fn start(file: &str) -> (Running, Engine) {
    let engine = Engine::default();
    let store = Arc::new(engine.clone());
    let server = start_with(file, |mut options| {
        options.store = Some(OpenStore::new(store, "engine"));
        options
    });
    (server.await, engine)
}
