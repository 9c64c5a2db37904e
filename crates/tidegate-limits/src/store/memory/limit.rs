//! One limit of one owner, as checks read it.
//!
//! Slots name their limits by number. Each number has an *entry*, and is reused once no slot carries it
//! ([`classes`](super::classes)). So the values read from an entry can belong to a limit that has since been replaced.
//! The entry's *stamp* detects that: it changes before the limit does. A reading is valid if the stamp, read again
//! after a slot with that number was seized, is the same as before the reading.

use std::sync::Arc;

use tidegate_core::Quota;
use tidegate_core::rate::{Gcra, GcraWord};

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

#[derive(Debug)]
pub(crate) struct StoredLimit {
    pub(super) class: Class,
    /// Even while the number belongs to a limit and may be put into slots. Odd while the number is free, and while a
    /// sweep looks for slots that carry it; then no new slot may carry it. Grows by one with each change: a check that
    /// reads it twice misses a change only if 2³¹ other limits had the number in between.
    stamp: AtomicU32,
    owner: AtomicU32,
    /// The quota's address in memory, to compare it with a caller's quota without a lock.
    address: AtomicU64,
    form: [AtomicU64; 6],
    /// The units and nanoseconds of the quota's rate, which is more than its form: 3 a minute are not 1 in 20 seconds.
    rate: [AtomicU64; 2],
    quota: Mutex<Option<Arc<Quota>>>,
}

impl StoredLimit {
    pub(super) fn new(class: Class, owner: u32, quota: &Arc<Quota>, form: &GcraWord) -> Self {
        Self {
            class,
            stamp: AtomicU32::new(0),
            owner: AtomicU32::new(owner),
            address: AtomicU64::new(address(quota)),
            form: form.parts().map(AtomicU64::new),
            rate: rate(quota).map(AtomicU64::new),
            quota: Mutex::new(Some(Arc::clone(quota))),
        }
    }

    /// Returns whether the number belongs to a limit and may be put into slots.
    pub(super) fn is_given(&self) -> bool {
        self.stamp.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// Changes the stamp. The caller must hold the lock that protects the assignment of numbers.
    pub(super) fn turn(&self) {
        let next = self.stamp.load(Ordering::Relaxed).wrapping_add(1);
        // Release, with the Acquire in `read`: a thread that sees this stamp sees what was written before it.
        self.stamp.store(next, Ordering::Release);
    }

    /// Frees the number, which no slot carries. Returns its limit and owner.
    pub(super) fn free(&self) -> Option<(Gcra, u32)> {
        let quota = self.quota.lock().take()?;
        let Quota::Gcra(limit) = &*quota else { return None };
        Some((*limit, self.owner.load(Ordering::Relaxed)))
    }

    /// Returns whether the number belongs to a limit, retiring or not.
    pub(super) fn is_taken(&self) -> bool {
        self.quota.lock().is_some()
    }

    pub(super) fn give(&self, owner: u32, quota: &Arc<Quota>, form: &GcraWord) {
        *self.quota.lock() = Some(Arc::clone(quota));
        // Release, all of them, with the Acquire in `read`: a reader that gets any of the new values finds another
        // stamp afterwards.
        self.owner.store(owner, Ordering::Release);
        self.address.store(address(quota), Ordering::Release);
        for (kept, number) in
            self.form.iter().chain(&self.rate).zip(form.parts().into_iter().chain(rate(quota)))
        {
            kept.store(number, Ordering::Release);
        }
        self.turn();
    }

    #[inline(always)]
    pub(super) fn read(&self) -> Limit<'_> {
        Limit { entry: self, stamp: self.stamp.load(Ordering::Acquire) }
    }
}

/// One of the first limits, which keep their numbers permanently. The form is kept as plain numbers, not atomics.
#[derive(Debug)]
pub(crate) struct PermanentLimit {
    pub(super) entry: StoredLimit,
    pub(crate) form: GcraWord,
}

impl PermanentLimit {
    #[inline(always)]
    pub(crate) const fn class(&self) -> Class {
        self.entry.class
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit<'t> {
    entry: &'t StoredLimit,
    stamp: u32,
}

/// A class that a caller keeps between checks: its number, and the stamp that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedClass(u64);

impl CachedClass {
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Makes a class from what [`CachedClass::bits`] returned; any other number gives a class without a valid limit.
    pub(crate) const fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub(crate) fn class(self) -> Option<Class> {
        // The lower half holds the number.
        Class::new(self.0 as u16)
    }
}

impl Limit<'_> {
    #[inline(always)]
    pub(crate) const fn class(&self) -> Class {
        self.entry.class
    }

    pub(super) fn owner(&self) -> u32 {
        self.entry.owner.load(Ordering::Acquire)
    }

