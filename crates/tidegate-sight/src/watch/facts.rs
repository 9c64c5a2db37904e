//! What alerts are judged by: of each second the policies that refuse more than is usual, of each minute the keys, and of
//! each ten seconds those that pass often.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use tidegate_server::{OpenBreaker, Seen, Verdict, Vitals};

use super::live;
use super::{Judged, State, Watch};
use crate::alerts::{Before, CUT_SLICES, Key, SLICE, Second, Slice, UnusualPolicy, refused_by};
use crate::board::mixed;
use crate::busiest::KeyMinute;

/// Keys of a policy, of each order, whose last minute is judged.
const KEYS_JUDGED: usize = 64;

/// A minute that was shorter or longer, in seconds, is not judged: the first of a process, and after a step of the clock.
const JUDGED_MINUTE: RangeInclusive<u64> = 45..=120;

impl Watch {
    /// Judges the second that has ended, and the minute if it has ended with it.
    pub(super) fn judge_alerts(&self, now: u64, vitals: &Vitals, breakers: Vec<OpenBreaker>, dropped: u64) {
        let (unusual, wanted) = {
            let mut state = self.state.lock();
            let ended = state.busiest.last_minute().filter(|(_, to)| *to == now);
            let wanted = ended.map_or_else(Vec::new, |_| state.end_minute_of_regulars());
            if let Some((from, to)) =
                ended.filter(|(from, to)| JUDGED_MINUTE.contains(&to.saturating_sub(*from)))
            {
                let keys = state.keys_of_minute((to - from) as f64);
                let regulars = &state.regulars;
                self.alerts.minute(from, &keys, &|policy, key| regulars.before(policy, key));
            }
            if state.regulars.is_slice_over(now) {
                let keys = state.end_slice_of_regulars();
                let regulars = &state.regulars;
                self.alerts.slice(now, &keys, &|policy, key| regulars.before(policy, key));
            }
            (state.unusual_policies(), wanted)
        };
        for (policy, key) in wanted {
            self.feed.want(policy, key);
        }
        self.alerts.second(&Second {
            now,
            unusual,
            breakers,
            rolled_back: self.canaries.rolled_back(),
            store: vitals.store,
            store_away: vitals.store_away.as_deref(),
            refused: vitals.refused.as_deref(),
            dropped,
        });
    }
}

impl State {
    /// Ends the minute of the keys that pass often. Returns those whose names are wanted.
    pub(super) fn end_minute_of_regulars(&mut self) -> Vec<(u16, u64)> {
        let busiest = &self.busiest;
        self.regulars.end_minute(|policy, key| busiest.name_of(policy, key).map(|named| named.digest))
    }

    /// Ends a slice of the keys that pass often. Returns those that are refused for long.
    fn end_slice_of_regulars(&mut self) -> Vec<Key> {
        let refused = self.regulars.end_slice();
        let key = |(policy, key, all): (u16, u64, Slice)| {
            let digest = self.regulars.get(policy, key).and_then(|regular| regular.digest.as_deref());
            Some(Key {
                policy,
                key,
                name: self.board.name_of(policy)?,
                shown: self.shown(policy, key, digest),
                refused: f64::from(all.refused),
                passed: f64::from(all.passed),
                per_second: 0.0,
                rate: None,
            })
        };
        refused.into_iter().filter_map(key).collect()
    }

    /// Returns what stands for a key: its digest, if that is known.
    fn shown(&self, policy: u16, key: u64, digest: Option<&str>) -> String {
        digest.map_or_else(
            || live::shown_key(self.busiest.name_of(policy, key).as_ref(), key, false),
            str::to_owned,
        )
    }

    /// Returns what keys did in the minute that has just ended, which took so many seconds.
    fn keys_of_minute(&self, seconds: f64) -> Vec<Key> {
        let mut minutes = self.busiest.keys_of_last_minute(KEYS_JUDGED);
        let listed: HashSet<(u16, u64)> = minutes.iter().map(|one| (one.policy, one.key)).collect();
        // Others may be refused so often that a key that passes often is on no list.
        let refused = self.regulars.refused().filter(|of| !listed.contains(of));
        minutes.extend(refused.map(|(policy, key)| KeyMinute { policy, key, refused: 0.0, admitted: 0.0 }));
        let key = |minute: KeyMinute| {
            let KeyMinute { policy, key, refused, admitted } = minute;
            let regular = self.regulars.get(policy, key);
            // A pass takes a unit at least.
            let (refused, passed) = regular.map_or((refused, admitted), Regular::last_minute);
            Some(Key {
                policy,
                key,
                name: self.board.name_of(policy)?,
                shown: self.shown(policy, key, regular.and_then(|regular| regular.digest.as_deref())),
                refused,
                passed,
                per_second: admitted / seconds,
                rate: self.board.per_second(policy),
            })
        };
        minutes.into_iter().filter_map(key).collect()
    }

