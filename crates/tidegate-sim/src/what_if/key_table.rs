//! The table of keys while limits are tried, in bounded memory.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::time::Duration;

use foldhash::quality::RandomState;
use tidegate::Tick;

use crate::meter::Meter;
use crate::peaks::{Distinct, GivenHash, Sketch, SlidingPeak};

#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: Box<str>,
    hash: u64,
    pub(super) requests: u64,
    pub(super) signed_in: bool,
    /// Its latest tick, in nanoseconds.
    last: u64,
    pub(super) peak: SlidingPeak,
    /// The level at each rate if nothing were ever denied.
    pub(super) levels: Box<[u64]>,
    /// The candidates that have denied it something, in order.
    pub(super) states: Vec<State>,
}

/// The state of a key under a candidate that has denied it something.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) candidate: usize,
    pub(super) level: u64,
    pub(super) denied: u64,
}

#[derive(Debug)]
pub(super) struct KeyTable {
    capacity: usize,
    /// An eighth of the window of the peaks, in nanoseconds.
    part: u64,
    meters: Box<[Meter]>,
    /// Seeded at random. Keys are not compared: 64 bits are enough that they do not collide by accident.
    hasher: RandomState,
    places: HashMap<u64, u32, GivenHash>,
    keys: Vec<Key>,
    sketch: Sketch,
    forgotten: u64,
    evicted: u64,
}

impl KeyTable {
    pub(super) fn new(capacity: usize, window: Duration, meters: Box<[Meter]>) -> Self {
        Self {
            capacity: capacity.clamp(2, u32::MAX as usize),
            part: SlidingPeak::part(window),
            meters,
            hasher: RandomState::default(),
            places: HashMap::default(),
            keys: Vec::new(),
            sketch: Sketch::default(),
            forgotten: 0,
            evicted: 0,
        }
    }

    /// Returns the key and the nanoseconds since its last request.
    pub(super) fn see(
        &mut self,
        key: &[u8],
        at: Tick,
        units: u64,
        name: impl FnOnce() -> String,
    ) -> (&mut Key, u64) {
        let (hash, at) = (self.hasher.hash_one(key), at.as_nanos());
        let place = match self.places.get(&hash) {
            Some(place) => *place as usize,
            None => self.admit(hash, at, name()),
        };
        let key = &mut self.keys[place];
        let passed = at.saturating_sub(key.last);
        key.last = key.last.max(at);
        key.requests += 1;
        key.peak.count(at, self.part, units);
        (key, passed)
    }

    #[cold]
    fn admit(&mut self, hash: u64, at: u64, name: String) -> usize {
        self.sketch.add(hash);
        if self.keys.len() >= self.capacity {
            self.make_room(at);
        }
        let place = self.keys.len();
        self.keys.push(Key {
            name: name.into(),
            hash,
            requests: 0,
            signed_in: false,
            last: at,
            peak: SlidingPeak::default(),
            levels: vec![0; self.meters.len()].into(),
            states: Vec::new(),
        });
        // `capacity` fits 32 bits.
        self.places.insert(hash, place as u32);
        place
    }

    /// Keys that are as good as new. If less than a quarter of the capacity is free then, also the lighter half of the
    /// others.
    fn make_room(&mut self, now: u64) {
        let before = self.keys.len();
        let meters = &self.meters;
        let drained = |key: &Key| {
            let passed = now.saturating_sub(key.last);
            meters.iter().zip(&key.levels).all(|(meter, level)| meter.drained(*level, passed) == 0)
        };
        self.keys.retain(|key| !key.states.is_empty() || !drained(key));
        if self.keys.len() > self.capacity - self.capacity.div_ceil(4) {
            // Those with most denials, then those with the fullest buckets.
            let weight = |key: &Key| {
                let denied: u64 = key.states.iter().map(|state| state.denied).sum();
                let burst = meters.iter().zip(&key.levels).map(|(meter, level)| meter.burst(*level)).max();
                (denied, burst.unwrap_or(0), key.hash)
            };
            let mut weights: Vec<_> = self.keys.iter().map(weight).collect();
            let middle = weights.len() / 2;
            let least = *weights.select_nth_unstable(middle).1;
            let all = self.keys.len();
            self.keys.retain(|key| weight(key) >= least);
            self.evicted += (all - self.keys.len()) as u64;
        }
        self.forgotten += (before - self.keys.len()) as u64;
        self.places.clear();
        self.places.extend(self.keys.iter().enumerate().map(|(place, key)| (key.hash, place as u32)));
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Key> {
        self.keys.iter()
    }

    pub(super) fn distinct(&self) -> Distinct {
        if self.forgotten == 0 {
            Distinct::Exactly(self.keys.len() as u64)
        } else {
            Distinct::About(self.sketch.estimate())
        }
    }

    pub(super) const fn evicted(&self) -> u64 {
        self.evicted
    }

    pub(super) const fn has_forgotten(&self) -> bool {
        self.forgotten > 0
    }
}
