//! The state that every request is answered from.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::Tick;
use tidegate::store::leased::LeaseHealth;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;

use crate::auth::Access;
use crate::connections::Phase;
use crate::decider::Decider;
use crate::events::MOST_LIVE;
use crate::metrics::{InFlight, Transport};
use crate::otlp::Spans;
use crate::problem::Problem;
use crate::reload::Reload;
use crate::settings::Refused;
use crate::text::Redact;
use crate::tls::Certificates;

/// How many proposed texts are read at once: each takes milliseconds of a core, and checks come first.
const PROPOSALS: usize = 2;

/// How many questions the sight is asked at once: each may read its history's file, and checks come first.
const READINGS: usize = 2;

/// How long a request waits for its turn of long work.
const TURN: Duration = Duration::from_secs(5);

/// How long the collector may take for the last spans. One that can be reached takes milliseconds.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// One server's state, shared by its doors and connections.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) decider: Decider,
    pub(crate) reload: Reload,
    pub(crate) redact: Redact,
    pub(crate) access: Access,
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// The exporter of decision spans, if spans are sent.
    pub(crate) spans: Option<Spans>,
    phase: watch::Receiver<Phase>,
    pub(crate) drain: Drain,
    /// Limits how many proposed texts are read at once.
    pub(crate) proposals: Arc<Semaphore>,
    /// Limits how much long work is ready at once, on all threads.
    long_work: Semaphore,
    /// Limits how many listen to `/v1/live`.
    pub(crate) live_listeners: Arc<Semaphore>,
    /// Limits how many questions the sight answers at once.
    readings: Arc<Semaphore>,
}

impl App {
    pub(crate) fn new(
        decider: Decider,
        reload: Reload,
        access: Access,
        certificates: Option<Arc<Certificates>>,
        spans: Option<Spans>,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        let (redact, proposals) = (decider.redact(), Arc::new(Semaphore::new(PROPOSALS)));
        // As many as there are threads of connections: long work can use all, and others find at most these before
        // them.
        let long_work = Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from));
        let live_listeners = Arc::new(Semaphore::new(MOST_LIVE));
        let readings = Arc::new(Semaphore::new(READINGS));
        Self {
            decider,
            reload,
            redact,
            access,
            certificates,
            spans,
            phase,
            drain: Drain::default(),
            proposals,
            long_work,
            live_listeners,
            readings,
        }
    }

    /// Counts a request in flight until the value is dropped, also if its caller hangs up.
    pub(crate) fn begin_request(&self, transport: Transport) -> InFlight<'_> {
        self.decider.metrics.requests.begin(transport)
    }

    /// Counts the requests in flight, the calling one too.
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.decider.metrics.requests.in_flight()
    }

    /// Waits for a turn of long work. When it begins, everything that was ready on this thread has had its turn,
    /// and so has what arrived meanwhile. It lasts until the value is dropped, and must not wait for anybody.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn long_turn(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed, so there is always a turn.
        let turn = self.long_work.acquire().await.ok();
        // Yields until the runtime has looked at the sockets, which otherwise happens after 61 tasks.
        tokio::task::yield_now().await;
        turn
    }

    /// As [`App::long_turn`], for the first piece of work.
    ///
    /// # Errors
    /// 503 if no turn comes in time, because others have too much to do.
    pub(crate) async fn first_long_turn(&self) -> Result<Option<SemaphorePermit<'_>>, Problem> {
        timeout(TURN, self.long_turn()).await.map_err(|_| no_turn())
    }

    /// Waits for a turn of asking the sight, which is done on a thread that may block. It lasts until the value is dropped.
    ///
    /// # Errors
    /// 503 if no turn comes in time.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn reading(&self) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        let reading = Arc::clone(&self.readings).acquire_owned();
        // Never closed, so there is always a turn.
        timeout(TURN, reading).await.map(Result::ok).map_err(|_| no_turn())
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Returns whether requests should be sent here.
    pub(crate) fn is_ready(&self) -> bool {
        self.phase() == Phase::Serving && self.drain.is_ready()
    }

    /// Returns a receiver of the phases from now on.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
    }

    /// Waits until the server begins to drain.
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[cfg(feature = "grpc")]
    pub(crate) async fn drains(&self) {
        // An error means that the sender is gone, and so is the server.
        let _ = self.phase.clone().wait_for(|phase| *phase > Phase::Serving).await;
    }

    /// Returns whether all counters are kept.
    pub(crate) async fn close(&self) -> bool {
        let kept = self.decider.storage.close().await;
        if let Some(spans) = &self.spans {
            spans.close(LAST_SPANS).await;
        }
        kept
    }

    /// Reads all again that can change: tokens, certificates, then the configuration. Returns the warnings. `who`: the
    /// token that asks for it, `file`, `signal`, or empty.
    ///
    /// # Errors
    /// [`Refused`] if the configuration is refused; the old one stays in force. Refused tokens and certificates are
    /// logged, and the old ones stay valid.
    pub(crate) async fn read_again(&self, who: &str) -> Result<Vec<String>, Refused> {
        self.renew_secrets().await;
        self.reload.now(&self.decider, who).await
    }

    /// Reads tokens and certificates again. Refused ones are logged, and the old ones stay valid.
    pub(crate) async fn renew_secrets(&self) {
        self.access.renew().await;
        if let Some(certificates) = &self.certificates {
            certificates.renew().await;
        }
    }
}

fn no_turn() -> Problem {
    let seconds = TURN.as_secs();
    Problem::unavailable(format!("others asked for so much that this had no turn for {seconds} s; ask again"))
}

// A drain: takes a node out of a running fleet while it goes on answering. Health says that it is not ready, it draws no
// units ahead, and when no request has come for a while, it hands its part of the limits over. All of it can be undone.

