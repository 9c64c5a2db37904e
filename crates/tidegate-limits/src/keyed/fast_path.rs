//! Decides the check of a key on the key's word in the table, without the general form of its state.
//!
//! This is possible without an observer and without limits per key, for a GCRA quota whose states fit a word. Every
//! other check is decided through [`crate::store::settle`], by the same arithmetic.
//!
//! This code is shaped by the instructions it compiles to. With a million keys a check waits for memory, and a
//! processor prefetches for as many checks as fit its instruction window. So the usual path has few instructions, no
//! calls and almost no stores, and every rare case is a call.

use std::sync::atomic::Ordering;

use tidegate_core::rate::GcraReport;
use tidegate_core::{Cost, Tick};

use super::shared::KeyedState;
use crate::answer::CheckResult;
use crate::key::Key;
use crate::precision::Precision;
use crate::store::{CachedClass, Fingerprint, Reading, WordOutcome};

/// Keys looked up together: the number of cache misses that a core keeps in flight at once, and a few more.
const BATCH: usize = 16;

/// The longest key that is hashed without a call.
const SHORT: usize = 16;

impl KeyedState {
    /// Decides a check. The usual check is decided without a call, so that no register has to be saved: a saved
    /// register could be restored only after the locked instruction.
    #[inline]
    pub(super) fn decide<T: CheckResult>(&self, key: &[u8], cost: Cost) -> T {
        match self.permit(key, cost.units()) {
            Some(report) => T::permitted(report),
            None => self.decide_slowly(key, cost),
        }
    }

    #[inline(never)]
    fn decide_slowly<T: CheckResult>(&self, key: &[u8], cost: Cost) -> T {
        match self.reading(self.tick()) {
            Some(by) => self.decide_at_length(self.store.fingerprint(key), key, &by, cost),
            None => T::of(self.decide_by_store(key, cost)),
        }
    }

    /// Decides about a key that was not permitted in its first cache line, or was not looked up there.
    #[inline(never)]
    fn decide_at_length<T: CheckResult>(
        &self,
        fingerprint: Fingerprint,
        key: &[u8],
        by: &Reading<'_>,
        cost: Cost,
    ) -> T {
        let result = self.decide_on_word(fingerprint, key, by, cost.units());
        result.unwrap_or_else(|| T::of(self.decide_by_store(key, cost)))
    }

    pub(super) fn decide_each<K: Key, T: CheckResult>(&self, keys: &[K], mut tell: impl FnMut(&K, T)) {
        for keys in keys.chunks(BATCH) {
            let Some(by) = self.reading(self.tick()) else {
                keys.iter()
                    .for_each(|key| tell(key, key.with_bytes(|bytes| self.decide_slowly(bytes, Cost::ONE))));
                continue;
            };
            let mut fingerprints = [Fingerprint::default(); BATCH];
            let mut touched = 0;
            for (fingerprint, key) in fingerprints.iter_mut().zip(keys) {
                *fingerprint = key.with_bytes(|bytes| self.store.fingerprint(bytes));
                touched ^= self.store.touch(*fingerprint);
            }
            std::hint::black_box(touched);
            for (fingerprint, key) in fingerprints.iter().zip(keys) {
                let result = match self.store.permit_by(*fingerprint, &by, 1) {
                    Some(word) => T::permitted(by.form.report(word, by.now)),
                    _ => key.with_bytes(|bytes| self.decide_at_length(*fingerprint, bytes, &by, Cost::ONE)),
                };
                tell(key, result);
            }
        }
    }
}

impl KeyedState {
    /// Sets the class that the fast path uses, or 0 if checks need more than the standard limit.
    pub(super) fn publish_class(&self) {
        let _guard = self.publishing.lock();
        let plain = self.resolver.is_none() && self.observer.is_none();
        let class = self.store.class(&self.standard.load().quota, self.time.now()).filter(|_| plain);
        // Relaxed: a reader that knows a limit's class can read the limit, whatever the order of this store.
        self.fast_class.store(class.map_or(0, CachedClass::bits), Ordering::Relaxed);
    }

    /// Spends units of a key by the shared tick of the system clock, and returns the standing afterwards. `None` if
    /// it is refused, or cannot be decided without a call.
    #[inline(always)]
    fn permit(&self, key: &[u8], units: u64) -> Option<GcraReport> {
        if key.len() > SHORT || self.precision == Precision::Exact {
            return None;
        }
        let class = CachedClass::of_bits(self.fast_class.load(Ordering::Relaxed)).class()?;
        let limit = self.store.cached_limit(class)?;
        let now = limit.form.scaled(self.time.shared_tick()?)?;
        let word = self.store.permit(self.store.fingerprint(key), limit, now, units)?;
        Some(limit.form.report(word, now))
    }

    /// Returns the tick under which permits are booked.
    fn tick(&self) -> Tick {
        if self.precision == Precision::Exact { self.time.now() } else { self.time.recent() }
    }

    /// Returns how to read words of the standard limit at a tick.
    fn reading(&self, tick: Tick) -> Option<Reading<'_>> {
        let class = CachedClass::of_bits(self.fast_class.load(Ordering::Relaxed));
        class.class()?;
        let reading = match self.store.limit(class) {
            Some(limit) => Reading::at(limit, tick),
            None => None,
        };
        if reading.is_none() {
            // Either the form's time range has ended, after an hour to a century, or the limit's number is being
            // reclaimed. Publish again to get a new one.
            self.publish_class();
        }
        reading
    }

    /// Spends units of a key by its word. A refusal is decided by the clock.
    #[inline(always)]
    fn decide_on_word<T: CheckResult>(
        &self,
        fingerprint: Fingerprint,
        key: &[u8],
        by: &Reading<'_>,
        units: u64,
    ) -> Option<T> {
        let mut taken = self.store.permit_or_read(fingerprint, by, units);
        if taken == WordOutcome::Undecided {
            taken = self.store.take(fingerprint, key, by, units);
        }
        match taken {
            WordOutcome::Permitted(word) => Some(T::permitted(by.form.report(word, by.now))),
            WordOutcome::Undecided => None,
            WordOutcome::Refused(seen) => self.decide_by_clock(fingerprint, key, by, units, seen),
        }
    }

    /// Reads the clock again for units that the word `seen` refused. Refuses only if the word is still the one from
    /// before the clock was read, since every charge in it then has an earlier tick. The loop ends because a changed
    /// word means that another check was permitted.
    #[inline(never)]
    fn decide_by_clock<T: CheckResult>(
        &self,
        fingerprint: Fingerprint,
        key: &[u8],
        by: &Reading<'_>,
        units: u64,
        mut seen: u64,
    ) -> Option<T> {
        loop {
            let now = self.time.now();
            // By the same limit; if its number has been given to another limit since, the store detects it.
            let by = by.later(now).or_else(|| self.reading(now))?;
            match self.store.take(fingerprint, key, &by, units) {
                WordOutcome::Permitted(word) => {
                    return Some(T::permitted(by.form.report(word, by.now)));
                }
                WordOutcome::Refused(word) if word == seen => {
                    return Some(T::refused(by.form.report(word, by.now), units));
                }
                WordOutcome::Refused(word) => seen = word,
                WordOutcome::Undecided => return None,
            }
        }
    }
}
