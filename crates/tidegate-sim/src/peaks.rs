//! The highest rate of each key, in bounded memory.
//!
//! Exact while all keys fit. When the capacity is reached, the lighter half of the keys is forgotten (lossy counting):
//! keys that asked for much remain, and each figure tells by how much it may be too low.
//!
//! A sliding window of eight parts finds the peak: it is at least the most within seven eighths of any window, and
//! never more than the most within one window.

mod key_peak;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::time::Duration;

use foldhash::quality::RandomState;
use smallvec::SmallVec;
use tidegate::Tick;

use self::key_peak::{Frequent, shape};

pub use self::key_peak::{Distinct, KeyDetail, KeyPeak, PathCount};
pub(crate) use self::key_peak::{GivenHash, RankedKey, Sketch, SlidingPeak};

/// The part of a key's entry that not every request touches.
#[derive(Clone, Debug)]
struct Cold {
    key: Box<[u8]>,
    /// Units that the key may have asked for before it was counted here.
    missed: u64,
    denied: u64,
    denied_units: u64,
    first_denied: Option<u64>,
    peak_at: u64,
    is_known: bool,
}

/// Details of one key, up to 2 KiB.
#[derive(Clone, Debug, Default)]
struct Detail {
    requests: u64,
    paths: Frequent,
}

/// Peaks of the heaviest keys.
#[derive(Clone, Debug)]
pub struct Peaks {
    window: u64,
    part: u64,
    capacity: usize,
    /// Seeded at random, so that no log can be crafted to collide; 64 bits are enough that keys do not by accident.
    hasher: RandomState,
    /// The entry of each hash. Keys are not compared: the hash decides, which saves loading the key's bytes.
    places: HashMap<u64, u32, GivenHash>,
    hot: Vec<SlidingPeak>,
    cold: Vec<Cold>,
    details: Option<Vec<Detail>>,
    /// The path of the current request, with its numbers replaced.
    path: String,
    /// The most that a forgotten key can have asked for.
    floor: u64,
    sketch: Sketch,
}

#[derive(Debug)]
pub(crate) struct Seen<'p> {
    peaks: &'p mut Peaks,
    place: usize,
}

impl Seen<'_> {
    pub(crate) fn deny(&mut self, at: Tick, amount: u64) {
        let cold = &mut self.peaks.cold[self.place];
        cold.denied = cold.denied.saturating_add(1);
        cold.denied_units = cold.denied_units.saturating_add(amount);
        cold.first_denied.get_or_insert(at.as_nanos());
    }

    /// A user signed in with the key.
    pub(crate) fn know(&mut self) {
        self.peaks.cold[self.place].is_known = true;
    }

    /// Counts the request and its path, if details are kept.
    pub(crate) fn detail(&mut self, path: Option<&str>) {
        let Some(detail) = self.peaks.details.as_mut().and_then(|details| details.get_mut(self.place)) else {
            return;
        };
        detail.requests += 1;
        if let Some(path) = path {
            shape(path, &mut self.peaks.path);
            detail.paths.add(&self.peaks.path);
        }
    }
}

impl Peaks {
    /// Makes peaks over `window` for up to `capacity` keys, at least two. Takes about 200 bytes per key with its name.
    #[must_use]
    pub(crate) fn new(window: Duration, capacity: usize) -> Self {
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self {
            window,
            part: SlidingPeak::part(Duration::from_nanos(window)),
            capacity: capacity.clamp(2, u32::MAX as usize),
            hasher: RandomState::default(),
            places: HashMap::default(),
            hot: Vec::new(),
            cold: Vec::new(),
            details: None,
            path: String::new(),
            floor: 0,
            sketch: Sketch::default(),
        }
    }

    /// Also keeps the number of requests and the most frequent paths of each key: up to 2 KiB more per key. Must be
    /// called before any request is counted.
    #[must_use]
    pub(crate) fn with_details(self) -> Self {
        Self { details: Some(Vec::new()), ..self }
    }

