//! What one node may use, by what it has read.

use std::time::Duration;

use tidegate_core::Tick;

use super::document::Shares;

/// A round begins so often in the time for which members are kept, and has that long for its answers, so two in a row may fail or hang
/// before the part ends: the third begins three quarters into that time, and the part ends at four fifths.
pub(super) const ROUNDS: u32 = 4;

/// A node's side of the shares: what it has of the pool, and until when.
///
/// Pure: time and documents come in, a part comes out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Node {
    line: u64,
    turn: u64,
    part: u32,
    until: Tick,
}

impl Node {
    /// Returns the line and the turn that this node goes by, which it says to the others; 0 before the first.
    pub(super) const fn seen(&self) -> (u64, u64) {
        (self.line, self.turn)
    }

    /// Returns what this node has of the pool at a tick.
    pub(super) fn at(&self, now: Tick) -> u32 {
        if now < self.until { self.part } else { 0 }
    }

    /// Returns the tick at which its part ends, unless it is renewed.
    pub(super) const fn until(&self) -> Tick {
        self.until
    }

    /// Takes over what a round has found: the node was a member under this number when it renewed, it then read the document, and began at
    /// this tick. `None` is a document that is not there, or cannot be read. Rounds come one after the other: each has ended, or was given
    /// up, before the next begins.
    ///
    /// The part is used until four fifths of `keeps` after the round began: a fifth is left for clocks that do not run alike, and for
    /// requests that are decided while it ends.
    pub(super) fn read(&mut self, joined: u64, began: Tick, keeps: Duration, shares: Option<&Shares>) {
        let Some(shares) = shares else {
            // What was divided is not known any more.
            self.part = 0;
            return;
        };
        (self.line, self.turn) = (shares.line, shares.turn);
        self.part = shares.of(joined).map_or(0, |node| node.part);
        self.until = began.after(keeps / 5 * 4);
    }

    /// Gives up what it has: the node is no member any more.
    pub(super) const fn leave(&mut self) {
        (self.part, self.line, self.turn) = (0, 0, 0);
    }
}
