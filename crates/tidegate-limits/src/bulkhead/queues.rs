//! The queue of all waiters, or one queue for each tenant.

use tidegate_core::{Priority, Tick};

use super::queue::{Queue, QueueOrder, Turn, Waiting};
use super::rules::BulkheadRules;
use super::tenants::KnownTenants;

/// The tenant that places are counted for: the number of its queue, and whether the places are the tenant's own. Small,
/// since each permit carries one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    number: u16,
    own: bool,
}

impl Class {
    fn of(number: usize) -> Self {
        // Fits: there are at most 4,097 tenants, including the shared rest.
        Self { number: number as u16, own: false }
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

/// One queue for each tenant.
#[derive(Debug)]
pub(super) struct Divided {
    known: KnownTenants,
    order: QueueOrder,
    /// Indexed by the tenant's number.
    queues: Vec<Queue>,
    /// How many callers wait in all queues together.
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

    /// Returns the class of a tenant, and makes its queue if it has none.
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

    /// Says whether the tenant has a guarantee, and stays within it with this many more places. Its waiters count as a
    /// place each.
    pub(super) fn is_own(&self, tenant: &[u8], places: u64) -> bool {
        let Self::Divided(divided) = self else { return false };
        let waiting = |number: usize| divided.queues.get(number).map_or(0, Queue::len) as u64;
        divided.known.is_own(tenant, |number| places.saturating_add(waiting(number)))
    }

    /// Returns the most places that the tenant's terms can ever leave it under the present limit.
    pub(super) fn most(&self, class: Class) -> u64 {
        match self {
            Self::One(_) => u64::MAX,
            Self::Divided(divided) => divided.known.partitions.most(class.number()),
        }
    }

    /// Counts places that were taken.
    pub(super) fn count_taken(&mut self, class: Class, places: u64, now: Tick) -> Class {
        match self {
            Self::One(_) => class,
            Self::Divided(divided) => {
                let own = divided.known.partitions.enter(class.number(), places, now);
                Class { own, ..class }
            }
        }
    }

    /// Counts places that were returned.
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

    /// Returns the waiter whose turn is next. `may_consider` is [`BulkheadRules::may_consider`]: it says whether a
    /// waiter of a priority that asks for so many places is considered.
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

    /// Says whether a newcomer would be next. `may_consider` as for [`Queues::next`].
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

    /// Returns the waiter that a full queue refuses to make room for a newcomer; `None` to refuse the newcomer.
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

    /// Returns the waiters that ask for more places than `most` allows at their priority, or than their tenant can have.
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

    /// Says whether a newcomer would be next: it comes first in its tenant's queue, and its tenant is next among those
    /// that wait.
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
