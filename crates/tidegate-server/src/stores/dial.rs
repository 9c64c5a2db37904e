//! Dials an engine until it answers.
//!
//! A node that would not start while its engine is away turns an outage of the engine into one of everything that asks the node, as soon
//! as processes move. So it starts, decides as it does in any other outage, and dials on. What a change of the file or of the engine has to
//! mend (credentials, a version that is too old) is refused at the start all the same: no waiting helps there.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::cluster::{Coordinator, CoordinatorError, Document, Member};
use tidegate::store::{Answer, Caps, Home, Later, Occupancy, Settled, Settling, Step, Store, StoreError};

use super::opened::OpenStoreError;

/// How long after one attempt the next one is: as often as an engine that is gone is asked whether it is back.
const EVERY: Duration = Duration::from_secs(1);

/// For how long a node is a member of which nothing is heard: shares move that long after one has died.
pub(super) const MEMBERS_KEPT: Duration = Duration::from_secs(10);

/// How an engine is dialled, and what its store can do, which is known before.
pub(super) struct Dial {
    /// What the store will say of itself.
    pub(super) caps: Caps,
    /// Whether there will be a coordinator.
    pub(super) coordinates: bool,
    /// Makes one attempt.
    pub(super) attempt: Box<dyn Fn() -> Attempt + Send + Sync>,
}

pub(super) type Attempt = Pin<Box<dyn Future<Output = Result<Dialled, Failed>> + Send>>;

/// An engine that was reached, or that is dialled.
pub(super) struct Dialled {
    pub(super) store: Arc<dyn Store>,
    pub(super) coordinator: Option<Arc<dyn Coordinator>>,
    pub(super) warnings: Vec<String>,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nobody answers: the next attempt may succeed.
    Away(String),
    /// It will fail each time.
    ForGood(OpenStoreError),
}

/// Makes the first attempt, and has others follow in the background where that helps; inside a tokio runtime. Says whether the engine is
/// away.
///
/// # Errors
/// What no other attempt would mend.
pub(super) async fn first(kind: &'static str, dial: Dial) -> Result<(Dialled, bool), OpenStoreError> {
    let reason = match (dial.attempt)().await {
        Ok(dialled) => return Ok((dialled, false)),
        Err(Failed::ForGood(error)) => return Err(error),
        Err(Failed::Away(reason)) => reason,
    };
    let warning = format!(
        "store.kind: {kind}: {reason}; it is dialled every second, and until it answers, on_store_error decides"
    );
    let awaited =
        Arc::new(Awaited { caps: dial.caps, reached: OnceLock::new(), reason: Mutex::new(reason.into()) });
    let held = Arc::downgrade(&awaited);
    let coordinator =
        dial.coordinates.then(|| Arc::new(Coordinates(Arc::clone(&awaited))) as Arc<dyn Coordinator>);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            // Whoever wanted the engine may be gone.
            if held.strong_count() == 0 {
                return;
            }
            let attempt = (dial.attempt)().await;
            let Some(awaited) = held.upgrade() else { return };
            if awaited.follows(kind, attempt) {
                return;
            }
        }
    });
    Ok((Dialled { store: Arc::new(Dialling(awaited)), coordinator, warnings: vec![warning] }, true))
}

/// An engine that is asked before it was reached, and afterwards.
struct Awaited {
    caps: Caps,
    reached: OnceLock<Dialled>,
    /// Why the last attempt failed.
    reason: Mutex<Arc<str>>,
}

impl Awaited {
    /// Takes what came of an attempt; says whether it was the last one.
    fn follows(&self, kind: &'static str, attempt: Result<Dialled, Failed>) -> bool {
        let reason = match attempt {
            Ok(dialled) => {
                tracing::info!(store = kind, "the engine answers");
                dialled.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                debug_assert_eq!(dialled.store.caps(), self.caps, "a gate asks for them once");
                return self.reached.set(dialled).is_ok();
            }
            Err(Failed::Away(reason)) => reason,
            Err(Failed::ForGood(error)) => error.to_string(),
        };
        let reason: Arc<str> = reason.into();
        let before = std::mem::replace(&mut *self.reason.lock(), Arc::clone(&reason));
        // Each reason once, however often the engine is dialled.
        if before != reason {
            tracing::warn!(store = kind, reason = &*reason, "the engine cannot be used yet");
        }
        false
    }

    fn away(&self) -> StoreError {
        StoreError::Unavailable { reason: self.reason.lock().to_string() }
    }
}

impl fmt::Debug for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").field("reached", &self.reached.get().is_some()).finish_non_exhaustive()
    }
}

/// The store of an engine that is dialled.
#[derive(Debug)]
struct Dialling(Arc<Awaited>);

impl Store for Dialling {
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        match self.0.reached.get() {
            Some(engine) => engine.store.settle_into(step, out),
            None => Settling::Done(Err(self.0.away())),
        }
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        if let Some(engine) = self.0.reached.get() {
            return engine.store.settle_each(steps, out);
        }
        out.clear();
        out.extend(steps.iter().map(|_| Err(self.0.away())));
        None
    }

    fn fetch(&self, keys: &[&[u8]]) {
        if let Some(engine) = self.0.reached.get() {
            engine.store.fetch(keys);
        }
    }

    fn occupancy(&self) -> Occupancy {
        self.0.reached.get().map(|engine| engine.store.occupancy()).unwrap_or_default()
    }

    fn caps(&self) -> Caps {
        self.0.caps
    }

    fn home(&self) -> Home {
        Home::Nodes
    }

    fn exchanges(&self) -> u64 {
        self.0.reached.get().map_or(0, |engine| engine.store.exchanges())
    }
}

/// The coordinator of an engine that is dialled.
#[derive(Debug)]
struct Coordinates(Arc<Awaited>);

impl Coordinates {
    fn asked<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Coordinator) -> Later<Result<T, CoordinatorError>>,
    ) -> Later<Result<T, CoordinatorError>> {
        match self.0.reached.get().and_then(|engine| engine.coordinator.as_deref()) {
            Some(coordinator) => ask(coordinator),
            None => {
                let reason = self.0.reason.lock().to_string();
                Box::pin(std::future::ready(Err(CoordinatorError::Unavailable { reason })))
            }
        }
    }
}

impl Coordinator for Coordinates {
    fn keeps(&self) -> Duration {
        MEMBERS_KEPT
    }

    fn join(&self, name: &str, says: &[u8]) -> Later<Result<u64, CoordinatorError>> {
        self.asked(|engine| engine.join(name, says))
    }

    fn renew(&self, says: &[u8]) -> Later<Result<(), CoordinatorError>> {
        self.asked(|engine| engine.renew(says))
    }

    fn leave(&self) -> Later<Result<(), CoordinatorError>> {
        // Whoever never joined has left.
        match self.0.reached.get() {
            Some(_) => self.asked(|engine| engine.leave()),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }

    fn members(&self) -> Later<Result<Vec<Member>, CoordinatorError>> {
        self.asked(|engine| engine.members())
    }

    fn read(&self, document: &str) -> Later<Result<Document, CoordinatorError>> {
        self.asked(|engine| engine.read(document))
    }

    fn replace(
        &self,
        document: &str,
        version: u64,
        bytes: Vec<u8>,
    ) -> Later<Result<Option<u64>, CoordinatorError>> {
        self.asked(|engine| engine.replace(document, version, bytes))
    }

    fn changed(&self, document: &str, seen: u64) -> Later<Result<Document, CoordinatorError>> {
        self.asked(|engine| engine.changed(document, seen))
    }
}

#[cfg(test)]
mod tests;
