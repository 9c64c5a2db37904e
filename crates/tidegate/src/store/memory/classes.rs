//! The limits whose states fit a word, by number.
//!
//! A slot has no room for its limit and its owner, only for a number of 15 bits; the limits stand here, once for each owner. Equal limits
//! get one number; numbers are never taken back, and there are 32,767. The states of further limits go into the overflow, which is
//! slower and just as right. A gate of a thousand policies could change all of its limits thirty times before that.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use tidegate_core::rate::{Gcra, GcraWord};
use tidegate_core::{Quota, Tick};

use super::name::Class;

/// Limits that are found without looking into a list that grows.
const FEW: usize = 8;

/// One limit of one owner.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) class: Class,
    /// The owner of all keys of this class.
    pub(super) owner: u32,
    pub(super) quota: Arc<Quota>,
    pub(crate) form: GcraWord,
}

impl Limit {
    /// Says whether words of this limit are words of `quota`.
    pub(super) fn is(&self, quota: &Arc<Quota>) -> bool {
        Arc::ptr_eq(&self.quota, quota) || self.quota == *quota
    }

    #[cfg(all(test, tidegate_loom))]
    pub(super) const fn of_test(class: Class, quota: Arc<Quota>, form: GcraWord) -> Self {
        Self { class, owner: 0, quota, form }
    }
}

#[derive(Debug, Default)]
pub(super) struct Classes {
    /// The first ones, where they are found soonest: those of a keyed limiter, as a rule.
    few: [OnceLock<Limit>; FEW],
    /// The others, in the order of their numbers. Both are read without a lock.
    more: boxcar::Vec<Limit>,
    /// The latest number of each owner's limit. Protects the giving of numbers; no other lock is taken meanwhile.
    numbers: RwLock<HashMap<(Gcra, u32), u16, RandomState>>,
}

impl Classes {
    /// Returns a limit; `None` for [`Class::WIDE`].
    #[inline]
    pub(super) fn get(&self, class: Class) -> Option<&Limit> {
        let at = usize::from(class.number()).checked_sub(1)?;
        match self.few.get(at) {
            Some(limit) => limit.get(),
            None => self.more(at),
        }
    }

    #[cold]
    #[inline(never)]
    fn more(&self, at: usize) -> Option<&Limit> {
        self.more.get(at.checked_sub(FEW)?)
    }

    /// Returns a limit if it is one of the first, without a call.
    #[inline(always)]
    pub(super) fn at_hand(&self, class: Class) -> Option<&Limit> {
        self.few.get(usize::from(class.number()).checked_sub(1)?)?.get()
    }

    /// Returns an owner's limit of a quota, with a form that can still be read for a while after `now`; `None` for quotas whose states
    /// do not fit a word.
    pub(super) fn of(&self, quota: &Arc<Quota>, owner: u32, now: Tick) -> Option<&Limit> {
        let Quota::Gcra(limit) = &**quota else { return None };
        let owned = (*limit, owner);
        let known = self.numbers.read().get(&owned).copied();
        if let Some(found) = known.and_then(|number| self.usable(number, now)) {
            return Some(found);
        }
        let form = GcraWord::new(limit, now)?;
        let mut numbers = self.numbers.write();
        // Another thread may have been faster.
        let known = numbers.get(&owned).copied();
        if let Some(found) = known.and_then(|number| self.usable(number, now)) {
            return Some(found);
        }
        // The lock is held, so the next number is this one's; `None` when there are no more.
        let at = self.few.iter().filter(|limit| limit.get().is_some()).count() + self.more.count();
        let class = Class::new(u16::try_from(at + 1).ok()?)?;
        let new = Limit { class, owner, quota: Arc::clone(quota), form };
        match self.few.get(at) {
            Some(first) => _ = first.set(new),
            None => _ = self.more.push(new),
        }
        numbers.insert(owned, class.number());
        drop(numbers);
        self.usable(class.number(), now)
    }

    fn usable(&self, number: u16, now: Tick) -> Option<&Limit> {
        let limit = self.get(Class::new(number)?)?;
        // Half of what a form lasts is left to it, so that it does not end between here and its use.
        (now.since(limit.form.origin()) <= limit.form.lasts() / 2).then_some(limit)
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
                assert_eq!(usize::from(limit.class.number()), at + 1, "turn {turn}");
                assert!(classes.get(limit.class).unwrap().is(quota));
            }
        }
        let another = classes.of(&quotas[0], 7, now).unwrap();
        assert_eq!((another.owner, usize::from(another.class.number())), (7, quotas.len() + 1));
        assert!(another.is(&quotas[0]));
        assert!(classes.get(Class::WIDE).is_none());
        assert!(classes.get(Class::new(Class::MAX).unwrap()).is_none());
    }
}
