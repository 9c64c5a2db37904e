//! The figures of one key: its peak, and its most frequent paths in bounded memory; and how many keys there are.

use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use tidegate::Tick;

use crate::units::{self, grouped};

/// The peak of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyPeak {
    /// The key.
    pub key: String,
    /// The units that it asked for.
    pub total: u64,
    /// By how many units `total` may be too low; zero while all keys had room.
    pub missed: u64,
    /// How many of its requests were denied.
    pub denied: u64,
    /// The units that those requests asked for.
    pub denied_units: u64,
    /// When it was first denied.
    #[serde(rename = "first_denied_at", serialize_with = "units::maybe_time")]
    pub first_denied: Option<Tick>,
    /// The most that it asked for in one window, in cost units.
    pub peak: u64,
    /// When that window ended.
    #[serde(serialize_with = "units::time")]
    pub peak_at: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankedKey<'p> {
    pub(crate) key: &'p [u8],
    pub(crate) peak: u64,
    pub(crate) denied: u64,
    pub(crate) signed_in: bool,
}

/// All that is known of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDetail {
    /// Its peak and its denials.
    pub peak: KeyPeak,
    /// Whether a user signed in with this key and was served.
    pub signed_in: bool,
    /// The number of its requests; `None` if details are not kept.
    pub requests: Option<u64>,
    /// Its most requested paths, at most three; empty if details are not kept or requests have no path.
    pub paths: Vec<PathCount>,
}

impl KeyDetail {
    /// Says whether its numbers are lower bounds: the key was forgotten for a while for lack of room.
    #[must_use]
    pub fn is_floor(&self) -> bool {
        self.peak.missed > 0
    }
}

const PARTS: usize = 8;

/// The part of a key's entry that every request touches, in one cache line: with many keys, most of the cost is waiting
/// for memory.
///
/// A sliding window of eight parts: the peak is at least the most within seven eighths of any window, and never more
/// than the most within one window.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(crate) struct SlidingPeak {
    total: u64,
    slot: u64,
    sum: u64,
    peak: u64,
    parts: [u32; PARTS],
}

impl SlidingPeak {
    /// Returns the length of one part of a window, in nanoseconds.
    pub(crate) fn part(window: Duration) -> u64 {
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
        window.div_ceil(PARTS as u64)
    }

    pub(crate) const fn peak(&self) -> u64 {
        self.peak
    }

    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Returns whether the amount made a new peak.
    #[inline]
    pub(crate) fn count(&mut self, at: u64, part: u64, amount: u64) -> bool {
        self.total = self.total.saturating_add(amount);
        // A step back in time counts as standing still, as in limits.
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

/// The most paths counted at once for a key: about as many as one person's visit to a site has. Fewer would make the
/// counts far too low.
const COUNTED: usize = 16;
const SHOWN: usize = 3;
/// The longest text kept of a path, in bytes. A longer one is cut and ends in `…`.
const LONGEST: usize = 64;

/// One path of a key, with the number of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathCount {
    /// The path, with `*` for segments that are numbers: `/items/1` and `/items/2` count as one.
    pub path: String,
    /// How many requests asked for it, at least.
    pub requests: u64,
    /// Whether `requests` is exact.
    pub is_exact: bool,
}

/// A new path replaces the rarest one and inherits its count as uncertainty. At most 2 KiB.
///
/// # Source
/// Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005 (space
/// saving).
#[derive(Clone, Debug, Default)]
pub(super) struct Frequent(Vec<CountedPath>);

#[derive(Clone, Debug)]
struct CountedPath {
    path: Box<str>,
    count: u64,
    /// How much of the count may belong to paths that this one replaced.
    uncertain: u64,
}

impl Frequent {
    pub(super) fn add(&mut self, path: &str) {
        if let Some(found) = self.0.iter_mut().find(|counted| *counted.path == *path) {
            found.count += 1;
            return;
        }
        let uncertain = if self.0.len() < COUNTED { 0 } else { self.make_room() };
        self.0.push(CountedPath { path: path.into(), count: uncertain + 1, uncertain });
    }

    fn make_room(&mut self) -> u64 {
        let rarest = self.0.iter().enumerate().min_by_key(|(_, counted)| counted.count);
        rarest.map(|(place, _)| place).map_or(0, |place| self.0.swap_remove(place).count)
    }