    /// Returns the policies that refuse more than is usual now.
    fn unusual_policies(&self) -> Vec<UnusualPolicy> {
        if self.judged.values().all(|judged| judged.above_since.is_none()) {
            return Vec::new();
        }
        let minute = self.recent.minute();
        let unusual = |(policy, judged): (&Option<u16>, &Judged)| {
            let (policy, since) = ((*policy)?, judged.above_since?);
            let share = minute.policies.get(&policy)?.refused().share()?;
            let usual = judged.usual.as_ref()?.high;
            Some(UnusualPolicy { name: self.board.name_of(policy)?, since, share, usual })
        };
        self.judged.iter().filter_map(unusual).collect()
    }
}

/// Keys that have a place in a set, and sets.
const WAYS: usize = 8;
const SETS: usize = 512;

/// Quarters of an hour that are kept: a day.
const QUARTERS: usize = 96;
const QUARTER: u64 = 15;

/// The passes from which on the name of a key is wanted: half of those of a customer, so that it is known in time.
const NAMED_FROM: u32 = 500;

/// The names that are asked for at the end of a minute.
const WANTED: usize = 256;

/// Keys that pass often, and what they did, exactly: of these the lists of the busiest keys know less, the more other keys
/// there are, and callers choose keys.
///
/// A table of 512 sets of eight keys. A key that passes and has no place wears out the weakest of its set, which loses one
/// of its `n` passes with a chance of 1 in `1 + n²`, and its place with the last. So a key that has passed some hundred
/// times in a day keeps its place in any flood, and those who came to stay find one.
///
/// Takes 2.5 MB from the first pass on, and some tens of nanoseconds for an event.
///
/// # Source
/// Yang, Gong, Zhang, Zou, Shi, Li: HeavyGuardian: Separate and guard hot items in data streams, 2018.
#[derive(Debug, Default)]
pub(super) struct Regulars {
    /// By set.
    places: Vec<[Place; WAYS]>,
    /// By set and place.
    regulars: Vec<Regular>,
    /// Minutes that have ended.
    minutes: u64,
    /// The time of the slice, counted in slices from 1970.
    slice: u64,
    /// Passes of keys without a place.
    tries: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    policy: u16,
    key: u64,
    /// Passes in a day, less those that were worn out. 0: it is free.
    hold: u32,
}

/// What a key that passes often did.
#[derive(Clone, Debug)]
pub(super) struct Regular {
    /// Passes, by quarter of an hour; the current one is the first.
    passed: [u32; QUARTERS],
    /// Whether it was refused, by quarter of an hour; the current one is the lowest bit.
    refused: u128,
    /// Refusals and passes of the current minute, and of the one that ended last.
    minute: (u32, u32),
    last: (u32, u32),
    /// By slice; the current one is the first.
    slices: [Slice; CUT_SLICES],
    /// Stands for its name.
    digest: Option<Arc<str>>,
}

impl Default for Regular {
    fn default() -> Self {
        Self {
            passed: [0; QUARTERS],
            refused: 0,
            minute: (0, 0),
            last: (0, 0),
            slices: [Slice::default(); CUT_SLICES],
            digest: None,
        }
    }
}

impl Regular {
    /// Returns what it did in the last 24 hours, but for the last 15 to 30 minutes.
    fn before(&self) -> Before {
        let passed: f64 = self.passed.iter().skip(2).map(|passes| f64::from(*passes)).sum();
        Before { passed, refused: if self.refused >> 2 == 0 { 0.0 } else { 1.0 } }
    }

    /// Returns the refusals and the passes of the minute that ended last.
    fn last_minute(&self) -> (f64, f64) {
        (f64::from(self.last.0), f64::from(self.last.1))
    }

    fn end_minute(&mut self) {
        let (refused, passed) = self.minute;
        self.passed[0] = self.passed[0].saturating_add(passed);
        self.refused |= u128::from(refused > 0);
        (self.last, self.minute) = (self.minute, (0, 0));
    }

    /// Begins a quarter of an hour. Returns the passes of the one of a day ago.
    fn turn(&mut self) -> u32 {
        let gone = self.passed[QUARTERS - 1];
        self.passed.rotate_right(1);
        self.passed[0] = 0;
        self.refused = (self.refused << 1) & ((1 << QUARTERS) - 1);
        gone
    }
}

impl Regulars {
    /// Counts an event.
    pub(super) fn note(&mut self, seen: &Seen) {
        let passes = match seen.verdict {
            // What another policy refused takes nothing here.
            Verdict::Allowed | Verdict::Delayed | Verdict::Over => seen.cost > 0,
            _ => false,
        };
        if !passes && seen.verdict != Verdict::Denied {
            return;
        }
        self.add(seen.policy, seen.key, passes, 1);
    }

