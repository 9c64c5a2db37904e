//! Why there is no connection, and what an engine's error means to a caller.

use etcd_client::Error;
use tidegate::cluster::CoordinatorError;
use tidegate::store::StoreError;
use tonic::Code;

/// The oldest etcd that this was tried with.
pub(crate) const OLDEST: (u32, u32) = (3, 4);

/// Why there is no connection. No message holds a password or a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An address is none, or none was given.
    #[error("etcd address `{address}`: {reason}; write `http://host:port` or `https://host:port`")]
    Address {
        /// The address, without credentials.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody answers at any address.
    #[error("no etcd answers at {tried}; is it running, and is the port that of its clients (2379)?")]
    Unreachable {
        /// Each address, and what was tried there.
        tried: String,
    },
    /// The address says `http://`, and the server speaks TLS.
    #[error("etcd at {address} does not speak plain text; write `https://` if it has certificates")]
    WantsTls {
        /// The address.
        address: String,
    },
    /// The address says `https://`, and the server speaks plain text.
    #[error("etcd at {address} speaks plain text and no TLS; write `http://`, or give etcd a certificate")]
    PlainText {
        /// The address.
        address: String,
    },
    /// No secure connection came about.
    #[error(
        "no TLS with etcd at {address}: {reason}; check the authorities, the name and this client's certificate"
    )]
    Certificate {
        /// The address.
        address: String,
        /// What the handshake said.
        reason: String,
    },
    /// User and password do not fit.
    #[error("etcd at {address} knows no user `{user}` with the password given")]
    Credentials {
        /// The addresses.
        address: String,
        /// The user.
        user: String,
    },
    /// etcd has authentication on, and no user was given.
    #[error("etcd at {address} has authentication on; give a user and a password")]
    NoCredentials {
        /// The addresses.
        address: String,
    },
    /// The user may not read below the prefix.
    #[error(
        "etcd at {address} does not let {user} read below `{prefix}`; grant a role `readwrite --prefix {prefix}`"
    )]
    NotAllowed {
        /// The addresses.
        address: String,
        /// The user, or whoever asks without being one.
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
    /// The server takes no writes.
    #[error("etcd at {address} takes no writes: {reason}")]
    ReadOnly {
        /// The addresses.
        address: String,
        /// Why.
        reason: String,
    },
    /// The server has answered something else.
    #[error("etcd at {address} answered: {reason}")]
    Other {
        /// The addresses.
        address: String,
        /// What it said.
        reason: String,
    },
}

/// What went wrong with one exchange.
#[derive(Debug)]
pub(crate) enum Failed {
    /// etcd said so.
    Said(Error),
    /// It said nothing in time.
    Late(std::time::Duration),
    /// The lease that a cell was to lie under was not granted, for this reason; nothing was written.
    NoLease(String),
}

impl Failed {
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Said(Error::GRpcStatus(status)) => {
                format!("etcd: {}", status.message().trim_start_matches("etcdserver: "))
            }
            Self::Said(error) => format!("etcd: {error}"),
            Self::Late(after) => format!("etcd: no answer within {} ms", after.as_millis()),
            Self::NoLease(reason) => reason.clone(),
        }
    }

    /// Says whether a lease that was named is gone: nothing was written then.
    pub(crate) fn is_lease_gone(&self) -> bool {
        match self {
            Self::Said(Error::GRpcStatus(status)) => {
                status.code() == Code::NotFound && status.message().contains("lease not found")
            }
            Self::Said(Error::LeaseKeepAliveError(reason)) => reason.contains("lease not found"),
            _ => false,
        }
    }

    /// Says whether another try may find another member of the cluster that answers: only for what changes nothing.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Said(Error::GRpcStatus(status)) => {
                matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled)
            }
            Self::Said(Error::TransportError(_)) => true,
            _ => false,
        }
    }

    pub(crate) fn into_store(self) -> StoreError {
        StoreError::Unavailable { reason: self.reason() }
    }

    pub(crate) fn into_coordinator(self) -> CoordinatorError {
        CoordinatorError::Unavailable { reason: self.reason() }
    }
}
