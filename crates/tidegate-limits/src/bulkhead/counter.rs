//! The counter of a bulkhead's places, which a permit can reach even after the bulkhead is gone.
//!
//! A permit writes to the counter when it is dropped, and the bulkhead may have been dropped by then. A reference count in each permit
//! would solve that, at the price of two more atomic operations, as many as the place itself costs. Instead, counters are never freed:
//! when the bulkhead is gone and the last place has been returned, the counter goes to a pool, from which the next bulkhead takes it.
//! So the process keeps 64 bytes for each bulkhead of the largest number that ever existed at the same time.
//!
//! # Invariants
//! * A counter with places taken is not in the pool. A permit that holds a place may therefore use the counter, and must not touch it
//!   after it has returned the place.
//! * A counter goes to the pool once. Closing it and returning its last place are two changes of one atomic word, and whichever comes second
//!   puts it there.

use std::ops::Deref;
use std::sync::Weak;

use super::places::Places;
use super::waiters::Granted;
use crate::sync::Mutex;

/// Counters that no bulkhead uses.
#[cfg(not(tidegate_loom))]
static POOL: Mutex<Vec<&'static Counter>> = Mutex::new(Vec::new());
#[cfg(tidegate_loom)]
loom::lazy_static! {
    static ref POOL: Mutex<Vec<&'static Counter>> = Mutex::new(Vec::new());
}

/// The bulkhead that uses a counter, as its permits see it.
pub(super) trait Owner: std::fmt::Debug + Send + Sync {
    /// Returns places that a permit holds, under the lock where a waiter may be due.
    fn return_places(&self, granted: &Granted);
}

/// The places of a bulkhead, on a cache line of its own, since each permit writes to it twice.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Counter {
    places: Places,
    /// The bulkhead that uses the counter; empty before the bulkhead is made and after it is gone.
    owner: Mutex<Option<Weak<dyn Owner>>>,
}

impl Counter {
    /// Returns the places of a permit that does not keep its bulkhead alive.
    #[inline]
    pub(super) fn leave(&'static self, granted: &Granted) {
        if !self.places.leave_unlocked(granted.places()) {
            self.leave_locked(granted);
        }
    }

    /// Returns places when a waiter may be due, or the bulkhead is gone. The permit still holds its places when this
    /// starts, so the owner found here is the bulkhead that gave them.
    #[cold]
    fn leave_locked(&'static self, granted: &Granted) {
        // A separate statement, so that the lock ends here: dropping the last reference to the owner takes the same
        // lock.
        let owner = self.owner.lock().as_ref().and_then(Weak::upgrade);
        match owner {
            Some(owner) => owner.return_places(granted),
            None => self.recycle_if(self.places.leave_closed(granted.places())),
        }
    }

    fn recycle_if(&'static self, is_last: bool) {
        if is_last {
            POOL.lock().push(self);
        }
    }
}

/// The sole right to close a counter. Each bulkhead owns one, and closes its counter when it is dropped.
#[derive(Debug)]
pub(super) struct OwnedCounter(&'static Counter);

impl OwnedCounter {
    /// Takes a counter from the pool, or allocates one if the pool is empty.
    pub(super) fn new(limit: u64) -> Self {
        let pooled = POOL.lock().pop();
        let counter = pooled.unwrap_or_else(|| {
            Box::leak(Box::new(Counter { places: Places::new(limit), owner: Mutex::new(None) }))
        });
        counter.places.reset(limit);
        Self(counter)
    }

    /// Sets the bulkhead that gives returned places to its waiters.
    pub(super) fn set_owner(&self, owner: Weak<dyn Owner>) {
        *self.0.owner.lock() = Some(owner);
    }

    /// Returns the counter for a permit, which must hold a place of it.
    pub(super) const fn for_permit(&self) -> &'static Counter {
        self.0
    }
}

impl Deref for OwnedCounter {
    type Target = Places;

    fn deref(&self) -> &Places {
        &self.0.places
    }
}

impl Drop for OwnedCounter {
    fn drop(&mut self) {
        // No waiter is left: each waiter keeps its bulkhead alive.
        *self.0.owner.lock() = None;
        self.0.recycle_if(self.0.places.close());
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use crate::bulkhead::queues::Class;

    fn granted(counter: &OwnedCounter) -> Granted {
        let in_flight = counter.enter(1, false, |_| 0).expect("a place is free");
        Granted::new(1, in_flight, Class::default())
    }

    fn is_pooled(counter: &'static Counter) -> bool {
        POOL.lock().iter().any(|pooled| std::ptr::eq(*pooled, counter))
    }

    /// Other tests of this process may take the counter from the pool at once. So the test only asserts what holds of
    /// the pool in any case.
    #[test]
    fn a_counter_is_not_pooled_while_places_are_taken() {
        let owned = OwnedCounter::new(5);
        let counter = owned.for_permit();
        let (first, second) = (granted(&owned), granted(&owned));
        counter.leave(&first);
        assert_eq!(owned.count().taken(), 1);
        drop(owned);
        assert!(!is_pooled(counter), "a place is still taken");
        assert!(counter.places.count().is_locked(), "nobody enters a counter that is closed");
        assert_eq!(counter.places.count().taken(), 1);
        counter.leave(&second);
    }

    #[test]
    fn a_counter_from_the_pool_is_as_new() {
        // More counters than other tests of this process take meanwhile, so that the second round reuses some of the
        // first.
        let made: Vec<_> = (0..64).map(|_| OwnedCounter::new(3)).collect();
        made.iter().for_each(|owned| owned.for_permit().leave(&granted(owned)));
        let first: Vec<*const Counter> =
            made.iter().map(|owned| std::ptr::from_ref(owned.for_permit())).collect();
        drop(made);
        let again: Vec<_> = (0..64).map(|_| OwnedCounter::new(7)).collect();
        assert!(again.iter().any(|owned| first.contains(&std::ptr::from_ref(owned.for_permit()))));
        for owned in &again {
            let count = owned.count();
            assert_eq!((count.taken(), count.limit(), count.is_locked()), (0, 7, false));
            assert!(owned.for_permit().owner.lock().is_none());
        }
    }
}
