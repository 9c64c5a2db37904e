//! Why a store could not be connected.

/// Why a store could not be connected. No message holds a user name or a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// What was given as an address is none.
    #[error(
        "{what} is not an address of a Redis server; write `redis://host:port/db`, `rediss://` for TLS, or `unix:///path`"
    )]
    Address {
        /// Which of the addresses, counted from 1; the text itself may hold a password.
        what: String,
    },
    /// An option is out of range.
    #[error("option `{option}`: {value} is not usable; {wanted}")]
    Option {
        /// Which option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would work.
        wanted: &'static str,
    },
    /// The future was not polled by a tokio runtime, on which the connection has to live.
    #[error("a Redis store is connected within a tokio runtime that has I/O and time enabled")]
    NoRuntime,
    /// Nobody answers.
    #[error("no Redis server answers at {address}: {reason}")]
    Unreachable {
        /// The address, without credentials.
        address: String,
        /// What was said instead.
        reason: String,
    },
    /// TLS was refused by one of the two sides.
    #[error(
        "TLS with {address} failed: {reason}; check `rediss://`, the host name, the root certificate, and this node's own where the server wants one"
    )]
    Tls {
        /// The address, without credentials.
        address: String,
        /// What was said.
        reason: String,
    },
    /// User or password are wrong, or missing.
    #[error("{address} refuses the credentials (or wants some): {reason}; check user and password")]
    Credentials {
        /// The address, without credentials.
        address: String,
        /// What the server said.
        reason: String,
    },
    /// The user may not do what a store does.
    #[error(
        "the user at {address} may not do what the store needs: {reason}; allow it `+@read +@write +@hash +@scripting +time +info +ping +cluster|slots` on the keys `{keys}`"
    )]
    Permission {
        /// The address, without credentials.
        address: String,
        /// What the server said.
        reason: String,
        /// The pattern of the store's keys.
        keys: String,
    },
    /// There is no such database.
    #[error("{address} has no database {database}: {reason}; in cluster mode there is only 0")]
    Database {
        /// The address, without credentials.
        address: String,
        /// The number asked for.
        database: i64,
        /// What the server said.
        reason: String,
    },
    /// The server is too old.
    #[error("{address} runs version {found}; the store needs Redis 7.0 or Valkey 7.2, or a later one")]
    Version {
        /// The address, without credentials.
        address: String,
        /// What it runs.
        found: String,
    },
    /// The server is a replica.
    #[error("{address} is a read-only replica; name its master, or the sentinels that know which one it is")]
    ReadOnly {
        /// The address, without credentials.
        address: String,
    },
    /// The server is a node of a cluster, and was not named as one; or the other way round.
    #[error("{address} {}", if *.is_cluster { "is a node of a cluster; connect with `RedisOptions::cluster`" } else { "is not a node of a cluster; connect with `RedisOptions::single`" })]
    Mode {
        /// The address, without credentials.
        address: String,
        /// Whether the server is a node of a cluster.
        is_cluster: bool,
    },
    /// The nodes of the namespace have another number of shards: each number would have limits of its own.
    #[error(
        "the namespace is in use with {found}, and this node has {wanted}; give it the same, or a namespace of its own; to change it for all, stop all nodes and delete the key `{key}`: limits start anew then"
    )]
    Shards {
        /// The key that says so.
        key: String,
        /// What it holds.
        found: String,
        /// What this node would have written.
        wanted: String,
    },
    /// What was named as a sentinel is another server.
    #[error("{address} is not a sentinel: {reason}; name the sentinels, which usually listen on port 26379")]
    NoSentinel {
        /// The address, without credentials.
        address: String,
        /// What it said.
        reason: String,
    },
    /// No sentinel knows a master of that name.
    #[error("no sentinel of {sentinels} names a master `{name}`: {reason}")]
    NoMaster {
        /// The addresses that were asked.
        sentinels: String,
        /// The name of the master.
        name: String,
        /// What the last of them said.
        reason: String,
    },
    /// The server answered something that was not understood.
    #[error("{address} answered what a Redis server does not: {reason}")]
    Answer {
        /// The address, without credentials.
        address: String,
        /// What was said.
        reason: String,
    },
}
