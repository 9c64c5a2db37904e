//! The flags of `serve` and `init`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use tidegate::config::{Address, DoorName, Peer};

use super::PolicyFile;
use super::values::{connections, door, duration, keys, listened};

/// Files of other rate limiters that are read as policies.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Imports {
    /// Configuration of envoyproxy/ratelimit, read as policies; may be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) from_envoy: Vec<PathBuf>,
    /// Limits of Limitador, read as policies; may be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) from_limitador: Vec<PathBuf>,
}

impl Imports {
    /// Returns all these files, each with the rate limiter that it belongs to.
    pub(crate) fn files(&self) -> Vec<(Peer, PathBuf)> {
        let envoy = self.from_envoy.iter().map(|file| (Peer::Envoy, file.clone()));
        envoy.chain(self.from_limitador.iter().map(|file| (Peer::Limitador, file.clone()))).collect()
    }
}

#[derive(Args, Debug)]
#[command(mut_arg("from_envoy", |arg| arg.conflicts_with("config")), mut_arg("from_limitador", |arg| arg.conflicts_with("config")))]
pub(crate) struct Serve {
    /// Policy file, the same as -c FILE
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["from_envoy", "from_limitador"])]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) policies: PolicyFile,
    #[command(flatten)]
    pub(crate) imports: Imports,
    /// Check the policy file, the ticket keys, the tokens and the certificates, and exit: 0 if all are valid, 2 if the file is not
    #[arg(long)]
    pub(crate) check: bool,
    /// Address of the HTTP API: IP:PORT, a port alone for loopback, or unix:/PATH; the other addresses take the same forms [default: as in the file, else 127.0.0.1:8080]
    #[arg(long, env = "TIDEGATE_HTTP", value_name = "ADDR", value_parser = listened)]
    pub(crate) http: Option<Address>,
    /// Address for operators (metrics, policies, keys, breakers, signals, explain, reload); --http then no longer answers these [default: as in the file, else the same as --http]
    #[arg(long, env = "TIDEGATE_ADMIN", value_name = "ADDR", value_parser = listened)]
    pub(crate) admin: Option<Address>,
    /// Address of Envoy's rate limit service over gRPC [default: as in the file, else none]
    #[arg(long, env = "TIDEGATE_GRPC", value_name = "ADDR", value_parser = listened)]
    pub(crate) grpc: Option<Address>,
    /// Address for Redis clients (CL.THROTTLE, TG.CHECK) [default: as in the file, else none]
    #[arg(long, env = "TIDEGATE_RESP", value_name = "ADDR", value_parser = listened)]
    pub(crate) resp: Option<Address>,
    /// How many keys to remember at once [default: as in the file, else 1000000]
    #[arg(long, env = "TIDEGATE_KEYS", value_name = "N", value_parser = keys, allow_negative_numbers = true)]
    pub(crate) keys: Option<usize>,
    /// Folder for counters on disk [default: as in the file, else the system's state folder]
    #[arg(long, env = "TIDEGATE_STORE_PATH", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) store_path: Option<PathBuf>,
    /// The most connections at once, each with a file descriptor; beyond that, new connections replace idle ones
    #[arg(long, env = "TIDEGATE_CONNECTIONS", value_name = "N", default_value = "10000", value_parser = connections, allow_negative_numbers = true)]
    pub(crate) connections: usize,
    /// File with one token that callers must send, valid for everything; this, --tokens-file or --tls-client-ca is needed to bind beyond loopback
    #[arg(long, env = "TIDEGATE_TOKEN_FILE", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,
    /// File of several tokens, each with a name and scopes (check, read, admin, metrics, keys); read again when it changes
    #[arg(long, env = "TIDEGATE_TOKENS_FILE", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tokens_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tls: Tls,
    /// The proxy that calls /v1/forward-auth; without this and forward_auth in the file, that path refuses all requests
    #[arg(long, env = "TIDEGATE_FORWARD_AUTH", value_name = "PROXY", value_enum)]
    pub(crate) forward_auth: Option<Proxy>,
    /// Also serve metrics under the names of this rate limiter, for its dashboards
    #[arg(long, env = "TIDEGATE_METRICS_NAMES", value_name = "NAMES", value_enum)]
    pub(crate) metrics_names: Option<MetricsNames>,
    /// How long to let requests finish after SIGTERM
    #[arg(long, env = "TIDEGATE_DRAIN", value_name = "TIME", default_value = "10s", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) drain: Duration,
    /// Do not reload the policy file when it changes; SIGHUP still reloads it
    #[arg(long)]
    pub(crate) no_watch: bool,
}

/// What encrypts the doors.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Tls {
    /// File of the certificate, in PEM, followed by its intermediates; every address except Unix sockets then uses TLS; read again when it changes [default: as in the file, else no TLS]
    #[arg(long, env = "TIDEGATE_TLS_CERT", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File of the certificate's private key, in PEM
    #[arg(long, env = "TIDEGATE_TLS_KEY", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key: Option<PathBuf>,
    /// File of the authorities, in PEM, for checking callers' certificates; callers without a certificate are refused
    #[arg(long, env = "TIDEGATE_TLS_CLIENT_CA", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Addresses that stay without TLS: http, admin, grpc, resp, separated by commas
    #[arg(long, env = "TIDEGATE_TLS_PLAIN", value_name = "DOORS", value_delimiter = ',', value_parser = door)]
    pub(crate) tls_plain: Vec<DoorName>,
}

/// Whose names metrics have beside Tidegate's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MetricsNames {
    /// envoyproxy/ratelimit, with the names of its statsd mapping
    Envoy,
    /// Limitador
    Limitador,
}

impl MetricsNames {
    pub(crate) fn peer(self) -> Peer {
        match self {
            Self::Envoy => Peer::Envoy,
            Self::Limitador => Peer::Limitador,
        }
    }
}

/// A proxy that tells of the original request in headers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Proxy {
    /// X-Original-Method, -URI and -Host
    Nginx,
    /// X-Forwarded-Method, -Uri and -Host
    Caddy,
    /// The same headers as caddy
    Traefik,
}

#[derive(Args, Debug)]
pub(crate) struct Init {
    /// The policies to start from
    #[arg(long, value_enum, default_value_t = Preset::Api, conflicts_with_all = ["from_envoy", "from_limitador"])]
    pub(crate) preset: Preset,
    #[command(flatten)]
    pub(crate) imports: Imports,
    /// File to write: TOML if the name ends in .toml, else YAML; `-` prints to standard output
    #[arg(default_value = "tidegate.yaml", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// An HTTP API: a limit for all requests, a limit per client, tiers per user
    Api,
    /// Logins and text messages: wrong passwords per hour, messages per day
    Login,
    /// Calls to other services: smoothed to a steady rate
    Outbound,
    /// All of these
    All,
}
