//! Chooses the limit that makes a cut, with room between the keys that it spares and those that it cuts.
//!
//! The least limit that spares the crowd of one day hits some of it on another day. So a limit is made larger, rate and
//! burst together, by the largest room that still cuts nearly as much as none. All limits in question are replayed on
//! the log, since the levels of buckets that deny nothing only bound what is denied.
//!
//! The two halves of the log say how steady the crowd is. A limit whose crowd is steadier is preferred, and the chosen
//! one is judged on the half on which it was not found.

use std::collections::HashSet;
use std::time::Duration;

use foldhash::quality::RandomState;
use tidegate::Tick;
use tidegate::limiter::Rate;

use super::SuggestError;
use super::bursts::{KeyNeed, Needs};
use crate::log::Record;
use crate::what_if::{Asking, Candidate};

/// The rooms in question, largest first, in twentieths: a limit of 40/20 spares keys that ask for twice as much.
pub(super) const ROOMS: [u64; 6] = [40, 35, 30, 25, 22, 20];
const PARTS: u64 = 20;
/// A limit with room must deny at least this share of what the best limit without room denies.
const STILL_DENIES: f64 = 0.85;
/// Of the limits with the same room, those that deny at least this share of what the best denies are equals.
const EQUALS: f64 = 0.95;

/// What the crowd needs in either half of a log, at each rate.
#[derive(Debug)]
pub(super) struct Halves {
    middle: Tick,
    /// The needs in the half being read.
    needs: Needs,
    /// What the crowd needed in the first half, at each rate; `None` while it is read.
    first: Option<Vec<u64>>,
}

impl Halves {
    pub(super) fn new(
        of: &Needs,
        per: Duration,
        keys: usize,
        hasher: RandomState,
    ) -> Result<Self, tidegate::QuotaError> {
        let needs = Needs::new(of.counts.clone(), of.scale, per, keys, hasher)?;
        Ok(Self { middle: of.middle(), needs, first: None })
    }

    /// Adds a request. `hit` are the keys that do not belong to the crowd.
    pub(super) fn feed(&mut self, record: &Record<'_>, asking: &Asking, hit: &HashSet<u64>) {
        if self.first.is_none() && record.time >= self.middle {
            self.first = Some(crowd(&self.needs, hit));
            self.needs.begin_anew();
        }
        self.needs.feed(record, asking);
    }

    /// How many times as much the crowd needs in one half as in the other.
    fn unsteadiness(&self, hit: &HashSet<u64>) -> Vec<f64> {
        let second = crowd(&self.needs, hit);
        let Some(first) = &self.first else { return vec![1.0; second.len()] };
        let ratio = |(a, b): (&u64, &u64)| *a.max(b) as f64 / (*a.min(b)).max(1) as f64;
        first.iter().zip(&second).map(ratio).collect()
    }

    /// How many keys of the crowd a limit found on the first half would hit in the second. An upper bound: only the
    /// burst has room. `None` if the log has no two halves.
    fn hit_in_the_second(&self, hit: &HashSet<u64>, rate: usize, room: u64) -> Option<u64> {
        let most = scaled(*self.first.as_ref()?.get(rate)?, room);
        let keys = self.needs.remembered().iter().filter(|key| !hit.contains(&key.hash));
        Some(keys.filter(|key| self.needs.burst(key, rate) > most).count() as u64)
    }
}

fn crowd(needs: &Needs, hit: &HashSet<u64>) -> Vec<u64> {
    points(needs, hit).iter().map(|point| point.burst).collect()
}

