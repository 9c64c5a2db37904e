//! The curve of burst against rate for the keys that a limit spares, and its knee.
//!
//! At each rate the spared keys need some burst: the slower the rate, the more. Each point of the curve spares all of
//! them. The points differ in what else they let through. The knee is the point that grants least within one period
//! of the rate: the sum of its count and its burst.

use std::collections::HashSet;
use std::time::Duration;

use super::bursts::{KeyNeed, Needs};

/// How often a burst must be able to refill within the log. For slower rates the log is too short to show the need.
const SPANS: u32 = 4;
/// A point must deny at least this share of what the most denying point denies; among these points, the smallest
/// grant wins.
const DENIES_ENOUGH: f64 = 0.75;

/// A point of the curve: none of the spared keys needs more burst at this rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) count: u64,
    pub(super) burst: u64,
    /// A lower bound of the units beyond this limit that the other keys ask for.
    pub(super) denied: u64,
    /// Whether the log is long enough to show the need at this rate.
    pub(super) seen: bool,
}

impl Point {
    /// Returns what the limit grants to a key within one period.
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

/// Returns one point of the curve.
pub(super) fn point(needs: &Needs, hit: &HashSet<u64>, rate: usize) -> Point {
    // A forgotten key needed no more than the floor.
    let burst = most_needed(needs, rate, hit).map_or(1, |key| needs.burst(key, rate)).max(needs.floor);
    let others = needs.remembered().iter().filter(|key| hit.contains(&key.hash));
    let denied = others.map(|key| needs.burst(key, rate).saturating_sub(burst)).sum();
    let seen = is_seen(needs.comes_back_in(burst, rate), needs.span());
    Point { count: needs.counts[rate], burst, denied, seen }
}

/// Returns the spared key that needs most at a rate, the one that a burst of one unit less would hit.
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
