//! The list of the limits whose states fit a word, by number.
//!
//! A slot has no room for its limit and its owner, only for a number of 15 bits; this list holds the limits, once for
//! each owner. Equal limits share a number. The first few numbers are assigned permanently; the others are reused when
//! no slot carries them any more ([`super::reclaim`]). So 32,767 limits can be in use at once; the states of further
//! limits go into the overflow, which is slower and equally exact.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};
use tidegate_core::rate::{Gcra, GcraWord};
use tidegate_core::{Quota, Tick};

use super::limit::{CachedClass, Limit, PermanentLimit, StoredLimit};
use super::name::Class;
use super::reclaim::Sweep;

/// The number of limits that keep their numbers permanently, and are found without searching a list that grows.
pub(super) const FEW: usize = 8;

/// A sweep begins when fewer numbers than this are left: a quarter of them, more than are used up while any table is
/// swept.
pub(super) const LOW: usize = Class::MAX as usize / 4;

#[derive(Debug, Default)]
pub(super) struct Classes {
    /// The first limits, which are found fastest: usually those of a keyed limiter.
    few: [OnceLock<PermanentLimit>; FEW],
    /// The other limits, in the order of their numbers. Both lists are read without a lock.
    pub(super) more: boxcar::Vec<StoredLimit>,
    /// Protects the assignment of numbers. While it is held, no lock is taken except those of quotas.
    pub(super) numbers: RwLock<Numbers>,
    /// The sweep under way. Locked before lines and numbers, and only by `try_lock`.
    pub(super) sweep: Mutex<Sweep>,
    /// Whether a number was assigned while few were left, and the part of a sweep that is due for it was not done yet.
    pub(super) owes_sweep: AtomicBool,
}

/// The assignment of numbers to limits.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The latest number of each owner's limit.
    pub(super) known: HashMap<(Gcra, u32), u16, RandomState>,
    /// Numbers that may be reused.
    pub(super) free: Vec<u16>,
}

impl Classes {
    /// Returns a limit; `None` for [`Class::WIDE`].
    #[inline(always)]
    pub(super) fn get(&self, class: Class) -> Option<Limit<'_>> {
        let at = usize::from(class.number()).checked_sub(1)?;
        match self.few.get(at) {
            Some(first) => first.get().map(|first| first.entry.read()),
            None => self.more(at),
        }
    }

    #[inline(never)]
    fn more(&self, at: usize) -> Option<Limit<'_>> {
        self.more.get(at.checked_sub(FEW)?).map(StoredLimit::read)
    }

    /// Returns the entry of a number; `None` for the first few.
    pub(super) fn entry(&self, number: u16) -> Option<&StoredLimit> {
        self.more.get(usize::from(number).checked_sub(1 + FEW)?)
    }

    /// Returns a limit if it is one of the first few, without a function call.
    #[inline(always)]
    pub(super) fn at_hand(&self, class: Class) -> Option<&PermanentLimit> {
        self.few.get(usize::from(class.number()).checked_sub(1)?)?.get()
    }

    /// Returns the limit of a class that was kept between checks, if the number still belongs to it.
    #[inline(always)]
    pub(super) fn kept(&self, kept: CachedClass) -> Option<Limit<'_>> {
        self.get(kept.class()?).filter(|limit| limit.kept() == kept)
    }

    /// Returns the limit of a quota and owner, with a form that can still be read for a while after `now`; assigns a
    /// number if it has none. `None` for quotas whose states do not fit a word, and where all numbers are in use.
    pub(super) fn of(&self, quota: &Arc<Quota>, owner: u32, now: Tick) -> Option<Limit<'_>> {
        let Quota::Gcra(limit) = &**quota else { return None };
        let owned = (*limit, owner);
        {
            // Read under the lock: the number cannot be given to another limit meanwhile.
            let numbers = self.numbers.read();
            let known = numbers.known.get(&owned).copied();
            if let Some(found) = known.and_then(|number| self.usable(number, now)).filter(Limit::admits) {
                return Some(found);
            }
        }
        let form = GcraWord::new(limit, now)?;
        let mut numbers = self.numbers.write();
        // Another thread may have assigned one meanwhile.
        let known = numbers.known.get(&owned).copied();
        if let Some(found) = known.and_then(|number| self.usable(number, now)) {
            if let Some(entry) = self.entry(found.class().number()).filter(|entry| !entry.is_given()) {
                // A sweep was about to free it.
                entry.turn();
            }
            return self.get(found.class());
        }
        let number = self.next_number(&mut numbers)?;
        let class = Class::new(number)?;
        match (self.few.get(usize::from(number) - 1), self.entry(number)) {
            (Some(first), _) => {
                _ = first.set(PermanentLimit { entry: StoredLimit::new(class, owner, quota, &form), form });
            }
            (None, Some(entry)) => entry.give(owner, quota, &form),
            (None, None) => _ = self.more.push(StoredLimit::new(class, owner, quota, &form)),
        }
        numbers.known.insert(owned, number);
        self.get(class)
    }

    /// Returns a number that no limit has; `None` when all are in use. Notes that a sweep is due when few are left.
    fn next_number(&self, numbers: &mut Numbers) -> Option<u16> {
        let given = self.given();
        let left = usize::from(Class::MAX) - given + numbers.free.len();
        if left < LOW {
            // Relaxed: a hint; the sweep has a lock of its own.
            self.owes_sweep.store(true, Ordering::Relaxed);
        }
        // Numbers that were never used come first: reusing a number makes readers of the old limit start over.
        match u16::try_from(given + 1).ok().filter(|number| *number <= Class::MAX) {
            Some(fresh) => Some(fresh),
            None => numbers.free.pop(),
        }
    }

    /// Returns how many numbers were ever assigned. They are the lowest ones.
    pub(super) fn given(&self) -> usize {
        self.few.iter().filter(|first| first.get().is_some()).count() + self.more.count()
    }

    fn usable(&self, number: u16, now: Tick) -> Option<Limit<'_>> {
        let limit = self.get(Class::new(number)?)?;
        // A form is usable for the first half of its lifetime, so that it does not expire between here and its use.
        (now.since(limit.form().origin()) <= limit.form().lasts() / 2).then_some(limit)
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn limits_keep_their_numbers_however_many_there_are() {
        let classes = Classes::default();
        let quotas: Vec<Arc<Quota>> =
            (1..=3 * FEW as u64).map(|rate| Arc::new(Quota::per_second(rate).gcra().unwrap())).collect();
        let now = Tick::from_secs(1);
        for turn in 0..2 {
            for (at, quota) in quotas.iter().enumerate() {
                let limit = classes.of(quota, 0, now).unwrap();
                assert_eq!(usize::from(limit.class().number()), at + 1, "turn {turn}");
                assert!(classes.get(limit.class()).unwrap().is_of(quota));
            }
        }
        let another = classes.of(&quotas[0], 7, now).unwrap();
        assert_eq!((another.owner(), usize::from(another.class().number())), (7, quotas.len() + 1));
        assert!(another.is_of(&quotas[0]));
        assert_eq!(classes.kept(another.kept()).map(|limit| limit.class()), Some(another.class()));
        assert!(classes.get(Class::WIDE).is_none());
        assert!(classes.get(Class::new(Class::MAX).unwrap()).is_none());
    }
}
