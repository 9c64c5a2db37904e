//! The event queue of a simulation, ordered by virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Future events, ordered by time. Events at the same time come out in the order of insertion.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    heap: BinaryHeap<Reverse<QueuedEvent<E>>>,
    now: u64,
    written: u64,
}

#[derive(Debug)]
struct QueuedEvent<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), now: 0, written: 0 }
    }

    /// The time in nanoseconds since the start of the run.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Inserts an event. A time in the past counts as now.
    pub(crate) fn put(&mut self, at: u64, event: E) {
        self.written += 1;
        self.heap.push(Reverse(QueuedEvent { at: at.max(self.now), number: self.written, event }));
    }

    /// Removes the next event and sets the clock to its time; `None` if no event is left until `end`.
    pub(crate) fn next_until(&mut self, end: u64) -> Option<E> {
        if self.heap.peek()?.0.at > end {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

impl<E> QueuedEvent<E> {
    fn order(&self) -> (u64, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for QueuedEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl<E> Eq for QueuedEvent<E> {}

impl<E> PartialOrd for QueuedEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for QueuedEvent<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}
