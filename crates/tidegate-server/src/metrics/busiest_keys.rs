//! The rate at which the busiest keys of a policy are admitted, as a share of what their limit allows.
//!
//! A limit that refills within a second looks empty between two requests of a key that uses 95 % of it. So admitted
//! units are also counted over a span: ten times the time in which the burst returns, at least ten seconds. A burst
//! from rest is then at most a tenth of the span's rate.
//!
//! Some keys are counted, each exactly. Every span, each place takes the key that comes first, unless its key used
//! a quarter of its limit: so a key is found the sooner, the busier it is. The share is never too high but by a
//! burst; it is too low for a key without a place, and in a key's first span.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::Tick;
use tidegate_core::Rate;

const PLACES: usize = 32;

/// The shortest span.
const SHORTEST: u64 = Duration::from_secs(10).as_nanos() as u64;

/// The least share of its limit, as 1 in so many, by which a key keeps its place.
const KEEPS: u64 = 4;

/// The keys of one policy that are counted. Takes memory only for a policy with such a limit.
#[derive(Debug, Default)]
pub(crate) struct Hottest(OnceLock<Box<[KeyRate; PLACES]>>);

#[derive(Debug, Default)]
struct KeyRate {
    /// The upper half of the key's hash, and its last span, modulo 2^32.
    key_and_span: AtomicU64,
    now: AtomicU64,
    before: AtomicU64,
}

/// Units of a key over a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// The units admitted in the last span.
    pub(crate) units: u64,
    /// The units that the rate allows in it.
    pub(crate) of: u64,
}

impl Hottest {
    /// Counts admitted units under a rate and a burst. Returns what the key has used; `None` without a place.
    pub(crate) fn admitted(&self, now: Tick, key: u64, units: u64, rate: Rate, burst: u64) -> Option<Used> {
        let period = rate.period().as_nanos();
        let refill = u128::from(burst) * period / u128::from(rate.count());
        let span = u64::try_from(refill * 10).unwrap_or(u64::MAX / 2).max(SHORTEST);
        let of =
            u64::try_from(u128::from(rate.count()) * u128::from(span) / period).unwrap_or(u64::MAX).max(1);
        let (number, into) = (now.as_nanos() / span, now.as_nanos() % span);
        let place = &self.0.get_or_init(Box::default)[key as usize % PLACES];
        let before = place.count(key, number as u32, units, of)?;
        let left = u128::from(before) * u128::from(span - into) / u128::from(span);
        let units = u64::try_from(left).unwrap_or(u64::MAX).saturating_add(place.now.load(Ordering::Relaxed));
        Some(Used { units, of })
    }
}

impl KeyRate {
    /// Returns the units of the span before; `None` if the place has another key.
    fn count(&self, key: u64, span: u32, units: u64, of: u64) -> Option<u64> {
        // Relaxed throughout: only people read it, and a few units in the wrong span do not matter.
        let mine = (key >> 32 | 1) << 32 | u64::from(span);
        let held = self.key_and_span.load(Ordering::Relaxed);
        if held == mine {
            self.now.fetch_add(units, Ordering::Relaxed);
            return Some(self.before.load(Ordering::Relaxed));
        }
        let (is_mine, is_free, since) =
            (held >> 32 == mine >> 32, held >> 32 == 0, span.wrapping_sub(held as u32));
        let used = if since == 1 { self.now.load(Ordering::Relaxed) } else { 0 };
        if !is_mine && !is_free && (since == 0 || used >= of / KEEPS) {
            return None;
        }
        if is_mine && used < of / KEEPS {
            // The next key has its turn: this one would be the first again if it comes regularly.
            let free = u64::from(span);
            let _ = self.key_and_span.compare_exchange(held, free, Ordering::Relaxed, Ordering::Relaxed);
            return None;
        }
        if self.key_and_span.compare_exchange(held, mine, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // Another thread has begun the span.
            return None;
        }
        let before = if is_mine { used } else { 0 };
        self.before.store(before, Ordering::Relaxed);
        self.now.store(units, Ordering::Relaxed);
        Some(before)
    }
}

// The highest recent utilization of any key's limit.

/// The largest used share of a limit, for this minute and the one before.
#[derive(Debug, Default)]
pub(crate) struct Peak([AtomicU64; 2]);

