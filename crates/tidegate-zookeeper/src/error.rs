//! The error of connecting, and the translation of ZooKeeper's errors for callers.

use std::time::Duration;

use tidegate::cluster::CoordinatorError;
use tidegate::store::StoreError;
use zookeeper_client::Error;

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
    #[error("ZooKeeper is connected within a tokio runtime that has I/O and time enabled")]
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

/// Why one exchange failed.
#[derive(Clone, Debug)]
pub(crate) enum Failed {
    Engine(Error),
    /// There was no answer within this time.
    TimedOut(Duration),
    /// There is no connection: nothing was sent.
    Disconnected,
}

impl Failed {
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Engine(error) => format!("ZooKeeper: {error}"),
            Self::TimedOut(after) => format!("ZooKeeper: no answer within {} ms", after.as_millis()),
            Self::Disconnected => "ZooKeeper: not connected".to_owned(),
        }
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
