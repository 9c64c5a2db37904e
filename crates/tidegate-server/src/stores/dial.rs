//! Dials an engine until it answers.
//!
//! A node starts while its engine is away: otherwise an outage of the engine would become one of its callers as
//! soon as processes are moved. What only a change of the file or the engine repairs (credentials, an outdated
//! version) is refused at the start, because waiting does not help.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::cluster::{Coordinator, CoordinatorError, Document, Member};
use tidegate::store::{
    Caps, Executed, Execution, Home, Later, Occupancy, Step, StepAnswer, Store, StoreError,
};

use super::opened::{OpenStoreError, Reported, Roster};

/// The time between two attempts, as for checking whether a lost engine is back.
const EVERY: Duration = Duration::from_secs(1);

/// How long a silent node stays a member: its shares move this long after it has died.
pub(super) const MEMBERS_KEPT: Duration = Duration::from_secs(10);

/// How an engine is dialled, and what its store can do.
pub(super) struct Dial {
    /// The capabilities that the store will have.
    pub(super) caps: Caps,
    /// Whether the engine will provide a coordinator.
    pub(super) coordinates: bool,
    /// Makes one attempt.
    pub(super) attempt: Box<dyn Fn() -> Attempt + Send + Sync>,
}

pub(super) type Attempt = Pin<Box<dyn Future<Output = Result<Dialled, Failed>> + Send>>;

/// An engine that was reached, or one that is still being dialled.
pub(super) struct Dialled {
    pub(super) store: Arc<dyn Store>,
    pub(super) coordinator: Option<Arc<dyn Coordinator>>,
    pub(super) roster: Option<Arc<dyn Roster>>,
    pub(super) warnings: Vec<String>,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nobody answers. The next attempt may succeed.
    Away(String),
    /// Every further attempt will fail.
    ForGood(OpenStoreError),
}

/// Makes the first attempt; if it fails for now, dials on in the background. Call it inside a tokio runtime. Returns
/// whether the engine is away.
///
/// # Errors
/// What no further attempt would repair.
pub(super) async fn first(kind: &'static str, dial: Dial) -> Result<(Dialled, bool), OpenStoreError> {
    let reason = match (dial.attempt)().await {
        Ok(dialled) => return Ok((dialled, false)),
        Err(Failed::ForGood(error)) => return Err(error),
        Err(Failed::Away(reason)) => reason,
    };
    let warning = format!(
        "store.kind: {kind}: {reason}; it is tried every second, and until it answers, on_store_error decides"
    );
    let awaited =
        Arc::new(Awaited { caps: dial.caps, reached: OnceLock::new(), reason: Mutex::new(reason.into()) });
    let held = Arc::downgrade(&awaited);
    let coordinator =
        dial.coordinates.then(|| Arc::new(Coordinates(Arc::clone(&awaited))) as Arc<dyn Coordinator>);
    let roster = (!dial.coordinates).then(|| Arc::new(Dialling(Arc::clone(&awaited))) as Arc<dyn Roster>);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            // Nobody refers to the engine any more.
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
    Ok((Dialled { store: Arc::new(Dialling(awaited)), coordinator, roster, warnings: vec![warning] }, true))
}

struct Awaited {
    caps: Caps,
    reached: OnceLock<Dialled>,
    /// Why the last attempt failed.
    reason: Mutex<Arc<str>>,
}

impl Awaited {
    /// Takes the result of an attempt. Returns whether it was the last.
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
        // Each reason is logged once, however often the engine is dialled.
        if before != reason {
            tracing::warn!(store = kind, reason = &*reason, "the engine cannot be used yet");
        }
        false
    }

    fn unavailable(&self) -> StoreError {
        StoreError::Unavailable { reason: self.reason.lock().to_string() }
    }
}

impl fmt::Debug for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").field("reached", &self.reached.get().is_some()).finish_non_exhaustive()
    }
}

/// The store of an engine that is being dialled.
#[derive(Debug)]
struct Dialling(Arc<Awaited>);

impl Store for Dialling {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        match self.0.reached.get() {
            Some(engine) => engine.store.execute_into(step, out),
            None => Execution::Done(Err(self.0.unavailable())),
        }
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        if let Some(engine) = self.0.reached.get() {
            return engine.store.execute_each(steps, out);
        }
        out.clear();
        out.extend(steps.iter().map(|_| Err(self.0.unavailable())));
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

    fn clock_set_back(&self) -> u64 {
        self.0.reached.get().map_or(0, |engine| engine.store.clock_set_back())
    }

    fn losses(&self) -> u64 {
        self.0.reached.get().map_or(0, |engine| engine.store.losses())
    }
}

