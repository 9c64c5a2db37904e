//! The queue of waiters, in the order in which they are served.
//!
//! A higher priority always comes first. When the queue is full and a newcomer would be served before the last waiter,
//! the last waiter is refused.

use std::collections::BTreeMap;
use std::task::Waker;

use tidegate_core::codel::{self, Codel, CodelState, End};
use tidegate_core::{Criticality, Priority, Tick};

use super::build::BulkheadRules;
use super::tenants::KnownTenants;

/// The order in which callers of the same priority enter.
///
/// | order | who is next | right for |
/// |---|---|---|
/// | `Fifo` | the caller who came first | work that is not urgent, and short queues |
/// | `Lifo` | the newest | callers who give up: the newest most likely still waits |
/// | `Adaptive` | the caller who came first; the newest while the queue stands too long | queues in front of a service that may be overloaded |
///
/// # Source
/// `Adaptive`: adaptive LIFO and CoDel as in B. Maurer, "Fail at Scale", ACM Queue 13(8), 2015; the arithmetic is
/// [`Codel`]'s.
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-queue-orders.svg)
/// of a simulated service in and after an overload, with its queue in each order
/// ([figures](https://github.com/tidegate/tidegate/blob/main/docs/protection/bulkheads.md#the-adaptive-order)).
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

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) places: u64,
    pub(super) priority: Priority,
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
    wanted: BTreeMap<u16, u64>,
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

    pub(super) fn next(&self, now: Tick) -> Option<(Turn, &Waiting)> {
        let (first, waiting) = self.waiting.first_key_value()?;
        if !self.newest_first(now) {
            return Some((*first, waiting));
        }
        let equals = *first..=Turn { rank: first.rank, number: u64::MAX };
        self.waiting.range(equals).next_back().map(|(turn, waiting)| (*turn, waiting))
    }

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

    pub(super) fn last(&self, now: Tick) -> Option<Turn> {
        let (last, _) = self.waiting.last_key_value()?;
        if self.newest_first(now) { self.oldest(last.rank) } else { Some(*last) }
    }

    /// Tells CoDel how long a waiter has waited at its turn; true if it waited too long and is refused.
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

/// Whom places are counted for: the number of a tenant's queue, whether the places are the tenant's own, and the level
/// that holds them. Small, since each permit carries one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    number: u16,
    own: bool,
    pub(super) level: Criticality,
}

impl Class {
    fn of(number: usize) -> Self {
        // Fits: there are at most 4,097 tenants, including the shared rest.
        Self { number: number as u16, ..Self::default() }
    }

    pub(super) fn at(self, level: Criticality) -> Self {
        Self { level, ..self }
    }

    fn number(self) -> usize {
        self.number.into()
    }
}

#[derive(Debug)]
pub(super) enum Queues {
    One(Queue),
    Divided(Box<Divided>),
}

#[derive(Debug)]
pub(super) struct Divided {
    known: KnownTenants,
    order: QueueOrder,
    queues: Vec<Queue>,
    waiting: usize,
}

impl Queues {
    pub(super) fn new(rules: &BulkheadRules, limit: u64, now: Tick) -> Self {
        match &rules.tenants {
            None => Self::One(Queue::new(rules.order)),
            Some(tenants) => {
                let known = KnownTenants::new(tenants, limit, now);
                Self::Divided(Box::new(Divided { known, order: rules.order, queues: Vec::new(), waiting: 0 }))
            }
        }
    }

