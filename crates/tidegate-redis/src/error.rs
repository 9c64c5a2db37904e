//! The error of connecting a store.

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
    #[error("a Redis store is connected within a tokio runtime that has I/O and time enabled")]
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
