//! The error of connecting, and the translation of etcd's errors for callers.

use etcd_client::Error;
use tidegate::cluster::CoordinatorError;
use tidegate::store::StoreError;
use tonic::Code;

/// The oldest version of etcd that was tested.
pub(crate) const OLDEST: (u32, u32) = (3, 4);

/// Why there is no connection. No message contains a password or a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An address is not valid, or none was given.
    #[error("etcd address `{address}`: {reason}; write `http://host:port` or `https://host:port`")]
    Address {
        /// The address, without credentials.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The future was not polled by a tokio runtime, on which the connection has to live.
    #[error("etcd is connected within a tokio runtime that has I/O and time enabled")]
    NoRuntime,
    /// No server answers at any address.
    #[error("no etcd answers at {tried}; is it running, and is this its port for clients (2379)?")]
    Unreachable {
        /// Each address, and the reason.
        tried: String,
    },
    /// The address begins with `http://`, but the server speaks TLS.
    #[error("etcd at {address} does not speak plain text; write `https://` if it has certificates")]
    WantsTls {
        /// The address.
        address: String,
    },
    /// The address begins with `https://`, but the server speaks plain text.
    #[error("etcd at {address} speaks plain text and no TLS; write `http://`, or give etcd a certificate")]
    PlainText {
        /// The address.
        address: String,
    },
    /// The TLS handshake failed.
    #[error(
        "no TLS with etcd at {address}: {reason}; check the authorities, the name and this client's certificate"
    )]
    Certificate {
        /// The address.
        address: String,
        /// The error of the handshake.
        reason: String,
    },
    /// The user or the password is wrong.
    #[error("etcd at {address} knows no user `{user}` with the password given")]
    Credentials {
        /// The addresses.
        address: String,
        /// The user.
        user: String,
    },
    /// etcd requires authentication, but no user was given.
    #[error("etcd at {address} has authentication on; give a user and a password")]
    NoCredentials {
        /// The addresses.
        address: String,
    },
    /// The user may not read keys under the prefix.
    #[error(
        "etcd at {address} does not let {user} read below `{prefix}`; grant a role `readwrite --prefix {prefix}`"
    )]
    NotAllowed {
        /// The addresses.
        address: String,
        /// The user, or a description of unauthenticated access.
        user: String,
        /// The prefix of all keys.
        prefix: String,
    },
    /// The server is too old.
    #[error("etcd at {address} is {version}; {}.{} is the oldest that is known to work", OLDEST.0, OLDEST.1)]
    TooOld {
        /// The addresses.
        address: String,
        /// Its version.
        version: String,
    },
    /// The server is read-only.
    #[error("etcd at {address} takes no writes: {reason}")]
    ReadOnly {
        /// The addresses.
        address: String,
        /// The reason.
        reason: String,
    },
    /// Any other error.
    #[error("etcd at {address} answered: {reason}")]
    Other {
        /// The addresses.
        address: String,
        /// The error.
        reason: String,
    },
}

/// Why one exchange failed.
#[derive(Debug)]
pub(crate) enum Failed {
    Engine(Error),
    /// There was no answer within this time.
    TimedOut(std::time::Duration),
    /// The lease for a cell was not granted, for this reason; nothing was written.
    NoLease(String),
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

    /// Returns whether another member may answer a retry. Only for requests that change nothing.
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
