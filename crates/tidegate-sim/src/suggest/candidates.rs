//! Finds the sets of keys that a limit could cut off, from the needs of all keys.

use std::collections::{HashMap, HashSet};

use super::bursts::{CROWD, KeyNeed, Needs, clear_gaps, gaps};
use super::limits::{self, is_seen};
use super::signs::ClientKind;

/// The purpose of a proposed limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Cuts the keys above the gap that a limit is meant for, and spares all others.
    Gap,
    /// Also spares the milder of the keys above the gap.
    Lenient,
    /// Cuts more keys: others that stand out, including keys that signed in, or the first of the crowd.
    Stricter,
    /// Hits at most one key in a hundred.
    Hundredth,
    /// Keeps the requested share of keys.
    Kept,
    /// Hits no key of this log: a bound for future traffic.
    Ceiling,
}

/// The keys that a limit would hit, by their hashes, and its purpose.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) purpose: Purpose,
    pub(super) hit: HashSet<u64>,
}

impl Cut {
    pub(super) fn hits_more_than(&self, other: &Self) -> bool {
        self.hit.len() > other.hit.len() && self.hit.is_superset(&other.hit)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Edge {
    rate: usize,
    /// The positions of the keys above it; those that need most first.
    pub(super) above: Vec<usize>,
    /// A lower bound, for a limit there.
    pub(super) denied_share: f64,
    /// `denied_share` minus the share of keys hit: the gain over an arbitrary limit.
    score: f64,
}

/// A gap that saves less of the requests is not worth a limit.
pub(super) const PAYS: f64 = 0.01;

/// A crawler that no limit by the key catches is not worth a policy of its own with less of the requests.
pub(super) const WORTH_A_POLICY: f64 = 0.05;

/// The keys that an edge spares, whatever they need.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spare<'k> {
    Nobody,
    SignedIn(&'k Known),
    /// Keys that signed in, and keys that do not look like those a limit is meant for.
    Ordinary(&'k Known),
}

#[derive(Debug)]
pub(super) struct Known {
    /// A key that is missing here is unclear.
    pub(super) looks: HashMap<u64, ClientKind>,
    /// Units asked for per period of the rate while active, on average.
    timers: HashMap<u64, u64>,
    /// Nine keys in ten do not exceed it.
    pub(super) usual_peak: u64,
    /// Crawlers or guessers, where that distinguishes them.
    culprits: HashSet<u64>,
    /// Whether nearly all keys signed in. Then having signed in does not distinguish a key, and offices are recognised
    /// by other evidence.
    all_sign_in: bool,
}

/// From this share on, the interface serves only signed-in users, or the keys are users.
const SIGN_IN: f64 = 0.9;

impl Known {
    /// Combines what is known about the watched keys with the figures of all keys. `shows_offices` says that several
    /// people behind one key can be recognised, or cannot occur. `lasted` returns the time between a key's first and
    /// last request, in periods of the rate; `pages` returns how many pages it asked for. `crowd_loads` says that the
    /// crowd loads images and scripts.
    pub(super) fn new(
        needs: &Needs,
        shows_offices: bool,
        looks: impl Fn(u64) -> ClientKind,
        lasted: impl Fn(u64) -> f64,
        pages: impl Fn(u64) -> u64,
        crowd_loads: bool,
    ) -> Self {
        let keys = needs.remembered();
        let timers = keys.iter().filter(|key| looks(key.hash) == ClientKind::Timer);
        let timers =
            timers.map(|key| (key.hash, (key.asked() as f64 / lasted(key.hash).max(1.0)) as u64)).collect();
        let looks = keys.iter().map(|key| (key.hash, looks(key.hash)));
        let looks = looks.filter(|(_, looks)| *looks != ClientKind::Unclear).collect();
        let peaks = needs.falling_peaks();
        let usual_peak = peaks.get(peaks.len() / 10).copied().unwrap_or(1);
        let signed_in = keys.iter().filter(|key| key.signed_in).count();
        let all_sign_in = shows_offices && signed_in as f64 >= SIGN_IN * keys.len() as f64;
        let mut known = Self { looks, timers, usual_peak, culprits: HashSet::new(), all_sign_in };
        known.culprits = known.told_apart(needs, pages, crowd_loads);
        known
    }

    /// The keys that look like crawlers or guessers and are not spared. Where every client asks for things of its own
    /// and the crowd loads no images and scripts, all look like crawlers: then crawlers count only if they are the
    /// fewer of the keys with many pages.
    fn told_apart(&self, needs: &Needs, pages: impl Fn(u64) -> u64, crowd_loads: bool) -> HashSet<u64> {
        let asks_much = |key: &&KeyNeed| pages(key.hash) >= PAGES;
        let is = |key: &KeyNeed, looks| self.looks(key) == looks && !self.spares(key);
        let keys = needs.remembered();
        let crawlers = keys.iter().filter(|key| is(key, ClientKind::Crawler)).count();
        let others = keys.iter().filter(asks_much).count().saturating_sub(crawlers);
        let tells = crowd_loads || crawlers < others;
        let is_culprit = |key: &&KeyNeed| {
            is(key, ClientKind::Crawler) && tells || is(key, ClientKind::Refused) && pages(key.hash) >= PAGES
        };
        keys.iter().filter(is_culprit).map(|key| key.hash).collect()
    }

    /// Says whether a key signed in, unless nearly all keys did.
    pub(super) fn signed_in(&self, key: &KeyNeed) -> bool {
        key.signed_in && !self.all_sign_in
    }

    pub(super) fn looks(&self, key: &KeyNeed) -> ClientKind {
        self.looks.get(&key.hash).copied().unwrap_or(ClientKind::Unclear)
    }

    /// A crawler or a guesser, where that distinguishes it.
    pub(super) fn is_culprit(&self, key: u64) -> bool {
        self.culprits.contains(&key)
    }

    /// Says whether a key is spared, whatever it needs.
    pub(super) fn spares(&self, key: &KeyNeed) -> bool {
        let is_modest = |asked: u64| asked < self.usual_peak.saturating_mul(MACHINE);
        let is_spared = match self.looks(key) {
            ClientKind::People | ClientKind::Shared => true,
            // A timer may send all its requests of an hour within a minute, so its average counts.
            ClientKind::Timer => is_modest(self.timers.get(&key.hash).copied().unwrap_or(0).min(key.peak())),
            ClientKind::Program => is_modest(key.peak()),
            ClientKind::Crawler | ClientKind::Refused | ClientKind::Unclear => false,
        };
        is_spared || self.signed_in(key)
    }
}

/// A key is compared with others that ask for at least this many pages.
const PAGES: u64 = 30;
/// A key of unknown looks that peaks less than this many times as high as any key of the crowd may be an ordinary
/// client, and is not cut.
const BURST: u64 = 5;
/// A program that peaks at this many times the peak of nine keys in ten is cut like any other key. So is a job on a
/// timer whose average reaches that.
const MACHINE: u64 = 10;

/// The clear gap with the highest score over all rates.
pub(super) fn edge(needs: &Needs, spare: Spare<'_>) -> Option<Edge> {
    let edges = (0..needs.counts.len()).flat_map(|rate| edges_at(needs, spare, rate));
    edges.reduce(|best, edge| if edge.score > best.score { edge } else { best })
}

/// The rate at which a limit that spares all other keys denies most of what crawlers and guessers ask for. No gap is
/// needed: what they are shows in their requests. `gone` are keys that are cut anyway.
pub(super) fn culprits(needs: &Needs, known: &Known, gone: &HashSet<u64>) -> Option<Edge> {
    let key = |place: usize| &needs.remembered()[place];
    let is_meant = |place: &usize| known.culprits.contains(&key(*place).hash);
    let at = |rate: usize| {
        let burst = |place: usize| needs.burst(key(place), rate);
        let falling = needs.falling(rate);
        let mut others =
            falling.iter().filter(|place| !is_meant(place) && !gone.contains(&key(**place).hash));
        let below = others.next().map_or(0, |place| burst(*place)).max(needs.floor);
        let above: Vec<usize> =
            falling.iter().copied().filter(|place| is_meant(place) && burst(*place) > below).collect();
        let denied: u64 = above.iter().map(|place| burst(*place) - below).sum();
        let denied_share = denied as f64 / needs.units.max(1) as f64;
        let is_seen = is_seen(needs.comes_back_in(below, rate), needs.span());
        (is_seen && !above.is_empty()).then_some(Edge { rate, above, denied_share, score: denied_share })
    };
    let edges = (0..needs.counts.len()).filter_map(at);
    edges.reduce(|best, edge| if edge.score > best.score { edge } else { best })
}

/// Returns the positions of the keys above the clear gaps of all rates, in the order of the gaps.
pub(super) fn standing_out(needs: &Needs) -> Vec<usize> {
    let mut seen = HashSet::new();
    let rates = 0..needs.counts.len();
    let above = rates.flat_map(|rate| edges_at(needs, Spare::Nobody, rate)).flat_map(|edge| edge.above);
    above.filter(|place| seen.insert(*place)).collect()
}

/// The clear gaps at one rate.
fn edges_at(needs: &Needs, spare: Spare<'_>, rate: usize) -> Vec<Edge> {
    let keys = needs.keys().about();
    let key = |place: usize| &needs.remembered()[place];
    let burst = |place: usize| needs.burst(key(place), rate);
    let is_spared = |place: usize| match spare {
        Spare::Nobody => false,
        Spare::SignedIn(known) => known.signed_in(key(place)),
        Spare::Ordinary(known) => known.spares(key(place)),
    };
    let (spared, falling): (Vec<usize>, Vec<usize>) =
        needs.falling(rate).into_iter().partition(|place| is_spared(*place));
    let bursts: Vec<u64> = falling.iter().map(|place| burst(*place)).collect();
    let known_need = spared.first().map_or(0, |place| burst(*place));
    let doubled = needs.counts.iter().position(|count| *count == 2 * needs.counts[rate]);
    let mut edges = Vec::new();
    for gap in clear_gaps(&bursts, keys, needs.scale) {
        let (above, crowd) = falling.split_at(gap.above);
        let mut below = burst(crowd[0]).max(known_need);
        let mut above = above.to_vec();
        if let Spare::Ordinary(known) = spare {
            let peak = crowd.iter().map(|place| key(*place).peak()).max().unwrap_or(0).saturating_mul(BURST);
            let may_be_anybody =
                |place: usize| !known.looks(key(place)).is_culprit() && key(place).peak() < peak;
            let spared = above.iter().filter(|place| may_be_anybody(**place));
            below = spared.map(|place| burst(*place)).fold(below, u64::max);
            above.retain(|place| burst(*place) > below);
        }
        // Between the paces of two keys, a rate makes one need little burst and the other much. So a key is only cut if
        // it also needs more than twice the burst at twice the rate.
        while let Some(milder) = doubled
            .and_then(|rate| above.iter().rposition(|place| needs.burst(key(*place), rate) <= 2 * below))
        {
            below = below.max(burst(above[milder]));
            // Those that need most come first.
            above.truncate(above.partition_point(|place| burst(*place) > below));
        }
        let Some(mildest) = above.last().map(|place| burst(*place)) else { continue };
        if mildest < below.saturating_mul(2) || !is_seen(needs.comes_back_in(below, rate), needs.span()) {
            continue;
        }
        let denied: u64 = above.iter().map(|place| burst(*place) - below).sum();
        let denied_share = denied as f64 / needs.units.max(1) as f64;
        let score = denied_share - above.len() as f64 / keys.max(1) as f64;
        edges.push(Edge { rate, above, denied_share, score });
    }
    edges
}

impl Edge {
    pub(super) fn cut(&self, needs: &Needs, purpose: Purpose) -> Cut {
        self.first(needs, purpose, self.above.len())
    }

    fn first(&self, needs: &Needs, purpose: Purpose, count: usize) -> Cut {
        let hash = |place: &usize| needs.remembered()[*place].hash;
        Cut { purpose, hit: self.above[..count].iter().map(hash).collect() }
    }

    /// Spares the milder of the keys above: it ends at the widest gap among them, if that is a factor of two wide.
    pub(super) fn lenient(&self, needs: &Needs) -> Option<Cut> {
        let burst = |place: usize| needs.burst(&needs.remembered()[place], self.rate) as f64;
        let factors = self.above.windows(2).enumerate();
        let factors = factors.map(|(at, pair)| (at + 1, burst(pair[0]) / burst(pair[1]).max(1.0)));
        let (count, factor) = factors.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        (factor >= 2.0).then(|| self.first(needs, Purpose::Lenient, count))
    }

    /// Returns the cut at the next edge below: the strongest gap, clear or not, that hits a few more keys.
    pub(super) fn stricter(&self, needs: &Needs) -> Option<Cut> {
        let falling = needs.falling(self.rate);
        let burst = |place: &usize| needs.burst(&needs.remembered()[*place], self.rate);
        let bursts: Vec<u64> = falling.iter().map(burst).collect();
        let keys = needs.keys().about();
        let reach = self.above.len() * 3 + (keys / 50) as usize;
        let is_below = |above: usize, _: f64| (self.above.len() + 1..=reach).contains(&above);
        let below = gaps(&bursts, keys, needs.scale, is_below).into_iter();
        let next = below.max_by(|a, b| a.strength.total_cmp(&b.strength))?;
        let hash = |place: &usize| needs.remembered()[*place].hash;
        let hit = falling[..next.above].iter().map(hash).collect();
        Some(Cut { purpose: Purpose::Stricter, hit })
    }
}

/// Returns the cut that hits `count` keys, at the rate where sparing the others takes the smallest grant.
pub(super) fn most_demanding(needs: &Needs, purpose: Purpose, count: usize) -> Option<Cut> {
    let first = |rate: usize| -> HashSet<u64> {
        needs.falling(rate).into_iter().take(count).map(|place| needs.remembered()[place].hash).collect()
    };
    let rates = 0..needs.counts.len();
    let points: Vec<_> = rates.map(|rate| limits::point(needs, &first(rate), rate)).collect();
    let rate =
        limits::knee(&points.iter().map(|point| limits::Point { denied: 0, ..*point }).collect::<Vec<_>>())?;
    Some(Cut { purpose, hit: first(rate) })
}

/// Says whether there are enough keys for a crowd.
pub(super) fn is_crowd(needs: &Needs) -> bool {
    needs.keys().about() > CROWD as u64
}
