//! How much burst each key needs at each of many rates, in one reading of a log.
//!
//! The burst needed at a rate is the highest level of a leaky bucket that drains at that rate and denies nothing: with
//! one unit less, the key is denied. The slower the rate, the longer the time that the burst has to cover.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::time::Duration;

use foldhash::quality::RandomState;
use tidegate::Tick;
use tidegate::limiter::Rate;

use crate::log::Record;
use crate::meter::Meter;
use crate::peaks::{Distinct, GivenHash, Sketch, SlidingPeak};
use crate::what_if::Asking;

#[derive(Clone, Debug)]
pub(super) struct KeyNeed {
    pub(super) name: Box<str>,
    pub(super) hash: u64,
    pub(super) signed_in: bool,
    last: u64,
    peak: SlidingPeak,
    levels: Box<[u64]>,
    /// The highest level at each rate.
    highest: Box<[u64]>,
}

impl KeyNeed {
    pub(super) const fn asked(&self) -> u64 {
        self.peak.total()
    }

    pub(super) const fn peak(&self) -> u64 {
        self.peak.peak()
    }
}

#[derive(Debug)]
pub(super) struct Needs {
    pub(super) counts: Vec<u64>,
    meters: Vec<Meter>,
    part: u64,
    capacity: usize,
    hasher: RandomState,
    places: HashMap<u64, u32, GivenHash>,
    keys: Vec<KeyNeed>,
    /// The positions of the keys by name, once they are wanted; empty as soon as a key is added or forgotten.
    by_name: OnceCell<Vec<usize>>,
    sketch: Sketch,
    /// Needed by a forgotten key, at any rate.
    pub(super) floor: u64,
    pub(super) requests: u64,
    pub(super) units: u64,
    /// The cost of an ordinary request, as a round number.
    pub(super) scale: u64,
    pub(super) has_users: bool,
    first: Option<Tick>,
    last: Tick,
}

impl Needs {
    /// Makes the needs at rates of `counts` per period, slowest first, for up to `capacity` keys; an ordinary request
    /// costs `scale` units. A key has the same hash in all needs with the same hasher.
    pub(super) fn new(
        counts: Vec<u64>,
        scale: u64,
        per: Duration,
        capacity: usize,
        hasher: RandomState,
    ) -> Result<Self, tidegate::QuotaError> {
        let meters = counts.iter().map(|count| Rate::new(*count, per).map(Meter::new));
        Ok(Self {
            meters: meters.collect::<Result<_, _>>()?,
            counts,
            part: SlidingPeak::part(per),
            capacity: capacity.clamp(2, u32::MAX as usize),
            hasher,
            places: HashMap::default(),
            keys: Vec::new(),
            by_name: OnceCell::new(),
            sketch: Sketch::default(),
            floor: 0,
            requests: 0,
            units: 0,
            scale,
            has_users: false,
            first: None,
            last: Tick::EPOCH,
        })
    }

    pub(super) fn feed(&mut self, record: &Record<'_>, asking: &Asking) {
        let request = asking.describe(record);
        let Some(asked) = asking.find(&request, None) else { return };
        self.requests += 1;
        self.has_users |= !record.user.is_empty();
        self.first.get_or_insert(record.time);
        self.last = self.last.max(record.time);
        let (hash, at) = (self.hasher.hash_one(&asked.key), record.time.as_nanos());
        let place = match self.places.get(&hash) {
            Some(place) => *place as usize,
            None => self.admit(hash, at, asking.name(&request)),
        };
        let units = asked.cost.units();
        self.units = self.units.saturating_add(units);
        let key = &mut self.keys[place];
        let passed = at.saturating_sub(key.last);
        key.last = key.last.max(at);
        key.signed_in |= record.is_signed_in();
        key.peak.count(at, self.part, units);
        for ((meter, level), highest) in self.meters.iter().zip(&mut key.levels).zip(&mut key.highest) {
            *level = meter.charged(meter.drained(*level, passed), units);
            *highest = (*highest).max(*level);
        }
    }

    #[cold]
    fn admit(&mut self, hash: u64, at: u64, name: String) -> usize {
        self.sketch.add(hash);
        if self.keys.len() >= self.capacity {
            self.forget_the_lighter_half();
        }
        let (place, none) = (self.keys.len(), vec![0; self.meters.len()]);
        let (levels, highest) = (none.clone().into(), none.into());
        let (name, peak) = (name.into(), SlidingPeak::default());
        self.by_name.take();
        self.keys.push(KeyNeed { name, hash, signed_in: false, last: at, peak, levels, highest });
        // `capacity` fits 32 bits.
        self.places.insert(hash, place as u32);
        place
    }

