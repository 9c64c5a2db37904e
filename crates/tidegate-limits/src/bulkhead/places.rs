//! The limit and the places taken, in one atomic word, so that entering and leaving are one atomic step each while
//! nobody waits.
//!
//! The word also has a flag that somebody waits. A waiter sets the flag under the lock of the queue, and then reads the
//! count again. A permit that left before the flag was set is in that count; a permit that leaves later sees the flag
//! and takes the lock. So no waiter misses a free place.

use std::ops::Deref;
use std::sync::Weak;
use std::time::Duration;

use tidegate_core::Standing;
use tidegate_core::concurrency::Concurrency;

use super::waiters::Granted;
use crate::refusal_reason::NoPlace;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// The places taken. 24 bits suffice: a limit is at most [`Concurrency::MAX_PLACES`], nobody enters above twice a lowered
/// limit, and one caller alone takes at most that many.
const TAKEN: u64 = (1 << 24) - 1;
const LIMIT: u32 = 24;
/// Set while every caller has to take the lock: somebody waits, or the places are divided among tenants.
const LOCKED: u64 = 1 << 63;
/// Set with [`LOCKED`] once the bulkhead is dropped: nobody enters any more.
const CLOSED: u64 = 1 << 62;

#[derive(Debug)]
pub(super) struct Places(AtomicU64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count(u64);

impl Count {
    pub(super) const fn taken(self) -> u64 {
        self.0 & TAKEN
    }

    pub(super) const fn limit(self) -> u64 {
        (self.0 >> LIMIT) & TAKEN
    }

    pub(super) const fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    const fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    /// Says whether `places` more leave at most `most` taken.
    const fn has(self, places: u64, most: u64) -> bool {
        // No overflow: both are below 2⁶³. The caller checks `places`.
        self.taken() + places <= most
    }

    pub(super) const fn no_place(self, places: u64) -> NoPlace {
        if self.taken().saturating_add(places) <= self.limit() {
            NoPlace::KeptForOthers
        } else {
            NoPlace::Full
        }
    }

    const fn is_empty(self) -> bool {
        self.taken() == 0
    }

    pub(super) const fn standing(self) -> Standing {
        let (taken, limit) = (self.taken(), self.limit());
        let reset_after = if taken == 0 { Duration::ZERO } else { Duration::MAX };
        Standing {
            limit,
            remaining: limit.saturating_sub(taken),
            debt: taken.saturating_sub(limit),
            reset_after,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EnterFailure {
    Full,
    Locked,
}

impl Places {
    pub(super) fn new(limit: u64) -> Self {
        Self(AtomicU64::new(limit << LIMIT))
    }

    pub(super) fn count(&self) -> Count {
        // Relaxed: a snapshot. A caller that acts on it uses compare-exchange.
        Count(self.0.load(Ordering::Relaxed))
    }

    /// Takes places unless the lock has to be taken first. Returns how many are taken afterwards. `most` returns how
    /// many may be taken then, of a limit. `alone`: a caller may take more places than the limit while none is
    /// taken.
    #[inline]
    pub(super) fn enter(
        &self,
        places: u64,
        alone: bool,
        most: impl Fn(u64) -> u64,
    ) -> Result<u64, EnterFailure> {
        let open = |count: Count| if count.is_locked() { Err(EnterFailure::Locked) } else { Ok(()) };
        self.take_if(places, alone, most, open)
    }

    pub(super) fn enter_locked(
        &self,
        places: u64,
        alone: bool,
        most: impl Fn(u64) -> u64,
    ) -> Result<u64, EnterFailure> {
        self.take_if(places, alone, most, |_| Ok(()))
    }

    #[inline]
    fn take_if(
        &self,
        places: u64,
        alone: bool,
        most: impl Fn(u64) -> u64,
        open: impl Fn(Count) -> Result<(), EnterFailure>,
    ) -> Result<u64, EnterFailure> {
        if places > Concurrency::MAX_PLACES {
            return Err(EnterFailure::Full);
        }
        let mut count = self.count();
        loop {
            open(count)?;
            let fits = count.has(places, most(count.limit())) || alone && count.is_empty();
            if !fits {
                return Err(EnterFailure::Full);
            }
            let taken = count.0 + places;
            // Acquire, paired with the release in `leave`: a caller sees what the previous holder of the place did. The
            // loop ends: the exchange fails only when another thread's succeeds.
            match self.0.compare_exchange_weak(count.0, taken, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Count(taken).taken()),
                Err(found) => count = Count(found),
            }
        }
    }

    /// Returns places; false, and nothing is done, if the lock has to be taken first.
    #[inline]
    pub(super) fn leave_unlocked(&self, places: u64) -> bool {
        let mut count = self.count();
        while !count.is_locked() {
            // Release, paired with the acquire of the next caller to enter. Ends as in `take_if`.
            match self.0.compare_exchange_weak(
                count.0,
                count.0 - places,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(found) => count = Count(found),
            }
        }
        false
    }

    /// Returns places after the bulkhead was dropped. True if they were the last ones.
    pub(super) fn leave_closed(&self, places: u64) -> bool {
        // Acquire as well: the thread that returns the last place hands the counter on.
        let count = Count(self.0.fetch_sub(places, Ordering::AcqRel) - places);
        count.is_closed() && count.is_empty()
    }

    /// Closes the counter: nobody enters any more. Returns true if no place is taken.
    pub(super) fn close(&self) -> bool {
        Count(self.0.fetch_or(CLOSED | LOCKED, Ordering::AcqRel)).is_empty()
    }

    /// Starts again with `limit` places, none of them taken. For a caller with sole use of the counter.
    pub(super) fn reset(&self, limit: u64) {
        self.0.store(limit << LIMIT, Ordering::Release);
    }

    /// Returns places. True if the lock has to be taken to give them to a waiter.
    #[inline]
    pub(super) fn leave(&self, places: u64) -> bool {
        // Release, paired with the acquire of the next caller to enter.
        Count(self.0.fetch_sub(places, Ordering::Release)).is_locked()
    }

    /// Sets the flag that makes every caller take the lock. For the holder of the lock, which reads the count again
    /// afterwards.
    pub(super) fn lock(&self) {
        self.0.fetch_or(LOCKED, Ordering::AcqRel);
    }

    /// Clears that flag, so that callers use the fast path again. For the holder of the lock.
    pub(super) fn open(&self) {
        self.0.fetch_and(!LOCKED, Ordering::AcqRel);
    }

    /// Changes the limit. For the holder of the lock: the limit does not change between the two steps.
    pub(super) fn change(&self, limit: u64) {
        let old = self.count().limit();
        if limit >= old {
            self.0.fetch_add((limit - old) << LIMIT, Ordering::AcqRel);
        } else {
            self.0.fetch_sub((old - limit) << LIMIT, Ordering::AcqRel);
        }
    }
}

// The counter of a bulkhead's places, which a permit can reach even after the bulkhead is gone.
//
// A permit writes to the counter when it is dropped, and the bulkhead may have been dropped by then. A reference count
// in each permit would solve that, at the price of two more atomic operations, as many as the place itself costs.
// Instead, counters are never freed: when the bulkhead is gone and the last place has been returned, the counter goes
// to a pool, from which the next bulkhead takes it. So the process keeps 64 bytes for each bulkhead of the largest
// number that ever existed at the same time.
//
// # Invariants
// * A counter with places taken is not in the pool. A permit that holds a place may therefore use the counter, and must
//   not touch it after it has returned the place.
// * A counter goes to the pool once. Closing it and returning its last place are two changes of one atomic word, and
//   whichever comes second puts it there.

#[cfg(not(tidegate_loom))]
static POOL: Mutex<Vec<&'static Counter>> = Mutex::new(Vec::new());

#[cfg(tidegate_loom)]
loom::lazy_static! {
    static ref POOL: Mutex<Vec<&'static Counter>> = Mutex::new(Vec::new());
}

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
    pub(super) fn new(limit: u64) -> Self {
        let pooled = POOL.lock().pop();
        let counter = pooled.unwrap_or_else(|| {
            Box::leak(Box::new(Counter { places: Places::new(limit), owner: Mutex::new(None) }))
        });
        counter.places.reset(limit);
        Self(counter)
    }

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

    #[test]
    fn places_kept_and_places_lacking_are_told_apart_from_a_line() {
        let places = Places::new(3);
        assert_eq!(places.enter(2, false, |limit| limit), Ok(2));
        assert_eq!(
            places.enter(1, false, |limit| limit - limit / 3),
            Err(EnterFailure::Full),
            "one of three is kept"
        );
        places.lock();
        assert_eq!(places.enter(1, false, |limit| limit), Err(EnterFailure::Locked));
        assert_eq!(places.enter_locked(1, false, |limit| limit), Ok(3));
        assert!(places.leave(2), "somebody waits");
        places.open();
        assert!(!places.leave(1));
        assert_eq!(places.count().standing().remaining, 3);
    }

    #[test]
    fn more_places_than_there_are_are_taken_by_one_alone() {
        let places = Places::new(2);
        assert_eq!(places.enter(5, false, |limit| limit), Err(EnterFailure::Full));
        assert_eq!(places.enter(5, true, |limit| limit), Ok(5));
        assert_eq!(
            (places.count().standing().debt, places.enter(5, true, |limit| limit)),
            (3, Err(EnterFailure::Full))
        );
        places.leave(5);
        assert_eq!(places.enter(1, true, |limit| limit), Ok(1));
        assert_eq!(places.enter(5, true, |limit| limit), Err(EnterFailure::Full), "somebody else is inside");
    }

    #[test]
    fn a_limit_moves_beneath_those_inside() {
        let places = Places::new(Concurrency::MAX_PLACES);
        assert_eq!(places.enter(Concurrency::MAX_PLACES, false, |limit| limit), Ok(Concurrency::MAX_PLACES));
        assert_eq!(places.enter(u64::MAX, true, |limit| limit), Err(EnterFailure::Full));
        places.change(1);
        let standing = places.count().standing();
        assert_eq!((standing.limit, standing.remaining, standing.debt), (1, 0, Concurrency::MAX_PLACES - 1));
        places.change(Concurrency::MAX_PLACES);
        assert_eq!(places.count().taken(), Concurrency::MAX_PLACES);
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod counter_tests {
    use super::*;
    use crate::bulkhead::queue::Class;

    fn granted(counter: &OwnedCounter) -> Granted {
        let in_flight = counter.enter(1, false, |limit| limit).expect("a place is free");
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
