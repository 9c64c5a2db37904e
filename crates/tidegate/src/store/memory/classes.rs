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
pub(super) struct Limit {
    pub(super) quota: Arc<Quota>,
    pub(super) form: GcraWord,
}

impl Limit {
    /// Says whether words of this limit are words of `quota`.
    pub(super) fn is(&self, quota: &Arc<Quota>) -> bool {
        Arc::ptr_eq(&self.quota, quota) || self.quota == *quota
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

    /// Returns the class of a limit, with a form that will still do a while after `now`; `None` for limits whose states do not
    /// fit a word.
    pub(super) fn of(&self, quota: &Arc<Quota>, now: Tick) -> Option<(Class, &Limit)> {
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
        if self.limits.count() >= usize::from(Class::MAX) {
            return None;
        }
        // Fits: just compared.
        let number = self.limits.push(Limit { quota: Arc::clone(quota), form }) as u16 + 1;
        numbers.insert(*limit, number);
        drop(numbers);
        self.usable(number, now)
    }

    fn usable(&self, number: u16, now: Tick) -> Option<(Class, &Limit)> {
        let class = Class::new(u64::from(number))?;
        let limit = self.get(class)?;
        // Half of what a form lasts is left to it, so that it does not end between here and its use.
        (now.since(limit.form.origin()) <= limit.form.lasts() / 2).then_some((class, limit))
    }
}
