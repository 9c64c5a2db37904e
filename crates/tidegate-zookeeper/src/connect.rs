//! A connection, and what is checked before it counts as one.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tidegate::store::Later;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::context::TokioContext;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, SessionState};

use crate::error::{ConnectError, Failed};
use crate::options::{ZooKeeperOptions, without_credentials};
use crate::path::Paths;
use crate::probe;

/// How long the session lasts over which cells are read and written. Nothing hangs on it.
const SESSION: Duration = Duration::from_secs(10);

/// A connection to a ZooKeeper ensemble. Clones share it; it reconnects by itself, on the runtime that it was made on.
#[derive(Clone)]
pub struct ZooKeeper {
    shared: Arc<Shared>,
}

struct Shared {
    options: ZooKeeperOptions,
    paths: Paths,
    /// The runtime that drives the connection; answers may be awaited on any other, or on none.
    runtime: Handle,
    client: RwLock<Client>,
    /// Held by whoever makes a new session.
    renewing: Mutex<()>,
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl ZooKeeper {
    /// Connects, checks address, version and rights, and makes the nodes that everything lies in. To be called on a tokio runtime,
    /// which has to live as long as the connection.
    ///
    /// # Errors
    /// [`ConnectError`], which says what is wrong and what would work.
    pub async fn connect(options: ZooKeeperOptions) -> Result<Self, ConnectError> {
        options.addresses.iter().try_for_each(|address| check(address))?;
        if options.addresses.is_empty() {
            return Err(ConnectError::Address {
                address: String::new(),
                reason: "none was given".to_owned(),
            });
        }
        check_path(&options.path)?;
        probe::any(&options.addresses).await?;
        let made = async {
            let client = session(&options, SESSION).await?;
            let paths = Paths::below(&options.path);
            for path in [&paths.cells, &paths.members, &paths.documents, &paths.sweep] {
                within(options.timeout, client.mkdir(path, &persistent(&options))).await?;
            }
            // Nodes that are there already may be another user's.
            within(options.timeout, client.list_children(&paths.documents)).await?;
            Ok((client, paths))
        };
        let (client, paths) = made.await.map_err(|failed: Failed| judged(&failed, &options))?;
        let shared = Shared {
            paths,
            runtime: Handle::current(),
            client: RwLock::new(client),
            renewing: Mutex::default(),
            options,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(crate) fn paths(&self) -> &Paths {
        &self.shared.paths
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// How new nodes are made: for this user alone, where there is one.
    pub(crate) fn persistent(&self) -> CreateOptions<'static> {
        persistent(&self.shared.options)
    }

    pub(crate) fn ephemeral(&self) -> CreateOptions<'static> {
        CreateMode::Ephemeral.with_acls(acls(&self.shared.options))
    }

    /// Returns a client with a session. One that is cut off is not asked: what it is asked it keeps, without a bound, until it is back.
    pub(crate) async fn client(&self) -> Result<Client, Failed> {
        let client = self.shared.client.read().clone();
        match client.state() {
            SessionState::Disconnected => Err(Failed::Away),
            state if !state.is_terminated() => Ok(client),
            _ => {
                let _renewing = self.shared.renewing.lock().await;
                let client = self.shared.client.read().clone();
                if !client.state().is_terminated() {
                    return Ok(client);
                }
                let client = self.session(SESSION).await?;
                *self.shared.client.write() = client.clone();
                Ok(client)
            }
        }
    }

    /// Makes a session.
    pub(crate) async fn session(&self, lasts: Duration) -> Result<Client, Failed> {
        session(&self.shared.options, lasts).await
    }

    /// Waits for one exchange.
    pub(crate) async fn ask<T, E>(&self, exchange: impl Future<Output = Result<T, E>>) -> Result<T, Failed>
    where
        Failed: From<E>,
    {
        within(self.shared.options.timeout, exchange).await
    }

    /// Has a future run on any thread, although it needs the runtime's timers.
    pub(crate) fn later<T>(&self, future: impl Future<Output = T> + Send + 'static) -> Later<T> {
        Box::pin(TokioContext::new(future, self.shared.runtime.clone()))
    }
}

async fn session(options: &ZooKeeperOptions, lasts: Duration) -> Result<Client, Failed> {
    let mut connector = Client::connector().with_session_timeout(lasts).with_fail_eagerly();
    if let Some((user, password)) = &options.user {
        connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
    }
    within(options.timeout, connector.connect(&options.addresses.join(","))).await
}

async fn within<T, E>(patience: Duration, exchange: impl Future<Output = Result<T, E>>) -> Result<T, Failed>
where
    Failed: From<E>,
{
    match timeout(patience, exchange).await {
        Ok(answer) => answer.map_err(Failed::from),
        Err(_) => Err(Failed::Late(patience)),
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

/// Says what a refusal at the start means.
fn judged(failed: &Failed, options: &ZooKeeperOptions) -> ConnectError {
    let address = options.addresses.join(", ");
    match failed {
        Failed::Said(Error::NoAuth | Error::AuthFailed) => {
            let user = options.user.as_ref();
            let user = user.map_or_else(|| "anybody".to_owned(), |(name, _)| format!("user `{name}`"));
            ConnectError::NotAllowed { address, user, path: options.path.clone() }
        }
        Failed::Said(Error::Unimplemented) => ConnectError::TooOld { address, version: "too old".to_owned() },
        Failed::Said(Error::NotReadOnly) => ConnectError::ReadOnly { address },
        failed => ConnectError::Other { address, reason: failed.reason() },
    }
}
