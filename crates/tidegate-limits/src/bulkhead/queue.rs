//! The queue of waiters, in the order in which they are served.
//!
//! A higher priority always comes first. Among waiters of equal priority the order is first come first served, newest
//! first, or the adaptive order: first come first served until the queue has not been empty for an interval, and newest
//! first from then on. When the queue is full and a newcomer would be served before the last waiter, the last waiter is
//! refused.

use std::collections::BTreeMap;
use std::task::Waker;

use tidegate_core::codel::{self, Codel, CodelState, End};
use tidegate_core::{Priority, Tick};

/// The order in which callers of the same priority enter.
///
/// | order | who is next | right for |
/// |---|---|---|
/// | `Fifo` | the caller who came first | work that is not urgent, and short queues |
/// | `Lifo` | the newest | callers who give up: the newest most likely still waits |
/// | `Adaptive` | the caller who came first; the newest while the queue stands too long | queues in front of a service that may be overloaded |
///
/// In every order, higher priorities come first ([`Enter::priority`](crate::Enter::priority)).
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-queue-orders.svg)
/// of a simulated service in and after an overload, with its queue in each order
/// ([figures](https://github.com/tidegate/tidegate/blob/main/docs/protection/bulkheads.md#the-adaptive-order)).
///
/// # Source
/// `Adaptive`: adaptive LIFO and CoDel as in B. Maurer, "Fail at Scale", ACM Queue 13(8), 2015; the arithmetic is
/// [`Codel`]'s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum QueueOrder {
    /// First come, first served.
    #[default]
    Fifo,
    /// Last come, first served. When the queue is full, a newcomer replaces the oldest waiter.
    Lifo,
    /// First come, first served; last come, first served once the queue has not been empty for an interval. If even the
    /// shortest wait of an interval exceeds the target, waiters that have waited more than twice the target are
    /// refused. While the newest are served first, waiters that have waited more than an interval are refused.
    Adaptive(Codel),
}

/// One waiter.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) places: u64,
    pub(super) priority: Priority,
    /// When the waiter joined.
    pub(super) since: Tick,
    pub(super) waker: Waker,
}

/// A waiter's position: its rank by priority, then its arrival number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    rank: u16,
    pub(super) number: u64,
}

impl Turn {
    pub(super) fn new(priority: Priority, number: u64) -> Self {
        Self { rank: rank(priority), number }
    }
}

/// Returns 0 for the highest priority, 511 for the lowest.
fn rank(priority: Priority) -> u16 {
    let below_highest = 3 - priority.level() as u16;
    below_highest * u16::from(Priority::COHORTS) + u16::from(priority.cohort())
}

#[derive(Debug)]
pub(super) struct Queue {
    order: QueueOrder,
    /// The state of the adaptive order; made when the queue is first used.
    codel: Option<CodelState>,
    waiting: BTreeMap<Turn, Waiting>,
    /// How many places the waiters of each rank ask for.
    wanted: BTreeMap<u16, u64>,
    /// How many waiters ask for more than one place.
    wide: usize,
}

