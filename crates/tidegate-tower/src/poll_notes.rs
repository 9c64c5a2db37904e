//! Notes that a layer inside leaves for layers outside while they poll a call: flags of this thread.
//!
//! * The call's *turn came*, after it waited for a turn of our own. A breaker is outside the rate limit and the queue, so
//!   that a call which it refuses takes no turn. But whether a call was slow must not depend on the wait for that turn,
//!   which says nothing of the called service: so the breaker begins to measure anew.
//! * The call was *tried before*: its last try was refused, but an earlier one was made. A limit outside then keeps its
//!   charge, which it gives back for a call that was refused before any work began.

use std::cell::Cell;
use std::thread::LocalKey;

/// One kind of note.
pub(crate) struct Note(&'static LocalKey<Cell<bool>>);

thread_local! {
    static TURN_CAME_FLAG: Cell<bool> = const { Cell::new(false) };
    static TRIED_BEFORE_FLAG: Cell<bool> = const { Cell::new(false) };
}

/// The turn of the call that is being polled has come: until now it waited.
pub(crate) const TURN_CAME: Note = Note(&TURN_CAME_FLAG);

/// The call that ends in this poll was made before its last try.
pub(crate) const TRIED_BEFORE: Note = Note(&TRIED_BEFORE_FLAG);

impl Note {
    /// Leaves the note.
    pub(crate) fn leave(&self) {
        self.0.set(true);
    }

    /// Polls a call, and returns whether a layer inside has left the note during this poll.
    pub(crate) fn watch<T>(&self, poll: impl FnOnce() -> T) -> (T, bool) {
        let before = self.0.replace(false);
        let polled = poll();
        let left = self.0.get();
        // A layer further outside looks too.
        self.0.set(before || left);
        (polled, left)
    }
}
