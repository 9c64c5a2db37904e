//! Coordinates the nodes of a deployment through an engine: which nodes there are, which part of each limit each of
//! them may use, and which policies are in force.
//!
//! Requests never wait for any of this. A node that cannot reach the engine continues with its [`Part`] until that
//! ends, and with its policies for as long as necessary.
//!
//! * [`Coordinator`]: the interface of the engine; etcd and ZooKeeper implement it, and [`LocalCluster`] within one
//!   process
//! * [`Part`]: this node's part of the whole that all nodes share
//! * [`shares`]: divides the whole among the nodes
//! * [`policies`]: distributes a policy file to every node
//! * [`conformance`]: the suite that every coordinator has to pass

pub mod conformance;
mod coordinator;
mod local;
mod part;
pub mod policies;
mod report;
pub mod shares;

pub use coordinator::{Coordinator, CoordinatorError, Document, Member};
pub use local::LocalCluster;
pub use part::Part;
pub use report::{MemberReport, OwnReport};