impl Roster for Dialling {
    fn exchange(&self, node: &str, report: &str) -> Later<Result<Reported, StoreError>> {
        match self.0.reached.get().and_then(|engine| engine.roster.as_deref()) {
            Some(roster) => roster.exchange(node, report),
            None => Box::pin(std::future::ready(Err(self.0.unavailable()))),
        }
    }
}

/// The coordinator of an engine that is being dialled.
#[derive(Debug)]
struct Coordinates(Arc<Awaited>);

impl Coordinates {
    fn with_coordinator<T: Send + 'static>(
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
        self.with_coordinator(|engine| engine.join(name, says))
    }

    fn renew(&self, says: &[u8]) -> Later<Result<(), CoordinatorError>> {
        self.with_coordinator(|engine| engine.renew(says))
    }

    fn leave(&self) -> Later<Result<(), CoordinatorError>> {
        // A node that never joined need not leave.
        match self.0.reached.get() {
            Some(_) => self.with_coordinator(|engine| engine.leave()),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }

    fn members(&self) -> Later<Result<Vec<Member>, CoordinatorError>> {
        self.with_coordinator(|engine| engine.members())
    }

    fn read(&self, document: &str) -> Later<Result<Document, CoordinatorError>> {
        self.with_coordinator(|engine| engine.read(document))
    }

    fn replace(
        &self,
        document: &str,
        version: u64,
        bytes: Vec<u8>,
    ) -> Later<Result<Option<u64>, CoordinatorError>> {
        self.with_coordinator(|engine| engine.replace(document, version, bytes))
    }

    fn changed(&self, document: &str, seen: u64) -> Later<Result<Document, CoordinatorError>> {
        self.with_coordinator(|engine| engine.changed(document, seen))
    }
}

#[cfg(test)]
mod tests {
    //! Starting a node while its engine is away.

    use std::sync::atomic::{AtomicUsize, Ordering};

    use tidegate::store::{Charge, Op, PlainStore};
    use tidegate::{Cost, Quota, Tick};

    use super::*;

    /// A dial that fails this many times, each time for this reason, and then succeeds.
    fn dial(failures: usize, reason: fn() -> Failed) -> (Dial, Arc<AtomicUsize>) {
        let attempts = Arc::new(AtomicUsize::new(0));
        let made = Arc::clone(&attempts);
        let attempt = move || -> Attempt {
            let reached = made.fetch_add(1, Ordering::Relaxed) >= failures;
            let store = Arc::new(PlainStore::default());
            let dialled = Dialled { store, coordinator: None, roster: None, warnings: Vec::new() };
            Box::pin(async move { if reached { Ok(dialled) } else { Err(reason()) } })
        };
        let caps = PlainStore::default().caps();
        (Dial { caps, coordinates: false, attempt: Box::new(attempt) }, attempts)
    }

    /// Advances the time, and lets background tasks run that are due.
    async fn passes(time: Duration) {
        let step = Duration::from_millis(100);
        for _ in 0..time.as_millis() / step.as_millis() {
            tokio::time::advance(step).await;
            tokio::task::yield_now().await;
        }
    }

    /// Regression: nodes did not start while their engine was away, so an outage of the engine became one of their callers.
    #[tokio::test(start_paused = true)]
    async fn an_engine_that_is_away_is_dialled_until_it_answers() {
        let (dial, attempts) = dial(3, || Failed::Away("nobody is there".to_owned()));
        let (dialled, away) = first("redis", dial).await.unwrap();
        assert!(away && dialled.warnings[0].contains("nobody is there"), "{:?}", dialled.warnings);
        let quota = Arc::new(Quota::per_minute(10).gcra().unwrap());
        let charges = [Charge::new(b"key", &quota, Cost::ONE)];
        let asked = || dialled.store.blocking_execute(&Step::new(Tick::from_secs(1), Op::Take, &charges));
        let away = StoreError::Unavailable { reason: "nobody is there".to_owned() };
        assert_eq!(asked().unwrap_err(), away);
        passes(EVERY * 2 + EVERY / 2).await;
        assert_eq!(asked().unwrap_err(), away, "three attempts failed");
        passes(EVERY).await;
        assert!(asked().unwrap().allowed);
        passes(EVERY * 10).await;
        assert_eq!(attempts.load(Ordering::Relaxed), 4, "nobody dials an engine that was reached");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_dials_for_a_server_that_is_gone() {
        let (dial, attempts) = dial(usize::MAX, || Failed::Away("nobody is there".to_owned()));
        drop(first("redis", dial).await.unwrap());
        passes(EVERY * 10).await;
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_waiting_mends_is_refused_at_once() {
        let wrong =
            || Failed::ForGood(OpenStoreError::Engine { kind: "redis", reason: "wrong password".to_owned() });
        let (dial, attempts) = dial(1, wrong);
        let refused = first("redis", dial).await.err().unwrap();
        assert_eq!(refused.to_string(), "store.kind: redis: wrong password");
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
    }
}
