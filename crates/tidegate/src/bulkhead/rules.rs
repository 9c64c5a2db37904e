//! What does not change while a bulkhead is used: how long its queue is, in which order, and how many places are kept for which priority.

use std::time::Duration;

use tidegate_core::concurrency::Concurrency;
use tidegate_core::{Priority, Retry};

use super::places::Count;
use super::queue::QueueOrder;
use super::tenants::Tenants;
use crate::policy::KeepFor;
use crate::signals::Watch;

#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// How many may wait.
    pub(super) room: usize,
    /// Whether no more wait than may be inside, and no longer than half of what the work takes.
    pub(super) short_line: bool,
    pub(super) order: QueueOrder,
    /// The longest that anybody waits.
    pub(super) longest_wait: Duration,
    /// `None` where nothing is kept, so that the fast path need not look.
    pub(super) keep_for: Option<KeepFor>,
    pub(super) tenants: Option<Tenants>,
    /// Whether a law moves the limit: then nobody is refused for good, for the limit may come to suffice.
    pub(super) moves: bool,
    /// Tells the law how much of the machine is in use.
    pub(super) signals: Option<Watch>,
}

impl Rules {
    /// How many places have to stay free when a caller of a priority has entered. Where nothing is kept, the priority is not asked for.
    #[inline]
    pub(super) fn kept(&self, priority: impl FnOnce() -> Priority, limit: u64) -> u64 {
        self.keep_for.as_ref().map_or(0, |keep_for| keep_for.kept_back(priority(), limit).min(limit))
    }

    /// Says whether a waiter of a priority who asks for so many places is to be looked at: where nothing is kept from it, as soon as one place is
    /// free, so that whoever asks for many gets them in the end; otherwise when all of them are, for meanwhile it would hold up those that a
    /// part is kept for.
    pub(super) fn is_open(&self, priority: Priority, wanted: u64, count: Count) -> bool {
        match self.kept(|| priority, count.limit()) {
            0 => count.taken() < count.limit(),
            kept => count.taken() + wanted + kept <= count.limit(),
        }
    }

    /// How many may wait under a limit.
    pub(super) fn room(&self, limit: u64) -> usize {
        // A limit is 2¹⁶ at the most.
        if self.short_line { self.room.min(limit as usize) } else { self.room }
    }

    /// Whether one who asks for more places than there are takes them all while nobody else is inside. Where a law moves the limit: else
    /// nobody might enter, the law would learn nothing, and the limit stay too low. Not where a part is kept or lent, which others were promised.
    pub(super) const fn enters_alone(&self) -> bool {
        self.moves && self.keep_for.is_none() && self.tenants.is_none()
    }

    /// How many places a caller of a priority can have at the most.
    pub(super) fn most(&self, priority: Priority, limit: u64) -> u64 {
        if self.enters_alone() { Concurrency::MAX_PLACES } else { limit - self.kept(|| priority, limit) }
    }

    /// Refuses whoever asks for more places than it could ever have under the limit.
    pub(super) fn too_many(&self, places: u64, priority: Priority, limit: u64) -> Option<Retry> {
        (places > self.most(priority, limit)).then(|| self.too_many_now(places))
    }

    /// What is told to one who asks for too many places under the limit of this moment.
    pub(super) const fn too_many_now(&self, places: u64) -> Retry {
        if self.moves && places <= Concurrency::MAX_PLACES { Retry::Unknown } else { Retry::Never }
    }
}
