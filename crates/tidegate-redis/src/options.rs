//! How a program connects a store: its servers, and how to use them; and why a store could not be connected.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::{ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, TlsCertificates};
use tidegate::store::AfterLoss;

/// The default time limit for a server to accept a connection and to answer: longer than any answer takes, and than
/// most pauses for a snapshot. Callers that cannot wait so long have a deadline of their own.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The default time for which calls that were refused without being executed are sent again: enough while a server
/// loads its data, a slot moves or a script runs. The election of another master takes longer than callers wait.
const PATIENCE: Duration = Duration::from_millis(200);

/// The default number of hashes per namespace on one server: few, because one command reads the cells of a call that
/// share a hash.
const SHARDS: u32 = 16;

const STEPS_IN_A_CALL: usize = 128;

/// The default number of hashes per namespace in a cluster: each has a slot, and they spread evenly over a few tens of
/// masters.
const CLUSTER_SHARDS: u32 = 1024;

/// The servers of a store, and how to use them. Made by one of [`RedisOptions::single`], [`RedisOptions::sentinel`],
/// [`RedisOptions::cluster`].
///
/// A value that is out of range is refused by [`RedisStore::connect`](crate::RedisStore::connect). The `Debug` form
/// shows neither user nor password.
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) servers: Servers,
    pub(crate) namespace: String,
    pub(crate) shards: Option<u32>,
    pub(crate) after_loss: AfterLoss,
    pub(crate) timeout: Duration,
    pub(crate) patience: Duration,
    pub(crate) steps_in_a_call: usize,
    tls: TlsCertificates,
    pub(crate) renew: Option<Renew>,
}

/// Makes the options anew; see [`RedisOptions::renewed_by`].
type Renew = Arc<dyn Fn() -> Result<RedisOptions, String> + Send + Sync>;

#[derive(Clone)]
pub(crate) enum Servers {
    One(ConnectionInfo),
    /// The sentinels, the master's name, and its connection settings.
    Sentinels(Vec<ConnectionInfo>, String, ConnectionInfo),
    Nodes(Vec<ConnectionInfo>),
}

impl RedisOptions {
    /// Names one server: `redis://user:password@host:port/db`, `rediss://` for TLS, `unix:///path?db=0&user=U&pass=P`.
    ///
    /// # Errors
    /// [`ConnectError::Address`] if `url` is not valid.
    pub fn single(url: &str) -> Result<Self, ConnectError> {
        info(url, "the address").map(|server| Self::of(Servers::One(server)))
    }

    /// Names sentinels, with their own user and password, and the master that they watch. `master` holds its user,
    /// password, database and whether to use TLS, as `redis://user:password@any/0`; the host is ignored.
    ///
    /// # Errors
    /// [`ConnectError::Address`] if an address is not valid; [`ConnectError::Option`] if no sentinel is named.
    pub fn sentinel(sentinels: &[&str], name: &str, master: &str) -> Result<Self, ConnectError> {
        let sentinels = infos(sentinels, "sentinels")?;
        let master = info(master, "the address of the master")?;
        Ok(Self::of(Servers::Sentinels(sentinels, name.to_owned(), master)))
    }

    /// Names some nodes of a cluster, from which the store learns the others.
    ///
    /// # Errors
    /// [`ConnectError::Address`] if an address is not valid; [`ConnectError::Option`] if no node is named.
    pub fn cluster(nodes: &[&str]) -> Result<Self, ConnectError> {
        infos(nodes, "nodes").map(|nodes| Self::of(Servers::Nodes(nodes)))
    }

    fn of(servers: Servers) -> Self {
        Self {
            servers,
            namespace: "tidegate".to_owned(),
            shards: None,
            after_loss: AfterLoss::default(),
            timeout: TIMEOUT,
            patience: PATIENCE,
            steps_in_a_call: STEPS_IN_A_CALL,
            tls: TlsCertificates { client_tls: None, root_cert: None },
            renew: None,
        }
    }

    /// Sets the namespace: 1 to 64 letters, digits, `-`, `_` or `.`; the default is `tidegate`. Nodes with the same
    /// namespace share its limits.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// Sets the number of hashes over which cells are spread, 1 to 65,536; the default is 16, and 1,024 in a cluster.
    /// All nodes of a namespace use the same number, or get [`ConnectError::Shards`]. Few hashes make batches cheap;
    /// many make cells small: a hash of up to 512 cells (`hash-max-listpack-entries`) takes less than half the memory.
    /// In a cluster each hash is on one master.
    #[must_use]
    pub const fn shards(mut self, shards: u32) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Sets how full a limit is assumed to be after the server has lost its cell; the default is [`AfterLoss::Half`].
    #[must_use]
    pub const fn after_loss(mut self, after_loss: AfterLoss) -> Self {
        self.after_loss = after_loss;
        self
    }

