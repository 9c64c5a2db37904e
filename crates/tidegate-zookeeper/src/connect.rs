//! Connections to ZooKeeper, the checks before a connection is used, and why an exchange fails.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate::cluster::CoordinatorError;
use tidegate::store::{Later, StoreError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::context::TokioContext;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error};

use crate::layout::Paths;
use crate::options::{ConnectError, Login, OLDEST, ZooKeeperOptions, without_credentials};
use crate::servers::Servers;

/// How often an exchange is made at most, in an ensemble of up to as many servers.
const TRIES: usize = 3;

/// A connection to a ZooKeeper ensemble. Clones share it; it reconnects by itself, on the runtime on which it was made.
#[derive(Clone)]
pub struct ZooKeeper {
    shared: Arc<Connection>,
}

struct Connection {
    options: ZooKeeperOptions,
    paths: Paths,
    /// Drives the connection; answers may be awaited anywhere.
    runtime: Handle,
    servers: Arc<Servers>,
}

/// An answer of a server.
pub(crate) struct Answer<T> {
    pub(crate) value: T,
    /// Whether the exchange may have been executed before, by a server that did not answer.
    pub(crate) repeated: bool,
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl ZooKeeper {
    /// Connects, checks address, version and permissions, and makes the nodes that hold all others. To be called on a
    /// tokio runtime that lives as long as the connection.
    ///
    /// # Errors
    /// [`ConnectError`], which names the fault and a remedy; [`ConnectError::NoRuntime`] if it is polled outside a tokio
    /// runtime.
    ///
    /// # Cancel safety
    /// If the future is dropped, nodes that it has already made stay; a later call uses them.
    pub async fn connect(options: ZooKeeperOptions) -> Result<Self, ConnectError> {
        options.addresses.iter().try_for_each(|address| check(address))?;
        if options.addresses.is_empty() {
            return Err(ConnectError::Address {
                address: String::new(),
                reason: "none was given".to_owned(),
            });
        }
        check_path(&options.path)?;
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let servers = Servers::connect(&options, runtime.clone()).await?;
        let paths = Paths::below(&options.below());
        let made = async {
            let client = servers.used().await?.session.client;
            for path in [&paths.cells, &paths.members, &paths.documents, &paths.sweep] {
                within(options.timeout, client.mkdir(path, &persistent(&options))).await?;
            }
            // Existing nodes may belong to another user.
            within(options.timeout, client.list_children(&paths.documents)).await?;
            Ok(())
        };
        made.await.map_err(|failed: Failed| judged(&failed, &options))?;
        Ok(Self { shared: Arc::new(Connection { options, paths, runtime, servers }) })
    }

    pub(crate) fn paths(&self) -> &Paths {
        &self.shared.paths
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    #[cfg(test)]
    pub(crate) fn servers(&self) -> &Arc<Servers> {
        &self.shared.servers
    }

    pub(crate) fn persistent(&self) -> CreateOptions<'static> {
        persistent(&self.shared.options)
    }

    pub(crate) fn ephemeral(&self) -> CreateOptions<'static> {
        CreateMode::Ephemeral.with_acls(acls(&self.shared.options))
    }

    /// Returns a client with a session.
    pub(crate) async fn client(&self) -> Result<Client, Failed> {
        Ok(self.shared.servers.used().await?.session.client)
    }

    /// Makes a session of its own, with any server; a silent one is left after a fifth of that time.
    pub(crate) async fn session(&self, lasts: Duration) -> Result<Session, Failed> {
        Session::begin(&self.shared.options, &self.shared.options.addresses, lasts).await
    }

    /// Makes the session for cells anew if there is another login than it has.
    pub(crate) async fn renew_session(&self) {
        let servers = &self.shared.servers;
        // A login that cannot be read is an error only where one is needed.
        if servers.used().await.is_ok_and(|used| servers.has_other_login(&used).unwrap_or_default()) {
            servers.look().await;
        }
    }

    /// Logs a session in with the login of now as well, if that is another one.
    pub(crate) async fn log_in_anew(&self, session: &mut Session) -> Result<(), Failed> {
        let login = self.shared.options.login().unwrap_or_else(|_| session.login.clone());
        if let Some((user, password)) = login.as_ref().filter(|_| login != session.login) {
            self.ask(session.client.auth("digest", format!("{user}:{password}").as_bytes())).await?;
            session.login = login;
        }
        Ok(())
    }