/// Without a request for this long, whoever sends them has noticed.
const QUIET: Duration = Duration::from_secs(5);

/// Whether a node is taken out, and how far that is.
#[derive(Debug)]
pub(crate) struct Drain {
    ready: watch::Sender<bool>,
    began: Mutex<Option<Began>>,
}

/// What was when the drain began, and when the last request came.
#[derive(Clone, Copy, Debug)]
struct Began {
    at: Tick,
    requests: u64,
    leases: Option<LeaseHealth>,
    last: Tick,
    seen: u64,
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainState {
    pub(crate) since: Tick,
    /// How long no request has come.
    pub(crate) quiet: Duration,
    /// How many have come since the drain began.
    pub(crate) requests: u64,
    /// `None` where nothing is drawn ahead.
    pub(crate) leases: Option<DrainedLeases>,
    /// Whether other nodes may have this one's part; `None` where nodes do not agree on parts.
    pub(crate) handed_over: Option<bool>,
}

/// Units that the node had drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainedLeases {
    /// Still held.
    pub(crate) held: u64,
    /// Given back since the drain began.
    pub(crate) returned: u64,
    /// Lost since then, until the rate returns them.
    pub(crate) burned: u64,
}

impl DrainState {
    /// Returns whether the node may be stopped without a loss.
    pub(crate) fn may_stop(&self) -> bool {
        let holds = self.leases.is_some_and(|leases| leases.held > 0);
        self.quiet >= QUIET && !holds && self.handed_over != Some(false)
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self { ready: watch::Sender::new(true), began: Mutex::default() }
    }
}

impl Drain {
    pub(crate) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Returns a receiver that learns when the node becomes ready or ceases to be.
    pub(crate) fn readiness(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Begins. Returns `false` if it had begun.
    pub(crate) fn begin(&self, decider: &Decider) -> bool {
        let mut began = self.began.lock();
        if began.is_some() {
            return false;
        }
        let (now, requests) = (decider.now(), decider.metrics.requests.decided());
        let leases = decider.storage.lease_health();
        *began = Some(Began { at: now, requests, leases, last: now, seen: requests });
        decider.storage.draw_ahead(false);
        self.ready.send_replace(false);
        tracing::info!("drained by an operator: not ready any more, requests are still answered");
        true
    }

    /// Undoes it. Returns whether there was something to undo.
    pub(crate) fn undo(&self, decider: &Decider) -> bool {
        let mut began = self.began.lock();
        if began.take().is_none() {
            return false;
        }
        decider.storage.join_again();
        decider.storage.draw_ahead(true);
        self.ready.send_replace(true);
        tracing::info!("no longer drained: ready again");
        true
    }

    /// Goes on with it: hands the part over once no requests come. Called a few times a second.
    pub(crate) fn go_on(&self, decider: &Decider) {
        let mut began = self.began.lock();
        let Some(began) = &mut *began else { return };
        let (now, requests) = (decider.now(), decider.metrics.requests.decided());
        if requests != began.seen {
            (began.seen, began.last) = (requests, now);
        } else if now.since(began.last) >= QUIET {
            decider.storage.hand_over();
        }
    }

    /// Returns how far it is; `None` if the node serves as usual.
    pub(crate) fn state(&self, decider: &Decider) -> Option<DrainState> {
        let began = (*self.began.lock())?;
        let requests = decider.metrics.requests.decided();
        let quiet = if requests == began.seen { decider.now().since(began.last) } else { Duration::ZERO };
        let health = decider.storage.lease_health();
        let leases = health.zip(began.leases).map(|(now, before)| DrainedLeases {
            held: now.outstanding + now.reserved,
            returned: now.returned - before.returned,
            burned: now.burned - before.burned,
        });
        let handed_over = decider.storage.membership().map(|status| status.joined.is_none());
        Some(DrainState { since: began.at, quiet, requests: requests - began.requests, leases, handed_over })
    }
}

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzed {
    //! The state for the fuzz targets: made from a policy file, with counters in memory and without connections.

    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use tidegate::clock::Clock;
    use tidegate::config::{Config, Format, StoreSettings};
    use tidegate::policy::PolicySet;
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::watch;

    use super::App;
    use crate::auth::Access;
    use crate::connections::Phase;
    use crate::decider::{Decider, DeciderOptions, TicketSeal};
    use crate::options::ServerOptions;
    use crate::reload::Reload;
    use crate::settings::{Settings, Source};
    use crate::stores::OpenStore;

    /// Returns the runtime for a door that a fuzz target calls.
    ///
    /// # Panics
    /// If the system cannot provide a runtime.
    pub(crate) fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("the system has a runtime")
    }

    /// Makes the state of a server with the policies of this file. No token is needed.
    ///
    /// # Panics
    /// If the file has errors.
    pub(crate) async fn app(policies: &str, clock: Arc<dyn Clock>) -> Arc<App> {
        let (config, _) = Config::parse(policies, "policies", Format::Yaml).expect("a file without mistakes");
        let settings = Settings::from(config);
        let ServerOptions { tickets, .. } = ServerOptions::default();
        let store = OpenStore::in_memory(&StoreSettings::default(), None).expect("there is memory");
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let seal = TicketSeal::of(&tickets, &here.into()).expect("a key can be drawn");
        let decider = Decider::new(&settings, store, clock, seal, DeciderOptions::default());
        let reload = Reload::new(Source::new(|| Ok(Settings::new(PolicySet::default()))), None);
        let access = Access::open(None, None).await.expect("there is no file to read");
        let (_, phase) = watch::channel(Phase::Serving);
        Arc::new(App::new(decider, reload, access, None, None, phase))
    }
}