impl Peak {
    /// The number of bits of a share. The minute is stored above them, so that a newer one is always larger.
    const SHARE_BITS: u32 = 20;
    /// Parts per million.
    const WHOLE: u64 = 1_000_000;

    fn minute(now: Tick) -> u64 {
        now.as_nanos() / 60_000_000_000
    }

    /// Records that `used` of `limit` are in use.
    pub(crate) fn note(&self, now: Tick, used: u64, limit: u64) {
        let share = u128::from(used) * u128::from(Self::WHOLE) / u128::from(limit.max(1));
        let share = u64::try_from(share).unwrap_or(Self::WHOLE).min(Self::WHOLE);
        let minute = Self::minute(now);
        // Relaxed: the number stands alone, and only people read it. Read first, since most checks are below the
        // peak and need no write.
        let (cell, noted) = (&self.0[minute as usize % 2], minute << Self::SHARE_BITS | share);
        if cell.load(Ordering::Relaxed) < noted {
            cell.fetch_max(noted, Ordering::Relaxed);
        }
    }

    pub(crate) fn ratio(&self, now: Tick) -> f64 {
        let minute = Self::minute(now);
        let share = |cell: &AtomicU64| {
            let noted = cell.load(Ordering::Relaxed);
            let recent = minute.saturating_sub(noted >> Self::SHARE_BITS) <= 1;
            if recent { noted & ((1 << Self::SHARE_BITS) - 1) } else { 0 }
        };
        self.0.iter().map(share).max().unwrap_or(0) as f64 / Self::WHOLE as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u64) -> Rate {
        Rate::new(per_second, Duration::from_secs(1)).unwrap()
    }

    /// The share in percent that each of `keys` has at the end, where key `n` is admitted `n` units a second.
    fn shares(keys: &[u64], seconds: u64) -> Vec<Option<u64>> {
        let hottest = Hottest::default();
        let mut last = vec![None; keys.len()];
        for millis in 0..seconds * 1000 {
            let at = Tick::from_secs(1000).after(Duration::from_millis(millis));
            for (place, key) in keys.iter().enumerate().filter(|(_, key)| millis % (1000 / **key) == 0) {
                // All in one place.
                let hash = (*key << 40) | 5;
                last[place] =
                    hottest.admitted(at, hash, 1, rate(100), 100).map(|used| used.units * 100 / used.of);
            }
        }
        last
    }

    #[test]
    fn a_steady_rate_is_seen_though_the_burst_is_a_second() {
        let share = shares(&[100], 25)[0].unwrap();
        assert!((98..=101).contains(&share), "{share}");
        let share = shares(&[50], 25)[0].unwrap();
        assert!((49..=51).contains(&share), "{share}");
    }

    #[test]
    fn a_burst_from_rest_is_a_tenth() {
        let used = Hottest::default().admitted(Tick::from_secs(1000), 1, 100, rate(100), 100).unwrap();
        assert_eq!(used, Used { units: 100, of: 1000 });
        // A limit whose burst returns within an hour is looked at over ten hours.
        let hour = Rate::new(1000, Duration::from_secs(3600)).unwrap();
        let used = Hottest::default().admitted(Tick::from_secs(1000), 1, 1000, hour, 1000).unwrap();
        assert_eq!(used, Used { units: 1000, of: 10_000 });
    }

    #[test]
    fn a_busy_key_keeps_its_place_and_a_quiet_one_makes_room() {
        assert!(shares(&[100, 2], 35)[0].is_some_and(|share| share > 95), "the busy one");
        assert!(shares(&[2, 100], 35)[1].is_some_and(|share| share > 95), "though the quiet one came first");
    }

    #[test]
    fn a_peak_lasts_until_the_minute_after_the_next_begins() {
        let peak = Peak::default();
        peak.note(Tick::from_secs(60), 9, 10);
        peak.note(Tick::from_secs(119), 1, 10);
        assert_eq!(peak.ratio(Tick::from_secs(119)), 0.9);
        peak.note(Tick::from_secs(125), 2, 10);
        assert_eq!(peak.ratio(Tick::from_secs(179)), 0.9);
        assert_eq!(peak.ratio(Tick::from_secs(180)), 0.2);
        assert_eq!(peak.ratio(Tick::from_secs(900)), 0.0);
        peak.note(Tick::from_secs(900), u64::MAX, 1);
        assert_eq!(peak.ratio(Tick::from_secs(900)), 1.0);
    }
}
