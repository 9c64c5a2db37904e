//! Connections to etcd, the checks before a connection is used, and why an exchange fails.

use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use http::Uri;
use tidegate::cluster::CoordinatorError;
use tidegate::store::{Later, StoreError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::context::TokioContext;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::members::{Member, Members};
use crate::options::{ConnectError, EtcdOptions, OLDEST, Tls, without_credentials};

/// The interval of HTTP/2 keep-alive pings on a silent connection; etcd closes connections that ping more often than
/// every five seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How often an exchange is made at most, in a cluster of up to as many members.
const TRIES: usize = 3;

/// A connection to an etcd cluster. Clones share it; it reconnects by itself, on the runtime on which it was made.
#[derive(Clone)]
pub struct Etcd {
    shared: Arc<Connection>,
}

struct Connection {
    options: EtcdOptions,
    members: Arc<Members>,
    /// Drives the connection; answers may be awaited anywhere.
    runtime: Handle,
}

/// An answer of a member.
pub(crate) struct Answer<T> {
    pub(crate) value: T,
    /// Whether the exchange may have been executed before, by a member that did not answer.
    pub(crate) repeated: bool,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Etcd {
    /// Connects to the member that answers first, and checks address, certificates, credentials, version and read
    /// permission. Goes on with another one whenever it fails. To be called on a tokio runtime that lives as long as
    /// the connection.
    ///
    /// # Errors
    /// [`ConnectError`], which names the fault and a remedy; [`ConnectError::NoRuntime`] if it is polled outside a tokio
    /// runtime.
    ///
    /// # Cancel safety
    /// If the future is dropped, the connection is closed. Nothing is written to etcd.
    pub async fn connect(options: EtcdOptions) -> Result<Self, ConnectError> {
        let addresses =
            options.addresses.iter().map(|address| parse(address)).collect::<Result<Vec<_>, _>>()?;
        if addresses.is_empty() {
            return Err(ConnectError::Address {
                address: String::new(),
                reason: "none was given".to_owned(),
            });
        }
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let shared = Arc::new(options.clone());
        let mut probes = JoinSet::new();
        let mut members = Vec::with_capacity(addresses.len());
        for (at, address) in addresses.into_iter().enumerate() {
            let member = Arc::new(Member::new(address, Arc::clone(&shared)));
            members.push(Arc::clone(&member));
            let options = Arc::clone(&shared);
            probes.spawn(async move { (at, probe(&member, &options).await) });
        }
        let (mut wrong, mut silent) = (None, Vec::new());
        while let Some(probed) = probes.join_next().await {
            match probed {
                Ok((at, Ok(()))) => {
                    let members = Members::new(members, at, runtime.clone());
                    return Ok(Self { shared: Arc::new(Connection { options, members, runtime }) });
                }
                Ok((at, Err(Probed::Silent(reason)))) => {
                    silent.push(format!("{} ({reason})", members[at].address.shown));
                }
                Ok((_, Err(Probed::Wrong(error)))) => wrong = Some(error),
                // It has panicked, which the others need not.
                Err(_) => {}
            }
        }
        Err(wrong.unwrap_or_else(|| ConnectError::Unreachable { tried: silent.join(", ") }))
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    pub(crate) fn members(&self) -> &Arc<Members> {
        &self.shared.members
    }

    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        key(&self.shared.options, name)
    }

    /// Makes an exchange that does no harm if it is executed twice.
    pub(crate) async fn ask<T, X>(&self, exchange: impl Fn(Client) -> X) -> Result<T, Failed>
    where
        X: Future<Output = Result<T, Error>>,
    {
        Ok(self.exchange(true, exchange).await?.value)
    }

    /// Makes an exchange that must not be executed twice.
    pub(crate) async fn ask_once<T, X>(&self, exchange: impl Fn(Client) -> X) -> Result<T, Failed>
    where
        X: Future<Output = Result<T, Error>>,
    {
        Ok(self.exchange(false, exchange).await?.value)
    }

    /// Makes an exchange; again, with another member, if one cannot be reached, and if it `may_repeat`, also if one has
    /// broken off or is silent; and with another login if there is one since etcd refused the last.
    pub(crate) async fn exchange<T, X>(
        &self,
        may_repeat: bool,
        exchange: impl Fn(Client) -> X,
    ) -> Result<Answer<T>, Failed>
    where
        X: Future<Output = Result<T, Error>>,
    {
        let members = &self.shared.members;
        let most = TRIES.max(members.len());
        let tries = async {
            let mut repeated = false;
            let mut tried = 0;
            loop {
                tried += 1;
                let used = members.used();
                let member = members.member(used);
                let mut made = None;
                let answer = {
                    let mut asked = pin!(async {
                        let client = made.insert(member.client().await?).client.clone();
                        exchange(client).await.map_err(Failed::Engine)
                    });
                    let answer = tokio::select! {
                        biased;
                        answer = &mut asked => Some(answer),
                        () = members.silent(used) => None,
                    };
                    match answer {
                        None if may_repeat && tried < most => {
                            repeated = true;
                            continue;
                        }
                        None => asked.await,
                        Some(answer) => answer,
                    }
                };
                let failed = match answer {
                    Ok(value) => return Ok(Answer { value, repeated }),
                    Err(failed) => failed,
                };
                if failed.is_login()
                    && let Some(made) = made
                {
                    // Not executed.
                    if tried < most && member.has_other_login(&made).await? {
                        continue;
                    }
                    return Err(failed);
                }
                if !failed.may_pass() {
                    return Err(failed);
                }
                // Begun also if this exchange is not made again: for the next one.
                let look = members.look();
                let unsent = made.is_none() || failed.is_unsent();
                if tried == most || !(may_repeat || unsent) || !look.await {
                    return Err(failed);
                }
                repeated |= !unsent;
            }
        };
        let patience = self.shared.options.timeout;
        timeout(patience, tries).await.unwrap_or(Err(Failed::TimedOut(patience)))
    }

    /// Wraps a future that needs the runtime, so that it can be polled on any thread.
    pub(crate) fn later<T>(&self, future: impl Future<Output = T> + Send + 'static) -> Later<T> {
        Box::pin(TokioContext::new(future, self.shared.runtime.clone()))
    }
}

fn key(options: &EtcdOptions, name: &str) -> Vec<u8> {
    [options.below().as_bytes(), name.as_bytes()].concat()
}

pub(crate) fn wanted(options: &EtcdOptions, address: &Address) -> ConnectOptions {
    let mut wanted = ConnectOptions::new()
        .with_connect_timeout(options.timeout.min(PATIENCE))
        .with_keep_alive(KEEP_ALIVE, options.timeout)
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some((user, password)) = &options.user {
        wanted = wanted.with_user(user, password);
    }
    if address.secure {
        wanted = wanted.with_tls(tls_options(&options.tls));
    }
    wanted
}

/// Checks a member: what it speaks, whether this program may read, and whether it takes writes.
async fn probe(member: &Member, options: &EtcdOptions) -> Result<(), Probed> {
    member.address.check(&tls_options(&options.tls)).await?;
    let address = member.address.shown.clone();
    let judge = |failed: Failed| Probed::Wrong(judged(&failed, &address, options));
    let patience = options.timeout;
    let made = timeout(patience, member.client()).await.unwrap_or(Err(Failed::TimedOut(patience)));
    let mut client = made.map_err(judge)?.client;
    let status = within(patience, client.status()).await.map_err(judge)?;
    let mut numbers = status.version().split('.').map(|part| part.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
        let version = status.version().to_owned();
        return Err(Probed::Wrong(ConnectError::TooOld { address, version }));
    }
    if status.is_learner() {
        let reason = "it is a learner, which only follows; name members that vote".to_owned();
        return Err(Probed::Wrong(ConnectError::ReadOnly { address, reason }));
    }
    if let Some(alarm) = status.errors().iter().find(|error| error.contains("NOSPACE")) {
        let reason = format!("its space is used up ({alarm}); compact, defragment and disarm the alarm");
        return Err(Probed::Wrong(ConnectError::ReadOnly { address, reason }));
    }
    within(patience, client.get(key(options, "documents/"), None)).await.map_err(judge)?;
    Ok(())
}

async fn within<T>(
    patience: Duration,
    exchange: impl Future<Output = Result<T, Error>>,
) -> Result<T, Failed> {
    match timeout(patience, exchange).await {
        Ok(answer) => answer.map_err(Failed::Engine),
        Err(_) => Err(Failed::TimedOut(patience)),
    }
}

fn parse(address: &str) -> Result<Address, ConnectError> {
    let shown = without_credentials(address);
    let wrong = |reason: &str| ConnectError::Address { address: shown.clone(), reason: reason.to_owned() };
    if shown != address {
        return Err(wrong(
            "it holds credentials, which would be seen in logs; give them as user and password",
        ));
    }
    let uri: Uri = address.parse().map_err(|_| wrong("it cannot be read"))?;
    let secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong("it begins with neither `http://` nor `https://`")),
    };
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it names no host"))?;
    // An IPv6 host is in brackets, which sockets do not accept.
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    if !matches!(uri.path(), "" | "/") {
        return Err(wrong("it has a path, and etcd has none"));
    }
    let port = uri.port_u16().ok_or_else(|| wrong("it names no port"))?;
    Ok(Address { shown, host, port, secure })
}