    /// Returns the window.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_nanos(self.window)
    }

    #[inline]
    pub(crate) fn see(&mut self, key: &[u8], at: Tick, amount: u64) -> Seen<'_> {
        let hash = self.hasher.hash_one(key);
        let place = match self.places.get(&hash) {
            Some(place) => *place,
            None => self.admit(hash, key),
        };
        let place = place as usize;
        if self.hot[place].count(at.as_nanos(), self.part, amount) {
            self.cold[place].peak_at = at.as_nanos();
        }
        Seen { peaks: self, place }
    }

    /// Prefetches the memory that the next [`Peaks::see`] of each of these keys needs, so that the loads overlap.
    pub(crate) fn fetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        // Each step for all keys before the next: a processor looks only a few hundred instructions ahead, and the loads
        // of one step do not wait for each other.
        let hashes: SmallVec<[u64; 16]> = keys.map(|key| self.hasher.hash_one(key)).collect();
        let places: SmallVec<[u32; 16]> =
            hashes.iter().filter_map(|hash| self.places.get(hash).copied()).collect();
        black_box(places.iter().fold(0, |read, place| read ^ self.hot[*place as usize].total()));
    }

    #[cold]
    fn admit(&mut self, hash: u64, key: &[u8]) -> u32 {
        self.sketch.add(hash);
        if self.hot.len() >= self.capacity {
            self.forget_the_lighter_half();
        }
        // `capacity` fits 32 bits.
        let place = self.hot.len() as u32;
        self.hot.push(SlidingPeak::default());
        self.cold.push(Cold {
            key: key.into(),
            missed: self.floor,
            denied: 0,
            denied_units: 0,
            first_denied: None,
            peak_at: 0,
            is_known: false,
        });
        if let Some(details) = &mut self.details {
            details.push(Detail::default());
        }
        self.places.insert(hash, place);
        place
    }

    fn forget_the_lighter_half(&mut self) {
        let weight = |(hot, cold): (&SlidingPeak, &Cold)| hot.total() + cold.missed;
        let mut weights: Vec<u64> = self.entries().map(weight).collect();
        let middle = weights.len() / 2;
        let floor = *weights.select_nth_unstable(middle).1;
        if let Some(details) = &mut self.details {
            let stays = self.hot.iter().zip(&self.cold).map(|pair| weight(pair) > floor);
            let mut stays = stays.collect::<Vec<_>>().into_iter();
            details.retain(|_| stays.next().unwrap_or(false));
        }
        let (hot, cold) = (std::mem::take(&mut self.hot), std::mem::take(&mut self.cold));
        let both = hot.into_iter().zip(cold);
        (self.hot, self.cold) = both.filter(|(hot, cold)| weight((hot, cold)) > floor).unzip();
        self.floor = floor;
        self.places.clear();
        let hasher = &self.hasher;
        let places = self.cold.iter().enumerate();
        self.places.extend(places.map(|(place, cold)| (hasher.hash_one(&*cold.key), place as u32)));
    }

    fn entries(&self) -> impl Iterator<Item = (&SlidingPeak, &Cold)> {
        self.hot.iter().zip(&self.cold)
    }

    #[must_use]
    pub(crate) fn distinct(&self) -> Distinct {
        if self.is_exact() {
            Distinct::Exactly(self.hot.len() as u64)
        } else {
            Distinct::About(self.sketch.estimate())
        }
    }

    /// Says whether no key was forgotten.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.floor == 0
    }

    /// Returns all keys kept by their peaks, highest first; equal peaks by denied requests, most first.
    #[must_use]
    pub(crate) fn ranking<'p>(&'p self) -> Vec<RankedKey<'p>> {
        let ranked = |(hot, cold): (&SlidingPeak, &'p Cold)| RankedKey {
            key: &cold.key,
            peak: hot.peak(),
            denied: cold.denied,
            signed_in: cold.is_known,
        };
        let mut all: Vec<RankedKey<'p>> = self.hot.iter().zip(&self.cold).map(ranked).collect();
        all.sort_unstable_by(|a, b| (b.peak, b.denied, a.key).cmp(&(a.peak, a.denied, b.key)));
        all
    }

    /// Returns up to `count` wanted keys with denied requests, most denied first; ties in the order of the keys.
    #[must_use]
    pub fn hit(&self, count: usize, wanted: impl Fn(&[u8]) -> bool) -> Vec<KeyDetail> {
        let hit = self.cold.iter().enumerate().filter(|(_, cold)| cold.denied > 0 && wanted(&cold.key));
        let mut hit: Vec<(usize, &Cold)> = hit.collect();
        hit.sort_unstable_by(|(_, a), (_, b)| b.denied.cmp(&a.denied).then_with(|| a.key.cmp(&b.key)));
        hit.truncate(count);
        hit.into_iter().map(|(place, _)| self.describe(place)).collect()
    }

    #[must_use]
    pub(crate) fn about(&self, key: &[u8]) -> Option<KeyDetail> {
        self.places.get(&self.hasher.hash_one(key)).map(|place| self.describe(*place as usize))
    }

    fn describe(&self, place: usize) -> KeyDetail {
        let cold = &self.cold[place];
        let detail = self.details.as_ref().and_then(|details| details.get(place));
        KeyDetail {
            peak: show(&self.hot[place], cold),
            signed_in: cold.is_known,
            requests: detail.map(|detail| detail.requests),
            paths: detail.map(|detail| detail.paths.most()).unwrap_or_default(),
        }
    }

    #[must_use]
    pub(crate) fn denied_keys(&self) -> u64 {
        self.cold.iter().filter(|cold| cold.denied > 0).count() as u64
    }

    /// Returns how many of the keys with denied requests were marked by [`Seen::know`].
    #[must_use]
    pub(crate) fn denied_and_known(&self) -> u64 {
        self.cold.iter().filter(|cold| cold.denied > 0 && cold.is_known).count() as u64
    }

    /// The first keys by `rank`, highest first; ties in the order of the keys. `rank` sees the figures without the name.
    #[must_use]
    pub(crate) fn top(&self, count: usize, rank: impl Fn(&KeyPeak) -> u64) -> Vec<KeyPeak> {
        let ranks = self.entries().map(|(hot, cold)| rank(&figures(hot, cold)));
        let mut all: Vec<(u64, usize)> = ranks.zip(0..).collect();
        // Names are compared only among those that may come first.
        if let Some(last) = count.checked_sub(1).filter(|last| *last < all.len()) {
            let least = all.select_nth_unstable_by_key(last, |(rank, _)| Reverse(*rank)).1.0;
            all.retain(|(rank, _)| *rank >= least);
            all.sort_unstable_by_key(|(_, place)| *place);
        }
        let mut named: Vec<(u64, KeyPeak)> =
            all.into_iter().map(|(rank, place)| (rank, show(&self.hot[place], &self.cold[place]))).collect();
        named.sort_by(|(a, left), (b, right)| b.cmp(a).then_with(|| left.key.cmp(&right.key)));
        named.truncate(count);
        named.into_iter().map(|(_, key)| key).collect()
    }
}

