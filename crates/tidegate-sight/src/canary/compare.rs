//! Compares the keys of a canary with the other keys of its policy, at the same time.
//!
//! Whether a key is in the canary is chance, so under a canary that changes nothing any difference of the two groups is
//! chance too. But keys differ much: one that is often refused is in the canary or not, and no count of requests makes up
//! for it. So each request is also decided by the policy's own limit, by the arithmetic that enforces it ([`OldLimit`]), and
//! what is compared is how many more were refused than that limit would have. For a canary that changes nothing this is 0,
//! whatever its keys are; for one that refuses more, each further refusal counts, and little else does.
//!
//! The arithmetic does not know everything: what keys had spent before, what other nodes let pass, what was settled. So
//! it is proven by the other keys, which that limit decides. If all of them came out as they were decided, it *fits*, and
//! what it says of the canary's keys is a fact. If not, or where the limit cannot be followed, the difference of the groups
//! has to be more than chance as well:
//!
//! * *Shares.* Given how often each key was refused, each is in the canary with the same odds. Chernoff's bound says how
//!   probable a difference as large as this one is then; it needs no distribution, and one key, however busy, is evidence of
//!   at most the logarithm of the odds. The bound is asked for at moments that are a tenth further apart each time, 128 in
//!   three weeks, of which each has a 128th of [`ERROR`].
//! * *Keys.* Of keys that are refused for the first time, each is in the canary with the same odds. What a predictor gains
//!   over these odds (Krichevsky and Trofimov) exceeds 1 / [`ERROR`] with that probability at most, over all times.
//!
//! Three comparisons (refusals, keys, failures) make less than one error in a hundred canaries.
//!
//! A key counts by its share of refusals, weighted by its requests, but by no more than a tenth of what the canary is
//! expected to have; and a difference must remain when the canary key that adds most to it is left out. So one key that
//! floods decides nothing.
//!
//! # Source
//! Chernoff: A measure of asymptotic efficiency for tests of a hypothesis based on the sum of observations, 1952.
//! Krichevsky, Trofimov: The performance of universal encoding, 1981; as a sequential test: Robbins, Statistical methods
//! related to the law of the iterated logarithm, 1970.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use tidegate_core::{Cost, State};
use tidegate_server::{Canary, Seen, Verdict};

use super::old_limit::OldLimit;
use crate::feed::Ended;
use crate::traffic::level_of;

/// Keys of the canary, and as many others, that are kept. Beyond, every second one goes, by its fingerprint.
const MOST_KEYS: usize = 2_048;

/// The probability with which one comparison is wrong about a canary that changes nothing.
const ERROR: f64 = 0.003;

/// How often shares are asked for.
const LOOKS: f64 = 128.0;

/// The largest part of the canary's weight that one key may be.
const MOST_OF_A_KEY: f64 = 0.1;

/// The fewest refusals beyond what is allowed that say anything.
const LEAST_MORE: f64 = 5.0;

/// By how many deviations of what is allowed there must be more than that.
const DEVIATIONS: f64 = 1.0;

/// The fewest requests of other keys by which the arithmetic is proven.
const PROVEN_BY: u64 = 100;

/// The fewest other keys whose shares are compared.
const LEAST_OTHERS: u64 = 10;

/// What a limit may be put in force for all keys by: so many requests of so many keys, of the canary and of the others.
const ENOUGH_REQUESTS: u64 = 1_000;
const ENOUGH_KEYS: u64 = 5;

/// The places of the two groups in pairs.
const OTHERS: usize = 0;
const CANARY: usize = 1;

/// The keys of a policy with a canary. Takes at most 4,096 keys with a state each.
#[derive(Debug)]
pub(super) struct Comparison {
    old: Option<OldLimit>,
    keys: HashMap<u64, Key, RandomState>,
    groups: [Group; 2],
    /// The share of all keys that are in the canary.
    share: f64,
    /// Whether requests count. Before, only the states of keys are followed.
    counts: bool,
    /// By how much, in nats, keys that were refused are told better by their own past than by the odds.
    gain: f64,
}

/// The keys with the canary's limit, or those without.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    /// One of so many keys is kept, as a power of two.
    level: u8,
    keys: usize,
    /// Those that were refused once at least, among the keys that are kept, and in all.
    refused: u64,
    ever_refused: u64,
}

#[derive(Debug)]
struct Key {
    /// What the policy's own limit would have of it.
    state: Option<State>,
    canary: bool,
    was_refused: bool,
    requests: u32,
    denied: u32,
    /// Refused, less what the policy's own limit would have refused.
    newly: i32,
    ended: u32,
    failed: u32,
}

impl Key {
    fn new(canary: bool) -> Self {
        Self {
            state: None,
            canary,
            was_refused: false,
            requests: 0,
            denied: 0,
            newly: 0,
            ended: 0,
            failed: 0,
        }
    }

