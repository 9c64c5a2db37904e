//! What every request is answered from: the engine, the reload, the token, and what the server is doing.

use http::header::HeaderMap;
use tokio::sync::{Semaphore, watch};

use crate::auth::{self, Token};
use crate::engine::Engine;
use crate::metrics::{InFlight, Transport};
use crate::phase::Phase;
use crate::problem::Problem;
use crate::redact::Redact;
use crate::reload::Reload;

/// Proposed texts that are read at once: reading one takes milliseconds of a core, and checks go first.
const PROPOSALS: usize = 2;

/// One server's state, shared by its doors and its connections.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) reload: Reload,
    pub(crate) redact: Redact,
    token: Option<Token>,
    phase: watch::Receiver<Phase>,
    /// How many proposed texts of policies may be read at once.
    pub(crate) proposals: Semaphore,
}

impl App {
    pub(crate) fn new(
        engine: Engine,
        reload: Reload,
        token: Option<Token>,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        let (redact, proposals) = (engine.redact(), Semaphore::new(PROPOSALS));
        Self { engine, reload, redact, token, phase, proposals }
    }

    /// Counts a request as in flight until what is returned is dropped, which also happens when its caller hangs up.
    pub(crate) fn begin_request(&self, transport: Transport) -> InFlight<'_> {
        self.engine.metrics.requests.begin(transport)
    }

    /// Returns how many requests are being answered, the one that asks included.
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.engine.metrics.requests.in_flight()
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Returns the phases from now on.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
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
