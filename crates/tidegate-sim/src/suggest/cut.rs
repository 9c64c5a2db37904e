//! Whom a limit would cut off: the candidates, found in the needs of all keys.

use std::collections::HashSet;

use super::curve::{self, is_seen};
use super::gap::{CROWD, Gap, gaps};
use super::needs::Needs;

/// What a limit is proposed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Cuts what lies above the gap and spares everybody who signed in.
    Gap,
    /// Spares some of those above the gap as well: the milder ones.
    Lenient,
    /// Cuts further down: those who signed in too, those who come in bursts, or the first of the crowd.
    Stricter,
    /// Hits one key in a hundred.
    Hundredth,
    /// Keeps the share of keys that was asked for.
    Kept,
    /// Hits nobody in this log: a bound for what has not been seen.
    Ceiling,
}

/// Keys that a limit would hit, by their hashes, and what for.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) purpose: Purpose,
    pub(super) hit: HashSet<u64>,
}

impl Cut {
    /// Says whether it hits all that another hits, and somebody beside.
    pub(super) fn hits_more_than(&self, other: &Self) -> bool {
        self.hit.len() > other.hit.len() && self.hit.is_superset(&other.hit)
    }
}

/// Where the crowd ends at one rate.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    rate: usize,
    /// Keys above, by their places; those that need most first.
    above: Vec<usize>,
    /// The share of the requests that a limit there would deny, at least.
    pub(super) denied_share: f64,
    /// That, less the share of the keys it would hit: what is gained over drawing any line.
    score: f64,
}

/// A gap that saves less than this share of the requests is not worth a limit.
pub(super) const PAYS: f64 = 0.01;

/// Whom an edge leaves below, whatever they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spare {
    /// Nobody.
    Nobody,
    /// Those who signed in.
    SignedIn,
    /// Those who signed in, and those who ask no more than others over time, only more of it at once: jobs on a timer.
    SignedInAndBursts,
}

/// Who peaks so many times as high as anybody in the crowd, or higher, is no job on a timer.
const BURST: u64 = 5;
/// Who needs so many times as much as anybody in the crowd at the slowest rate, or more, asks more than others over time.
const OVER_TIME: u64 = 2;

/// Finds where the crowd ends: the clear gap, over all rates, that gains most.
pub(super) fn edge(needs: &Needs, spare: Spare) -> Option<Edge> {
    let edges = (0..needs.counts.len()).filter_map(|rate| edge_at(needs, spare, rate));
    edges.max_by(|a, b| a.score.total_cmp(&b.score))
}

fn edge_at(needs: &Needs, spare: Spare, rate: usize) -> Option<Edge> {
    let keys = needs.keys().about();
    let key = |place: usize| &needs.remembered()[place];
    let burst = |place: usize| needs.burst(key(place), rate);
    let slowest = |place: usize| needs.burst(key(place), 0);
    let (spared, falling): (Vec<usize>, Vec<usize>) =
        needs.falling(rate).into_iter().partition(|place| spare != Spare::Nobody && key(*place).signed_in);
    let bursts: Vec<u64> = falling.iter().map(|place| burst(*place)).collect();
    let known = spared.first().map_or(0, |place| burst(*place));
    let doubled = needs.counts.iter().position(|count| *count == 2 * needs.counts[rate]);
    let mut best: Option<Edge> = None;
    for gap in gaps(&bursts, keys).into_iter().filter(Gap::is_clear) {
        let (above, crowd) = falling.split_at(gap.above);
        let mut below = burst(crowd[0]).max(known);
        let mut above = above.to_vec();
        if spare == Spare::SignedInAndBursts {
            let most =
                |what: &dyn Fn(usize) -> u64| crowd.iter().map(|place| what(*place)).max().unwrap_or(0);
            let (over_time, peak) = (most(&slowest) * OVER_TIME, most(&|place| key(place).peak()) * BURST);
            let in_bursts = |place: usize| slowest(place) < over_time && key(place).peak() < peak;
            below = above
                .iter()
                .filter(|place| in_bursts(**place))
                .map(|place| burst(*place))
                .fold(below, u64::max);
            above.retain(|place| burst(*place) > below);
        }
        // Between two keys of nearly the same pace, a rate that lies between makes one need little and the other much: whoever is cut
        // must need more than twice the burst at twice the rate, too.
        while let Some(milder) = doubled
            .and_then(|rate| above.iter().rposition(|place| needs.burst(key(*place), rate) <= 2 * below))
        {
            below = below.max(burst(above.remove(milder)));
            above.retain(|place| burst(*place) > below);
        }
        let Some(mildest) = above.last().map(|place| burst(*place)) else { continue };
        if mildest < below.saturating_mul(2) || !is_seen(needs.comes_back_in(below, rate), needs.span()) {
            continue;
        }
        let denied: u64 = above.iter().map(|place| burst(*place) - below).sum();
        let denied_share = denied as f64 / needs.requests.max(1) as f64;
        let score = denied_share - above.len() as f64 / keys.max(1) as f64;
        if best.as_ref().is_none_or(|best| score > best.score) {
            best = Some(Edge { rate, above, denied_share, score });
        }
    }
    best
}

