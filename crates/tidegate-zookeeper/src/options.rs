//! How a program connects: addresses, credentials, path and time limit; and why there is no connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The default time limit of one exchange. [`Fallback`](tidegate::store::Fallback) waits for less.
const TIMEOUT: Duration = Duration::from_secs(5);

const PATH: &str = "/tidegate";

/// The version of the layout: different layouts never share nodes.
const LAYOUT: &str = "/1";

/// The options of a connection to ZooKeeper. `Debug` does not show the password.
#[derive(Clone)]
pub struct ZooKeeperOptions {
    pub(crate) addresses: Vec<String>,
    pub(crate) user: Option<Login>,
    pub(crate) path: String,
    pub(crate) timeout: Duration,
    renew: Option<Renew>,
}

/// Makes the options anew; see [`ZooKeeperOptions::renewed_by`].
type Renew = Arc<dyn Fn() -> Result<ZooKeeperOptions, String> + Send + Sync>;

/// A user and a password.
pub(crate) type Login = (String, String);

impl ZooKeeperOptions {
    /// Names the servers of an ensemble: `host:port` each.
    #[must_use]
    pub fn new<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Self {
        Self {
            addresses: addresses.into_iter().map(Into::into).collect(),
            user: None,
            path: PATH.to_owned(),
            timeout: TIMEOUT,
            renew: None,
        }
    }

    /// Sets the user and the password (scheme `digest`). All nodes that are made then belong to that user alone.
    /// ZooKeeper checks a password only when a node already belongs to a user.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some((name.into(), password.into()));
        self
    }

    /// Sets a function that is called before each session, and every second. It returns options whose user and password
    /// are then used: so passwords can change while the connection is in use. Its error is that of the session; it must
    /// not contain a secret.
    #[must_use]
    pub fn renewed_by(mut self, renew: impl Fn() -> Result<Self, String> + Send + Sync + 'static) -> Self {
        self.renew = Some(Arc::new(renew));
        self
    }

    /// Returns the user and the password for a new session.
    pub(crate) fn login(&self) -> Result<Option<Login>, String> {
        let Some(renew) = &self.renew else { return Ok(self.user.clone()) };
        renew().map(|anew| anew.user)
    }

    /// Sets the path of the node that holds all others; the default is `/tidegate`. Deployments that share an ensemble
    /// need different ones. The version of the layout follows it: with `/tg`, all nodes are in `/tg/1`.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// Returns the path of the node that holds all others.
    pub(crate) fn below(&self) -> String {
        format!("{}{LAYOUT}", self.path)
    }

    /// Sets the time limit of one exchange, and of connecting; the default is 5 s.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Debug for ZooKeeperOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<&str> = self.addresses.iter().map(|address| without_credentials(address)).collect();
        f.debug_struct("ZooKeeperOptions")
            .field("addresses", &shown)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("path", &self.path)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// Returns an address without the part before an `@`, so that it may be shown.
pub(crate) fn without_credentials(address: &str) -> &str {
    address.rsplit_once('@').map_or(address, |(_, host)| host)
}

/// The oldest version that can read several nodes atomically.
pub(crate) const OLDEST: (u32, u32) = (3, 6);

/// Why there is no connection. No message contains a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An address is not valid, or none was given.
    #[error("ZooKeeper address `{address}`: {reason}; write `host:port`")]
    Address {
        /// The address, without credentials.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The path is not valid.
    #[error("ZooKeeper path `{path}`: {reason}; write it as `/tidegate`")]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The future was not polled by a tokio runtime, on which the connection has to live.
    #[error("there is no tokio runtime here; connect to ZooKeeper within one that has I/O and time enabled")]
    NoRuntime,
    /// No server answers at any address.
    #[error("no ZooKeeper answers at {tried}; is it running, and is this its port for clients (2181)?")]
    Unreachable {
        /// Each address, and the reason.
        tried: String,
    },
    /// The server is not ZooKeeper, or one that expects TLS.
    #[error(
        "the server at {address} does not answer as ZooKeeper does; is it the port for TLS, or another program?"
    )]
    NotZooKeeper {
        /// The address.
        address: String,
    },
    /// The server has no quorum.
    #[error(
        "ZooKeeper at {address} does not serve requests: most servers of its ensemble are down; start them"
    )]
    NoQuorum {
        /// The address.
        address: String,
    },
    /// The server is too old.
    #[error("ZooKeeper at {address} is {version}; {}.{} is the oldest that can be used", OLDEST.0, OLDEST.1)]
    TooOld {
        /// The address.
        address: String,
        /// Its version.
        version: String,
    },
    /// The server is read-only.
    #[error("ZooKeeper at {address} takes no writes: it is cut off from its ensemble, in mode `read-only`")]
    ReadOnly {
        /// The address.
        address: String,
    },
    /// The user and the password could not be renewed; see [`ZooKeeperOptions::renewed_by`].
    #[error("nothing to log in to ZooKeeper at {address} with: {reason}")]
    Renewal {
        /// The addresses.
        address: String,
        /// The error of the function that renews them.
        reason: String,
    },
    /// The path belongs to another user.
    #[error(
        "ZooKeeper at {address} does not let {user} use `{path}`; check user and password, or the node's ACL"
    )]
    NotAllowed {
        /// The addresses.
        address: String,
        /// The user, or a description of unauthenticated access.
        user: String,
        /// The path.
        path: String,
    },
    /// Any other error, or no answer.
    #[error("ZooKeeper at {address}: {reason}")]
    Other {
        /// The addresses.
        address: String,
        /// The error.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_has_a_number_below_any_path() {
        let options = ZooKeeperOptions::new(["h:1"]);
        assert_eq!(options.below(), "/tidegate/1");
        assert_eq!(options.path("/tg").below(), "/tg/1");
    }

    #[test]
    fn no_secret_is_shown() {
        let options = ZooKeeperOptions::new(["root:hunter2@10.0.0.1:2181"]).user("root", "hunter2");
        let shown = format!("{options:?}");
        assert!(!shown.contains("hunter2") && shown.contains("10.0.0.1:2181"), "{shown}");
    }
}
