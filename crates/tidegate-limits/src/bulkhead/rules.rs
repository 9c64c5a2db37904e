//! The settings of a bulkhead that stay fixed while it is used: the size and order of its queue, and the places kept
//! for priorities.

use std::time::Duration;

use tidegate_core::concurrency::Concurrency;
use tidegate_core::{Priority, Retry};

use super::places::Count;
use super::queue::QueueOrder;
use super::tenants::Tenants;
use crate::no_place::NoPlace;
use crate::priority::KeepFor;
use crate::signals::Watch;

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TurnedAway {
    pub(super) why: NoPlace,
    /// Whether no retry of the same entry can pass.
    never: bool,
}

impl TurnedAway {
    /// A refusal after which a retry may pass.
    pub(super) const fn now(why: NoPlace) -> Self {
        Self { why, never: false }
    }

    /// A refusal for good.
    pub(super) const fn forever(why: NoPlace) -> Self {
        Self { why, never: true }
    }

    pub(super) const fn retry(self) -> Retry {
        if self.never { Retry::Never } else { Retry::Unknown }
    }
}

#[derive(Clone, Debug)]
pub(super) struct BulkheadRules {
    /// The most callers that may wait.
    pub(super) room: usize,
    /// Whether the queue is also bounded by the limit, and a wait by half the mean time that work takes.
    pub(super) short_queue: bool,
    pub(super) order: QueueOrder,
    /// The longest wait of any caller.
    pub(super) longest_wait: Duration,
    /// `None` if no place is kept, so that the fast path skips the check.
    pub(super) keep_for: Option<KeepFor>,
    pub(super) tenants: Option<Tenants>,
    /// Whether a law moves the limit. Then too many places are refused with [`Retry::Unknown`], since the limit may
    /// rise.
    pub(super) moves: bool,
    /// Tells the law how much of the machine is in use.
    pub(super) signals: Option<Watch>,
}

impl BulkheadRules {
    /// Returns how many places have to stay free when a caller of a priority enters. Calls `priority` only if places
    /// are kept.
    #[inline]
    pub(super) fn kept(&self, priority: impl FnOnce() -> Priority, limit: u64) -> u64 {
        self.keep_for.as_ref().map_or(0, |keep_for| keep_for.kept_back(priority(), limit).min(limit))
    }

    /// Says whether a waiter of a priority that asks for `wanted` places is considered. If no place is kept from it, it
    /// is considered as soon as one place is free, so that a waiter for many places is served in the end. Otherwise it
    /// is considered once all its places are free: earlier it would hold up the callers that a part is kept for.
    pub(super) fn may_consider(&self, priority: Priority, wanted: u64, count: Count) -> bool {
        match self.kept(|| priority, count.limit()) {
            0 => count.taken() < count.limit(),
            kept => count.taken() + wanted + kept <= count.limit(),
        }
    }

    /// Returns how many callers may wait under a limit.
    pub(super) fn room(&self, limit: u64) -> usize {
        // Fits: a limit is at most 2¹⁶.
        if self.short_queue { self.room.min(limit as usize) } else { self.room }
    }

    /// Whether a caller that asks for more places than the limit takes them all while no place is taken. True if a law
    /// moves the limit: otherwise nobody might enter, the law would learn nothing, and the limit would stay too low.
    /// False if a part is kept or lent, since the places were promised to others.
    pub(super) const fn enters_alone(&self) -> bool {
        self.moves && self.keep_for.is_none() && self.tenants.is_none()
    }

    /// Returns the most places that a caller of a priority can have.
    pub(super) fn most(&self, priority: Priority, limit: u64) -> u64 {
        if self.enters_alone() { Concurrency::MAX_PLACES } else { limit - self.kept(|| priority, limit) }
    }

    /// Returns the refusal if a caller asks for more places than it could ever have under the limit.
    pub(super) fn too_many(&self, places: u64, priority: Priority, limit: u64) -> Option<TurnedAway> {
        (places > self.most(priority, limit)).then(|| self.too_many_now(places))
    }

    /// Returns the refusal for too many places under the present limit.
    pub(super) const fn too_many_now(&self, places: u64) -> TurnedAway {
        let why = NoPlace::TooManyPlaces;
        if self.moves && places <= Concurrency::MAX_PLACES {
            TurnedAway::now(why)
        } else {
            TurnedAway::forever(why)
        }
    }
}