    pub(super) const fn are_divided(&self) -> bool {
        matches!(self, Self::Divided(_))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(queue) => queue.len(),
            Self::Divided(divided) => divided.waiting,
        }
    }

    pub(super) fn class_of(&mut self, tenant: &[u8], now: Tick) -> Class {
        let Self::Divided(divided) = self else { return Class::default() };
        let Divided { known, queues, order, .. } = &mut **divided;
        let waits = |number: usize| queues.get(number).is_some_and(|queue| !queue.is_empty());
        let number = known.number(tenant, now, waits);
        while queues.len() <= number {
            queues.push(Queue::new(*order));
        }
        Class::of(number)
    }

    fn queue(&self, class: Class) -> Option<&Queue> {
        match self {
            Self::One(queue) => Some(queue),
            Self::Divided(divided) => divided.queues.get(class.number()),
        }
    }

    fn queue_mut(&mut self, class: Class) -> Option<&mut Queue> {
        match self {
            Self::One(queue) => Some(queue),
            Self::Divided(divided) => divided.queues.get_mut(class.number()),
        }
    }

    /// Says whether the tenant's terms leave it this many places.
    pub(super) fn has_room(&self, class: Class, places: u64) -> bool {
        match self {
            Self::One(_) => true,
            Self::Divided(divided) => divided.known.partitions.has_room(class.number(), places),
        }
    }

    pub(super) fn most(&self, class: Class) -> u64 {
        match self {
            Self::One(_) => u64::MAX,
            Self::Divided(divided) => divided.known.partitions.most(class.number()),
        }
    }

    pub(super) fn count_taken(&mut self, class: Class, places: u64, now: Tick) -> Class {
        match self {
            Self::One(_) => class,
            Self::Divided(divided) => {
                let own = divided.known.partitions.enter(class.number(), places, now);
                Class { own, ..class }
            }
        }
    }

    pub(super) fn count_returned(&mut self, class: Class, places: u64, now: Tick) {
        if let Self::Divided(divided) = self {
            divided.known.partitions.leave(class.number(), places, class.own, now);
        }
    }

    pub(super) fn change(&mut self, limit: u64) {
        if let Self::Divided(divided) = self {
            divided.known.partitions.change(limit);
        }
    }

    pub(super) fn push(&mut self, class: Class, turn: Turn, waiting: Waiting) {
        match self {
            Self::One(queue) => queue.push(turn, waiting),
            Self::Divided(divided) => {
                let Some(queue) = divided.queues.get_mut(class.number()) else { return };
                if queue.is_empty() {
                    divided.known.partitions.wait(class.number(), waiting.since);
                }
                queue.push(turn, waiting);
                divided.waiting += 1;
            }
        }
    }

    pub(super) fn get_mut(&mut self, class: Class, turn: &Turn) -> Option<&mut Waiting> {
        self.queue_mut(class)?.get_mut(turn)
    }

    pub(super) fn remove(&mut self, class: Class, turn: &Turn) -> Option<Waiting> {
        let removed = self.queue_mut(class)?.remove(turn)?;
        if let Self::Divided(divided) = self {
            divided.waiting -= 1;
        }
        Some(removed)
    }

    /// Returns the waiter whose turn is next.
    pub(super) fn next(
        &self,
        now: Tick,
        may_consider: impl Fn(Priority, u64) -> bool,
    ) -> Option<(Class, Turn, &Waiting)> {
        let class = match self {
            Self::One(_) => Class::default(),
            Self::Divided(divided) => Class::of(divided.next(now, may_consider)?),
        };
        let (turn, waiting) = self.queue(class)?.next(now)?;
        Some((class, turn, waiting))
    }

    pub(super) fn is_next(
        &self,
        class: Class,
        priority: Priority,
        places: u64,
        now: Tick,
        may_consider: impl Fn(Priority, u64) -> bool,
    ) -> bool {
        match self {
            Self::One(queue) => queue.is_next(priority, now),
            Self::Divided(divided) => divided.is_next(class.number(), priority, places, now, may_consider),
        }
    }

    /// Returns how many places go to others before a newcomer; `None` if unknown, which it always is with tenants.
    pub(super) fn ahead_of(&self, priority: Priority, now: Tick) -> Option<u64> {
        match self {
            Self::One(queue) => queue.ahead_of(priority, now),
            Self::Divided(_) => None,
        }
    }

    pub(super) fn gives_way_to(&self, class: Class, priority: Priority, now: Tick) -> Option<(Class, Turn)> {
        match self {
            Self::One(queue) => Some((class, queue.gives_way_to(priority, now)?)),
            Self::Divided(divided) => {
                let (number, turn) = divided.gives_way_to(class.number(), priority, now)?;
                Some((Class::of(number), turn))
            }
        }
    }

    pub(super) fn waited_too_long(&mut self, class: Class, since: Tick, now: Tick) -> bool {
        self.queue_mut(class).is_some_and(|queue| queue.waited_too_long(since, now))
    }

    pub(super) fn stale(&self, class: Class, now: Tick) -> Option<Turn> {
        self.queue(class)?.stale(now)
    }

    pub(super) fn too_wide(&self, most: impl Fn(Priority) -> u64) -> Vec<(Class, Turn)> {
        let in_class = |number: usize, queue: &Queue| {
            let class = Class::of(number);
            // Not computed for the many tenants that do not wait.
            let of_tenant = if queue.is_empty() { 0 } else { self.most(class) };
            let wide = queue.too_wide(|priority| most(priority).min(of_tenant)).into_iter();
            wide.map(|turn| (class, turn)).collect::<Vec<_>>()
        };
        match self {
            Self::One(queue) => in_class(0, queue),
            Self::Divided(divided) => {
                let queues = divided.queues.iter().enumerate();
                queues.flat_map(|(number, queue)| in_class(number, queue)).collect()
            }
        }
    }
}

