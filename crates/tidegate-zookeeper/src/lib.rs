//! ZooKeeper for Tidegate: coordination of nodes, and central decisions by compare-and-set.
//!
//! * [`ZooKeeper`]: a connection; [`ZooKeeper::connect`] checks address, version and permissions, and names the fault
//! * [`ZooKeeper::coordinator`]: membership by a session, and small documents with versions ([`tidegate::cluster`])
//! * [`ZooKeeperMap`]: cells with versions, for [`CasStore`](tidegate::store::CasStore): two round trips per decision
//!
//! Decisions through ZooKeeper are exact and slow: a few thousand per second from one node, fewer if many nodes contend
//! for one key. ZooKeeper is best at coordination.
//!
//! All nodes are under one path ([`ZooKeeperOptions::path`]): `cells` (keys hashed), `members` (ephemeral),
//! `documents`.
//!
//! # Examples
//! ```no_run
//! use std::time::Duration;
//! use tidegate_zookeeper::{ZooKeeper, ZooKeeperOptions};
//!
//! # async fn connect() -> Result<(), tidegate_zookeeper::ConnectError> {
//! let options = ZooKeeperOptions::new(["10.0.0.1:2181", "10.0.0.2:2181"]);
//! let zookeeper = ZooKeeper::connect(options).await?;
//! let store = zookeeper.store();
//! let coordinator = zookeeper.coordinator(Duration::from_secs(10));
//! # Ok(())
//! # }
//! ```

mod connect;
mod coordinator;
mod layout;
mod map;
mod options;
mod servers;

pub use connect::ZooKeeper;
pub use map::ZooKeeperMap;
pub use options::{ConnectError, ZooKeeperOptions};
