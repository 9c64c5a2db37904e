//! How a server is set up: what cannot change while it runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tidegate::config::{Address, Config, OtlpSettings, Peer, TlsSettings};
use tidegate::{Clock, SystemClock};

use crate::auth::Token;
use crate::otlp::{OtlpError, otlp_of};
use crate::stores::{OpenStore, OpenStoreError, open_store};
use crate::ticket_options::{TicketKeyError, TicketOptions};

/// What a server is made of, beside its configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Where HTTP is served; port 0 takes a free one. 127.0.0.1:8080 by default: nobody else can reach it by accident.
    pub http: Address,
    /// Where operations are answered over HTTP (policies, keys, breakers, signals, metrics, explain, reload), and then nowhere else: the
    /// other doors decide only. `None`, as by default: at `http`. Health is answered at both. Port 0 takes a free one.
    pub admin: Option<Address>,
    /// Where Envoy's rate limit service is answered over gRPC; nowhere by default. Port 0 takes a free one. Needs the feature `grpc`.
    pub grpc: Option<Address>,
    /// Where the commands of Redis clients are answered; nowhere by default. Port 0 takes a free one.
    pub resp: Option<Address>,
    /// What callers must show, for whatever they ask. This, a file of tokens or certificates of callers are needed to bind anything but loopback.
    pub token: Option<Token>,
    /// The file of tokens that are each for some scopes ([`crate::Tokens::from_file`]). Read when the server is bound, and again when it
    /// changes and on every reload; one that is refused then changes nothing.
    pub tokens_file: Option<PathBuf>,
    /// What encrypts the doors; nothing by default. Needs the feature `tls`. The files are read when the server is bound, and again when they
    /// change and on every reload; those that cannot be used then change nothing. Unix sockets are not encrypted. A `client_ca` keeps others
    /// out as a token does.
    pub tls: Option<TlsSettings>,
    /// How long requests in flight may take to finish on a stop. 10 s by default: below the 30 s that Kubernetes and the
    /// 90 s that systemd wait before they kill.
    pub drain: Duration,
    /// The most connections at once, 1 or more; 10,000 by default. As many as the limit of open files lets in, which
    /// [`crate::Server::bind`] raises as far as it may.
    ///
    /// Beyond them a newcomer gets the place of somebody who only waits: who idles between requests, does not complete a
    /// head, or does not read an answer. One address has three quarters of the places at most. When nobody only waits, 64
    /// more connections are accepted, on which health, metrics and reload are answered and all else is 503.
    pub connections: usize,
    /// How long callers may take.
    pub timeouts: Timeouts,
    /// What keeps the counters; `None` makes a table in memory for 1,000,000 live keys when the server is bound.
    pub store: Option<OpenStore>,
    /// What the tickets are made with that settle decisions later.
    pub tickets: TicketOptions,
    /// Where time comes from. The machine's clock by default.
    pub clock: Arc<dyn Clock>,
    /// How many lines of the log were dropped so far, counted by whoever writes it; shown as a metric. 0 by default.
    pub log_lines_dropped: Arc<AtomicU64>,
    /// By whose names metrics are told too, beside Tidegate's own; nobody's by default.
    pub metrics_names: Option<Peer>,
    /// Where spans of decisions are sent; nowhere by default. Needs the feature `otel`, and is given what [`otlp_of`] returns.
    pub otlp: Option<OtlpSettings>,
    /// Whether `SIGHUP` reloads and `SIGTERM` and `SIGINT` stop. On by default.
    pub signals: bool,
}

/// How long a caller may take for each part of an exchange. A zero leaves no time at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// For the head of a request, from accept or from its first byte on a kept connection: 408 and closed. 10 s by default:
    /// callers are servers nearby, and a head is small. A TLS handshake before it has the same time once more.
    pub head: Duration,
    /// Between two requests on a kept connection: closed. 150 s by default: longer than proxies keep theirs (nginx 60 s,
    /// Traefik 90 s, Caddy 120 s), so that the proxy closes first and never writes into a closing connection.
    pub idle: Duration,
    /// For the whole body, from when it is waited for: 408 and closed. 10 s by default.
    pub body: Duration,
    /// For taking what was answered, from when the system takes no more of it: cut. 30 s by default: the longest answers
    /// have some megabytes.
    pub unread: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            idle: Duration::from_secs(150),
            body: Duration::from_secs(10),
            unread: Duration::from_secs(30),
        }
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)).into(),
            admin: None,
            grpc: None,
            resp: None,
            token: None,
            tokens_file: None,
            tls: None,
            drain: Duration::from_secs(10),
            connections: 10_000,
            timeouts: Timeouts::default(),
            store: None,
            tickets: TicketOptions::default(),
            clock: Arc::new(SystemClock::new()),
            log_lines_dropped: Arc::default(),
            metrics_names: None,
            otlp: None,
            signals: true,
        }
    }
}

/// Why a config file makes no options.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    /// The keys of tickets cannot be read.
    #[error(transparent)]
    Tickets(#[from] TicketKeyError),
    /// Spans cannot be sent as the file or the environment says.
    #[error(transparent)]
    Otlp(#[from] OtlpError),
}

impl ServerOptions {
    /// Takes from a config file what cannot change while the server runs: where it listens, its store, and the keys of its tickets, which
    /// the environment may name too.
    ///
    /// # Errors
    /// [`OptionsError`] when the keys cannot be read, the store cannot be opened, or spans cannot be sent.
    pub async fn of(config: &Config) -> Result<Self, OptionsError> {
        let tickets = TicketOptions::of(&config.tickets)?;
        let mut options = Self {
            http: config.server.http.clone(),
            admin: config.server.admin.clone(),
            grpc: config.server.grpc.clone(),
            resp: config.server.resp.clone(),
            tls: config.server.tls.clone(),
            otlp: otlp_of(config.server.otlp.as_ref())?,
            tickets,
            ..Self::default()
        };
        let clock = Arc::clone(&options.clock);
        let opened = open_store(&config.store, None, &options.http, clock, options.drain).await?;
        options.decide_by(opened);
        Ok(options)
    }

    /// Takes a store that was opened.
    pub fn decide_by(&mut self, opened: OpenStore) {
        for warning in &opened.warnings {
            tracing::warn!("{warning}");
        }
        self.store = Some(opened);
    }
}
