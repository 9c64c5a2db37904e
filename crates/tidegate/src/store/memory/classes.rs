//! The limits whose states fit a word, by number.
//!
//! A slot has no room for its limit, only for a number of 15 bits; the limits themselves stand here, once each. Numbers are
//! given by value, never taken back, and bounded: beyond them limits keep their states beside the table, which is slower and
//! as right. A gate of a thousand policies could change all of its limits thirty times before that.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use tidegate_core::rate::{Gcra, GcraWord};
use tidegate_core::{Quota, Tick};

use super::line::Class;

/// One limit.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) class: Class,
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
        Self { class, quota, form }
    }
}

#[derive(Debug, Default)]
pub(super) struct Classes {
    /// In the order of their numbers, from 1; read without a lock.
    limits: boxcar::Vec<Limit>,
    /// The latest number of each limit. Protects the giving of numbers; no other lock is taken meanwhile.
    numbers: RwLock<HashMap<Gcra, u16, RandomState>>,
}

impl Classes {
    /// Returns a limit; `None` for [`Class::WIDE`].
    #[inline]
    pub(super) fn get(&self, class: Class) -> Option<&Limit> {
        self.limits.get(usize::from(class.number()).checked_sub(1)?)
    }

    /// Returns the limit of a quota, with a form that will still do a while after `now`; `None` for quotas whose states do not
    /// fit a word.
    pub(super) fn of(&self, quota: &Arc<Quota>, now: Tick) -> Option<&Limit> {
        let Quota::Gcra(limit) = &**quota else { return None };
        let known = self.numbers.read().get(limit).copied();
        if let Some(found) = known.and_then(|number| self.usable(number, now)) {
            return Some(found);
        }
        let form = GcraWord::new(limit, now)?;
        let mut numbers = self.numbers.write();
        // Another thread may have been faster.
        let known = numbers.get(limit).copied();
        if let Some(found) = known.and_then(|number| self.usable(number, now)) {
            return Some(found);
        }
        // The lock is held, so the next number is this one's; `None` when there are no more.
        let class = Class::new(u16::try_from(self.limits.count() + 1).ok()?)?;
        self.limits.push(Limit { class, quota: Arc::clone(quota), form });
        numbers.insert(*limit, class.number());
        drop(numbers);
        self.usable(class.number(), now)
    }

    fn usable(&self, number: u16, now: Tick) -> Option<&Limit> {
        let limit = self.get(Class::new(number)?)?;
        // Half of what a form lasts is left to it, so that it does not end between here and its use.
        (now.since(limit.form.origin()) <= limit.form.lasts() / 2).then_some(limit)
    }
}