/// Multiplies a number by a room, rounded up.
fn scaled(number: u64, room: u64) -> u64 {
    number.saturating_mul(room).div_ceil(PARTS)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Roomy {
    pub(super) count: u64,
    pub(super) burst: u64,
    /// In twentieths.
    room: u64,
    /// The rate of the limit without room, by its index.
    rate: usize,
}

impl Roomy {
    /// How many times as much each spared key may ask for.
    pub(super) fn room(&self) -> f64 {
        self.room as f64 / PARTS as f64
    }

    pub(super) fn candidate(&self, per: Duration) -> Result<Candidate, SuggestError> {
        Ok(Candidate {
            rate: Rate::new(self.count.clamp(1, Rate::MAX_COUNT), per)?,
            burst: self.burst.max(1),
        })
    }
}

/// Returns the limits in question: each point of the curve of the spared keys, with each room.
pub(super) fn with_room(needs: &Needs, hit: &HashSet<u64>) -> Vec<Roomy> {
    let points = points(needs, hit);
    let seen = points.iter().enumerate().filter(|(_, point)| point.seen && point.denied > 0);
    let each_room = |(rate, point): (usize, &Point)| {
        let Point { count, burst, .. } = *point;
        ROOMS.map(|room| Roomy { count: scaled(count, room), burst: scaled(burst, room), room, rate })
    };
    seen.flat_map(each_room).collect()
}

/// The largest room that still denies nearly as much as none, then the steadiest crowd, then the least grant. Also
/// returns the number of keys hit on the half on which it was not found.
pub(super) fn choose_limit(
    limits: &[Roomy],
    denied: &[u64],
    halves: &Halves,
    hit: &HashSet<u64>,
) -> Option<(Roomy, Option<u64>)> {
    let unsteady = halves.unsteadiness(hit);
    let with = |room: u64| limits.iter().zip(denied).filter(move |(limit, _)| limit.room == room);
    let most = |room: u64| with(room).map(|(_, denied)| *denied).max().unwrap_or(0);
    let least = most(PARTS) as f64 * STILL_DENIES;
    let room = ROOMS.into_iter().find(|room| most(*room) as f64 >= least)?;
    let enough = most(room) as f64 * EQUALS;
    let equals = with(room).filter(|(_, denied)| **denied as f64 >= enough).map(|(limit, _)| limit);
    let rank = |limit: &&Roomy| {
        // Steps of a quarter: smaller differences are chance.
        let steps = (unsteady.get(limit.rate).copied().unwrap_or(1.0).max(limit.room()) * 4.0).round() as u64;
        (steps, limit.count.saturating_add(limit.burst), limit.count)
    };
    let chosen = *equals.min_by_key(rank)?;
    Some((chosen, halves.hit_in_the_second(hit, chosen.rate, chosen.room)))
}

// The curve of burst against rate for the keys that a limit spares, and its knee.
//
// Each point spares all of them; the points differ in what else they let through. The knee is the point that grants
// least within one period of the rate: the sum of its count and its burst.

/// A burst must be able to refill so often within the log, or the log is too short to show the need.
const SPANS: u32 = 4;
/// A point must deny at least this share of what the most denying point denies; among these points, the smallest grant
/// wins.
const DENIES_ENOUGH: f64 = 0.75;

/// None of the spared keys needs more burst at this rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) count: u64,
    pub(super) burst: u64,
    /// A lower bound of the units that the other keys ask for beyond this limit.
    pub(super) denied: u64,
    /// The log is long enough to show the need at this rate.
    pub(super) seen: bool,
}

impl Point {
    fn grant(&self) -> u64 {
        self.count.saturating_add(self.burst)
    }
}

/// Says whether the log is long enough for a burst to refill several times.
pub(super) fn is_seen(comes_back: Duration, span: Duration) -> bool {
    comes_back.checked_mul(SPANS).is_some_and(|spans| spans <= span)
}

/// Returns the curve of all keys except `hit`, in the order of the rates.
pub(super) fn points(needs: &Needs, hit: &HashSet<u64>) -> Vec<Point> {
    (0..needs.counts.len()).map(|rate| point(needs, hit, rate)).collect()
}

pub(super) fn point(needs: &Needs, hit: &HashSet<u64>, rate: usize) -> Point {
    // A forgotten key needed no more than the floor.
    let burst = most_needed(needs, rate, hit).map_or(1, |key| needs.burst(key, rate)).max(needs.floor);
    let others = needs.remembered().iter().filter(|key| hit.contains(&key.hash));
    let denied = others.map(|key| needs.burst(key, rate).saturating_sub(burst)).sum();
    let seen = is_seen(needs.comes_back_in(burst, rate), needs.span());
    Point { count: needs.counts[rate], burst, denied, seen }
}

/// The spared key that a burst of one unit less would hit.
pub(super) fn most_needed<'n>(needs: &'n Needs, rate: usize, hit: &HashSet<u64>) -> Option<&'n KeyNeed> {
    let spared = needs.remembered().iter().filter(|key| !hit.contains(&key.hash));
    // Among equals, prefer a key that signed in, then the first by name.
    spared.max_by(|a, b| {
        let need = |key: &KeyNeed| (needs.burst(key, rate), key.signed_in);
        need(a).cmp(&need(b)).then_with(|| b.name.cmp(&a.name))
    })
}

/// Returns the position of the knee; `None` without points.
pub(super) fn knee(points: &[Point]) -> Option<usize> {
    let any_seen = points.iter().any(|point| point.seen);
    let seen = || points.iter().enumerate().filter(|(_, point)| point.seen || !any_seen);
    let most = seen().map(|(_, point)| point.denied).max()?;
    let enough = |point: &Point| point.denied as f64 >= most as f64 * DENIES_ENOUGH;
    let fitting = seen().filter(|(_, point)| enough(point));
    fitting.min_by_key(|(_, point)| (point.grant(), point.count)).map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(count: u64, burst: u64, denied: u64) -> Point {
        Point { count, burst, denied, seen: true }
    }

    #[test]
    fn the_knee_grants_least_in_a_period() {
        let curve =
            [point(1, 40, 90), point(4, 26, 88), point(10, 18, 80), point(30, 12, 30), point(300, 3, 0)];
        assert_eq!(knee(&curve), Some(2), "10 and 18 are least, and still deny enough");
        let mut unseen = curve;
        unseen[2].seen = false;
        assert_eq!(knee(&unseen), Some(1));
        // A slow crawler is denied by slow rates only.
        let crawler = [point(1, 40, 900), point(4, 26, 700), point(10, 18, 100), point(30, 12, 0)];
        assert_eq!(knee(&crawler), Some(1));
        assert_eq!(knee(&[]), None);
    }
}
