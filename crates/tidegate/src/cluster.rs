//! What the nodes of a deployment agree on through an engine: who is there, which part of each limit is whose, and which policies hold.
//!
//! None of it is on the path of a request. A node that cannot reach the engine goes on with the [`Part`] it has until that ends, and with
//! the policies it has for as long as it must.
//!
//! * [`Coordinator`]: what an engine has to offer; etcd, ZooKeeper and Redis do
//! * [`Part`]: this node's part of what all nodes have together

mod coordinator;
mod part;

pub use coordinator::{Coordinator, CoordinatorError, Document, Member};
pub use part::Part;
