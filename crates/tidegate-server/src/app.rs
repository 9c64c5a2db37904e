//! What every request is answered from: the engine, the reload, who may ask, and what the server is doing.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use crate::auth::Access;
use crate::engine::Engine;
use crate::phase::Phase;
use crate::redact::Redact;
use crate::reload::{Loaded, Reload};
use crate::settings::Refused;

/// One server's state, shared by its doors and its connections.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) reload: Reload,
    pub(crate) redact: Redact,
    pub(crate) access: Access,
    phase: watch::Receiver<Phase>,
    requests_in_flight: AtomicUsize,
}

/// Counts one request in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl App {
    pub(crate) fn new(engine: Engine, reload: Reload, access: Access, phase: watch::Receiver<Phase>) -> Self {
        let (redact, requests_in_flight) = (engine.redact(), AtomicUsize::new(0));
        Self { engine, reload, redact, access, phase, requests_in_flight }
    }

    /// Counts a request as in flight until what is returned is dropped, which also happens when its caller hangs up.
    pub(crate) fn begin_request(&self) -> InFlight<'_> {
        // Relaxed: a number for people, which orders nothing.
        self.requests_in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(&self.requests_in_flight)
    }

    /// Returns how many requests are being answered, the one that asks included.
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.requests_in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Reads again all that can change while the server runs: the tokens, then the configuration.
    ///
    /// # Errors
    /// [`Refused`] when the configuration is refused; tokens that are refused are told to the log. The old ones hold.
    pub(crate) async fn read_again(&self) -> Result<Loaded, Refused> {
        self.renew_secrets().await;
        self.reload.now(&self.engine).await
    }

    /// Reads the tokens again. What is refused is told to the log, and the old ones hold.
    pub(crate) async fn renew_secrets(&self) {
        self.access.renew().await;
    }
}
