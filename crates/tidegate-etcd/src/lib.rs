//! etcd for Tidegate: what nodes agree on, and central decisions by compare-and-set.
//!
//! * [`Etcd`]: a connection; [`Etcd::connect`] checks address, credentials, version and rights, and says what is wrong
//! * [`EtcdCoordinator`]: membership under a lease, and small documents with versions ([`tidegate::cluster`])
//! * [`EtcdMap`]: cells under versions, for [`CasStore`](tidegate::store::CasStore): two round trips a decision
//!
//! Decisions of etcd are exact and slow: some thousand a second from one node, fewer from each where many nodes contend for one key. What
//! etcd is good at is agreeing: which nodes there are, which part of each limit is whose, which policies hold.
//!
//! Everything lies below one prefix ([`EtcdOptions::prefix`]): `cells/` (keys hashed, under leases), `members/`, `documents/`.
//!
//! # Examples
//! ```no_run
//! use std::time::Duration;
//! use tidegate_etcd::{Etcd, EtcdOptions};
//!
//! # async fn connect() -> Result<(), tidegate_etcd::ConnectError> {
//! let etcd = Etcd::connect(EtcdOptions::new(["http://10.0.0.1:2379", "http://10.0.0.2:2379"])).await?;
//! let store = etcd.store();
//! let coordinator = etcd.coordinator(Duration::from_secs(10));
//! # Ok(())
//! # }
//! ```

mod connect;
mod coordinator;
mod error;
mod leases;
mod map;
mod options;
mod probe;

pub use connect::Etcd;
pub use coordinator::EtcdCoordinator;
pub use error::ConnectError;
pub use map::EtcdMap;
pub use options::{EtcdOptions, Tls};
