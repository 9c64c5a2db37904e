//! Divides limits among the nodes, by the demand on each node.
//!
//! The [whole](Part::WHOLE) is split in two. A thirty-second of it is divided evenly among the most nodes there may
//! ever be: each node always has that much, with an engine and without. The rest, the pool, is divided by one document
//! that all nodes read. The node that joined first leads and writes it; each other node uses what the document gives it
//! for as long as it [renews](super::Coordinator::renew).
//!
//! # Never more than the whole
//! For each node, the document states what it may use (`part`) and what it may still be using (`held`). Only `held`
//! counts, and its sum never exceeds the pool: the engine accepts each version once, even if several nodes believe that
//! they lead. A part grows only by a part of the pool that no node holds. A part that shrinks does so at once, and the
//! difference stays held until one of these is true:
//!
//! * its node reports that it follows this document, or a later one
//! * its node is not a member any more: it has left, or was silent for as long as the engine
//!   [keeps](super::Coordinator::keeps) members
//! * the leading node has seen the document for that long
//!
//! The last two are safe because a node uses its part only for four fifths of that time after its last round began. All
//! that a leader has to know is in the document, so a new leader waits only for nodes that do not answer.
//!
//! If the document is gone, or cannot be read, the next leader begins a new line: an empty document, which divides
//! nothing until all members have seen it, or the same time has passed. Each line has a random number, and a report
//! about one line does not count for another.
//!
//! # Regions
//! Nodes that report the same [region](Driver::in_region) share one part, for an engine of their own
//! ([`Regional`](crate::Regional)). In the document they are one node, and a part that shrinks stays held until the
//! last of them follows the document.
//!
//! # What may go wrong
//! * A node that cannot reach the engine keeps its part for up to four fifths of that time, and then only its permanent
//!   part.
//! * There may be more nodes, or regions, than the stated maximum ([`Status::too_many`]). The sum exceeds the whole by
//!   their permanent parts until the leader has shrunk the pool.
//! * The monotonic clock of a paused virtual machine may stand still: such a node uses its part too long.

mod division;
mod driver;
#[cfg(test)]
mod model;
mod protocol;

pub use division::Division;
pub use driver::{Driver, Status};

#[cfg(doc)]
use super::Part;