fn show(hot: &SlidingPeak, cold: &Cold) -> KeyPeak {
    KeyPeak { key: crate::log::text(&cold.key).into_owned(), ..figures(hot, cold) }
}

/// The figures of a key, without its name.
fn figures(hot: &SlidingPeak, cold: &Cold) -> KeyPeak {
    KeyPeak {
        key: String::new(),
        total: hot.total(),
        missed: cold.missed,
        denied: cold.denied,
        denied_units: cold.denied_units,
        first_denied: cold.first_denied.map(Tick::from_nanos),
        peak: hot.peak(),
        peak_at: Tick::from_nanos(cold.peak_at),
    }
}

#[cfg(test)]
mod tests {
    // Peaks, denied keys, and which keys are forgotten when the room is used up.

    use super::*;

    #[test]
    fn the_peak_is_the_most_in_one_window() {
        let mut peaks = Peaks::new(Duration::from_secs(1), 10);
        // Six at 0.0 s and six at 0.5 s lie within one second; windows of whole calendar seconds would hold both too.
        for (tenths, amount) in [(0, 6), (5, 6), (14, 5), (30, 11), (31, 2)] {
            let _ = peaks.see(b"a", Tick::from_nanos(tenths * 100_000_000), amount);
        }
        let top = peaks.top(1, |key| key.peak);
        assert_eq!((top[0].peak, top[0].total), (13, 30));
        assert_eq!(top[0].peak_at, Tick::from_nanos(3_100_000_000));
    }

    #[test]
    fn whole_second_stamps_give_exact_peaks_per_second() {
        let mut peaks = Peaks::new(Duration::from_secs(1), 10);
        for (second, amount) in [(10, 3), (11, 4), (12, 2)] {
            let _ = peaks.see(b"a", Tick::from_secs(second), amount);
        }
        assert_eq!(peaks.ranking()[0].peak, 4);
    }

