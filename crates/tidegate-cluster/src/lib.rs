//! Coordinates the nodes of a deployment through an engine: which nodes there are, which part of each limit each of
//! them may use, and which policies are in force.
//!
//! Requests never wait for any of this. A node that cannot reach the engine continues with its [`Part`] until that
//! ends, and with its policies.
//!
//! * [`Coordinator`]: the interface of the engine; etcd and ZooKeeper implement it, and [`LocalCluster`] within one
//!   process
//! * [`Part`]: this node's part of the whole that all nodes share
//! * [`shares`]: divides the whole among the nodes
//! * [`policies`]: distributes a policy file to every node
//! * [`conformance`]: the suite that every coordinator has to pass
//! * [`Leased`], [`Split`], [`Regional`], [`Fallback`], [`Successor`]: stores around other stores
//! * [`CasStore`]: a store over an engine that compares and sets
//!
//! A part of [`tidegate`](https://docs.rs/tidegate), which shows all of it under one name.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod cas;
pub mod conformance;
mod coordinator;
pub mod fallback;
pub mod leased;
mod local;
mod part;
pub mod policies;
pub mod shares;
mod split;
mod successor;

pub use cas::{ByteMap, CAS_ROUND_TRIPS, CasStore, Read, Versioned, Write, Written};
pub use coordinator::{Coordinator, CoordinatorError, Document, Member, MemberReport, OwnReport};
pub use fallback::Fallback;
pub use leased::Leased;
pub use local::LocalCluster;
pub use part::Part;
pub use split::{Regional, Split};
pub use successor::Successor;
