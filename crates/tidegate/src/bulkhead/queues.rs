//! One queue for all, or one for each tenant.

use tidegate_core::{Priority, Tick};

use super::queue::{Queue, QueueOrder, Turn, Waiting};
use super::rules::Rules;
use super::tenants::Known;

/// Whose places they are: the number of a queue, and whether they are a tenant's own. Small, for each permit carries one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    number: u16,
    own: bool,
}

impl Class {
    fn of(number: usize) -> Self {
        // There are no more than 4,097 tenants, those that are named and the rest among them.
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

/// The queues of tenants.
#[derive(Debug)]
pub(super) struct Divided {
    known: Known,
    order: QueueOrder,
    /// By the tenant's number.
    queues: Vec<Queue>,
    /// How many wait in all of them.
    waiting: usize,
}

impl Queues {
    pub(super) fn new(rules: &Rules, limit: u64, now: Tick) -> Self {
        match &rules.tenants {
            None => Self::One(Queue::new(rules.order)),
            Some(tenants) => {
                let known = Known::new(tenants, limit, now);
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

    /// Returns whose an ask is.
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

    /// Says whether the terms of a tenant leave it so many places.
    pub(super) fn has_room(&self, class: Class, places: u64) -> bool {
        match self {
            Self::One(_) => true,
            Self::Divided(divided) => divided.known.partitions.has_room(class.number(), places),
        }
    }

    /// Counts places that were taken.
    pub(super) fn taken(&mut self, class: Class, places: u64, now: Tick) -> Class {
        match self {
            Self::One(_) => class,
            Self::Divided(divided) => {
                let own = divided.known.partitions.enter(class.number(), places, now);
                Class { own, ..class }
            }
        }
    }

    /// Counts places that were returned.
    pub(super) fn left(&mut self, class: Class, places: u64, now: Tick) {
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

    /// The waiter whose turn is next. `open` says whether one of a priority who asks for so many places is to be looked at: [`Rules::is_open`].
    pub(super) fn next(
        &self,
        now: Tick,
        open: impl Fn(Priority, u64) -> bool,
    ) -> Option<(Class, Turn, &Waiting)> {
        let class = match self {
            Self::One(_) => Class::default(),
            Self::Divided(divided) => Class::of(divided.next(now, open)?),
        };
        let (turn, waiting) = self.queue(class)?.next(now)?;
        Some((class, turn, waiting))
    }

    /// Says whether the turn of a newcomer would be next; `open` as for [`Queues::next`].
    pub(super) fn is_next(
        &self,
        class: Class,
        (priority, places): (Priority, u64),
        now: Tick,
        open: impl Fn(Priority, u64) -> bool,
    ) -> bool {
        match self {
            Self::One(queue) => queue.is_next(priority, now),
            Self::Divided(divided) => divided.is_next(class.number(), (priority, places), now, open),
        }
    }

    /// How many places are to be given before a newcomer's turn; `None` where that cannot be said.
    pub(super) fn ahead_of(&self, priority: Priority, now: Tick) -> Option<u64> {
        match self {
            Self::One(queue) => queue.ahead_of(priority, now),
            Self::Divided(_) => None,
        }
    }

    /// The waiter that gives up its place in a full queue to a newcomer, if any does.
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

    /// Those who ask for more places than `most` says that their priority may have.
    pub(super) fn too_wide(&self, most: impl Fn(Priority) -> u64) -> Vec<(Class, Turn)> {
        let in_class = |number: usize, queue: &Queue| {
            let wide = queue.too_wide(&most).into_iter();
            wide.map(|turn| (Class::of(number), turn)).collect::<Vec<_>>()
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
    /// The first of each tenant that waits, and the places it asks for. Tenants whose first could only have what is kept for others are left out:
    /// otherwise it would hold them up.
    fn firsts(&self, now: Tick, open: impl Fn(Priority, u64) -> bool) -> impl Iterator<Item = (usize, u64)> {
        let first = move |(number, queue): (usize, &Queue)| {
            let (_, first) = queue.next(now)?;
            open(first.priority, first.places).then_some((number, first.places))
        };
        self.queues.iter().enumerate().filter_map(first)
    }

    fn next(&self, now: Tick, open: impl Fn(Priority, u64) -> bool) -> Option<usize> {
        if self.waiting == 0 { None } else { self.known.partitions.next(self.firsts(now, open), now) }
    }

    /// A newcomer is next where nobody waits who could enter, or where it only takes its own and nobody waits for that.
    fn is_next(
        &self,
        number: usize,
        (priority, places): (Priority, u64),
        now: Tick,
        open: impl Fn(Priority, u64) -> bool,
    ) -> bool {
        if self.waiting == 0 {
            return true;
        }
        let partitions = &self.known.partitions;
        let next_in_class = self.queues.get(number).is_none_or(|queue| queue.is_next(priority, now));
        let takes_own = partitions.is_own(number, places);
        let comes_after =
            |(other, wanted)| other == number || (takes_own && !partitions.is_own(other, wanted));
        next_in_class && self.firsts(now, open).all(comes_after)
    }

    /// Who goes from a full queue: one of the tenant with the most waiters by its weight; of the newcomer's own, one of lower priority.
    fn gives_way_to(&self, newcomer: usize, priority: Priority, now: Tick) -> Option<(usize, Turn)> {
        // Compared as fractions: waiters of one times the weight of the other.
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
