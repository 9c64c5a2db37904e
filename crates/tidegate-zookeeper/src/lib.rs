//! ZooKeeper for Tidegate: what nodes agree on, and central decisions by compare-and-set.
//!
//! * [`ZooKeeper`]: a connection; [`ZooKeeper::connect`] checks address, version and rights, and says what is wrong
//! * [`ZooKeeperCoordinator`]: membership by a session, and small documents with versions ([`tidegate::cluster`])
//! * [`ZooKeeperMap`]: cells under versions, for [`CasStore`](tidegate::store::CasStore): two round trips a decision
//!
//! Decisions of ZooKeeper are exact and slow: some thousand a second from one node, fewer from each where many nodes contend for one key.
//! What ZooKeeper is good at is agreeing: which nodes there are, which part of each limit is whose, which policies hold.
//!
//! Everything lies below one path ([`ZooKeeperOptions::path`]): `cells` (keys hashed), `members` (ephemeral), `documents`.
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

mod cell;
mod connect;
mod coordinator;
mod error;
mod map;
mod options;
mod path;
mod probe;
mod sweep;

pub use connect::ZooKeeper;
pub use coordinator::ZooKeeperCoordinator;
pub use error::ConnectError;
pub use map::ZooKeeperMap;
pub use options::ZooKeeperOptions;
