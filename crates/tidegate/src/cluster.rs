//! Coordinates the nodes of a deployment through an engine: which nodes are there, which part of each limit is whose,
//! and which policies are in force.
//!
//! Requests never wait for any of this. A node that cannot reach the engine continues with its [`Part`] until that
//! ends, and with its policies for as long as necessary.
//!
//! * [`Coordinator`]: what an engine has to offer; etcd and ZooKeeper do, and [`LocalCluster`] in one process
//! * [`Part`]: this node's part of what all nodes have together
//! * [`shares`]: how nodes divide what they have together
//! * [`policies`]: how a policy file comes to every node
//! * [`conformance`]: the law that every coordinator passes

pub mod conformance;
mod coordinator;
mod local;
mod part;
pub mod policies;
mod says;
pub mod shares;

pub use coordinator::{Coordinator, CoordinatorError, Document, Member};
pub use local::{LocalCluster, LocalCoordinator};
pub use part::Part;
pub use says::{Said, Says};