    /// Sets the time limit for a server to accept a connection and to answer, above zero; the default is 1 s.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets for how long calls that were refused without being executed are sent again; the default is 200 ms. With
    /// zero, none is sent again.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the most steps that one call combines, 1 to 128, which is the default. The server does nothing else during
    /// a call: a full one takes about 0.4 ms.
    #[must_use]
    pub const fn steps_in_a_call(mut self, steps: usize) -> Self {
        self.steps_in_a_call = steps;
        self
    }

    /// Sets the root certificates, in PEM, for verifying the server's certificate, in place of the system's.
    #[must_use]
    pub fn root_certificates(mut self, pem: Vec<u8>) -> Self {
        self.tls.root_cert = Some(pem);
        self
    }

    /// Sets the certificate and key, in PEM, with which this node authenticates to the server.
    #[must_use]
    pub fn client_certificate(mut self, certificate: Vec<u8>, key: Vec<u8>) -> Self {
        self.tls.client_tls = Some(ClientTlsConfig { client_cert: certificate, client_key: key });
        self
    }

    /// Sets a function that is called before each connection, and returns options whose users, passwords and
    /// certificates are then used: so passwords can change while the store is in use. Its error is that of the
    /// connection; it must not contain a secret.
    #[must_use]
    pub fn renewed_by(mut self, renew: impl Fn() -> Result<Self, String> + Send + Sync + 'static) -> Self {
        self.renew = Some(Arc::new(renew));
        self
    }

    /// Returns how to log in to a server, for a new connection.
    pub(crate) fn login(&self, server: &ConnectionInfo, is_sentinel: bool) -> Result<Login, ConnectError> {
        let Some(renew) = &self.renew else { return Ok((server.clone(), self.tls.clone())) };
        let refused = |reason| ConnectError::Renewal { address: address(server.addr()), reason };
        let anew = renew().map_err(refused)?;
        let like = match &anew.servers {
            Servers::One(server) => Some(server),
            Servers::Sentinels(sentinels, ..) if is_sentinel => sentinels.first(),
            Servers::Sentinels(_, _, master) => Some(master),
            Servers::Nodes(nodes) => nodes.first(),
        };
        let settings = like.unwrap_or(server).redis_settings().clone();
        Ok((server.clone().set_redis_settings(settings), anew.tls))
    }

    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Nodes(_))
    }

    pub(crate) fn shard_count(&self) -> u32 {
        self.shards.unwrap_or(if self.is_cluster() { CLUSTER_SHARDS } else { SHARDS })
    }

    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        let fault = |option, value: String, wanted| Err(ConnectError::Option { option, value, wanted });
        let name = &self.namespace;
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return fault("namespace", format!("`{name}`"), "use 1 to 64 letters, digits, `-`, `_` or `.`");
        }
        if !(1..=65_536).contains(&self.shard_count()) {
            return fault("shards", self.shard_count().to_string(), "use 1 to 65536");
        }
        if !(1..=STEPS_IN_A_CALL).contains(&self.steps_in_a_call) {
            return fault("steps_in_a_call", self.steps_in_a_call.to_string(), "use 1 to 128");
        }
        if self.timeout.is_zero() {
            return fault("timeout", "0".to_owned(), "use a span above zero");
        }
        Ok(())
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = match &self.servers {
            Servers::One(server) => address(server.addr()),
            Servers::Sentinels(sentinels, name, _) => format!("master {name} of {}", addresses(sentinels)),
            Servers::Nodes(nodes) => format!("cluster of {}", addresses(nodes)),
        };
        f.debug_struct("RedisOptions")
            .field("servers", &servers)
            .field("namespace", &self.namespace)
            .field("shards", &self.shard_count())
            .field("after_loss", &self.after_loss)
            .field("timeout", &self.timeout)
            .field("patience", &self.patience)
            .field("steps_in_a_call", &self.steps_in_a_call)
            .finish_non_exhaustive()
    }
}

/// A server, with the user and the password for it, and the certificates.
type Login = (ConnectionInfo, TlsCertificates);

fn infos(urls: &[&str], what: &'static str) -> Result<Vec<ConnectionInfo>, ConnectError> {
    if urls.is_empty() {
        let wanted = "name one at least";
        return Err(ConnectError::Option { option: what, value: "an empty list".to_owned(), wanted });
    }
    let each = urls.iter().enumerate();
    each.map(|(at, url)| info(url, &format!("address {} of the {what}", at + 1))).collect()
}

fn info(url: &str, what: &str) -> Result<ConnectionInfo, ConnectError> {
    // The error does not repeat the text, which may hold a password.
    url.into_connection_info().map_err(|_| ConnectError::Address { what: what.to_owned() })
}