    /// Makes an exchange; again, with another server, if one has broken off or is silent.
    pub(crate) async fn exchange<T, X>(&self, exchange: impl Fn(Client) -> X) -> Result<Answer<T>, Failed>
    where
        X: Future<Output = Result<T, Failed>>,
    {
        let servers = &self.shared.servers;
        let most = TRIES.max(servers.len());
        let tries = async {
            for tried in 1.. {
                let repeated = tried > 1;
                let used = servers.used().await?;
                let answer = tokio::select! {
                    biased;
                    answer = exchange(used.session.client.clone()) => answer,
                    () = servers.silent(used.turn), if tried < most => continue,
                };
                match answer {
                    // What was asked belongs to another user by now.
                    Err(Failed::Engine(Error::NoAuth))
                        if tried < most && servers.has_other_login(&used)? =>
                    {
                        servers.look().await;
                    }
                    Err(failed) if failed.may_pass() => {
                        // Begun also if this exchange is not made again: for the next one.
                        let look = servers.look();
                        if tried == most || !look.await {
                            return Err(failed);
                        }
                    }
                    answer => return Ok(Answer { value: answer?, repeated }),
                }
            }
            Err(Failed::Disconnected)
        };
        let patience = self.shared.options.timeout;
        timeout(patience, tries).await.unwrap_or(Err(Failed::TimedOut(patience)))
    }

    pub(crate) async fn ask<T, E>(&self, exchange: impl Future<Output = Result<T, E>>) -> Result<T, Failed>
    where
        Failed: From<E>,
    {
        within(self.shared.options.timeout, exchange).await
    }

    /// Wraps a future that needs the runtime's timers, so that it can be polled on any thread.
    pub(crate) fn later<T>(&self, future: impl Future<Output = T> + Send + 'static) -> Later<T> {
        Box::pin(TokioContext::new(future, self.shared.runtime.clone()))
    }
}

/// A session, and the user and the password that it was logged in with.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) login: Option<Login>,
}

impl Session {
    pub(crate) async fn begin(
        options: &ZooKeeperOptions,
        addresses: &[String],
        lasts: Duration,
    ) -> Result<Self, Failed> {
        let login = options.login().map_err(Failed::Renewal)?;
        let mut connector = Client::connector().with_session_timeout(lasts).with_fail_eagerly();
        if addresses.len() > 1 {
            // The library has no other way to leave a silent server; its default is two fifths.
            connector = connector.with_connection_timeout(lasts / 5);
        }
        if let Some((user, password)) = &login {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        let client = within(options.timeout, connector.connect(&addresses.join(","))).await?;
        Ok(Self { client, login })
    }
}

async fn within<T, E>(patience: Duration, exchange: impl Future<Output = Result<T, E>>) -> Result<T, Failed>
where
    Failed: From<E>,
{
    match timeout(patience, exchange).await {
        Ok(answer) => answer.map_err(Failed::from),
        Err(_) => Err(Failed::TimedOut(patience)),
    }
}

fn acls(options: &ZooKeeperOptions) -> Acls<'static> {
    if options.user.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
}

fn persistent(options: &ZooKeeperOptions) -> CreateOptions<'static> {
    CreateMode::Persistent.with_acls(acls(options))
}

fn check(address: &str) -> Result<(), ConnectError> {
    let shown = without_credentials(address);
    let wrong = |reason: &str| ConnectError::Address { address: shown.to_owned(), reason: reason.to_owned() };
    if shown != address {
        return Err(wrong(
            "it holds credentials, which would be seen in logs; give them as user and password",
        ));
    }
    if address.contains(['/', ',']) {
        return Err(wrong(
            "it is more than one host and a port; give the path as `path`, each server by itself",
        ));
    }
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(()),
        _ => Err(wrong("it names no port")),
    }
}

fn check_path(path: &str) -> Result<(), ConnectError> {
    let wrong = |reason: &str| ConnectError::Path { path: path.to_owned(), reason: reason.to_owned() };
    let Some(rest) = path.strip_prefix('/') else { return Err(wrong("it does not begin with `/`")) };
    if rest.split('/').any(|name| matches!(name, "" | "." | "..") || name.contains(char::is_control)) {
        return Err(wrong("it has an empty part, `.`, `..` or a control character"));
    }
    if rest == "zookeeper" || rest.starts_with("zookeeper/") {
        return Err(wrong("that one is ZooKeeper's own"));
    }
    Ok(())
}

