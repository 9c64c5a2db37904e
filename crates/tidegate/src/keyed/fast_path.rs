//! The short way through a keyed limiter: a key's state is a word in the table, and the limit's numbers are the same for all.
//!
//! It is taken where nobody else has a say, no observer and no limits per key, and the quota is a GCRA whose states fit a word. Everything
//! else goes the long way, through [`crate::store::settle`]; both are the same arithmetic.
//!
//! What is written here is written for what comes out of the compiler: with a million keys a check waits for memory, and a
//! processor fetches ahead for as many checks as fit its window. So the usual way has few instructions, no calls and next to no
//! stores, and whatever is rare is a call.

use std::sync::atomic::Ordering;

use tidegate_core::rate::GcraReport;
use tidegate_core::{Cost, Tick};

use super::{KeyedLimiter, Shared};
use crate::limiter::Tell;
use crate::precision::Precision;
use crate::store::{KeptClass, Print, Reading, Taken};

/// Keys looked up together: as many misses as a core keeps under way at once, and a little more.
const BATCH: usize = 16;

/// The longest key that is hashed without a call.
const SHORT: usize = 16;

impl KeyedLimiter {
    /// Decides. The usual way ends here; it calls nothing, so that it needs no place to keep what calls would overwrite: a processor
    /// would get that back only after the locked instruction.
    #[inline]
    pub(super) fn decide<T: Tell>(&self, key: &[u8], cost: Cost) -> T {
        match self.shared.permit(key, cost.units()) {
            Some(report) => T::permitted(report),
            None => self.decide_slowly(key, cost),
        }
    }

    #[inline(never)]
    fn decide_slowly<T: Tell>(&self, key: &[u8], cost: Cost) -> T {
        let shared = &*self.shared;
        match shared.reading(shared.tick()) {
            Some(by) => self.decide_at_length(shared.store.print(key), key, by, cost),
            None => T::of(self.allow_at_length(key, cost)),
        }
    }

    /// Decides about a key that was not permitted in its preferred line, or was not looked for.
    #[inline(never)]
    fn decide_at_length<T: Tell>(&self, print: Print, key: &[u8], by: Reading<'_>, cost: Cost) -> T {
        let told = self.shared.decide(print, key, by, cost.units());
        told.unwrap_or_else(|| T::of(self.allow_at_length(key, cost)))
    }

    pub(super) fn decide_each<K: AsRef<[u8]>, T: Tell>(&self, keys: &[K], mut tell: impl FnMut(&K, T)) {
        let shared = &*self.shared;
        for keys in keys.chunks(BATCH) {
            let Some(by) = shared.reading(shared.tick()) else {
                keys.iter().for_each(|key| tell(key, self.decide_slowly(key.as_ref(), Cost::ONE)));
                continue;
            };
            let mut prints = [Print::default(); BATCH];
            let mut touched = 0;
            for (print, key) in prints.iter_mut().zip(keys) {
                *print = shared.store.print(key.as_ref());
                touched ^= shared.store.touch(*print);
            }
            std::hint::black_box(touched);
            for (print, key) in prints.iter().zip(keys) {
                let told = match shared.store.permit(*print, &by, 1) {
                    Some(word) => T::permitted(by.limit.form.report(word, by.now)),
                    None => self.decide_at_length(*print, key.as_ref(), by, Cost::ONE),
                };
                tell(key, told);
            }
        }
    }
}

impl Shared {
    /// Publishes the class of the standard limit, if checks can go by that alone.
    pub(super) fn publish_class(&self) {
        let _guard = self.publishing.lock();
        let plain = self.resolver.is_none() && self.observer.is_none();
        let class = self.store.class(&self.standard.load().quota, self.time.now()).filter(|_| plain);
        // Relaxed: a limit can be read as soon as its class is known, however that came about.
        self.fast_class.store(class.map_or(0, KeptClass::bits), Ordering::Relaxed);
    }

    /// Spends units of a key by the tick that the system's clock shares, if that goes without a call: returns what the limit says
    /// afterwards. `None` says nothing.
    #[inline(always)]
    fn permit(&self, key: &[u8], units: u64) -> Option<GcraReport> {
        if key.len() > SHORT || self.precision == Precision::Exact {
            return None;
        }
        let class = KeptClass::of_bits(self.fast_class.load(Ordering::Relaxed)).class()?;
        let limit = self.store.limit_at_hand(class)?;
        let by = Reading::at(limit, self.time.kept()?)?;
        let word = self.store.permit(self.store.print(key), &by, units)?;
        Some(limit.form.report(word, by.now))
    }

    /// Returns the tick that permits are booked under.
    fn tick(&self) -> Tick {
        if self.precision == Precision::Exact { self.time.now() } else { self.time.recent() }
    }

    /// Returns how to read words of the standard limit at a tick.
    fn reading(&self, tick: Tick) -> Option<Reading<'_>> {
        let class = KeptClass::of_bits(self.fast_class.load(Ordering::Relaxed));
        class.class()?;
        let reading = self.store.limit(class).and_then(|limit| Reading::at(limit, tick));
        if reading.is_none() {
            // The form has come to its end, in an hour or in a century, or its number is being reclaimed: the limit gets another.
            self.publish_class();
        }
        reading
    }

    /// Spends units of a key by its word; a refusal is left to the clock.
    #[inline(always)]
    fn decide<T: Tell>(&self, print: Print, key: &[u8], by: Reading<'_>, units: u64) -> Option<T> {
        let mut taken = self.store.permit_or_see(print, &by, units);
        if taken == Taken::Elsewhere {
            taken = self.store.take(print, key, &by, units);
        }
        match taken {
            Taken::Permitted(word) => Some(T::permitted(by.limit.form.report(word, by.now))),
            Taken::Elsewhere => None,
            Taken::Refused(seen) => self.decide_by_clock(print, key, units, seen),
        }
    }

    /// Reads the clock for units that were refused on `seen`. Refuses only on a word that was there before the clock was read:
    /// all that it was charged for had then been asked for by an earlier tick. Ends, for another word means that another check
    /// was permitted.
    #[inline(never)]
    fn decide_by_clock<T: Tell>(&self, print: Print, key: &[u8], units: u64, mut seen: u64) -> Option<T> {
        loop {
            let by = self.reading(self.time.now())?;
            match self.store.take(print, key, &by, units) {
                Taken::Permitted(word) => {
                    return Some(T::permitted(by.limit.form.report(word, by.now)));
                }
                Taken::Refused(word) if word == seen => {
                    return Some(T::refused(by.limit.form.report(word, by.now), units));
                }
                Taken::Refused(word) => seen = word,
                Taken::Elsewhere => return None,
            }
        }
    }
}