impl Divided {
    /// Returns each waiting tenant's first waiter, as the tenant's number and the places asked for. Leaves out a first
    /// waiter that could only be served from places kept for others: it would hold those others up.
    fn firsts(
        &self,
        now: Tick,
        may_consider: impl Fn(Priority, u64) -> bool,
    ) -> impl Iterator<Item = (usize, u64)> {
        let first = move |(number, queue): (usize, &Queue)| {
            let (_, first) = queue.next(now)?;
            may_consider(first.priority, first.places).then_some((number, first.places))
        };
        self.queues.iter().enumerate().filter_map(first)
    }

    fn next(&self, now: Tick, may_consider: impl Fn(Priority, u64) -> bool) -> Option<usize> {
        if self.waiting == 0 { None } else { self.known.partitions.next(self.firsts(now, may_consider), now) }
    }

    /// A newcomer is next if it comes first in its tenant's queue, and its tenant is next among those that wait.
    fn is_next(
        &self,
        number: usize,
        priority: Priority,
        places: u64,
        now: Tick,
        may_consider: impl Fn(Priority, u64) -> bool,
    ) -> bool {
        if self.waiting == 0 {
            return true;
        }
        let next_in_class = self.queues.get(number).is_none_or(|queue| queue.is_next(priority, now));
        let others = self.firsts(now, may_consider).filter(|(other, _)| *other != number);
        next_in_class && self.known.partitions.is_next((number, places), others, now)
    }

    /// Returns the waiter to refuse when the queues are full: one of the tenant with the most waiters for its weight.
    /// If the newcomer's tenant would have as many with the newcomer, the rule of that tenant's own queue decides.
    fn gives_way_to(&self, newcomer: usize, priority: Priority, now: Tick) -> Option<(usize, Turn)> {
        // Waiters per weight, in fixed-point arithmetic.
        let per_weight = |number: usize, more: usize| {
            let waiting = self.queues.get(number).map_or(0, Queue::len) + more;
            (waiting as u128 * u128::from(u32::MAX)) / u128::from(self.known.partitions.weight(number).max(1))
        };
        let longest = (0..self.queues.len()).max_by_key(|number| per_weight(*number, 0))?;
        if longest == newcomer || per_weight(longest, 0) <= per_weight(newcomer, 1) {
            return Some((newcomer, self.queues.get(newcomer)?.gives_way_to(priority, now)?));
        }
        Some((longest, self.queues[longest].last(now)?))
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