pub(crate) fn judged(failed: &Failed, options: &ZooKeeperOptions) -> ConnectError {
    let address = options.addresses.join(", ");
    match failed {
        Failed::Engine(Error::NoAuth | Error::AuthFailed) => {
            let user = options.user.as_ref();
            let user = user.map_or_else(|| "anybody".to_owned(), |(name, _)| format!("user `{name}`"));
            ConnectError::NotAllowed { address, user, path: options.below() }
        }
        Failed::Engine(Error::Unimplemented) => {
            ConnectError::TooOld { address, version: "too old".to_owned() }
        }
        Failed::Engine(Error::NotReadOnly) => ConnectError::ReadOnly { address },
        Failed::Renewal(reason) => ConnectError::Renewal { address, reason: reason.clone() },
        failed => ConnectError::Other { address, reason: failed.reason() },
    }
}

// Probes an address by hand: the client library's errors do not say what is wrong.

const PATIENCE: Duration = Duration::from_secs(2);

/// The most bytes of an answer that are read.
const LONGEST: u64 = 4096;

pub(crate) enum Probed {
    Silent(String),
    Wrong(ConnectError),
}

pub(crate) async fn probe_one(address: &str) -> Result<(), Probed> {
    let mut stream = match timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(connected) => connected.map_err(|error| Probed::Silent(error.to_string()))?,
        Err(_) => {
            return Err(Probed::Silent(format!("no connection within {} ms", PATIENCE.as_millis())));
        }
    };
    // The one four-letter word that servers answer by default.
    let mut answer = Vec::new();
    let asked = async {
        stream.write_all(b"srvr").await?;
        stream.take(LONGEST).read_to_end(&mut answer).await
    };
    let _ = timeout(PATIENCE, asked).await;
    if answer.is_empty() {
        // A stopped process, or a balancer without backends: it may answer later.
        return Err(Probed::Silent("it does not answer; is it the port for TLS?".to_owned()));
    }
    judge(address, &String::from_utf8_lossy(&answer)).map_err(Probed::Wrong)
}

fn judge(address: &str, answer: &str) -> Result<(), ConnectError> {
    let address = address.to_owned();
    if answer.contains("not currently serving requests") {
        return Err(ConnectError::NoQuorum { address });
    }
    if answer.contains("not in the whitelist") {
        return Ok(());
    }
    let Some(version) = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: ")) else {
        return Err(ConnectError::NotZooKeeper { address });
    };
    let version = version.split(['-', ',', ' ']).next().unwrap_or_default();
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
        return Err(ConnectError::TooOld { address, version: version.to_owned() });
    }
    if answer.lines().any(|line| line == "Mode: read-only") {
        return Err(ConnectError::ReadOnly { address });
    }
    Ok(())
}

/// Why one exchange failed.
#[derive(Clone, Debug)]
pub(crate) enum Failed {
    Engine(Error),
    /// There was no answer within this time.
    TimedOut(Duration),
    /// There is no connection: nothing was sent.
    Disconnected,
    /// The user and the password could not be renewed.
    Renewal(String),
}

impl Failed {
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Engine(error) => format!("ZooKeeper: {error}"),
            Self::TimedOut(after) => format!("ZooKeeper: no answer within {} ms", after.as_millis()),
            Self::Disconnected => "ZooKeeper: not connected".to_owned(),
            Self::Renewal(reason) => format!("ZooKeeper: nothing to log in with: {reason}"),
        }
    }

    /// Returns whether another session may answer.
    const fn may_pass(&self) -> bool {
        // The library has no variant of its own for a connection that was reset, or was silent.
        matches!(self, Self::Engine(Error::ConnectionLoss | Error::Custom(_))) || self.is_over()
    }

    /// Returns whether the session has ended, so that a new one is needed.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, Self::Engine(Error::SessionExpired | Error::ClientClosed | Error::AuthFailed))
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

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_judged_by_what_they_say_of_themselves() {
        let answer = |version: &str, mode: &str| {
            format!(
                "Zookeeper version: {version}-${{mvnbuild}}, built on 2022\nOutstanding: 0\nMode: {mode}\n"
            )
        };
        let judge = |answer: &str| judge("h:1", answer);
        assert_eq!(judge(&answer("3.8.0", "standalone")), Ok(()));
        assert_eq!(judge(&answer("3.10.1", "leader")), Ok(()));
        assert!(
            matches!(judge(&answer("3.5.9", "leader")), Err(ConnectError::TooOld { version, .. }) if version == "3.5.9")
        );
        assert!(matches!(judge(&answer("3.8.0", "read-only")), Err(ConnectError::ReadOnly { .. })));
        assert!(matches!(
            judge("This ZooKeeper instance is not currently serving requests\n"),
            Err(ConnectError::NoQuorum { .. })
        ));
        assert_eq!(judge("srvr is not executed because it is not in the whitelist.\n"), Ok(()));
        assert!(matches!(judge("HTTP/1.1 400 Bad Request"), Err(ConnectError::NotZooKeeper { .. })));
    }
}