    /// Forgets what was counted, and keeps the state.
    fn restart(&mut self, canary: bool) {
        *self = Self { state: self.state.take(), ..Self::new(canary) };
    }

    /// Returns of how many, and how many.
    fn of(&self, part: Part) -> (u32, f64) {
        match part {
            Part::Denied => (self.requests, f64::from(self.denied)),
            Part::Newly => (self.requests, f64::from(self.newly)),
            Part::Failed => (self.ended, f64::from(self.failed)),
        }
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Denied,
    Newly,
    Failed,
}

/// Shares per key, of the others and of the canary.
#[derive(Clone, Copy, Debug)]
struct Shares {
    of: [f64; 2],
    /// Of all keys together.
    mean: f64,
    /// The largest weight of a key.
    cap: f64,
    keys: [u64; 2],
    /// By how much the canary has more, in requests, and the weight of its keys; both without the key that adds most.
    more: f64,
    weight: f64,
}

impl Shares {
    /// Returns whether the canary has more than the others by more than is allowed.
    fn exceeds(&self, allowed: f64) -> bool {
        let allowed = allowed * self.weight;
        self.more >= LEAST_MORE && self.more >= allowed + DEVIATIONS * allowed.sqrt()
    }

    const fn difference(&self) -> f64 {
        self.of[CANARY] - self.of[OTHERS]
    }
}

/// What is known of a canary and of the other keys; pairs are in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) requests: [u64; 2],
    /// Keys that are kept, and the share of all that they are.
    pub(super) keys: [u64; 2],
    pub(super) share_of_keys: [f64; 2],
    /// Of the requests, per key; `None`: there were none.
    pub(super) denied: Option<[f64; 2]>,
    pub(super) failures: Option<[f64; 2]>,
    /// The canary's keys that were refused beyond what its policy would have refused, or beyond what is usual of others.
    pub(super) keys_refused: u64,
    /// Whether the policy's own limit is followed.
    pub(super) by_old_limit: bool,
    /// Whether there was enough to put a limit in force for all keys by, and whether nothing speaks against that.
    pub(super) is_enough: bool,
    pub(super) held: bool,
}

impl Comparison {
    /// Begins to compare: `old` is the limit of the policy, if it can be followed.
    pub(super) fn new(old: Option<OldLimit>, share: f64) -> Self {
        Self { old, keys: HashMap::default(), groups: [Group::default(); 2], share, counts: false, gain: 0.0 }
    }

    pub(super) const fn old_limit(&self) -> Option<&OldLimit> {
        self.old.as_ref()
    }

    /// Begins anew with another share of keys: others are in the canary now. What each has spent is kept.
    pub(super) fn restart(&mut self, share: f64) {
        (self.share, self.gain, self.counts) = (share, 0.0, false);
        for key in self.keys.values_mut() {
            let canary = key.canary;
            key.restart(canary);
        }
        for group in &mut self.groups {
            (group.refused, group.ever_refused) = (0, 0);
        }
    }

    /// Begins to count requests. Before, a key may have spent what nobody knows of.
    pub(super) const fn count(&mut self) {
        self.counts = true;
    }

    /// Follows a decision. Requests must come in the order of their times, for each key.
    pub(super) fn note(&mut self, seen: &Seen) {
        let denied = match seen.verdict {
            Verdict::Denied | Verdict::Over => true,
            Verdict::Allowed | Verdict::Delayed => false,
            Verdict::Error | Verdict::WouldDeny | Verdict::WouldAllow => return,
        };
        // Others than the limit have refused the rest.
        let Some(cost) = Cost::new(u64::from(seen.cost)) else { return };
        let group = usize::from(seen.canary);
        if level_of(seen.key) < self.groups[group].level {
            return;
        }
        let odds = self.odds();
        let Self { old, keys, groups, counts, gain, .. } = self;
        let key = keys.entry(seen.key).or_insert_with(|| {
            groups[group].keys += 1;
            Key::new(seen.canary)
        });
        if key.canary != seen.canary {
            let before = &mut groups[usize::from(key.canary)];
            before.keys -= 1;
            before.refused -= u64::from(key.was_refused);
            groups[group].keys += 1;
            key.restart(seen.canary);
        }
        let by_old = old.as_ref().is_some_and(|old| old.refuses(&mut key.state, seen.at, cost));
        if *counts {
            key.requests = key.requests.saturating_add(1);
            key.denied = key.denied.saturating_add(u32::from(denied));
            key.newly = key.newly.saturating_add(i32::from(denied) - i32::from(by_old));
            if key.newly > 0 && !key.was_refused {
                key.was_refused = true;
                groups[group].refused += 1;
                let all = (groups[OTHERS].ever_refused + groups[CANARY].ever_refused) as f64;
                let predicted = (groups[group].ever_refused as f64 + 0.5) / (all + 1.0);
                groups[group].ever_refused += 1;
                *gain += (predicted / if seen.canary { odds } else { 1.0 - odds }).ln();
            }
        }
        while self.groups[group].keys > MOST_KEYS {
            self.thin_out(group);
        }
    }