    /// Counts passes or refusals of a key.
    pub(super) fn add(&mut self, policy: u16, key: u64, passes: bool, count: u32) {
        let Some((set, place)) = self.find_place(policy, key, passes) else { return };
        let regular = &mut self.regulars[set * WAYS + place];
        let slice = &mut regular.slices[0];
        let (of_minute, of_slice) = if passes {
            let hold = &mut self.places[set][place].hold;
            *hold = hold.saturating_add(count);
            (&mut regular.minute.1, &mut slice.passed)
        } else {
            (&mut regular.minute.0, &mut slice.refused)
        };
        *of_minute = of_minute.saturating_add(count);
        *of_slice = of_slice.saturating_add(count);
    }

    /// Returns the set of a key, and its place there, which it takes if it passes and can.
    fn find_place(&mut self, policy: u16, key: u64, passes: bool) -> Option<(usize, usize)> {
        let (set, hash) = set_of(policy, key);
        let known = self.place_of(policy, key);
        let place = known.or_else(|| if passes { self.take_place(set, hash, policy, key) } else { None });
        Some((set, place?))
    }

    /// Returns the place of a key in its set.
    fn place_of(&self, policy: u16, key: u64) -> Option<usize> {
        let places = self.places.get(set_of(policy, key).0)?;
        places.iter().position(|place| place.hold > 0 && (place.policy, place.key) == (policy, key))
    }

    /// Wears out the weakest key of a set, and takes its place if it has one no longer.
    fn take_place(&mut self, set: usize, hash: u64, policy: u16, key: u64) -> Option<usize> {
        if self.places.is_empty() {
            self.places = vec![Default::default(); SETS];
            self.regulars = vec![Regular::default(); SETS * WAYS];
        }
        let (at, place) = self.places[set].iter_mut().enumerate().min_by_key(|(_, place)| place.hold)?;
        if place.hold > 0 {
            let hold = u64::from(place.hold);
            self.tries = self.tries.wrapping_add(1);
            if mixed(self.tries ^ hash).is_multiple_of(hold * hold + 1) {
                place.hold -= 1;
            }
            if place.hold > 0 {
                return None;
            }
        }
        *place = Place { policy, key, hold: 0 };
        self.regulars[set * WAYS + at] = Regular::default();
        Some(at)
    }

    /// Returns what a key did before the last minutes; nothing, if that is not known.
    fn before(&self, policy: u16, key: u64) -> Before {
        self.get(policy, key).map_or_else(Before::default, Regular::before)
    }

    /// Returns whether `now`, in seconds since 1970, is in another slice than the last one that was asked for.
    fn is_slice_over(&mut self, now: u64) -> bool {
        let before = std::mem::replace(&mut self.slice, now / SLICE);
        before != self.slice
    }

    /// Ends a slice. Returns the keys that are refused for long, and what they were refused and passed since.
    fn end_slice(&mut self) -> Vec<(u16, u64, Slice)> {
        let mut refused = Vec::new();
        for (place, regular) in self.places.iter().flatten().zip(&mut self.regulars) {
            if place.hold == 0 {
                continue;
            }
            refused.extend(refused_by(&regular.slices).map(|all| (place.policy, place.key, all)));
            regular.slices.rotate_right(1);
            regular.slices[0] = Slice::default();
        }
        refused
    }

    pub(super) fn get(&self, policy: u16, key: u64) -> Option<&Regular> {
        Some(&self.regulars[set_of(policy, key).0 * WAYS + self.place_of(policy, key)?])
    }

    /// Returns the keys that were refused in the minute that ended last.
    fn refused(&self) -> impl Iterator<Item = (u16, u64)> {
        let all = self.places.iter().flatten().zip(&self.regulars);
        all.filter(|(place, regular)| place.hold > 0 && regular.last.0 > 0)
            .map(|(place, _)| (place.policy, place.key))
    }

    /// Ends the minute, and each quarter of an hour too. `digest_of` tells what stands for a name, if that is known. Returns
    /// keys whose names are wanted.
    fn end_minute(&mut self, digest_of: impl Fn(u16, u64) -> Option<Arc<str>>) -> Vec<(u16, u64)> {
        self.minutes += 1;
        // Counted, so that no step of a clock makes it shorter.
        let is_quarter = self.minutes.is_multiple_of(QUARTER);
        let mut wanted = Vec::new();
        for (place, regular) in self.places.iter_mut().flatten().zip(&mut self.regulars) {
            if place.hold == 0 {
                continue;
            }
            regular.end_minute();
            if regular.digest.is_none() && (place.hold >= NAMED_FROM || regular.last.0 > 0) {
                regular.digest = digest_of(place.policy, place.key);
                if regular.digest.is_none() && wanted.len() < WANTED {
                    wanted.push((place.policy, place.key));
                }
            }
            if is_quarter {
                place.hold = place.hold.saturating_sub(regular.turn());
            }
        }
        wanted
    }
}