impl Edge {
    pub(super) fn cut(&self, needs: &Needs, purpose: Purpose) -> Cut {
        self.first(needs, purpose, self.above.len())
    }

    fn first(&self, needs: &Needs, purpose: Purpose, count: usize) -> Cut {
        let hash = |place: &usize| needs.remembered()[*place].hash;
        Cut { purpose, hit: self.above[..count].iter().map(hash).collect() }
    }

    /// Returns the cut that spares the milder of those above: behind the widest gap among them, if one is a factor of two wide.
    pub(super) fn lenient(&self, needs: &Needs) -> Option<Cut> {
        let burst = |place: usize| needs.burst(&needs.remembered()[place], self.rate) as f64;
        let factors = self.above.windows(2).enumerate();
        let factors = factors.map(|(at, pair)| (at + 1, burst(pair[0]) / burst(pair[1]).max(1.0)));
        let (count, factor) = factors.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        (factor >= 2.0).then(|| self.first(needs, Purpose::Lenient, count))
    }

    /// Returns the cut at the next edge below: the strongest gap, clear or not, that hits a few more.
    pub(super) fn stricter(&self, needs: &Needs) -> Option<Cut> {
        let falling = needs.falling(self.rate);
        let burst = |place: &usize| needs.burst(&needs.remembered()[*place], self.rate);
        let bursts: Vec<u64> = falling.iter().map(burst).collect();
        let keys = needs.keys().about();
        let reach = self.above.len() * 3 + (keys / 50) as usize;
        let below =
            gaps(&bursts, keys).into_iter().filter(|gap| (self.above.len() + 1..=reach).contains(&gap.above));
        let next = below.max_by(|a, b| a.strength.total_cmp(&b.strength))?;
        let hash = |place: &usize| needs.remembered()[*place].hash;
        let hit = falling[..next.above].iter().map(hash).collect();
        Some(Cut { purpose: Purpose::Stricter, hit })
    }
}

/// Returns the cut that hits so many keys, at the rate where sparing the others takes the least grant.
pub(super) fn most_demanding(needs: &Needs, purpose: Purpose, count: usize) -> Option<Cut> {
    let first = |rate: usize| -> HashSet<u64> {
        needs.falling(rate).into_iter().take(count).map(|place| needs.remembered()[place].hash).collect()
    };
    let rates = 0..needs.counts.len();
    let points: Vec<_> = rates.map(|rate| curve::point(needs, &first(rate), rate)).collect();
    let rate =
        curve::knee(&points.iter().map(|point| curve::Point { denied: 0, ..*point }).collect::<Vec<_>>())?;
    Some(Cut { purpose, hit: first(rate) })
}

/// Says whether there are keys enough for a crowd.
pub(super) fn is_crowd(needs: &Needs) -> bool {
    needs.keys().about() > CROWD as u64
}
