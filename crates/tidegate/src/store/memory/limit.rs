//! One limit of one owner, as checks read it.
//!
//! Slots name their limits by number. The first limits keep their numbers for good and are plain memory. The others are *entries*, whose
//! numbers are given again once no slot carries them ([`reclaim`](super::reclaim)); so what was read of an entry can be of a
//! limit that has gone since. An entry's *stamp* tells: it changes before the limit does, so a reading holds if the stamp is the same
//! after a slot of that number was seized as it was before the reading.

use std::sync::Arc;

use tidegate_core::Quota;
use tidegate_core::rate::{Gcra, GcraWord};

use super::name::Class;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

/// A limit that keeps its number for good.
#[derive(Debug)]
pub(super) struct First {
    class: Class,
    owner: u32,
    quota: Arc<Quota>,
    form: GcraWord,
}

impl First {
    pub(super) const fn new(class: Class, owner: u32, quota: Arc<Quota>, form: GcraWord) -> Self {
        Self { class, owner, quota, form }
    }
}

/// A limit whose number may be given to another one later.
#[derive(Debug)]
pub(super) struct Entry {
    /// Even while the number is given. Odd while a sweep looks for slots that carry it, in which no new slot may come to carry
    /// it, and while it is free. One more with each change, so that 2³¹ others would have to have the number between the two looks of one
    /// check for it to be deceived.
    stamp: AtomicU32,
    owner: AtomicU32,
    /// Where the quota lies in memory, to compare it with a caller's without a lock.
    address: AtomicU64,
    form: [AtomicU64; 6],
    /// The quota; `None` while the number is free.
    quota: Mutex<Option<Arc<Quota>>>,
}

impl Entry {
    pub(super) fn new(owner: u32, quota: &Arc<Quota>, form: &GcraWord) -> Self {
        Self {
            stamp: AtomicU32::new(0),
            owner: AtomicU32::new(owner),
            address: AtomicU64::new(address(quota)),
            form: form.parts().map(AtomicU64::new),
            quota: Mutex::new(Some(Arc::clone(quota))),
        }
    }

    /// Says whether the number is given and may be put into slots.
    pub(super) fn is_given(&self) -> bool {
        self.stamp.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// Changes the stamp. Only under the lock that protects the giving of numbers.
    pub(super) fn turn(&self) {
        let next = self.stamp.load(Ordering::Relaxed).wrapping_add(1);
        // Release, with the Acquire in `read`: whoever sees this stamp sees what was written before it.
        self.stamp.store(next, Ordering::Release);
    }

    /// Gives the number up; no slot carries it. Returns the limit it was of.
    pub(super) fn free(&self) -> Option<(Gcra, u32)> {
        let quota = self.quota.lock().take()?;
        let Quota::Gcra(limit) = &*quota else { return None };
        Some((*limit, self.owner.load(Ordering::Relaxed)))
    }

    /// Says whether the number belongs to a limit, retiring or not.
    pub(super) fn is_taken(&self) -> bool {
        self.quota.lock().is_some()
    }

    /// Gives a free number to a limit.
    pub(super) fn give(&self, owner: u32, quota: &Arc<Quota>, form: &GcraWord) {
        *self.quota.lock() = Some(Arc::clone(quota));
        // Release, all of them, with the Acquire in `read`: a reading that has some of these finds another stamp afterwards.
        self.owner.store(owner, Ordering::Release);
        self.address.store(address(quota), Ordering::Release);
        for (kept, number) in self.form.iter().zip(form.parts()) {
            kept.store(number, Ordering::Release);
        }
        self.turn();
    }

    /// Reads the limit.
    #[inline]
    pub(super) fn read(&self, class: Class) -> Limit<'_> {
        let stamp = self.stamp.load(Ordering::Acquire);
        Limit {
            class,
            owner: self.owner.load(Ordering::Acquire),
            address: self.address.load(Ordering::Acquire),
            form: GcraWord::from_parts(std::array::from_fn(|at| self.form[at].load(Ordering::Acquire))),
            source: Source::Entry(self, stamp),
        }
    }
}

/// Where a limit was read.
#[derive(Clone, Copy, Debug)]
enum Source<'t> {
    First(&'t First),
    Entry(&'t Entry, u32),
}

/// One limit of one owner, as it was read; see [`Limit::holds`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit<'t> {
    pub(crate) class: Class,
    /// The owner of all keys of this class.
    pub(super) owner: u32,
    pub(crate) form: GcraWord,
    address: u64,
    source: Source<'t>,
}

/// A class to be kept between checks: its number and the stamp it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptClass(u64);

impl KeptClass {
    /// Returns it as a number that is not zero, for an atomic.
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Makes it of what [`KeptClass::bits`] returned; any other number names a limit that does not hold, or none.
    pub(crate) const fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub(crate) fn class(self) -> Option<Class> {
        // The lower half holds the number.
        Class::new(self.0 as u16)
    }
}

impl<'t> Limit<'t> {
    #[inline(always)]
    pub(super) fn first(first: &'t First) -> Self {
        Self {
            class: first.class,
            owner: first.owner,
            form: first.form,
            address: address(&first.quota),
            source: Source::First(first),
        }
    }

    /// Says whether what was read is the limit of the number still: to be asked with a slot of that number in hand, or its line locked.
    #[inline(always)]
    pub(super) fn holds(&self) -> bool {
        match self.source {
            Source::First(_) => true,
            // Relaxed: seizing the slot was an Acquire of what whoever put the number there had seen, its stamp included.
            Source::Entry(entry, stamp) => entry.stamp.load(Ordering::Relaxed) == stamp,
        }
    }

    /// Says whether a new slot may carry the number: to be asked with the slot's line locked, which a sweep locks after it has changed
    /// the stamp.
    pub(super) fn admits(&self) -> bool {
        match self.source {
            Source::First(_) => true,
            Source::Entry(_, stamp) => self.holds() && stamp.is_multiple_of(2),
        }
    }

    /// Returns the class in a form that can be kept between checks.
    pub(super) fn kept(&self) -> KeptClass {
        let stamp = match self.source {
            Source::First(_) => 0,
            Source::Entry(_, stamp) => stamp,
        };
        KeptClass(u64::from(stamp) << 32 | u64::from(self.class.number()))
    }

    /// Says whether words of this limit are words of `quota`.
    #[inline]
    pub(super) fn is(&self, quota: &Arc<Quota>) -> bool {
        self.address == address(quota) || self.equals(quota)
    }

    #[cold]
    #[inline(never)]
    fn equals(&self, quota: &Arc<Quota>) -> bool {
        self.quota().is_some_and(|own| own == *quota)
    }

    /// Returns the quota; `None` where what was read does not hold any more.
    pub(super) fn quota(&self) -> Option<Arc<Quota>> {
        match self.source {
            Source::First(first) => Some(Arc::clone(&first.quota)),
            Source::Entry(entry, _) => entry.quota.lock().clone().filter(|_| self.holds()),
        }
    }
}

/// Returns where a quota lies in memory: of two that are there at once, another place.
#[inline(always)]
fn address(quota: &Arc<Quota>) -> u64 {
    Arc::as_ptr(quota).addr() as u64
}
