//! A server, from bind to exit.
//!
//! `bind` does all that can fail, and listens: from then on connections queue. `run` serves until a signal or a
//! handle stops it, then drains: readiness fails, nothing new is accepted, and requests in flight are answered until
//! the deadline.

mod background;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate::config::{Address, DoorName, StoreSettings};
use tidegate::gate::ticket::KeyError;
use tidegate::store::CapacityError;
use tokio::sync::watch;

use self::background::{Background, Signals};
use crate::api_policies::SavedPolicies;
use crate::app::App;
use crate::auth::{Access, TokensError};
use crate::connections::{self, Door, Drained, Http, Listener, Phase, Serving, Threads, Tls};
use crate::decider::{Decider, DeciderOptions, TicketSeal};
#[cfg(feature = "grpc")]
use crate::doors::grpc::GrpcDoor;
use crate::doors::http::{HttpDoor, InsideDoor, Serves};
use crate::doors::resp::RespDoor;
use crate::metrics::Transport;
use crate::options::{ServerOptions, Timeouts};
use crate::otlp::{OtlpError, Spans};
use crate::reload::{Reload, unknown_numbers};
use crate::settings::{Refused, Source};
use crate::stores::OpenStore;
use crate::systemd;
use crate::ticket_options::TicketKeyError;
use crate::tls::{Certificates, TlsError};

/// A server that is listening and ready to run.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    listener: Listener,
    /// The listener for operations, if they have their own address.
    admin: Option<Listener>,
    /// The listener for Envoy's rate limit service.
    grpc: Option<Listener>,
    /// The listener for Redis clients.
    resp: Option<Listener>,
    /// The threads that answer decisions.
    threads: Threads,
    ready: Ready,
    handle: ServerHandle,
    background: Background,
    drain: Duration,
    connections: usize,
    timeouts: Timeouts,
}

/// The addresses of a server, and what it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ready {
    /// The address that it listens on, with its port.
    pub addr: Address,
    /// The address for operations, with its port; `None`: the same as for decisions.
    pub admin: Option<Address>,
    /// The address for Envoy's rate limit service, with its port; `None`: not served.
    pub grpc: Option<Address>,
    /// The address for Redis clients, with its port; `None`: not served.
    pub resp: Option<Address>,
    /// The doors that are encrypted.
    pub encrypted: Vec<DoorName>,
    /// The number of policies in force.
    pub policies: usize,
}

/// How a server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stopped {
    /// All requests in flight were answered.
    Drained,
    /// Some connections were cut, at the deadline or on a second signal.
    Cut {
        /// How many connections.
        connections: usize,
    },
    /// The last counters were not written to disk; connections may have been cut too. The log says why.
    CountersLost,
}