    /// A need is highest at the slowest rate, so a forgotten key needed no more than the floor at any rate.
    fn forget_the_lighter_half(&mut self) {
        let Some(slowest) = self.meters.first().copied() else { return };
        let need = |key: &KeyNeed| slowest.burst(key.highest[0]);
        let mut needs: Vec<u64> = self.keys.iter().map(need).collect();
        let middle = needs.len() / 2;
        let floor = *needs.select_nth_unstable(middle).1;
        self.keys.retain(|key| need(key) > floor);
        self.by_name.take();
        self.floor = self.floor.max(floor);
        self.places.clear();
        self.places.extend(self.keys.iter().enumerate().map(|(place, key)| (key.hash, place as u32)));
    }

    pub(super) fn keys(&self) -> Distinct {
        if self.floor == 0 {
            Distinct::Exactly(self.keys.len() as u64)
        } else {
            Distinct::About(self.sketch.estimate())
        }
    }

    pub(super) fn remembered(&self) -> &[KeyNeed] {
        &self.keys
    }

    pub(super) fn span(&self) -> Duration {
        self.first.map_or(Duration::ZERO, |first| self.last.since(first))
    }

    /// Returns the middle of the time from the first request to the last.
    pub(super) fn middle(&self) -> Tick {
        self.first.map_or(Tick::EPOCH, |first| first.after(self.span() / 2))
    }

    pub(super) fn begin_anew(&mut self) {
        self.keys.clear();
        self.by_name.take();
        self.places.clear();
        self.floor = 0;
    }

    pub(super) fn burst(&self, key: &KeyNeed, rate: usize) -> u64 {
        self.meters[rate].burst(key.highest[rate])
    }

    pub(super) fn comes_back_in(&self, burst: u64, rate: usize) -> Duration {
        let meter = &self.meters[rate];
        meter.drains_in(meter.charged(0, burst))
    }

    /// Returns the peaks of the keys in one period, highest first.
    pub(super) fn falling_peaks(&self) -> Vec<u64> {
        let mut peaks: Vec<u64> = self.keys.iter().map(|key| key.peak.peak()).collect();
        peaks.sort_unstable_by(|a, b| b.cmp(a));
        peaks
    }

    /// Returns the positions of the remembered keys, those that need most at a rate first, ties by name.
    pub(super) fn falling(&self, rate: usize) -> Vec<usize> {
        // Names are compared once for all rates: most keys need the same, and a stable sort keeps them in order.
        let need = |place: &usize| (self.keys[*place].highest[rate], *place);
        let mut ranked: Vec<(u64, usize)> = self.by_name().iter().map(need).collect();
        ranked.sort_by_key(|(need, _)| Reverse(*need));
        ranked.into_iter().map(|(_, place)| place).collect()
    }

    fn by_name(&self) -> &[usize] {
        self.by_name.get_or_init(|| {
            let mut places: Vec<usize> = (0..self.keys.len()).collect();
            places.sort_by(|a, b| self.keys[*a].name.cmp(&self.keys[*b].name));
            places
        })
    }
}

// Finds the end of the crowd: the gaps between the keys that need most and the others.
//
// In any crowd one key needs most, often twice as much as the next, so a gap must be wider than the crowd's own spacing
// makes likely. For needs whose tail falls smoothly (by a power law, or faster), `i` times the difference of the
// logarithms of the `i`-th and the next need has the same distribution for each `i`: exponential, with a mean estimated
// from the crowd below the gap. The strength of a gap is its width in units of that mean; a strength of `s` arises by
// chance with a probability of at most `e^−s`.
//
// # Source
// A. Rényi, On the theory of order statistics, 1953; B. M. Hill, A simple general approach to inference about the tail
// of a distribution, 1975. The mean is trimmed, since a second gap may be among the spacings that it is estimated from.

// In any crowd one key needs most, often twice as much as the next. So a gap only counts if it is wider than the
// crowd's own spacing makes likely.