    /// Returns the form by which words are read. If the number was given to another limit meanwhile, the form may mix
    /// values of both: reading a word with it does not panic, and the result is discarded ([`Limit::holds`]).
    #[inline(always)]
    pub(crate) fn form(&self) -> GcraWord {
        GcraWord::from_parts(std::array::from_fn(|at| self.entry.form[at].load(Ordering::Acquire)))
    }

    /// Returns whether the number still belongs to the limit that was read. Valid while a slot of that number is seized or
    /// its line is locked, and for a word that was read, with Acquire, before the call.
    #[inline(always)]
    pub(super) fn holds(&self) -> bool {
        // Relaxed: seizing or reading the slot was an Acquire, which makes visible all that the thread that put the number
        // there had seen, its stamp included.
        self.entry.stamp.load(Ordering::Relaxed) == self.stamp
    }

    /// Returns whether a new slot may carry the number. Valid only while the slot's line is locked: a sweep locks each
    /// line after it has changed the stamp.
    pub(super) fn admits(&self) -> bool {
        self.stamp.is_multiple_of(2) && self.holds()
    }

    #[inline(always)]
    pub(super) fn kept(&self) -> CachedClass {
        CachedClass(u64::from(self.stamp) << 32 | u64::from(self.class().number()))
    }

    /// Returns whether this is the limit of `quota`. As for [`Limit::form`], the result is discarded if the number was given
    /// to another limit meanwhile.
    #[inline]
    pub(super) fn is_of(&self, quota: &Arc<Quota>) -> bool {
        self.entry.address.load(Ordering::Acquire) == address(quota) || self.equals(quota)
    }

    /// Compares the numbers, for which no lock is needed: a policy that was loaded again has an equal quota at another
    /// address.
    #[cold]
    #[inline(never)]
    fn equals(&self, quota: &Arc<Quota>) -> bool {
        let Quota::Gcra(limit) = &**quota else { return false };
        let form = self.form();
        let kept = [0, 1].map(|at| self.entry.rate[at].load(Ordering::Acquire));
        kept == rate(quota) && GcraWord::new(limit, form.origin()) == Some(form)
    }

    /// Returns the quota; `None` where the number no longer belongs to the limit that was read.
    pub(super) fn quota(&self) -> Option<Arc<Quota>> {
        self.entry.quota.lock().clone().filter(|_| self.holds())
    }
}

/// The units and nanoseconds of a quota's rate; zeros for a quota whose states are no words.
fn rate(quota: &Quota) -> [u64; 2] {
    match quota {
        Quota::Gcra(limit) => [limit.rate().count(), limit.rate().period_nanos()],
        _ => [0; 2],
    }
}

/// The address of a quota in memory. Two quotas that exist at the same time have different addresses.
#[inline(always)]
fn address(quota: &Arc<Quota>) -> u64 {
    Arc::as_ptr(quota).addr() as u64
}

// The name of a slot, which tells whose state its word is, and how to read it.
//
// ```text
// 63                      16 15             1   0
// ┌─────────────────────────┬────────────────┬──────┐
// │ tag: 48 bits of the     │ class: which   │ lock │   0 is an empty slot
// │ key's keyed fingerprint │ limit, or wide │      │
// └─────────────────────────┴────────────────┴──────┘
// ```

pub(super) const LOCK: u64 = 1;

const TAG: u64 = !0 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name(pub(super) u64);

/// The number of the limit that a word is read by; [`Class::WIDE`] where the state is in the overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(pub(super) u16);

impl Class {
    /// The state does not fit a word.
    pub(super) const WIDE: Self = Self(0);
    pub(super) const MAX: u16 = (1 << 15) - 1;

    #[inline]
    pub(crate) const fn new(number: u16) -> Option<Self> {
        if number == 0 || number > Self::MAX { None } else { Some(Self(number)) }
    }

    pub(crate) const fn number(self) -> u16 {
        self.0
    }
}

impl Name {
    pub(super) const EMPTY: Self = Self(0);

    /// Makes the name of a key. The tag is the upper 48 bits of its fingerprint; the lower 16 bits are only for
    /// choosing lines.
    #[inline]
    pub(super) const fn new(fingerprint: u64, class: Class) -> Self {
        // A tag is never zero, because that marks an empty slot: one in 2⁴⁸ keys therefore shares its tag with another.
        let tag = if fingerprint & TAG == 0 { 1 << 16 } else { fingerprint & TAG };
        Self(tag | (class.0 as u64) << 1)
    }

    #[inline]
    pub(super) const fn is_key_of(self, other: Self) -> bool {
        (self.0 ^ other.0) & TAG == 0
    }

    pub(super) const fn tag(self) -> u64 {
        self.0 & TAG
    }

    pub(super) const fn class(self) -> Class {
        Class((self.0 >> 1) as u16 & Class::MAX)
    }
}
