//! What every request is answered from: the engine, the reload, who may ask, and what the server is doing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use crate::auth::Access;
use crate::engine::Engine;
use crate::metrics::{InFlight, Transport};
use crate::otlp::Spans;
use crate::phase::Phase;
use crate::redact::Redact;
use crate::reload::{Loaded, Reload};
use crate::settings::Refused;
use crate::tls::Certificates;

/// Proposed texts that are read at once: reading one takes milliseconds of a core, and checks go first.
const PROPOSALS: usize = 2;
/// How long a collector has for the spans that wait when the server ends: one that is there takes them in milliseconds.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// One server's state, shared by its doors and its connections.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) reload: Reload,
    pub(crate) redact: Redact,
    pub(crate) access: Access,
    /// What the encrypted doors show, if there are any.
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// Where spans of decisions go, if anywhere.
    pub(crate) spans: Option<Spans>,
    phase: watch::Receiver<Phase>,
    /// How many proposed texts of policies may be read at once.
    pub(crate) proposals: Arc<Semaphore>,
}

impl App {
    pub(crate) fn new(
        engine: Engine,
        reload: Reload,
        access: Access,
        certificates: Option<Arc<Certificates>>,
        spans: Option<Spans>,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        let (redact, proposals) = (engine.redact(), Arc::new(Semaphore::new(PROPOSALS)));
        Self { engine, reload, redact, access, certificates, spans, phase, proposals }
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

    /// Waits until the server begins to drain.
    ///
    /// # Cancel safety
    /// Yes.
    #[cfg(feature = "grpc")]
    pub(crate) async fn drains(&self) {
        // An error means that whoever tells the phase is gone, and the server with it.
        let _ = self.phase.clone().wait_for(|phase| *phase > Phase::Serving).await;
    }

    /// Keeps what was counted last, and sends the spans that wait.
    pub(crate) async fn close(&self) {
        self.engine.close_stores().await;
        if let Some(spans) = &self.spans {
            spans.close(LAST_SPANS).await;
        }
    }

    /// Reads again all that can change while the server runs: the tokens and certificates, then the configuration.
    ///
    /// # Errors
    /// [`Refused`] when the configuration is refused; tokens and certificates that are refused are told to the log. The old ones hold.
    pub(crate) async fn read_again(&self) -> Result<Loaded, Refused> {
        self.renew_secrets().await;
        self.reload.now(&self.engine).await
    }

    /// Reads the tokens and the certificates again. What is refused is told to the log, and the old ones hold.
    pub(crate) async fn renew_secrets(&self) {
        self.access.renew().await;
        if let Some(certificates) = &self.certificates {
            certificates.renew().await;
        }
    }
}
