//! How fast each key went at its fastest, in bounded memory.
//!
//! Exact for as many keys as there is room for. When the room is used up, the lighter half of the keys is forgotten (lossy
//! counting): whoever asked much is still there, and each figure says by how much it may be too low. A sliding window of
//! eight parts finds the peak: it is at least the most that fell into seven eighths of any window, and never more than fell into one.

mod distinct;
mod given_hash;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::quality::RandomState;
use serde::Serialize;
use tidegate::Tick;

pub(crate) use self::distinct::Sketch;
pub(crate) use self::given_hash::GivenHash;

const PARTS: usize = 8;

/// What every request of a key touches, in one cache line: with many keys, waiting for memory is most of the cost.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Hot {
    total: u64,
    slot: u64,
    sum: u64,
    pub(crate) peak: u64,
    parts: [u32; PARTS],
}

/// The rest of what is kept of one key.
#[derive(Clone, Debug)]
struct Cold {
    key: Box<[u8]>,
    /// The most units that it may have asked before it was counted here.
    missed: u64,
    denied: u64,
    denied_units: u64,
    first_denied: Option<u64>,
    peak_at: u64,
    is_known: bool,
}

/// The peak of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyPeak {
    /// The key.
    pub key: String,
    /// How much it asked, in cost units.
    pub total: u64,
    /// By how many units `total` may be too low; zero while all keys had room.
    pub missed: u64,
    /// How many of its requests were denied.
    pub denied: u64,
    /// What those requests asked, in cost units.
    pub denied_units: u64,
    /// When it was first denied, in nanoseconds since 1970 or the beginning.
    #[serde(serialize_with = "maybe_nanos")]
    pub first_denied: Option<Tick>,
    /// The most it asked in one window, in cost units.
    pub peak: u64,
    /// When that window ended.
    #[serde(serialize_with = "nanos")]
    pub peak_at: Tick,
}

pub(crate) fn nanos<S: serde::Serializer>(at: &Tick, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(at.as_nanos())
}

pub(crate) fn maybe_nanos<S: serde::Serializer>(at: &Option<Tick>, to: S) -> Result<S::Ok, S::Error> {
    at.map(Tick::as_nanos).serialize(to)
}

/// How many different keys there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Distinct {
    /// Counted.
    Exactly(u64),
    /// Estimated, with a standard error of 1.6 %.
    About(u64),
}

impl Distinct {
    /// Returns the number, counted or estimated.
    pub(crate) fn about(self) -> u64 {
        match self {
            Self::Exactly(count) | Self::About(count) => count,
        }
    }
}

impl std::fmt::Display for Distinct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(count) => count.fmt(f),
            Self::About(count) => write!(f, "~{count}"),
        }
    }
}

/// Peaks of the heaviest keys.
#[derive(Clone, Debug)]
pub struct Peaks {
    window: u64,
    part: u64,
    capacity: usize,
    /// Keyed and secret, so that no log can be written to collide; wide enough that no two keys meet by chance.
    hasher: RandomState,
    /// Where each hash has its entry. Keys are not compared: the hash decides, which saves a walk to the key's bytes.
    places: HashMap<u64, u32, GivenHash>,
    hot: Vec<Hot>,
    cold: Vec<Cold>,
    /// The most that a forgotten key can have asked.
    floor: u64,
    sketch: Sketch,
}

/// A key's entry, to be told what became of its request.
#[derive(Debug)]
pub struct Seen<'p> {
    cold: &'p mut Vec<Cold>,
    place: usize,
}

impl Seen<'_> {
    /// Counts a denied request that asked for `amount` units.
    pub fn deny(&mut self, at: Tick, amount: u64) {
        let cold = &mut self.cold[self.place];
        cold.denied = cold.denied.saturating_add(1);
        cold.denied_units = cold.denied_units.saturating_add(amount);
        cold.first_denied.get_or_insert(at.as_nanos());
    }

    /// Marks the key as one of ours: somebody signed in with it.
    pub fn know(&mut self) {
        self.cold[self.place].is_known = true;
    }
}

impl Peaks {
    /// Makes peaks over `window` with room for `capacity` keys, two at least. Some 200 bytes per key with its name.
    #[must_use]
    pub fn new(window: Duration, capacity: usize) -> Self {
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self {
            window,
            part: window.div_ceil(PARTS as u64),
            capacity: capacity.clamp(2, u32::MAX as usize),
            hasher: RandomState::default(),
            places: HashMap::default(),
            hot: Vec::new(),
            cold: Vec::new(),
            floor: 0,
            sketch: Sketch::default(),
        }
    }