    /// Follows the end of a call. Those of keys that nothing else is known of do not count.
    pub(super) fn end(&mut self, ended: Ended) {
        if let Some(key) = self.keys.get_mut(&ended.key)
            && key.canary == ended.canary
            && self.counts
        {
            key.ended = key.ended.saturating_add(1);
            key.failed = key.failed.saturating_add(u32::from(ended.failed));
        }
    }

    /// Keeps half of the keys of a group.
    fn thin_out(&mut self, group: usize) {
        let level = self.groups[group].level + 1;
        self.keys.retain(|key, of| usize::from(of.canary) != group || level_of(*key) >= level);
        let kept = || self.keys.values().filter(|key| usize::from(key.canary) == group);
        let (keys, refused) = (kept().count(), kept().filter(|key| key.was_refused).count() as u64);
        self.groups[group] = Group { level, keys, refused, ..self.groups[group] };
    }

    /// Returns the probability with which a key that is kept is in the canary.
    fn odds(&self) -> f64 {
        let kept = |group: usize, share: f64| share / part_of(self.groups[group].level);
        let canary = kept(CANARY, self.share);
        (canary / (canary + kept(OTHERS, 1.0 - self.share))).clamp(1e-9, 1.0 - 1e-9)
    }

    /// Returns what is allowed and more than that, in words; `None`: nothing is. `looks`: whether shares may be judged by
    /// chance now.
    pub(super) fn breach(&self, allowed: &Canary, looks: bool) -> Option<String> {
        let newly = self.shares(Part::Newly);
        let fits = self.fits();
        let refused = self.keys_refused();
        if (fits || self.gain >= -ERROR.ln()) && refused > allowed.keys_refused as f64 {
            let noun = if refused > 1.0 { "keys" } else { "key" };
            return Some(format!("{refused:.0} {noun} refused > {}", allowed.keys_refused));
        }
        let is_more_than_chance = |part: Part, shares: &Shares| {
            looks
                && shares.keys[OTHERS] >= LEAST_OTHERS
                && self.evidence(part, shares) >= (LOOKS / ERROR).ln()
        };
        let in_words = |what: &str, shares: &Shares, allowed: f64| {
            format!("{:.1} % {what} > {:.1} %", 100.0 * shares.difference(), 100.0 * allowed)
        };
        if let Some(shares) = newly
            && shares.exceeds(allowed.denied)
            && (fits || is_more_than_chance(Part::Newly, &shares))
        {
            return Some(in_words("more of its requests refused", &shares, allowed.denied));
        }
        let failures = self.shares(Part::Failed)?;
        let is_breach = failures.exceeds(allowed.failures) && is_more_than_chance(Part::Failed, &failures);
        is_breach.then(|| in_words("more of its calls failed", &failures, allowed.failures))
    }

    /// Returns what pages show.
    pub(super) fn figures(&self, allowed: &Canary) -> Figures {
        let denied = self.shares(Part::Denied);
        let (newly, failures) = (self.shares(Part::Newly), self.shares(Part::Failed));
        // Each beside what the canary has: the order of people.
        let turned = |pair: [f64; 2]| [pair[CANARY], pair[OTHERS]];
        let mut figures = Figures {
            share_of_keys: [CANARY, OTHERS].map(|group| part_of(self.groups[group].level).recip()),
            denied: denied.map(|shares| turned(shares.of)),
            failures: failures.map(|shares| turned(shares.of)),
            keys_refused: self.keys_refused() as u64,
            by_old_limit: self.old.is_some(),
            ..Figures::default()
        };
        for key in self.keys.values().filter(|key| key.requests > 0) {
            let place = usize::from(!key.canary);
            figures.keys[place] += 1;
            figures.requests[place] = figures.requests[place].saturating_add(u64::from(key.requests));
        }
        figures.is_enough = figures.keys.iter().all(|keys| *keys >= ENOUGH_KEYS)
            && figures.requests.iter().all(|requests| *requests >= ENOUGH_REQUESTS);
        let is_within =
            |shares: Option<Shares>, allowed: f64| shares.is_none_or(|shares| shares.difference() <= allowed);
        figures.held = figures.is_enough
            && is_within(newly, allowed.denied)
            && is_within(failures, allowed.failures)
            && figures.keys_refused <= allowed.keys_refused;
        figures
    }