fn tls_options(tls: &Tls) -> TlsOptions {
    let mut options = TlsOptions::new();
    options = if tls.authorities.is_empty() {
        options.with_native_roots()
    } else {
        options.ca_certificate(Certificate::from_pem(&tls.authorities))
    };
    if let Some((certificate, key)) = &tls.identity {
        options = options.identity(Identity::from_pem(certificate, key));
    }
    if let Some(name) = &tls.server_name {
        options = options.domain_name(name);
    }
    options
}

fn judged(failed: &Failed, address: &str, options: &EtcdOptions) -> ConnectError {
    let address = address.to_owned();
    let user = options.user.as_ref().map(|(name, _)| name.clone());
    if let Failed::Renewal(reason) = failed {
        return ConnectError::Renewal { address, reason: reason.clone() };
    }
    if failed.is_login() {
        return ConnectError::Credentials { address, user: user.unwrap_or_default() };
    }
    if let Failed::Engine(Error::GRpcStatus(status)) = failed {
        let said = status.message();
        if said.contains("user name is empty") || said.contains("user name not found") && user.is_none() {
            return ConnectError::NoCredentials { address };
        }
        if status.code() == Code::PermissionDenied {
            let user = user.map_or_else(|| "anybody".to_owned(), |user| format!("user `{user}`"));
            return ConnectError::NotAllowed { address, user, prefix: options.below() };
        }
    }
    ConnectError::Other { address, reason: failed.reason() }
}

