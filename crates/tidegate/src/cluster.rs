//! What the nodes of a deployment agree on through an engine: who is there, which part of each limit is whose, and which policies hold.
//!
//! None of it is on the path of a request. A node that cannot reach the engine goes on with the [`Part`] it has until that ends, and with
//! the policies it has for as long as it must.
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