    /// Returns the window.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_nanos(self.window)
    }

    /// Counts what a key asks. Allocates for a key seen first.
    #[inline]
    pub fn see(&mut self, key: &[u8], at: Tick, amount: u64) -> Seen<'_> {
        let hash = self.hasher.hash_one(key);
        let place = match self.places.get(&hash) {
            Some(place) => *place,
            None => self.admit(hash, key),
        };
        let place = place as usize;
        if self.hot[place].count(at.as_nanos(), self.part, amount) {
            self.cold[place].peak_at = at.as_nanos();
        }
        Seen { cold: &mut self.cold, place }
    }

    #[cold]
    fn admit(&mut self, hash: u64, key: &[u8]) -> u32 {
        self.sketch.add(hash);
        if self.hot.len() >= self.capacity {
            self.forget_the_lighter_half();
        }
        // `capacity` fits 32 bits.
        let place = self.hot.len() as u32;
        self.hot.push(Hot::default());
        self.cold.push(Cold {
            key: key.into(),
            missed: self.floor,
            denied: 0,
            denied_units: 0,
            first_denied: None,
            peak_at: 0,
            is_known: false,
        });
        self.places.insert(hash, place);
        place
    }

    fn forget_the_lighter_half(&mut self) {
        let weight = |(hot, cold): (&Hot, &Cold)| hot.total + cold.missed;
        let mut weights: Vec<u64> = self.entries().map(weight).collect();
        let middle = weights.len() / 2;
        let floor = *weights.select_nth_unstable(middle).1;
        let (hot, cold) = (std::mem::take(&mut self.hot), std::mem::take(&mut self.cold));
        let both = hot.into_iter().zip(cold);
        (self.hot, self.cold) = both.filter(|(hot, cold)| weight((hot, cold)) > floor).unzip();
        self.floor = floor;
        self.places.clear();
        let hasher = &self.hasher;
        let places = self.cold.iter().enumerate();
        self.places.extend(places.map(|(place, cold)| (hasher.hash_one(&*cold.key), place as u32)));
    }

    fn entries(&self) -> impl Iterator<Item = (&Hot, &Cold)> {
        self.hot.iter().zip(&self.cold)
    }

    /// Returns how many different keys were seen.
    #[must_use]
    pub fn distinct(&self) -> Distinct {
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

    /// Returns the most that a key missing here can have asked.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns the peaks of all keys kept, falling.
    #[must_use]
    pub fn falling(&self) -> Vec<u64> {
        let mut peaks: Vec<u64> = self.hot.iter().map(|hot| hot.peak).collect();
        peaks.sort_unstable_by(|a, b| b.cmp(a));
        peaks
    }

    /// Returns how many keys were denied anything.
    #[must_use]
    pub fn denied_keys(&self) -> u64 {
        self.cold.iter().filter(|cold| cold.denied > 0).count() as u64
    }

    /// Returns how many of the keys denied anything were marked by [`Seen::know`].
    #[must_use]
    pub fn denied_and_known(&self) -> u64 {
        self.cold.iter().filter(|cold| cold.denied > 0 && cold.is_known).count() as u64
    }

    /// Returns the first `count` keys by `rank`, highest first; ties in the order of the keys.
    #[must_use]
    pub fn top(&self, count: usize, rank: impl Fn(&KeyPeak) -> u64) -> Vec<KeyPeak> {
        let mut all: Vec<(u64, KeyPeak)> = self
            .entries()
            .map(|(hot, cold)| {
                let shown = show(hot, cold);
                (rank(&shown), shown)
            })
            .collect();
        all.sort_by(|(a, left), (b, right)| b.cmp(a).then_with(|| left.key.cmp(&right.key)));
        all.truncate(count);
        all.into_iter().map(|(_, key)| key).collect()
    }
}

impl Hot {
    /// Returns the part of a window that peaks are counted by, in nanoseconds.
    pub(crate) fn part(window: Duration) -> u64 {
        u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1).div_ceil(PARTS as u64)
    }

    /// Counts an amount; says whether it made a new peak.
    #[inline]
    pub(crate) fn count(&mut self, at: u64, part: u64, amount: u64) -> bool {
        self.total = self.total.saturating_add(amount);
        // Back in time stands still, as limits do.
        let slot = (at / part).max(self.slot);
        if slot - self.slot >= PARTS as u64 {
            self.parts = [0; PARTS];
            self.sum = 0;
        } else {
            for passed in self.slot + 1..=slot {
                let old = &mut self.parts[passed as usize % PARTS];
                self.sum -= u64::from(*old);
                *old = 0;
            }
        }
        self.slot = slot;
        let here = &mut self.parts[slot as usize % PARTS];
        let added = u32::try_from(amount).unwrap_or(u32::MAX).min(u32::MAX - *here);
        *here += added;
        self.sum += u64::from(added);
        let is_peak = self.sum > self.peak;
        if is_peak {
            self.peak = self.sum;
        }
        is_peak
    }
}

fn show(hot: &Hot, cold: &Cold) -> KeyPeak {
    KeyPeak {
        key: crate::log::text(&cold.key).into_owned(),
        total: hot.total,
        missed: cold.missed,
        denied: cold.denied,
        denied_units: cold.denied_units,
        first_denied: cold.first_denied.map(Tick::from_nanos),
        peak: hot.peak,
        peak_at: Tick::from_nanos(cold.peak_at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_most_in_one_window() {
        let mut peaks = Peaks::new(Duration::from_secs(1), 10);
        // Six at 0.0, six at 0.5: one second holds both; whole-second windows of a calendar would too.
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
        assert_eq!(peaks.falling(), [4]);
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
}