    /// Returns whether the policy's own limit would have decided about the other keys as it did.
    fn fits(&self) -> bool {
        let mut others = self.keys.values().filter(|key| !key.canary);
        let proven_by: u64 = others.clone().map(|key| u64::from(key.requests)).sum();
        self.old.is_some() && proven_by >= PROVEN_BY && others.all(|key| key.newly == 0)
    }

    /// Returns how many of the canary's keys were refused that its policy would not have refused, less the part that is as
    /// often so of other keys.
    fn keys_refused(&self) -> f64 {
        let [others, canary] = self.groups;
        let usual = canary.keys as f64 * others.refused as f64 / others.keys.max(1) as f64;
        ((canary.refused as f64 - usual) * part_of(canary.level)).max(0.0).floor()
    }

    /// Returns shares per key; `None`: one of the groups has nothing of it.
    fn shares(&self, part: Part) -> Option<Shares> {
        let counts = self.keys.values().map(|key| key.of(part).0).filter(|of| *of > 0);
        let cap = cap(&mut counts.collect::<Vec<_>>(), self.odds());
        let (mut sums, mut weights) = ([0.0; 2], [0.0; 2]);
        let mut keys = [0_u64; 2];
        for (key, weight, share) in self.weighted(part, cap) {
            let group = usize::from(key.canary);
            sums[group] += weight * share;
            weights[group] += weight;
            keys[group] += 1;
        }
        if keys.contains(&0) {
            return None;
        }
        let of = [sums[OTHERS] / weights[OTHERS], sums[CANARY] / weights[CANARY]];
        let of_canary = self.weighted(part, cap).filter(|(key, ..)| key.canary);
        let adds = of_canary.map(|(_, weight, share)| (weight * (share - of[OTHERS]), weight));
        let (most, its_weight) = adds.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or_default();
        Some(Shares {
            of,
            mean: (sums[OTHERS] + sums[CANARY]) / (weights[OTHERS] + weights[CANARY]),
            cap,
            keys,
            more: weights[CANARY] * (of[CANARY] - of[OTHERS]) - most,
            weight: weights[CANARY] - its_weight,
        })
    }

    /// Returns the keys that have something, with the weight and the share of each.
    fn weighted(&self, part: Part, cap: f64) -> impl Iterator<Item = (&Key, f64, f64)> {
        self.keys.values().filter_map(move |key| {
            let (of, count) = key.of(part);
            let of = f64::from(of);
            (of > 0.0).then(|| (key, of.min(cap), count / of))
        })
    }

    /// Returns by how much, in nats, a difference as large as this one is improbable, if each key is in the canary with the
    /// same odds whatever it did. Takes some milliseconds.
    fn evidence(&self, part: Part, shares: &Shares) -> f64 {
        let scores = self.weighted(part, shares.cap);
        let scores = scores.map(|(key, weight, share)| (weight * (share - shares.mean), key.canary));
        evidence(&scores.filter(|(score, _)| *score != 0.0).collect::<Vec<_>>(), self.odds())
    }
}

/// How many keys one that is kept stands for.
fn part_of(level: u8) -> f64 {
    2.0_f64.powi(i32::from(level))
}

/// Returns the largest weight of a key, for which no key has more than its part of what the canary is expected to have.
/// With fewer than twenty keys of the canary, it is two parts of as many as they are.
fn cap(counts: &mut [u32], odds: f64) -> f64 {
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let expected = odds * counts.len() as f64;
    let part = odds * MOST_OF_A_KEY.max(2.0 / expected).min(1.0);
    let mut rest: f64 = counts.iter().map(|count| f64::from(*count)).sum();
    for (heavier, count) in counts.iter().enumerate() {
        // If so many keys have the largest weight, it is this part of them and of the rest.
        let left = 1.0 - part * heavier as f64;
        if left <= 0.0 {
            break;
        }
        let cap = part * rest / left;
        if cap >= f64::from(*count) {
            return cap.max(1.0);
        }
        rest -= f64::from(*count);
    }
    1.0
}

/// Returns the logarithm of one over the largest probability, by Chernoff's bound, that the sum of the scores of those
/// chosen is at least what it is, if each is chosen with these odds.
fn evidence(scores: &[(f64, bool)], odds: f64) -> f64 {
    let largest = scores.iter().map(|(score, _)| score.abs()).fold(0.0, f64::max);
    let sum: f64 = scores.iter().filter(|(_, chosen)| *chosen).map(|(score, _)| score).sum();
    if largest <= 0.0 || sum <= 0.0 {
        return 0.0;
    }
    // Any of these gives a bound; the best of them is close to the best of all.
    let bound = |step: i32| {
        let scale = 2.0_f64.powf(f64::from(step) / 2.0) / largest;
        let expected = scores.iter().map(|(score, _)| (odds * (scale * score).exp_m1()).ln_1p());
        scale * sum - expected.sum::<f64>()
    };
    (-12..=12).map(bound).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests;
