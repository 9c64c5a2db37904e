//! Chooses the slot for a new key, and evicts a live key where no slot is free.
//!
//! First, the owner that loses a key is chosen. The owners (usually policies) have even shares of the eight slots: the
//! owner with the most slots loses one, counting the new key for its own owner. So a flood of one policy's keys evicts
//! keys of that policy, and each of `n` policies keeps `8/n` of the slots (rounded down) against all others. Where more
//! than eight policies meet in the same lines, each slot may have an owner of its own. Then no key that is over its
//! limit is evicted; if all are over their limit, the new key gets no slot and is decided without being kept.
//!
//! Then, of that owner's keys, the one nearest to full is evicted: the one with the smallest share of its limit spent,
//! and keys over their limit last.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_core::rate::GcraWord;
use tidegate_core::{Algorithm, Tick};

use super::cache_line::{Seized, WAYS};
use super::limit::{Class, Name};
use super::table::{Both, Sought, Table, TablePlace};
use super::word_path::Reading;
use crate::store::Cell;

/// The use of a place, from the point of view of a new key. `Free`: empty, or its limit is full again; `Taken`: seized
/// by another thread, or by this same step.
#[derive(Clone, Copy, Debug)]
enum SlotUse {
    Free,
    Live(Rank, u32),
    Taken,
}

/// How far a key is from full: whether it is over its limit, and the spent share of the limit, as a fraction of 2³².
/// The least is evicted first.
pub(super) type Rank = (bool, u64);

type Candidate = (TablePlace, u64);

#[derive(Clone, Copy, Debug)]
struct Live {
    owner: u32,
    rank: Rank,
    candidate: Candidate,
}

type Lives = SmallVec<[Live; 2 * WAYS]>;

#[derive(Clone, Copy, Debug, Default)]
struct Free {
    count: usize,
    empty: Option<Candidate>,
    forgettable: Option<Candidate>,
}

impl Free {
    fn add(&mut self, candidate: Candidate, empty: bool) {
        self.count += 1;
        *(if empty { &mut self.empty } else { &mut self.forgettable }) = Some(candidate);
    }
}

impl Table {
    /// Finds a slot for a new key and seizes it: an empty slot, a reusable one, or that of a live key, which is then
    /// counted as evicted.
    ///
    /// `by` is the limit that most keys in these lines are likely to be under. A key with a `rank` was exported before,
    /// and evicts no key that is as far from full as itself, or further. `None`, counted as an eviction too, when no
    /// key may be evicted for this one, or when all slots are seized, usually by this same step.
    pub(super) fn claim<'t>(
        &self,
        both: &Both<'t>,
        key: Sought,
        owner: u32,
        tick: Tick,
        by: Option<&Reading<'_>>,
        rank: Option<Rank>,
    ) -> Option<(TablePlace, Seized<'t>)> {
        loop {
            let (candidate, goes) = self.candidate(both, self.first(key.fingerprint()), owner, tick, by);
            if let Some(rank) = rank.filter(|rank| goes.is_some_and(|goes| goes >= *rank)) {
                self.count_eviction(rank.0);
                return None;
            }
            let Some((place, word)) = candidate else {
                self.count_eviction(false);
                return None;
            };
            // Fails if its key was used meanwhile; another key may be nearer to full by now.
            if let Some(seized) = both.at(place).try_seize(place.slot, word) {
                if let Some((over_limit, _)) = goes {
                    self.count_eviction(over_limit);
                }
                self.vacate(place, &seized);
                return Some((place, seized));
            }
        }
    }

    fn candidate(
        &self,
        both: &Both<'_>,
        first: usize,
        owner: u32,
        tick: Tick,
        by: Option<&Reading<'_>>,
    ) -> (Option<Candidate>, Option<Rank>) {
        let mut free = [Free::default(); 2];
        let mut lives = Lives::new();
        for (free, (line, held)) in free.iter_mut().zip(both.lines) {
            for slot in 0..WAYS {
                let place = TablePlace { line, slot };
                let Some(word) = held.word(slot) else { continue };
                match self.slot_use(held.name(slot), place, word, tick, by) {
                    SlotUse::Free => free.add((place, word), held.name(slot) == Name::EMPTY),
                    SlotUse::Live(rank, owner) => lives.push(Live { owner, rank, candidate: (place, word) }),
                    SlotUse::Taken => {}
                }
            }
        }
        // Prefers the first line while two or more slots are free there, and otherwise the emptier line.
        let [low, high] = if both.lines[0].0 == first { free } else { [free[1], free[0]] };
        let [one, other] =
            if low.count >= WAYS / 2 || low.count >= high.count { [low, high] } else { [high, low] };
        // Prefers empty slots to reusable ones: the state of a limit that is full again can still be worth a little,
        // such as that of a limit that starts cold.
        match one.empty.or(other.empty).or(one.forgettable).or(other.forgettable) {
            Some(candidate) => (Some(candidate), None),
            None => {
                let goes = who_goes(&lives, owner);
                (goes.map(|live| live.candidate), goes.map(|live| live.rank))
            }
        }
    }

    fn count_eviction(&self, over_limit: bool) {
        // Relaxed, both: statistics, with no ordering to other data.
        self.evicted.fetch_add(1, Ordering::Relaxed);
        self.evicted_over_limit.fetch_add(u64::from(over_limit), Ordering::Relaxed);
    }

    pub(super) fn vacate(&self, place: TablePlace, seized: &Seized<'_>) {
        let name = seized.name();
        if name == Name::EMPTY {
            self.used.fetch_add(1, Ordering::Relaxed);
        } else if name.class() == Class::WIDE {
            self.overflow.take(place.line, place.slot);
        }
    }

    fn slot_use(
        &self,
        name: Name,
        place: TablePlace,
        word: u64,
        tick: Tick,
        by: Option<&Reading<'_>>,
    ) -> SlotUse {
        if name == Name::EMPTY {
            return SlotUse::Free;
        }
        if let Some(by) = by.filter(|by| by.limit.class() == name.class()) {
            return SlotUse::of(&by.form, by.limit.owner(), word, by.now);
        }
        if name.class() == Class::WIDE {
            // The word of a wide state is the tick from which the state is equivalent to none.
            if word <= tick.as_nanos() {
                return SlotUse::Free;
            }
            let look = |cell: &Cell, owner| SlotUse::Live(rank(cell, tick), owner);
            // If the cell is missing, another step has seized the slot.
            return self.overflow.with(place.line, place.slot, look).unwrap_or(SlotUse::Taken);
        }
        let Some(limit) = self.classes.get(name.class()) else { return SlotUse::Taken };
        let form = limit.form();
        // A form whose numbers do not reach this far is read at its last moment; it is at least an hour old.
        let now = form.scaled(tick).or_else(|| form.scaled(form.origin().after(form.lasts())));
        now.map_or(SlotUse::Free, |now| SlotUse::of(&form, limit.owner(), word, now))
    }
}

