//! Computes what one node may use, from the documents that it has read.

use std::time::Duration;

use tidegate_core::Tick;

use super::document::Shares;

/// The number of rounds in the time for which members are kept. A round has until the next one for its answers, so two
/// in a row may fail or hang before the part ends: the third begins three quarters into that time, and the part ends at
/// four fifths.
pub(super) const ROUNDS: u32 = 4;

/// A node's side of the protocol: its part of the pool, and until when it is valid.
///
/// A pure state machine: times and documents are passed in, and a part is returned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Node {
    line: u64,
    turn: u64,
    part: u32,
    until: Tick,
}

impl Node {
    /// Returns the line and the turn that this node follows, which it reports to the others; 0 before the first.
    pub(super) const fn seen(&self) -> (u64, u64) {
        (self.line, self.turn)
    }

    /// Returns this node's part of the pool at a tick.
    pub(super) fn at(&self, now: Tick) -> u32 {
        if now < self.until { self.part } else { 0 }
    }

    /// Returns the tick at which its part ends, unless it is renewed.
    pub(super) const fn until(&self) -> Tick {
        self.until
    }

    /// Applies the result of a round: the node was the member `joined` when it renewed, and then read the document; the
    /// round began at the tick `began`. `None` is a document that does not exist or cannot be read. Rounds do not
    /// overlap: each has ended, or was abandoned, before the next begins.
    ///
    /// The part is used until four fifths of `keeps` after the round began: a fifth is left for clocks that do not run alike, and for
    /// requests that are decided while it ends.
    pub(super) fn read(&mut self, joined: u64, began: Tick, keeps: Duration, shares: Option<&Shares>) {
        let Some(shares) = shares else {
            // The division is not known any more.
            self.part = 0;
            return;
        };
        (self.line, self.turn) = (shares.line, shares.turn);
        self.part = shares.of(joined).map_or(0, |node| node.part);
        self.until = began.after(keeps / 5 * 4);
    }

    /// Gives up the part: the node is not a member any more.
    pub(super) const fn leave(&mut self) {
        (self.part, self.line, self.turn) = (0, 0, 0);
    }
}