/// Returns an address without secrets.
pub(crate) fn address(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) => format!("{host}:{port}"),
        ConnectionAddr::TcpTls { host, port, .. } => format!("{host}:{port} (TLS)"),
        ConnectionAddr::Unix(path) => PathBuf::from(path).display().to_string(),
        _ => "a server".to_owned(),
    }
}

pub(crate) fn addresses(infos: &[ConnectionInfo]) -> String {
    let all: Vec<String> = infos.iter().map(|info| address(info.addr())).collect();
    all.join(", ")
}

/// Why a store could not be connected. No message holds a user name or a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An address is not valid.
    #[error(
        "{what} is not an address of a Redis server; write `redis://host:port/db`, `rediss://` for TLS, or `unix:///path`"
    )]
    Address {
        /// Which of the addresses, counted from 1. The text itself is left out, because it may hold a password.
        what: String,
    },
    /// An option is out of range.
    #[error("option `{option}`: {value} is not usable; {wanted}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// The given value.
        value: String,
        /// The valid values.
        wanted: &'static str,
    },
    /// The future was not polled by a tokio runtime, on which the connection has to live.
    #[error("there is no tokio runtime here; connect a Redis store within one that has I/O and time enabled")]
    NoRuntime,
    /// No server answers.
    #[error("no Redis server answers at {address}: {reason}")]
    Unreachable {
        /// The address, without credentials.
        address: String,
        /// The reason.
        reason: String,
    },
    /// One of the two sides refused TLS.
    #[error(
        "TLS with {address} failed: {reason}; check `rediss://`, the host name, the root certificate, and this node's own where the server wants one"
    )]
    Tls {
        /// The address, without credentials.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The user or the password is wrong or missing.
    #[error("{address} refuses the credentials, or requires some: {reason}; check user and password")]
    Credentials {
        /// The address, without credentials.
        address: String,
        /// The server's error.
        reason: String,
    },
    /// The user, the password or the certificates could not be renewed; see [`RedisOptions::renewed_by`].
    #[error("nothing to log in to {address} with: {reason}")]
    Renewal {
        /// The address, without credentials.
        address: String,
        /// The error of the function that renews them.
        reason: String,
    },
    /// The user lacks permissions that the store needs.
    #[error(
        "the user at {address} may not do what the store needs: {reason}; allow it `+@read +@write +@hash +@scripting +time +info +ping +cluster|slots` on the keys `{keys}`"
    )]
    Permission {
        /// The address, without credentials.
        address: String,
        /// The server's error.
        reason: String,
        /// The pattern of the store's keys.
        keys: String,
    },
    /// The database does not exist.
    #[error("{address} has no database {database}: {reason}; in cluster mode there is only 0")]
    Database {
        /// The address, without credentials.
        address: String,
        /// The requested number.
        database: i64,
        /// The server's error.
        reason: String,
    },
    /// The server is too old.
    #[error("{address} runs version {found}; the store needs Redis 7.0 or Valkey 7.2, or a later one")]
    Version {
        /// The address, without credentials.
        address: String,
        /// The server's version.
        found: String,
    },
    /// The server is a replica.
    #[error("{address} is a read-only replica; name its master, or the sentinels that know which one it is")]
    ReadOnly {
        /// The address, without credentials.
        address: String,
    },
    /// The server is a node of a cluster, but was not configured as one; or the other way round.
    #[error("{address} {}", if *.is_cluster { "is a node of a cluster; connect with `RedisOptions::cluster`" } else { "is not a node of a cluster; connect with `RedisOptions::single`" })]
    Mode {
        /// The address, without credentials.
        address: String,
        /// Whether the server is a node of a cluster.
        is_cluster: bool,
    },
    /// The namespace is in use with another number of shards: nodes with different numbers would have separate limits.
    #[error(
        "the namespace is in use with {found}, and this node has {wanted}; give it the same, or a namespace of its own; to change it for all, stop all nodes and delete the key `{key}`: limits start anew then"
    )]
    Shards {
        /// The key that holds the number.
        key: String,
        /// Its value.
        found: String,
        /// The value that this node would have written.
        wanted: String,
    },
    /// The server that was named as a sentinel is not one.
    #[error("{address} is not a sentinel: {reason}; name the sentinels, which usually listen on port 26379")]
    NoSentinel {
        /// The address, without credentials.
        address: String,
        /// Its answer.
        reason: String,
    },
    /// No sentinel knows a master of this name.
    #[error("no sentinel of {sentinels} names a master `{name}`: {reason}")]
    NoMaster {
        /// The addresses that were asked.
        sentinels: String,
        /// The name of the master.
        name: String,
        /// The last sentinel's answer.
        reason: String,
    },
    /// The server gave an unexpected answer.
    #[error("{address} does not answer as a Redis server does: {reason}")]
    Answer {
        /// The address, without credentials.
        address: String,
        /// A description of the answer.
        reason: String,
    },
}