    #[test]
    fn heavy_keys_stay_when_the_room_is_used_up() {
        let mut peaks = Peaks::new(Duration::from_secs(1), 100);
        for round in 0..100u64 {
            for light in 0..100u64 {
                let _ = peaks.see(format!("light-{round}-{light}").as_bytes(), Tick::from_secs(round), 1);
                peaks.see(b"heavy", Tick::from_secs(round), 1).deny(Tick::from_secs(round), 1);
            }
        }
        assert!(!peaks.is_exact() && peaks.hot.len() <= 100);
        let top = &peaks.top(1, |key| key.total)[0];
        assert_eq!((top.key.as_str(), top.total, top.missed, top.denied), ("heavy", 10_000, 0, 10_000));
        let Distinct::About(about) = peaks.distinct() else { panic!("{:?}", peaks.distinct()) };
        assert!(about.abs_diff(10_001) < 1_000, "{about}");
    }

    #[test]
    fn the_ranking_holds_every_key_and_who_was_denied() {
        let mut peaks = Peaks::new(Duration::from_secs(1), 10);
        for (key, amount, denied) in [("a", 3, true), ("b", 9, false), ("c", 3, false), ("d", 3, true)] {
            let mut seen = peaks.see(key.as_bytes(), Tick::from_secs(1), amount);
            if denied {
                seen.deny(Tick::from_secs(1), amount);
                seen.know();
            }
        }
        let ranking = peaks.ranking();
        let ranked: Vec<_> = ranking.iter().map(|ranked| (ranked.key, ranked.peak, ranked.denied)).collect();
        assert_eq!(ranked, [(&b"b"[..], 9, 0), (b"a", 3, 1), (b"d", 3, 1), (b"c", 3, 0)]);
        assert!(ranking[1].signed_in && !ranking[3].signed_in);
    }

    #[test]
    fn keys_hit_are_listed_with_their_paths_when_asked_for() {
        let ask = |mut peaks: Peaks| {
            for number in 0..50u64 {
                let mut seen = peaks.see(b"scraper", Tick::from_secs(number), 2);
                seen.detail(Some(&format!("/items/{number}")));
                seen.deny(Tick::from_secs(number), 2);
                peaks.see(b"calm", Tick::from_secs(number), 1).detail(None);
            }
            peaks.see(b"once", Tick::from_secs(60), 1).deny(Tick::from_secs(60), 1);
            peaks
        };
        let peaks = ask(Peaks::new(Duration::from_secs(1), 10).with_details());
        let hit = peaks.hit(10, |_| true);
        let keys: Vec<_> = hit.iter().map(|hit| (hit.peak.key.as_str(), hit.peak.denied)).collect();
        assert_eq!(keys, [("scraper", 50), ("once", 1)]);
        assert_eq!((hit[0].requests, hit[0].peak.total), (Some(50), 100));
        let path = PathCount { path: "/items/*".to_owned(), requests: 50, is_exact: true };
        assert_eq!(hit[0].paths, [path]);
        assert_eq!(peaks.hit(1, |key| key != b"scraper")[0].peak.key, "once");
        assert_eq!(peaks.about(b"calm").unwrap().requests, Some(50));
        assert_eq!(peaks.about(b"nobody"), None);
        let plain = ask(Peaks::new(Duration::from_secs(1), 10));
        assert_eq!((plain.hit(1, |_| true)[0].requests, plain.hit(1, |_| true)[0].paths.len()), (None, 0));
    }

    #[test]
    fn details_stay_with_their_key_when_the_room_is_used_up() {
        let mut peaks = Peaks::new(Duration::from_secs(1), 10).with_details();
        for round in 0..100u64 {
            peaks.see(format!("light-{round}").as_bytes(), Tick::from_secs(round), 1).detail(Some("/light"));
            let mut seen = peaks.see(b"heavy", Tick::from_secs(round), 1);
            seen.detail(Some("/heavy"));
            seen.deny(Tick::from_secs(round), 1);
        }
        let hit = &peaks.hit(5, |_| true)[0];
        assert_eq!((hit.requests, hit.paths[0].path.as_str(), hit.is_floor()), (Some(100), "/heavy", false));
        assert!(!peaks.is_exact());
    }
}