impl Server {
    /// Reads the configuration and listens.
    ///
    /// Call it inside a tokio runtime with time enabled. Takes some milliseconds, mostly to allocate the store's
    /// table. A configuration that is not read within 10 s is an error.
    ///
    /// # Errors
    /// [`ServeError`] if the configuration is refused, an address cannot be used, a required token is missing, or a
    /// certificate or another file is unusable.
    ///
    /// # Cancel safety
    /// Dropping the future closes the addresses and the store of the options. A ticket key that was made stays in the
    /// store's folder, and handlers of signals stay if the options asked for them.
    pub async fn bind(options: ServerOptions, source: Source) -> Result<Self, ServeError> {
        options.check_token()?;
        options.check_plain_doors()?;
        for warning in options.store.iter().flat_map(|store| &store.warnings) {
            tracing::warn!("{warning}");
        }
        let encrypted = options.encrypted();
        if let Some(addr) = options.grpc.clone().filter(|_| cfg!(not(feature = "grpc"))) {
            return Err(ServeError::NoGrpc { addr });
        }
        let watched = source.watched().map(ToOwned::to_owned);
        let folder = options.store.as_ref().and_then(|store| store.folder.as_deref());
        let reload = Reload::new(source, folder.map(SavedPolicies::in_folder));
        let settings = reload.first().await?;
        let tickets = match folder {
            Some(folder) => options.tickets.keep_key_in(folder.to_owned()).await?,
            None if options.store.as_ref().is_some_and(|store| store.sharing.is_some()) => {
                options.tickets.beside_shared_counters(&settings.policies)
            }
            None => options.tickets,
        };
        let unknown = unknown_numbers(&settings.policies);
        let empty = settings.without_policies();
        for warning in settings.warnings.iter().chain(&tickets.warnings).chain(&unknown).chain(&empty) {
            tracing::warn!("{warning}");
        }
        // Before listening: a program that sees the open port may send a signal, which would end the process at
        // once without this.
        let signals = options.signals.then(Signals::listen).transpose().map_err(ServeError::Signals)?;
        let (listener, addr) = listen(&options.http)?;
        let (admin, admin_addr) = options.admin.as_ref().map(listen).transpose()?.unzip();
        let (grpc, grpc_addr) = options.grpc.as_ref().map(listen).transpose()?.unzip();
        let (resp, resp_addr) = options.resp.as_ref().map(listen).transpose()?.unzip();
        for socket in connections::unclaimed() {
            tracing::warn!(%socket, "a socket was handed over that no door is configured for; give a door this address");
        }
        let threads = Threads::start().await.map_err(ServeError::Threads)?;
        let access = Access::open(options.token, options.tokens_file).await?;
        let certificates = match options.tls {
            Some(settings) => Some(Arc::new(Certificates::open(settings).await?)),
            None => None,
        };
        let spans = options.otlp.as_ref().map(Spans::open).transpose()?;
        let secrets = access.file().into_iter().chain(certificates.iter().flat_map(|held| held.files()));
        let background = Background::new(signals, watched.as_deref(), secrets).await;
        let tickets = TicketSeal::of(&tickets, &addr)?;
        let store = match options.store {
            Some(store) => store,
            None => OpenStore::in_memory(&StoreSettings::default(), None)?,
        };
        let others = DeciderOptions {
            log_lines_dropped: options.log_lines_dropped,
            metrics_names: options.metrics_names,
            grpc: grpc_addr.clone(),
            sight: options.sight,
        };
        let decider = Decider::new(&settings, store, options.clock, tickets, others);
        decider.fits(&settings.policies)?;
        let (phase, seen) = watch::channel(Phase::Serving);
        let app = Arc::new(App::new(decider, reload, access, certificates, spans, seen));
        if let Some(sight) = app.decider.sight() {
            let serves = if admin.is_some() { Serves::Operations } else { Serves::All };
            sight.begin(Arc::new(InsideDoor::new(Arc::downgrade(&app), serves)));
        }
        app.reload.take_first(&app.decider).await;
        let ready = Ready {
            addr,
            admin: admin_addr,
            grpc: grpc_addr,
            resp: resp_addr,
            encrypted,
            policies: app.decider.live().set.len(),
        };
        let handle = ServerHandle { app: Arc::clone(&app), phase: Arc::new(phase) };
        let (drain, timeouts) = (options.drain, options.timeouts);
        let doors = 1 + [&admin, &grpc, &resp].into_iter().flatten().count();
        let connections = connections::fitting(options.connections, doors, threads.count());
        Ok(Self {
            app,
            listener,
            admin,
            grpc,
            resp,
            threads,
            ready,
            handle,
            background,
            drain,
            connections,
            timeouts,
        })
    }

    /// Returns the address that it listens on; for a Unix socket 127.0.0.1:0 ([`Server::ready`] names the socket).
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.ready.addr.tcp().unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Returns the addresses of the server, to print once it runs.
    #[must_use]
    pub fn ready(&self) -> Ready {
        self.ready.clone()
    }

    /// Returns a handle that stops or reloads the server.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Returns the TLS settings of a door.
    fn tls(&self, door: DoorName, transport: Transport) -> Option<Tls> {
        let certificates = self.app.certificates.as_ref().filter(|_| self.ready.encrypted.contains(&door))?;
        Some(Tls::new(Arc::clone(certificates), transport))
    }

    /// Serves until the server is stopped. Tells systemd when it is ready, reloads and stops.
    ///
    /// # Cancel safety
    /// Dropping the future stops accepting at once, and cuts the connections of the doors that decide.
    pub async fn run(self) -> Stopped {
        self.running().await
    }