/// Added to each need, in ordinary requests: a difference between 1 and 3 of them is chance.
const BLUR: f64 = 5.0;
/// The crowd's spacing is estimated from its tail, not its middle.
const TAIL: usize = 200;
/// The fewest keys of a crowd. With fewer, it is unknown what is usual.
pub(super) const CROWD: usize = 10;
/// The largest share of the keys that can be above a gap: more keys are the crowd itself.
const MOST_ABOVE: f64 = 0.25;
/// The share of the widest spacings that are left out of the mean, and the mean of an exponential variate of mean 1
/// that is cut off there.
const TRIM: (f64, f64) = (0.2, 0.597_6);
/// Smaller spacings are rounding.
const LEAST_SPACING: f64 = 0.05;
/// A probability of 1 in 3,000 by chance, since several gaps and rates are examined.
const STRONG: f64 = 8.0;
/// Room for a limit: keys above the gap need this many times the burst.
const WIDE: f64 = 2.0;

/// A gap among keys in descending order of need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gap {
    pub(super) above: usize,
    /// How unlikely it is by chance.
    pub(super) strength: f64,
    /// The least need above divided by the largest need below.
    pub(super) factor: f64,
}

impl Gap {
    /// Says whether it is distinguishable from chance and leaves room for a limit.
    pub(super) fn is_clear(&self) -> bool {
        self.strength >= STRONG && self.factor >= WIDE
    }
}

/// Finds the clear gaps among needs in descending order, of `keys` keys in all. An ordinary request costs `scale` units.
pub(super) fn clear_gaps(falling: &[u64], keys: u64, scale: u64) -> Vec<Gap> {
    let mut gaps = gaps(falling, keys, scale, |_, factor| factor >= WIDE);
    gaps.retain(Gap::is_clear);
    gaps
}

/// Finds the gaps, clear or not, that are wanted by the number of keys above and by their factor. The strength of a gap
/// takes microseconds, and where requests cost what they transfer, nearly every key has a gap below it.
pub(super) fn gaps(
    falling: &[u64],
    keys: u64,
    scale: u64,
    is_wanted: impl Fn(usize, f64) -> bool,
) -> Vec<Gap> {
    let blur = BLUR * scale as f64;
    let logs: Vec<f64> = falling.iter().map(|need| (*need as f64 + blur).ln()).collect();
    let most = ((keys as f64 * MOST_ABOVE) as usize).min(falling.len().saturating_sub(CROWD));
    let mut out = Vec::new();
    for above in 1..=most {
        let wide = logs[above - 1] - logs[above];
        let factor = wide.exp();
        if wide <= 0.0 || !is_wanted(above, factor) {
            continue;
        }
        let strength = above as f64 * wide / spacing(&logs[above..]);
        out.push(Gap { above, strength, factor });
    }
    out
}

/// Returns the mean spacing of the tail of a crowd, whose logarithms are in descending order.
fn spacing(crowd: &[f64]) -> f64 {
    let tail = (crowd.len() / 10).clamp(CROWD, TAIL).min(crowd.len() - 1);
    let mut spacings: Vec<f64> = (1..=tail).map(|i| i as f64 * (crowd[i - 1] - crowd[i])).collect();
    spacings.sort_unstable_by(f64::total_cmp);
    let kept = (tail as f64 * (1.0 - TRIM.0)).ceil() as usize;
    let mean = spacings[..kept].iter().sum::<f64>() / kept as f64;
    (mean / TRIM.1).max(LEAST_SPACING)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clear(falling: &[u64]) -> Vec<usize> {
        let gaps = clear_gaps(falling, falling.len() as u64, 1);
        gaps.into_iter().map(|gap| gap.above).collect()
    }

    #[test]
    fn a_gap_is_one_that_the_crowd_does_not_explain() {
        let crowd: Vec<u64> = (0..100).map(|rank| 30 - rank / 5).collect();
        let with = |above: &[u64]| [above, &crowd].concat();
        assert_eq!(clear(&with(&[900])), [1]);
        assert_eq!(clear(&with(&[900, 800, 700])), [3], "none among those who stand out");
        assert_eq!(clear(&with(&[45])), [0; 0], "half as much again is no gap");
        // By a power law the first needs twice as much as the second, which is not significant.
        let power_law: Vec<u64> = (1..200).map(|rank| 10_000 / rank).collect();
        assert_eq!(clear(&power_law), [0; 0]);
        let above: Vec<u64> = std::iter::once(10_000_000).chain(power_law).collect();
        assert_eq!(clear(&above), [0; 0], "a factor of a thousand is what such a crowd may show");
    }

    #[test]
    fn small_numbers_and_few_keys_have_no_gaps() {
        assert_eq!(clear(&[4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]), [0; 0]);
        assert_eq!(clear(&[900, 2, 1]), [0; 0]);
        assert_eq!(clear(&[]), [0; 0]);
    }
}