// Probes an address by hand: the client library's errors do not say what is wrong.

const PATIENCE: Duration = Duration::from_secs(2);

/// The start of an HTTP/2 connection: the preface and an empty settings frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The type of the first frame that an HTTP/2 server sends: settings.
const SETTINGS: u8 = 4;

/// A TLS record with an unknown handshake message (RFC 8446, section 5.1): a TLS server answers it with an alert.
const NO_HANDSHAKE: &[u8] = &[22, 3, 1, 0, 4, 99, 0, 0, 0];

const ALERT: u8 = 21;

const FRAME_HEAD: u64 = 9;

pub(crate) struct Address {
    pub(crate) shown: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) secure: bool,
}

impl Address {
    async fn tcp(&self) -> Result<TcpStream, String> {
        match timeout(PATIENCE, TcpStream::connect((self.host.as_str(), self.port))).await {
            Ok(connected) => connected.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no connection within {} ms", PATIENCE.as_millis())),
        }
    }

    async fn greet(stream: TcpStream) -> Http2Greeting {
        let first = exchange(stream, PREFACE, FRAME_HEAD).await;
        match first.get(3) {
            Some(&SETTINGS) => Http2Greeting::Plaintext,
            _ if first.is_empty() => Http2Greeting::NoAnswer,
            _ => Http2Greeting::OtherProtocol,
        }
    }

    /// Returns whether the server answers TLS; for servers that close plain-text connections.
    async fn speaks_tls(&self) -> bool {
        let Ok(stream) = self.tcp().await else { return false };
        matches!(exchange(stream, NO_HANDSHAKE, 1).await.first(), Some(&ALERT))
    }