    /// Boxed in this crate: an async function is compiled with the settings of the crate that polls it, and the
    /// command line's are for size.
    #[inline(never)]
    fn running(self) -> Pin<Box<dyn Future<Output = Stopped> + Send>> {
        Box::pin(self.serve())
    }

    async fn serve(self) -> Stopped {
        let tls = |door, transport| self.tls(door, transport);
        let tls_http = tls(DoorName::Http, Transport::http);
        let tls_admin = tls(DoorName::Admin, Transport::http);
        #[cfg(feature = "grpc")]
        let tls_grpc = tls(DoorName::Grpc, Transport::grpc);
        let tls_resp = tls(DoorName::Resp, Transport::resp);
        let Self {
            app,
            listener,
            admin,
            grpc,
            resp,
            threads,
            handle,
            background,
            drain,
            connections,
            timeouts,
            ready,
        } = self;
        let serving = Serving { threads: Some(&threads), connections, timeouts, drain };
        tracing::info!(addr = %ready.addr, policies = ready.policies, "serving");
        systemd::ready();
        let background = background.run(&handle);
        let door = Arc::new(RespDoor::new(Arc::clone(&app), admin.is_some(), tls_resp));
        let phase = || handle.phase.subscribe();
        let commands = serve_if(resp, door, serving, phase());
        let http = |serves, tls: Option<Tls>| {
            let handler = Arc::new(HttpDoor::new(Arc::clone(&app), serves, tls.is_some()));
            Arc::new(Http { handler, tls })
        };
        let door = http(if admin.is_some() { Serves::Decisions } else { Serves::All }, tls_http);
        let requests = connections::serve(listener, door, serving, phase());
        let door = http(Serves::Operations, tls_admin);
        // On the server's own runtime: slow operations do not delay decisions.
        let operations = serve_if(admin, door, Serving { threads: None, ..serving }, phase());
        #[cfg(feature = "grpc")]
        let calls = serve_if(grpc, Arc::new(GrpcDoor::new(Arc::clone(&app), tls_grpc)), serving, phase());
        #[cfg(not(feature = "grpc"))]
        let calls = async {
            drop(grpc);
            Drained::All
        };
        let ending = async {
            let ended = tokio::join!(requests, operations, commands, calls);
            ended.0.and(ended.1).and(ended.2).and(ended.3)
        };
        let closing = async {
            let drained = ending.await;
            // A second stop ends the wait for the last counters too.
            let mut phase = handle.phase.subscribe();
            let kept = tokio::select! {
                kept = handle.app.close() => kept,
                _ = phase.wait_for(|phase| *phase == Phase::Leaving) => {
                    tracing::warn!("told to stop at once; the last counts may not be kept");
                    true
                }
            };
            (drained, kept)
        };
        let (drained, kept) = tokio::select! {
            ended = closing => ended,
            never = background => match never {},
        };
        match drained {
            _ if !kept => Stopped::CountersLost,
            Drained::All => Stopped::Drained,
            Drained::Cut(connections) => Stopped::Cut { connections },
        }
    }
}

/// Serves a door, if it has an address.
async fn serve_if(
    listener: Option<Listener>,
    door: Arc<impl Door>,
    serving: Serving<'_>,
    phase: watch::Receiver<Phase>,
) -> Drained {
    match listener {
        Some(listener) => connections::serve(listener, door, serving, phase).await,
        None => Drained::All,
    }
}

/// Stops or reloads a server from elsewhere. All clones refer to the same server.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    app: Arc<App>,
    phase: Arc<watch::Sender<Phase>>,
}

impl ServerHandle {
    /// Begins to drain. Called again, cuts all connections at once.
    pub fn stop(&self) {
        self.phase.send_modify(|phase| {
            *phase = match phase {
                Phase::Serving => Phase::Draining,
                Phase::Draining | Phase::Leaving => Phase::Leaving,
            };
        });
        systemd::stopping();
    }

    /// Reads the configuration again and puts it in force.
    ///
    /// # Errors
    /// [`Refused`] with every mistake. The old configuration stays in force.
    ///
    /// # Cancel safety
    /// If the future is dropped while files are read, the old configuration stays in force.
    pub async fn reload(&self) -> Result<(), Refused> {
        self.app.read_again("").await.map(drop)
    }
}

