//! The settings of a server that cannot change while it runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tidegate::clock::{Clock, SystemClock};
use tidegate::config::{Address, Config, OtlpSettings, Peer, TlsSettings};

use crate::auth::Token;
use crate::otlp::{OtlpError, otlp_of};
use crate::sight::Sight;
use crate::stores::{OpenStore, OpenStoreError, open_store};
use crate::ticket_options::{TicketKeyError, TicketOptions};

/// The settings of a server besides its configuration.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::config::Address;
/// use tidegate_server::ServerOptions;
///
/// let mut options = ServerOptions::default();
/// options.http = "127.0.0.1:0".parse::<Address>()?;
/// options.drain = Duration::from_secs(20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The address for HTTP; port 0 takes a free one. 127.0.0.1:8080 by default: other machines cannot reach it by
    /// accident.
    pub http: Address,
    /// The address for operations (policies, keys, breakers, signals, metrics, explain, reload). If set, they are
    /// served only there, and the other doors only decide; `None`, the default: at `http`. Health is answered at
    /// both. Port 0 takes a free one.
    pub admin: Option<Address>,
    /// The address for Envoy's rate limit service over gRPC; none by default. Port 0 takes a free one. Needs the
    /// feature `grpc`.
    pub grpc: Option<Address>,
    /// The address for Redis clients; none by default. Port 0 takes a free one.
    pub resp: Option<Address>,
    /// The token with every scope. Binding anything but loopback needs this, a file of tokens, or client
    /// certificates.
    pub token: Option<Token>,
    /// The file of tokens with scopes ([`Tokens::from_file`](crate::Tokens::from_file)). Read at the start, when it changes and
    /// on every reload. A refused file changes nothing.
    pub tokens_file: Option<PathBuf>,
    /// The TLS settings of the doors; none by default. Needs the feature `tls`. The files are read at the start, when
    /// they change and on every reload; unusable ones change nothing. Unix sockets are not encrypted. A `client_ca`
    /// keeps others out like a token.
    pub tls: Option<TlsSettings>,
    /// How long requests in flight may take on a stop. 10 s by default: before Kubernetes (30 s) and systemd (90 s)
    /// kill a process.
    pub drain: Duration,
    /// The most connections at once, 1 or more; 10,000 by default. The limit of open files may lower it;
    /// [`Server::bind`](crate::Server::bind) raises that limit as far as it may.
    ///
    /// Beyond it, a new connection takes the place of a waiting one: one that idles between requests, has not
    /// completed a request head, or does not read an answer. One address has three quarters of the places at most. If
    /// none is waiting, 64 more are accepted: health, metrics and reload are answered there, everything else gets
    /// 503.
    pub connections: usize,
    /// How long callers may take.
    pub timeouts: Timeouts,
    /// The store of the counters; `None`: a table in memory for 1,000,000 live keys, made when the server is bound.
    pub store: Option<OpenStore>,
    /// The keys and settings of tickets, which settle decisions later.
    pub tickets: TicketOptions,
    /// The source of time; the system's clock by default.
    pub clock: Arc<dyn Clock>,
    /// How many log lines were dropped, counted by the writer of the log; shown as a metric.
    pub log_lines_dropped: Arc<AtomicU64>,
    /// Another rate limiter under whose names metrics are shown too; none by default.
    pub metrics_names: Option<Peer>,
    /// The collector of decision spans; none by default. Needs the feature `otel`. Set it to the result of [`otlp_of`].
    pub otlp: Option<OtlpSettings>,
    /// Whether `SIGHUP` reloads and `SIGTERM` and `SIGINT` stop. On by default.
    pub signals: bool,
    /// What sees decisions and answers the pages for operators; none by default.
    pub sight: Option<Arc<dyn Sight>>,
}

/// How long a caller may take for each part of an exchange. Zero leaves no time at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// For the head of a request, from accept or from its first byte on a kept connection; then 408 and closed. 10
    /// s by default: callers are servers nearby, and a head is small. A TLS handshake before it has a limit of the
    /// same length of its own.
    pub head: Duration,
    /// Between two requests; then closed. 150 s by default, longer than proxies keep connections (nginx 60 s,
    /// Traefik 90 s, Caddy 120 s), so that the proxy closes first and never writes into a closing one.
    pub idle: Duration,
    /// For the whole body, from when it is first waited for; then 408 and closed. 10 s by default.
    pub body: Duration,
    /// For reading an answer, from when the system takes no more of it; then cut. 30 s by default: the longest
    /// answers have some megabytes.
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
            sight: None,
        }
    }
}

/// Why a config file cannot be turned into options.
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
    /// Takes from a config file what cannot change while the server runs: addresses, the store, and the ticket keys,
    /// which may also come from the environment.
    ///
    /// # Errors
    /// [`OptionsError`] if keys cannot be read, the store cannot be opened, or spans cannot be sent.
    ///
    /// # Cancel safety
    /// As [`open_store`].
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
        options.store = Some(open_store(&config.store, None, &options.http, clock, options.drain).await?);
        Ok(options)
    }
}