/// Returns the set of a key, and its hash.
fn set_of(policy: u16, key: u64) -> (usize, u64) {
    // The same key under two policies is two keys.
    let hash = mixed(key ^ u64::from(policy).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (hash as usize % SETS, hash)
}

#[cfg(test)]
mod tests {
    use tidegate::Tick;

    use super::*;

    fn note(regulars: &mut Regulars, verdict: Verdict, key: u64, cost: u32) {
        regulars.note(&Seen { policy: 1, verdict, near: false, canary: false, key, cost, at: Tick::EPOCH });
    }

    fn minute(regulars: &mut Regulars) -> Vec<(u16, u64)> {
        regulars.end_minute(|_, key| (key == 7).then(|| "#7".into()))
    }

    #[test]
    fn passes_are_counted_for_a_day_and_a_refusal_is_remembered_as_long() {
        let mut regulars = Regulars::default();
        note(&mut regulars, Verdict::Denied, 7, 1);
        note(&mut regulars, Verdict::Allowed, 7, 0);
        assert!(regulars.places.is_empty(), "who never passed is no regular");
        for at in 0..600 {
            note(&mut regulars, Verdict::Allowed, 7, 5);
            if at < 4 {
                note(&mut regulars, Verdict::Denied, 7, 1);
            }
        }
        note(&mut regulars, Verdict::Delayed, 8, 1);
        note(&mut regulars, Verdict::WouldDeny, 8, 1);
        assert!(minute(&mut regulars).is_empty());
        assert_eq!(regulars.get(1, 7).unwrap().last_minute(), (4.0, 600.0), "passes, not units");
        assert_eq!(regulars.get(1, 7).unwrap().digest.as_deref(), Some("#7"));
        assert_eq!(regulars.refused().collect::<Vec<_>>(), [(1, 7)]);
        assert!(regulars.get(2, 7).is_none());
        let before = |regulars: &Regulars| {
            regulars.get(1, 7).map(|regular| (regular.before().passed, regular.before().refused))
        };
        let minutes = |regulars: &mut Regulars, count: u64| (0..count).for_each(|_| _ = minute(regulars));
        minutes(&mut regulars, 28);
        assert_eq!(before(&regulars), Some((0.0, 0.0)), "that is the last half an hour");
        assert_eq!(regulars.refused().count(), 0);
        minutes(&mut regulars, 1);
        assert_eq!(before(&regulars), Some((600.0, 1.0)));
        minutes(&mut regulars, 94 * 15 - 1);
        assert_eq!(before(&regulars), Some((600.0, 1.0)));
        minutes(&mut regulars, 1);
        assert_eq!(before(&regulars), None, "after a day it is gone");
    }

    #[test]
    fn what_is_refused_for_long_is_known_each_ten_seconds() {
        let mut regulars = Regulars::default();
        (0..50).for_each(|_| note(&mut regulars, Verdict::Allowed, 7, 1));
        assert!(regulars.is_slice_over(1_800_000_003));
        assert!(!regulars.is_slice_over(1_800_000_009) && regulars.is_slice_over(1_800_000_010));
        assert!(regulars.end_slice().is_empty());
        for number in 0..12 {
            note(&mut regulars, Verdict::Denied, 7, 1);
            note(&mut regulars, Verdict::Denied, 8, 1);
            let all = regulars.end_slice();
            let slice = |refused: u32| (1, 7, Slice { refused, passed: 0 });
            assert_eq!(all, (number >= 9).then(|| slice(number + 1)).into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_flood_of_keys_that_pass_takes_no_place_of_a_customer() {
        let mut regulars = Regulars::default();
        for key in 0..1_000 {
            (0..300).for_each(|_| note(&mut regulars, Verdict::Allowed, key, 1));
        }
        (0..500_000_u64).for_each(|key| note(&mut regulars, Verdict::Allowed, 1_000_000 + key, 1));
        let kept = (0..1_000).filter(|key| regulars.get(1, *key).is_some()).count();
        // More than eight of them may share a set.
        assert!(kept >= 990, "{kept}");
        for _ in 0..3_000 {
            note(&mut regulars, Verdict::Allowed, 2_000, 1);
        }
        assert!(
            regulars.get(1, 2_000).is_some_and(|new| new.minute.1 > 2_000),
            "who comes to stay has a place"
        );
        let wanted = minute(&mut regulars);
        assert_eq!(wanted, [(1, 2_000)], "the others have not passed so often");
    }
}