/// Listens on an address. Returns it with its port filled in.
fn listen(addr: &Address) -> Result<(Listener, Address), ServeError> {
    Listener::bind(addr).map_err(|source| ServeError::Listen { addr: addr.clone(), source })
}

// Why a server does not start.

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Others could reach the server, and nothing would keep them out.
    #[error(
        "binding {addr}, which others can reach, needs a token; set TIDEGATE_TOKEN to {} or more characters, \
         name a file of tokens (--tokens-file), have callers show certificates (--tls-client-ca), or bind a loopback address as 127.0.0.1:{}",
        crate::auth::SHORTEST,
        addr.port()
    )]
    Open {
        /// The address.
        addr: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address.
        addr: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration has mistakes.
    #[error(transparent)]
    Config(#[from] Refused),
    /// The file of tokens cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The doors cannot be encrypted.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Spans of decisions cannot be sent.
    #[error(transparent)]
    Otlp(#[from] OtlpError),
    /// There is not enough memory for the counters.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The ticket key kept beside the counters cannot be used.
    #[error(transparent)]
    TicketKey(#[from] TicketKeyError),
    /// No ticket key was configured, and no random one could be drawn.
    #[error("cannot draw a ticket key")]
    Tickets(#[from] KeyError),
    /// The program was built without gRPC.
    #[error(
        "{addr}: this build does not serve gRPC; build it with the feature `grpc`, or leave out --grpc and server.grpc"
    )]
    NoGrpc {
        /// The address.
        addr: Address,
    },
    /// The system could not start a thread for connections.
    #[error("cannot start a thread for connections")]
    Threads(#[source] io::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
}

#[cfg(test)]
mod tests {
    //! Stopping a server whose disk hangs.

    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use parking_lot::Mutex;
    use tidegate::config::StoreSettings;
    use tidegate::policy::PolicySet;
    use tokio::sync::Notify;

    use super::*;
    use crate::settings::Settings;
    use crate::stores::{OpenStore, PersistentCounters};

    /// Counters on a disk that hangs until it is released.
    #[derive(Debug)]
    struct Hanging {
        closing: Notify,
        hangs: Mutex<Receiver<()>>,
    }

    impl PersistentCounters for Hanging {
        fn trouble(&self) -> Option<(String, Duration)> {
            None
        }

        fn back_up(&self) -> Result<std::path::PathBuf, String> {
            Err("it hangs".to_owned())
        }

        fn close(&self) -> Result<(), String> {
            self.closing.notify_one();
            // Ends when the test drops the other side.
            let _ = self.hangs.lock().recv();
            Ok(())
        }
    }

    async fn serving() -> (Server, Arc<Hanging>, Sender<()>) {
        let (let_go, hangs) = channel();
        let kept = Arc::new(Hanging { closing: Notify::new(), hangs: Mutex::new(hangs) });
        let http = "127.0.0.1:0".parse().unwrap();
        let mut options = ServerOptions { http, signals: false, ..ServerOptions::default() };
        let store = OpenStore::in_memory(&StoreSettings::default(), Some(100)).unwrap();
        options.store =
            Some(OpenStore { kept: Some(Arc::clone(&kept) as Arc<dyn PersistentCounters>), ..store });
        let source = Source::new(|| Ok(Settings::new(PolicySet::new(Vec::new())?)));
        (Server::bind(options, source).await.unwrap(), kept, let_go)
    }

    /// Regression: a second signal did nothing once connections were closed, and the end had no time limit, so only a kill
    /// helped.
    #[tokio::test]
    async fn a_second_stop_leaves_although_the_disk_hangs() {
        let (server, kept, _let_go) = serving().await;
        let handle = server.handle();
        let running = tokio::spawn(server.run());
        handle.stop();
        kept.closing.notified().await;
        handle.stop();
        let stopped = tokio::time::timeout(Duration::from_secs(5), running).await.expect("at once");
        assert_eq!(stopped.unwrap(), Stopped::Drained);
    }
}
