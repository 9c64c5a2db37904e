//! Whose slot a new key gets.
//!
//! A slot whose limit is full again is as good as empty, so nothing is ever swept. Where none is left, the key nearest to full goes: by
//! the share of its limit that is spent, and those over their limit last.

use std::sync::atomic::Ordering;

use tidegate_core::rate::GcraWord;
use tidegate_core::{Algorithm, Tick};

use super::line::{Class, Name, Seized, WAYS};
use super::table::{Both, Place, Reading, Sought, Table};

/// What a place is to a new key.
#[derive(Clone, Copy, Debug)]
enum Room {
    /// Nobody needs it: empty, or full again.
    Free,
    /// A key lives there: whether it is over its limit, and how much of that is spent out of 2³².
    Live((bool, u64)),
    /// In somebody's hands.
    Taken,
}

/// A place and the word that was seen there.
type Candidate = (Place, u64);

/// The free places of a line.
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
    /// Finds a slot for a new key and seizes it: an empty one, a forgettable one, or that of the key nearest to full, which is
    /// counted.
    ///
    /// `by` is the limit most of them are likely to be under. `None`, counted like a key given up, when all slots are in
    /// somebody's hands: those of this very step, as a rule.
    pub(super) fn claim<'t>(
        &self,
        both: &Both<'t>,
        key: Sought,
        tick: Tick,
        by: Option<&Reading<'_>>,
    ) -> Option<(Place, Seized<'t>)> {
        loop {
            let (candidate, over_limit) = self.candidate(both, self.first(key.print()), tick, by);
            let Some((place, word)) = candidate else {
                self.count_eviction(false);
                return None;
            };
            // Lost when its key was asked for meanwhile: then another may be nearer to full.
            if let Some(seized) = both.at(place).try_seize(place.slot, word) {
                if let Some(over_limit) = over_limit {
                    self.count_eviction(over_limit);
                }
                self.vacate(place, &seized);
                return Some((place, seized));
            }
        }
    }

    /// Looks for the best slot for a new key, with its word; and, where a key has to go for it, whether that is over its limit.
    fn candidate(
        &self,
        both: &Both<'_>,
        first: usize,
        tick: Tick,
        by: Option<&Reading<'_>>,
    ) -> (Option<Candidate>, Option<bool>) {
        let mut free = [Free::default(); 2];
        let mut least: Option<((bool, u64), Candidate)> = None;
        for (free, (line, held)) in free.iter_mut().zip(both.lines) {
            for slot in 0..WAYS {
                let place = Place { line, slot };
                let Some(word) = held.word(slot) else { continue };
                match self.room(held.name(slot), (place, word), tick, by) {
                    Room::Free => free.add((place, word), held.name(slot) == Name::EMPTY),
                    Room::Live(rank) if least.is_none_or(|(lowest, _)| rank < lowest) => {
                        least = Some((rank, (place, word)));
                    }
                    Room::Live(_) | Room::Taken => {}
                }
            }
        }
        // The preferred line while it has two places or more; then the emptier one.
        let [low, high] = if both.lines[0].0 == first { free } else { [free[1], free[0]] };
        let [one, other] =
            if low.count >= WAYS / 2 || low.count >= high.count { [low, high] } else { [high, low] };
        // What was never used before what is not needed any more: a state that is as good as none can still be a little better,
        // such as that of a limit that starts cold.
        match one.empty.or(other.empty).or(one.forgettable).or(other.forgettable) {
            Some(candidate) => (Some(candidate), None),
            None => (least.map(|(_, candidate)| candidate), least.map(|((over_limit, _), _)| over_limit)),
        }
    }

    fn count_eviction(&self, over_limit: bool) {
        // Relaxed, both: counts for people, ordered with nothing.
        self.evicted.fetch_add(1, Ordering::Relaxed);
        self.evicted_over_limit.fetch_add(u64::from(over_limit), Ordering::Relaxed);
    }

    /// Makes a slot in hand ready for another key.
    fn vacate(&self, place: Place, seized: &Seized<'_>) {
        let name = seized.name();
        if name == Name::EMPTY {
            self.used.fetch_add(1, Ordering::Relaxed);
        } else if name.class() == Class::WIDE {
            self.side.take(place.line, place.slot);
        }
    }

    /// Says what a place is to a new key.
    fn room(&self, name: Name, (place, word): Candidate, tick: Tick, by: Option<&Reading<'_>>) -> Room {
        if name == Name::EMPTY {
            return Room::Free;
        }
        if let Some(by) = by.filter(|by| by.limit.class == name.class()) {
            return Room::of(&by.limit.form, word, by.now);
        }
        if name.class() == Class::WIDE {
            // The word of a wide state is the tick from which it is as good as none.
            if word <= tick.as_nanos() {
                return Room::Free;
            }
            let look = |cell: &crate::store::Cell| {
                let standing = cell.quota.standing(&cell.state, tick);
                let spent = u128::from(standing.limit.saturating_sub(standing.remaining));
                // At most the whole, which is 2³².
                (standing.remaining == 0, ((spent << 32) / u128::from(standing.limit.max(1))) as u64)
            };
            // Not there: another step has it in hand by now.
            return self.side.with(place.line, place.slot, look).map_or(Room::Taken, Room::Live);
        }
        let Some(limit) = self.classes.get(name.class()) else { return Room::Taken };
        let form = &limit.form;
        // A form that has come to its end counts as it stood then; it is an hour old at least.
        let now = form.scaled(tick).or_else(|| form.scaled(form.origin().after(form.lasts())));
        now.map_or(Room::Free, |now| Room::of(form, word, now))
    }
}

impl Room {
    fn of(form: &GcraWord, word: u64, now: u64) -> Self {
        if form.is_full(word, now) {
            return Self::Free;
        }
        Self::Live((form.is_used_up(word, now), form.spent_share(word, now)))
    }
}
