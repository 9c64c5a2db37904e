//! How nodes divide what they have together, by what each is asked for.
//!
//! What there is (the [whole](Part::WHOLE)) is in two pieces. A thirty-second is divided evenly among the most nodes there may ever be:
//! each has that much always, with an engine and without. The rest, the pool, is divided by one document that all nodes read. The node that
//! joined first leads, and writes it; all others use what it says for as long as they [renew](super::Coordinator::renew).
//!
//! # Never more than the whole
//! The document says of each node what it may use (`part`) and what it may still be using (`held`). Only `held` counts, and the sum of it
//! never exceeds the pool: whoever writes the document keeps to that, and the engine takes each version once, whoever believes to lead. A
//! part grows only by what nobody holds. A part that shrinks does so at once, and is held until one of these has come true:
//!
//! * its node says that it goes by this document, or a later one
//! * its node is no member any more: it has left, or the engine has not heard of it for [so long](super::Coordinator::keeps)
//! * whoever leads has seen the document for so long
//!
//! The last two are right because a node uses its part only until four fifths of that time after it began its last round, and a round is to
//! renew and then to read the document. So what a leader has to know is in the document, and one that has just begun to lead waits for
//! nothing but the nodes that do not answer.
//!
//! Where the document is gone, or cannot be read, the next leader begins another line: an empty one, which divides nothing until all
//! members have said that they have seen it, or so long has passed. Each line has a number that is drawn, and what was said of one counts
//! for no other.
//!
//! # Regions
//! Nodes that say the same [region](Driver::in_region) have one part together, which each of them knows: for an engine that they share and
//! others do not ([`Regional`](crate::store::Regional)). To the document they are one node, and a part that shrinks is held until the last
//! of them has said that it goes by it.
//!
//! # What may go wrong
//! * A node that cannot reach the engine keeps its part for up to four fifths of the time, and then has its piece of the thirty-second.
//! * More nodes, or regions, than were said to be the most: each of them has its piece, and the sum is above the whole by those of the nodes too many
//!   until the leader has shrunk the pool by as much. [`Status::too_many`] tells.
//! * A machine whose monotonic clock stands still while others' go on, as a virtual one that is paused: it uses its part too long.

mod division;
mod document;
mod driver;
mod leader;
#[cfg(test)]
mod model;
mod node;
mod region;

pub use division::Division;
pub use driver::{Driver, Status};

#[cfg(doc)]
use super::Part;