pub(super) fn rank(cell: &Cell, tick: Tick) -> Rank {
    let standing = cell.quota.standing(&cell.state, tick);
    let spent = u128::from(standing.limit.saturating_sub(standing.remaining));
    // The cast is exact: the share is at most the whole, 2³².
    let share = ((spent << 32) / u128::from(standing.limit.max(1))) as u64;
    (standing.remaining == 0, share)
}

impl SlotUse {
    fn of(form: &GcraWord, owner: u32, word: u64, now: u64) -> Self {
        if form.is_full(word, now) {
            return Self::Free;
        }
        Self::Live((form.is_used_up(word, now), form.spent_share(word, now)), owner)
    }
}

fn who_goes(lives: &Lives, owner: u32) -> Option<Live> {
    let nearest_to_full =
        |of: &dyn Fn(&Live) -> bool| lives.iter().copied().filter(of).min_by_key(|live| live.rank);
    let slots = |owner| lives.iter().filter(|live| live.owner == owner).count();
    let own = slots(owner);
    // All keys belong to the new key's owner, as in a table without policies.
    if own == lives.len() {
        return nearest_to_full(&|_| true);
    }
    let most = lives.iter().map(|live| slots(live.owner)).max()?;
    if own + 1 < most {
        nearest_to_full(&|live| slots(live.owner) == most)
    } else if own > 0 {
        nearest_to_full(&|live| live.owner == owner)
    } else {
        // Each slot has another owner, and the new key's owner would be the ninth.
        nearest_to_full(&|live| !live.rank.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives(keys: &[(u32, Rank)]) -> Lives {
        let live = |(slot, (owner, rank)): (usize, &(u32, Rank))| Live {
            owner: *owner,
            rank: *rank,
            candidate: (TablePlace { line: 0, slot }, 0),
        };
        keys.iter().enumerate().map(live).collect()
    }

    fn goes(keys: &[(u32, Rank)], owner: u32) -> Option<usize> {
        who_goes(&lives(keys), owner).map(|live| live.candidate.0.slot)
    }

    const DEBTOR: Rank = (true, 1 << 32);

    #[test]
    fn of_one_owner_the_nearest_to_full_goes_and_debtors_last() {
        assert_eq!(goes(&[(1, DEBTOR), (1, (false, 9)), (1, (false, 3)), (1, DEBTOR)], 1), Some(2));
        assert_eq!(goes(&[(1, DEBTOR), (1, DEBTOR)], 1), Some(0));
        assert_eq!(goes(&[], 1), None);
    }

    #[test]
    fn who_has_the_most_gives_even_debtors() {
        let crowd = [(1, DEBTOR), (1, DEBTOR), (1, (true, 7)), (2, (false, 1))];
        assert_eq!(goes(&crowd, 3), Some(2), "the crowd's, though another key is nearer to full");
        assert_eq!(goes(&crowd, 2), Some(2), "two against three is an even share when the new key has come");
        assert_eq!(goes(&crowd, 1), Some(2), "a new key of the crowd pushes out its own");
        let even = [(1, DEBTOR), (1, DEBTOR), (2, (false, 1)), (2, (false, 2))];
        assert_eq!(goes(&even, 1), Some(0), "who has its share takes no other's");
    }

    #[test]
    fn among_owners_of_one_slot_each_no_debtor_goes() {
        let each: Vec<(u32, Rank)> = (1..=8).map(|owner| (owner, DEBTOR)).collect();
        assert_eq!(goes(&each, 9), None);
        let mut some = each.clone();
        some[5].1 = (false, 4);
        assert_eq!(goes(&some, 9), Some(5));
        assert_eq!(goes(&each, 3), Some(2), "its own");
    }
}
