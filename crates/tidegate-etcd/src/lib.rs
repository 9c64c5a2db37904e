//! etcd for Tidegate: coordination of nodes, and central decisions by compare-and-set.
//!
//! * [`Etcd`]: a connection; [`Etcd::connect`] names what is wrong
//! * [`Etcd::coordinator`]: membership under a lease, and small documents with versions ([`tidegate::cluster`])
//! * [`EtcdMap`]: cells with versions, for [`CasStore`](tidegate::store::CasStore): two round trips per decision
//!
//! Decisions through etcd are exact and slow: a few thousand per second from one node, fewer if many nodes contend for
//! one key. etcd is best at coordination.
//!
//! All keys are under one prefix ([`EtcdOptions::prefix`]): `cells/` (keys hashed, under leases), `members/`,
//! `documents/`.
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
mod map;
mod members;
mod options;

pub use connect::Etcd;
pub use map::EtcdMap;
pub use options::{ConnectError, EtcdOptions, Tls};
