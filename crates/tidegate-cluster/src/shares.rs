//! Divides limits among the nodes, by the demand on each node.
//!
//! The [whole](Part::WHOLE) is split in two. A thirty-second of it is divided evenly among the most nodes there may
//! ever be: each node always has that much, with an engine and without. The rest, the pool, is divided by one document
//! that all nodes read. The node that joined first leads and writes it; each other node uses what the document gives it
//! for as long as it [renews](super::Coordinator::renew).
//!
//! # Never more than the whole
//! For each node, the document states what it may use (`part`) and what it may still be using (`held`). Only `held`
//! counts, and its sum never exceeds the pool: every writer of the document ensures that, and the engine accepts each
//! version only once, even if several nodes believe that they lead. A part grows only by a part of the pool that no
//! node holds. A part that shrinks does so at once, and the difference stays held until one of these is true:
//!
//! * its node reports that it follows this document, or a later one
//! * its node is not a member any more: it has left, or the engine has not heard of it for as long as it
//!   [keeps](super::Coordinator::keeps) members
//! * the leading node has seen the document for that long
//!
//! The last two are safe because a node uses its part only for four fifths of that time after the beginning of its last
//! round, in which it renews and then reads the document. So everything that a leader has to know is in the document,
//! and a new leader waits only for nodes that do not answer.
//!
//! If the document is gone, or cannot be read, the next leader begins a new line: an empty document, which divides
//! nothing until all members have reported that they have seen it, or the same time has passed. Each line has a random
//! number, and a report about one line does not count for another.
//!
//! # Regions
//! Nodes that report the same [region](Driver::in_region) share one part, which each of them knows: for an engine that
//! they share and other regions do not ([`Regional`](crate::Regional)). In the document they are one node, and a
//! part that shrinks stays held until the last of them has reported that it follows the document.
//!
//! # What may go wrong
//! * A node that cannot reach the engine keeps its part for up to four fifths of that time, and then only has its piece
//!   of the thirty-second.
//! * There may be more nodes, or regions, than the stated maximum. Each of them has its piece, so the sum exceeds the
//!   whole by the pieces of the extra nodes until the leader has shrunk the pool by as much. [`Status::too_many`]
//!   reports that.
//! * The monotonic clock of a machine may stand still while others' go on, as on a paused virtual machine: such a node
//!   uses its part too long.

mod division;
mod driver;
#[cfg(test)]
mod model;
mod protocol;

pub use division::Division;
pub use driver::{Driver, Status};

#[cfg(doc)]
use super::Part;
