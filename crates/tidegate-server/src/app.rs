//! What every request is answered from: the engine, the reload, the token, and what the server is doing.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::header::HeaderMap;
use tokio::sync::watch;

use crate::auth::{self, Token};
use crate::engine::Engine;
use crate::phase::Phase;
use crate::problem::Problem;
use crate::redact::Redact;
use crate::reload::Reload;

/// One server's state, shared by its doors and its connections.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) reload: Reload,
    pub(crate) redact: Redact,
    token: Option<Token>,
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
    pub(crate) fn new(
        engine: Engine,
        reload: Reload,
        token: Option<Token>,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        let (redact, requests_in_flight) = (engine.redact(), AtomicUsize::new(0));
        Self { engine, reload, redact, token, phase, requests_in_flight }
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

    /// Waits until the server begins to drain.
    ///
    /// # Cancel safety
    /// Yes.
    #[cfg(feature = "grpc")]
    pub(crate) async fn drains(&self) {
        // An error means that whoever tells the phase is gone, and the server with it.
        let _ = self.phase.clone().wait_for(|phase| *phase > Phase::Serving).await;
    }

    /// Says whether callers must show a token.
    pub(crate) fn needs_token(&self) -> bool {
        self.token.is_some()
    }

    /// Says whether a text is the token; `None` where no token is needed.
    pub(crate) fn is_token(&self, shown: &[u8]) -> Option<bool> {
        self.token.as_ref().map(|token| token.is(shown))
    }

    /// Checks that whoever sent these headers may ask for everything.
    ///
    /// # Errors
    /// 401 without the token, where there is one; 403 for what only a web page would send, where there is none.
    pub(crate) fn authorized(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match &self.token {
            Some(token) => auth::with_token(token, headers),
            None => auth::without_token(headers),
        }
    }
}