impl Queue {
    pub(super) fn new(order: QueueOrder) -> Self {
        let (waiting, wanted) = (BTreeMap::new(), BTreeMap::new());
        Self { order, codel: None, waiting, wanted, wide: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, turn: Turn, waiting: Waiting) {
        if self.waiting.is_empty() {
            self.emptied(waiting.since);
        }
        *self.wanted.entry(turn.rank).or_default() += waiting.places;
        self.wide += usize::from(waiting.places > 1);
        self.waiting.insert(turn, waiting);
    }

    pub(super) fn get_mut(&mut self, turn: &Turn) -> Option<&mut Waiting> {
        self.waiting.get_mut(turn)
    }

    /// Records that the queue was empty until `now`.
    fn emptied(&mut self, now: Tick) {
        if let QueueOrder::Adaptive(codel) = self.order {
            codel.emptied(self.codel.get_or_insert_with(|| codel.start(now)), now);
        }
    }

    pub(super) fn remove(&mut self, turn: &Turn) -> Option<Waiting> {
        let waiting = self.waiting.remove(turn)?;
        self.wide -= usize::from(waiting.places > 1);
        if let Some(wanted) = self.wanted.get_mut(&turn.rank) {
            *wanted -= waiting.places;
            if *wanted == 0 {
                self.wanted.remove(&turn.rank);
            }
        }
        Some(waiting)
    }

    fn newest_first(&self, now: Tick) -> bool {
        match (self.order, &self.codel) {
            (QueueOrder::Lifo, _) => true,
            (QueueOrder::Adaptive(codel), Some(state)) => codel.end(state, now) == End::Newest,
            (QueueOrder::Fifo | QueueOrder::Adaptive(_), _) => false,
        }
    }

    /// Returns the waiter whose turn is next.
    pub(super) fn next(&self, now: Tick) -> Option<(Turn, &Waiting)> {
        let (first, waiting) = self.waiting.first_key_value()?;
        if !self.newest_first(now) {
            return Some((*first, waiting));
        }
        let equals = *first..=Turn { rank: first.rank, number: u64::MAX };
        self.waiting.range(equals).next_back().map(|(turn, waiting)| (*turn, waiting))
    }

    /// Says whether a newcomer would be next.
    pub(super) fn is_next(&self, priority: Priority, now: Tick) -> bool {
        let Some((first, _)) = self.waiting.first_key_value() else { return true };
        let rank = rank(priority);
        rank < first.rank || (rank == first.rank && self.newest_first(now))
    }

    /// Returns how many places go to others before a newcomer; `None` while later arrivals may be served first.
    pub(super) fn ahead_of(&self, priority: Priority, now: Tick) -> Option<u64> {
        let rank = rank(priority);
        (!self.newest_first(now)).then(|| self.wanted.range(..=rank).map(|(_, places)| places).sum())
    }

    /// Returns the waiter that a full queue refuses to make room for a newcomer; `None` to refuse the newcomer.
    pub(super) fn gives_way_to(&self, priority: Priority, now: Tick) -> Option<Turn> {
        let (last, _) = self.waiting.last_key_value()?;
        let rank = rank(priority);
        if self.newest_first(now) && last.rank >= rank {
            return self.oldest(last.rank);
        }
        (last.rank > rank).then_some(*last)
    }

    fn oldest(&self, rank: u16) -> Option<Turn> {
        self.waiting.range(Turn { rank, number: 0 }..).next().map(|(turn, _)| *turn)
    }

    /// Returns the waiter to refuse when the queue is full and the newcomer belongs to another tenant.
    pub(super) fn last(&self, now: Tick) -> Option<Turn> {
        let (last, _) = self.waiting.last_key_value()?;
        if self.newest_first(now) { self.oldest(last.rank) } else { Some(*last) }
    }

    /// Tells CoDel how long a waiter has waited at its turn. Returns true if it was too long, in which case the waiter
    /// is refused.
    pub(super) fn waited_too_long(&mut self, since: Tick, now: Tick) -> bool {
        let QueueOrder::Adaptive(codel) = self.order else { return false };
        let state = self.codel.get_or_insert_with(|| codel.start(now));
        codel.take(state, now, now.since(since)) == codel::Turn::Drop
    }

    /// Returns a waiter of the lowest priority that has waited too long, and would wait on while the newest are served
    /// first.
    pub(super) fn stale(&self, now: Tick) -> Option<Turn> {
        let (QueueOrder::Adaptive(codel), Some(state)) = (self.order, &self.codel) else { return None };
        let oldest = self.last(now)?;
        let since = self.waiting.get(&oldest)?.since;
        codel.given_up(state, now, now.since(since)).then_some(oldest)
    }

    /// Returns the waiters that ask for more places than `most` allows at their priority.
    pub(super) fn too_wide(&self, most: impl Fn(Priority) -> u64) -> Vec<Turn> {
        let lowest = self.waiting.last_key_value().map(|(_, waiting)| waiting.priority);
        // Shortcut: usually all waiters ask for one place, and one is allowed even at the lowest priority.
        if self.wide == 0 && lowest.is_none_or(|priority| most(priority) >= 1) {
            return Vec::new();
        }
        let wide = self.waiting.iter().filter(|(_, waiting)| waiting.places > most(waiting.priority));
        wide.map(|(turn, _)| *turn).collect()
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use tidegate_core::Criticality::{Critical, Sheddable};

    use super::*;

    fn filled(order: QueueOrder, ranks: &[Priority]) -> Queue {
        let mut queue = Queue::new(order);
        for (number, priority) in (1..).zip(ranks) {
            let waiting =
                Waiting { places: 1, priority: *priority, since: Tick::EPOCH, waker: Waker::noop().clone() };
            queue.push(Turn::new(*priority, number), waiting);
        }
        queue
    }

    fn served(mut queue: Queue) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some((turn, _)) = queue.next(Tick::EPOCH) {
            queue.remove(&turn);
            numbers.push(turn.number);
        }
        assert!(queue.wanted.is_empty());
        numbers
    }

    #[test]
    fn priorities_come_first_and_the_order_is_among_equals() {
        let (low, high) = (Priority::of(Sheddable), Priority::of(Critical));
        let cohort = high.in_cohort(9).unwrap();
        let mixed = [low, high, cohort, low, high];
        assert_eq!(served(filled(QueueOrder::Fifo, &mixed)), [2, 5, 3, 1, 4]);
        assert_eq!(served(filled(QueueOrder::Lifo, &mixed)), [5, 2, 3, 4, 1]);
    }

    #[test]
    fn a_full_queue_gives_up_who_would_come_last() {
        let (low, high) = (Priority::of(Sheddable), Priority::of(Critical));
        let gives_way = |order, ranks: &[Priority], newcomer| {
            filled(order, ranks).gives_way_to(newcomer, Tick::EPOCH).map(|turn| turn.number)
        };
        assert_eq!(gives_way(QueueOrder::Fifo, &[low, high, low], high), Some(3));
        assert_eq!(gives_way(QueueOrder::Fifo, &[low, low], low), None, "the newcomer would be the last");
        assert_eq!(gives_way(QueueOrder::Fifo, &[high], low), None);
        assert_eq!(gives_way(QueueOrder::Lifo, &[low, low], low), Some(1), "the oldest would be the last");
        assert_eq!(gives_way(QueueOrder::Lifo, &[high], low), None);
        assert_eq!(gives_way(QueueOrder::Lifo, &[high, low, low], high), Some(2));
    }

    #[test]
    fn what_stands_before_a_newcomer_is_counted_by_priority() {
        let (low, high) = (Priority::of(Sheddable), Priority::of(Critical));
        let queue = filled(QueueOrder::Fifo, &[low, high, low]);
        assert_eq!((queue.ahead_of(high, Tick::EPOCH), queue.ahead_of(low, Tick::EPOCH)), (Some(1), Some(3)));
        assert_eq!(filled(QueueOrder::Lifo, &[low]).ahead_of(low, Tick::EPOCH), None);
    }
}