    pub(super) fn most(&self) -> Vec<PathCount> {
        let mut all: Vec<&CountedPath> = self.0.iter().collect();
        let sure = |counted: &CountedPath| counted.count - counted.uncertain;
        all.sort_by(|a, b| sure(b).cmp(&sure(a)).then_with(|| a.path.cmp(&b.path)));
        let shown = all.into_iter().take(SHOWN);
        shown
            .map(|counted| PathCount {
                path: counted.path.to_string(),
                requests: sure(counted),
                is_exact: counted.uncertain == 0,
            })
            .collect()
    }
}

/// Writes a path with `*` for its numbers, cut to a bounded length.
pub(super) fn shape(path: &str, out: &mut String) {
    out.clear();
    for (place, part) in path.split('/').enumerate() {
        let slash = if place > 0 { "/" } else { "" };
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let part = if is_number { "*" } else { part };
        if out.len() + slash.len() + part.len() > LONGEST {
            let mut end = LONGEST.saturating_sub(out.len() + slash.len()).min(part.len());
            while !part.is_char_boundary(end) {
                end -= 1;
            }
            let _ = write!(out, "{slash}{}…", &part[..end]);
            return;
        }
        let _ = write!(out, "{slash}{part}");
    }
}

/// A hasher that uses a `u64` as its own hash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GivenHash;

impl BuildHasher for GivenHash {
    type Hasher = Given;

    fn build_hasher(&self) -> Given {
        Given(0)
    }
}

#[derive(Debug)]
pub(crate) struct Given(u64);

impl Hasher for Given {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The number of distinct keys. In JSON it becomes two fields of the surrounding document: `keys` and
/// `keys_estimated`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinct {
    /// Counted.
    Exactly(u64),
    /// Estimated, with a standard error of 1.6 %.
    About(u64),
}

impl Distinct {
    /// Returns the number, counted or estimated.
    #[must_use]
    pub fn about(self) -> u64 {
        match self {
            Self::Exactly(count) | Self::About(count) => count,
        }
    }
}

impl Serialize for Distinct {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Distinct", 2)?;
        fields.serialize_field("keys", &self.about())?;
        fields.serialize_field("keys_estimated", &matches!(self, Self::About(_)))?;
        fields.end()
    }
}

impl std::fmt::Display for Distinct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(count) => f.write_str(&grouped(*count)),
            Self::About(count) => write!(f, "~{}", grouped(*count)),
        }
    }
}

/// The error falls with the square root of their number.
const REGISTERS: usize = 4_096;

/// Estimates the number of distinct hashes from the longest runs of zero bits; 4 KiB.
///
/// # Source
/// Flajolet, Fusy, Gandouet, Meunier: HyperLogLog, 2007; linear counting where many registers are empty.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    registers: Box<[u8; REGISTERS]>,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { registers: Box::new([0; REGISTERS]) }
    }
}

impl Sketch {
    pub(crate) fn add(&mut self, hash: u64) {
        let register = &mut self.registers[hash as usize % REGISTERS];
        // Twelve bits chose the register; the marker bit bounds the run.
        let run = ((hash >> 12) | 1 << 52).trailing_zeros() as u8 + 1;
        *register = (*register).max(run);
    }

    /// Returns the number of distinct hashes, with a standard error of 1.6 %.
    pub(crate) fn estimate(&self) -> u64 {
        let count = REGISTERS as f64;
        let sum: f64 = self.registers.iter().map(|run| (-f64::from(*run)).exp2()).sum();
        let empty = self.registers.iter().filter(|run| **run == 0).count();
        let raw = 0.721_3 / (1.0 + 1.079 / count) * count * count / sum;
        let estimate = if raw < 2.5 * count && empty > 0 { count * (count / empty as f64).ln() } else { raw };
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaped(path: &str) -> String {
        let mut out = "before".to_owned();
        shape(path, &mut out);
        out
    }

    #[test]
    fn numbers_and_length_are_left_out() {
        assert_eq!(shaped("/api/items/17/x2"), "/api/items/*/x2");
        assert_eq!([shaped(""), shaped("/"), shaped("*")], ["", "/", "*"]);
        let long = shaped(&format!("/{}/x", "é".repeat(80)));
        assert!(long.len() <= LONGEST + '…'.len_utf8() && long.ends_with("é…"), "{long}");
        assert!(shaped(&"/a".repeat(500)).len() <= LONGEST + 4);
    }

    #[test]
    fn who_asks_for_one_path_often_is_told_it_among_many() {
        let mut frequent = Frequent::default();
        for number in 0..1_000 {
            frequent.add(&format!("/rare-{number}"));
            frequent.add("/often");
        }
        let most = frequent.most();
        assert_eq!(most[0], PathCount { path: "/often".to_owned(), requests: 1_000, is_exact: true });
        assert_eq!((most.len(), most[1].is_exact), (3, false));
        assert!(frequent.0.len() <= COUNTED);
    }
}