    async fn check(&self, tls: &TlsOptions) -> Result<(), Probed> {
        let stream = self.tcp().await.map_err(Probed::Silent)?;
        let address = self.shown.clone();
        if !self.secure {
            return match Self::greet(stream).await {
                Http2Greeting::Plaintext => Ok(()),
                Http2Greeting::OtherProtocol => Err(Probed::Wrong(ConnectError::WantsTls { address })),
                Http2Greeting::NoAnswer if self.speaks_tls().await => {
                    Err(Probed::Wrong(ConnectError::WantsTls { address }))
                }
                // A stopped process, or a balancer without backends: it may answer later.
                Http2Greeting::NoAnswer => {
                    Err(Probed::Silent("it accepts connections but does not answer".to_owned()))
                }
            };
        }
        let connected = async {
            let endpoint = Endpoint::from_shared(self.shown.clone())?.tls_config(tls.clone())?;
            endpoint.connect_timeout(PATIENCE).connect().await
        };
        let Err(error) = connected.await else { return Ok(()) };
        if matches!(Self::greet(stream).await, Http2Greeting::Plaintext) {
            return Err(Probed::Wrong(ConnectError::PlainText { address }));
        }
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            reason = error.to_string();
            source = error.source();
        }
        Err(Probed::Wrong(ConnectError::Certificate { address, reason }))
    }
}

async fn exchange(mut stream: TcpStream, sent: &[u8], length: u64) -> Vec<u8> {
    let mut first = Vec::new();
    let asked = async {
        stream.write_all(sent).await?;
        stream.take(length).read_to_end(&mut first).await
    };
    let _ = timeout(PATIENCE, asked).await;
    first
}

enum Http2Greeting {
    Plaintext,
    OtherProtocol,
    NoAnswer,
}

enum Probed {
    Silent(String),
    Wrong(ConnectError),
}

/// Why one exchange failed.
#[derive(Debug)]
pub(crate) enum Failed {
    Engine(Error),
    /// There was no answer within this time.
    TimedOut(Duration),
    /// The lease for a cell was not granted, for this reason; nothing was written.
    NoLease(String),
    /// The user, the password or the certificates could not be renewed.
    Renewal(String),
}

impl Failed {
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Engine(Error::GRpcStatus(status)) => {
                format!("etcd: {}", status.message().trim_start_matches("etcdserver: "))
            }
            Self::Engine(error) => format!("etcd: {error}"),
            Self::TimedOut(after) => format!("etcd: no answer within {} ms", after.as_millis()),
            Self::NoLease(reason) => reason.clone(),
            Self::Renewal(reason) => format!("etcd: nothing to log in with: {reason}"),
        }
    }

    /// Returns whether the lease no longer exists: then nothing was written.
    pub(crate) fn is_lease_gone(&self) -> bool {
        match self {
            Self::Engine(Error::GRpcStatus(status)) => {
                status.code() == Code::NotFound && status.message().contains("lease not found")
            }
            Self::Engine(Error::LeaseKeepAliveError(reason)) => reason.contains("lease not found"),
            _ => false,
        }
    }

    /// Returns whether etcd refused the user or the password.
    pub(crate) fn is_login(&self) -> bool {
        let Self::Engine(Error::GRpcStatus(status)) = self else { return false };
        ["authentication failed", "invalid user ID or password", "invalid auth token"]
            .iter()
            .any(|said| status.message().contains(said))
    }

    /// Returns whether nothing was sent, because no connection could be made.
    pub(crate) fn is_unsent(&self) -> bool {
        let mut source = match self {
            Self::Engine(Error::GRpcStatus(status)) => status.source(),
            Self::Engine(error) => error.source(),
            _ => None,
        };
        while let Some(error) = source {
            if error.is::<tonic::ConnectError>() {
                return true;
            }
            source = error.source();
        }
        false
    }

    /// Returns whether another member may answer.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Engine(Error::GRpcStatus(status)) => {
                matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled)
            }
            Self::Engine(Error::TransportError(_)) => true,
            _ => false,
        }
    }
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        Self::Unavailable { reason: failed.reason() }
    }
}

impl From<Failed> for CoordinatorError {
    fn from(failed: Failed) -> Self {
        Self::Unavailable { reason: failed.reason() }
    }
}
