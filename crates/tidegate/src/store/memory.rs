//! Bounded keyed state in memory: a set-associative table that survives callers who never repeat a key.
//!
//! A key belongs to one small set of slots. A state whose limit is full again is as good as no state, so its slot *is* a free
//! slot: nothing sweeps, nothing pauses, and a table that is large enough forgets nothing that matters. When all slots of a
//! set are live, the one nearest to full is given up and counted: by the share of its limit that is spent, since a day's limit
//! that was touched once is longer from full than a second's that is all but used up. A key that is over its limit goes last,
//! or an attacker could wash its own debt away with made-up keys.
//!
//! All policies of a gate share the table. Where a policy's limit is one unit, each made-up key of it is over its limit at
//! once, and with more of those than slots, keys of other policies go before them: give such a table room, and watch what it
//! counts as evicted.
//!
//! Keys are held as 64-bit fingerprints under a seed of the process, so no caller's address lies in memory and nobody outside
//! can aim at a set. Two given keys meet with odds of 2⁻⁶⁴; any two among a million live ones with about 3·10⁻⁸.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Ask, Cost, Standing, Tick, Verdict};

use super::plain::refuse_repeated;
use super::{Cell, Occupancy, Settled, Settlement, Step, Store, StoreError, settle};

/// Slots per set. Sixteen at half load lose a live key in 4 of 1,000 full sets (Poisson); eight would lose in 2 of 100.
const WAYS: usize = 16;

/// A whole limit: shares of it are told apart by one part in 65,536.
const WHOLE: u32 = 1 << 16;

/// Keeps the state of a bounded number of keys.
///
/// Memory is bounded by the capacity: two slots of about 110 bytes per key of it, taken only as keys come; larger states
/// (logs, windows of many buckets) add their own size. A check takes one short lock per set it touches, in ascending order,
/// so steps never wait for each other in a circle. A clone shares the table.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hasher: RandomState,
    sets: Box<[Mutex<Set>]>,
    used: AtomicUsize,
    evicted: AtomicU64,
    evicted_over_limit: AtomicU64,
}

/// Up to [`WAYS`] slots in no order.
#[derive(Debug, Default)]
struct Set {
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    fingerprint: u64,
    /// When the cell was written.
    at: Tick,
    /// How much of the limit was spent then, out of [`WHOLE`].
    spent: u32,
    /// From this tick on the cell is as good as none.
    full_at: Tick,
    /// Until this tick the key is over its limit: not even one unit is left.
    blocked_until: Tick,
    /// Absent only while a step has it in hand.
    cell: Option<Cell>,
}

impl MemoryStore {
    /// Makes an empty store with room for `keys` live keys: zero counts as one.
    ///
    /// Up to that many live keys, one is lost to crowding with odds of about 0.4 %; beyond, the nearest to full go first.
    #[must_use]
    pub fn with_capacity(keys: usize) -> Self {
        let sets = (keys.max(1).saturating_mul(2)).div_ceil(WAYS).next_power_of_two();
        let shared = Shared {
            hasher: RandomState::default(),
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            used: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            evicted_over_limit: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    fn set_of(&self, fingerprint: u64) -> usize {
        // The seed hides which keys share a set, so that nobody can crowd a victim's.
        (fingerprint >> 4) as usize & (self.shared.sets.len() - 1)
    }
}

impl Store for MemoryStore {
    fn settle(&self, step: &Step<'_>) -> Result<Settled, StoreError> {
        if let [charge] = step.charges {
            let fingerprint = self.shared.hasher.hash_one(charge.key);
            let mut set = self.shared.sets[self.set_of(fingerprint)].lock();
            let mut cells = [set.take(fingerprint)];
            let (settled, changed) = settle(step, &mut cells);
            let [cell] = cells;
            self.shared.put(&mut set, step.now, fingerprint, cell, changed.then(|| &settled.lines[0]));
            return Ok(settled);
        }
        refuse_repeated(step)?;
        self.settle_many(step)
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy {
            capacity: self.shared.sets.len() * WAYS,
            // Relaxed, all three: counts for people, ordered with nothing.
            used: self.shared.used.load(Ordering::Relaxed),
            evicted: self.shared.evicted.load(Ordering::Relaxed),
            evicted_over_limit: self.shared.evicted_over_limit.load(Ordering::Relaxed),
        }
    }
}

impl MemoryStore {
    /// Settles charges that may lie in several sets, all of them locked meanwhile.
    fn settle_many(&self, step: &Step<'_>) -> Result<Settled, StoreError> {
        let fingerprints: SmallVec<[u64; 8]> =
            step.charges.iter().map(|charge| self.shared.hasher.hash_one(charge.key)).collect();
        // Two keys of one step with one fingerprint would share a cell unnoticed; odds 2^-64, refused all the same.
        if fingerprints.iter().enumerate().any(|(at, print)| fingerprints[..at].contains(print)) {
            return Err(StoreError::RepeatedKey);
        }
        let mut order: SmallVec<[usize; 8]> = fingerprints.iter().map(|print| self.set_of(*print)).collect();
        order.sort_unstable();
        order.dedup();
        let mut sets: SmallVec<[MutexGuard<'_, Set>; 8]> =
            order.iter().map(|set| self.shared.sets[*set].lock()).collect();
        let place = |fingerprint: u64| {
            order
                .binary_search(&self.set_of(fingerprint))
                .expect("each fingerprint's set was put into the order above")
        };
        let mut cells: SmallVec<[Option<Cell>; 8]> =
            fingerprints.iter().map(|print| sets[place(*print)].take(*print)).collect();
        let (settled, changed) = settle(step, &mut cells);
        for (index, (fingerprint, cell)) in fingerprints.iter().zip(cells).enumerate() {
            let written = changed.then(|| &settled.lines[index]);
            self.shared.put(&mut sets[place(*fingerprint)], step.now, *fingerprint, cell, written);
        }
        Ok(settled)
    }
}

impl Set {
    /// Takes the cell of a key in hand; its slot stays.
    fn take(&mut self, fingerprint: u64) -> Option<Cell> {
        self.slots.iter_mut().find(|slot| slot.fingerprint == fingerprint)?.cell.take()
    }
}

impl Shared {
    /// Puts a cell back into its slot, or finds one for it; `written` is the settlement when the step changed cells.
    fn put(
        &self,
        set: &mut Set,
        now: Tick,
        fingerprint: u64,
        cell: Option<Cell>,
        written: Option<&Settlement>,
    ) {
        let own = set.slots.iter().position(|slot| slot.fingerprint == fingerprint);
        let Some(cell) = cell else {
            if let Some(own) = own {
                set.slots.swap_remove(own);
                self.used.fetch_sub(1, Ordering::Relaxed);
            }
            return;
        };
        if let (Some(own), None) = (own, written) {
            set.slots[own].cell = Some(cell);
            return;
        }
        let full_at = cell.quota.full_at(&cell.state).unwrap_or(Tick::MAX);
        let blocked_until = match written {
            Some(line) if line.decision.standing.remaining == 0 => blocked_until(&cell, now),
            _ => Tick::EPOCH,
        };
        let spent = written.map_or(WHOLE, |line| spent(line.decision.standing));
        let slot = Slot { fingerprint, at: now, spent, full_at, blocked_until, cell: Some(cell) };
        match own {
            Some(own) => set.slots[own] = slot,
            None => self.admit(set, now, slot),
        }
    }

    /// Gives a new key a slot: an unused one, a forgettable one, or that of the key nearest to full.
    fn admit(&self, set: &mut Set, now: Tick, slot: Slot) {
        if set.slots.len() < WAYS {
            if set.slots.len() == set.slots.capacity() {
                // Doubling from one: a table far larger than its keys would else pay for four slots per key.
                set.slots.reserve_exact(set.slots.len().max(1));
            }
            set.slots.push(slot);
            self.used.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // A slot whose cell is in hand belongs to this very step and may not be given away.
        let rank = |held: &Slot| (held.cell.is_none(), held.blocked_until > now, held.spent_at(now));
        let victim = set.slots.iter_mut().min_by_key(|held| rank(held)).expect("a full set has slots");
        if victim.full_at > now {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            if victim.blocked_until > now {
                self.evicted_over_limit.fetch_add(1, Ordering::Relaxed);
            }
        }
        *victim = slot;
    }
}

impl Slot {
    /// Returns how much of the limit is still spent, out of [`WHOLE`] squared: as if it returned evenly, which is exact for
    /// rates and near enough for windows to choose by.
    fn spent_at(&self, now: Tick) -> u64 {
        let left = u128::from(self.full_at.as_nanos().saturating_sub(now.as_nanos()));
        let whole = u128::from(self.full_at.as_nanos().saturating_sub(self.at.as_nanos()));
        let even = u128::from(self.spent) * u128::from(WHOLE) * left.min(whole) / whole.max(1);
        // At most the square of a whole, which fits.
        even as u64
    }
}

/// Returns the share of a limit that is spent, out of [`WHOLE`].
fn spent(standing: Standing) -> u32 {
    let (limit, left) = (u128::from(standing.limit.max(1)), u128::from(standing.remaining));
    // At most a whole, which fits.
    (limit.saturating_sub(left) * u128::from(WHOLE)).div_ceil(limit) as u32
}

/// Returns the tick from which one unit is to be had again.
fn blocked_until(cell: &Cell, now: Tick) -> Tick {
    match cell.quota.decide(&cell.state, Ask::allow(now, Cost::ONE)) {
        Verdict::Denied { retry_after } => retry_after.map_or(Tick::MAX, |wait| now.after(wait)),
        Verdict::Allowed { .. } => Tick::EPOCH,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::{Charge, Op};
    use tidegate_core::Quota;

    fn take(store: &MemoryStore, now: Tick, key: &[u8], quota: &Arc<Quota>) -> bool {
        let charges = [Charge::new(key, quota, Cost::ONE)];
        store.settle(&Step { now, op: Op::Take, charges: &charges }).unwrap().allowed
    }

    #[test]
    fn a_flood_of_new_keys_neither_grows_the_table_nor_frees_a_key_over_its_limit() {
        let store = MemoryStore::with_capacity(64);
        let quota = Arc::new(Quota::per_minute(2).gcra().unwrap());
        let now = Tick::from_secs(1);
        assert!(take(&store, now, b"abuser", &quota) && take(&store, now, b"abuser", &quota));
        for key in 0..50 * 64u32 {
            assert!(take(&store, now, &key.to_le_bytes(), &quota), "a new key starts full");
        }
        assert!(!take(&store, now, b"abuser", &quota), "still over its limit");
        let occupancy = store.occupancy();
        assert!(occupancy.used <= occupancy.capacity, "{occupancy:?}");
        assert_eq!(occupancy.evicted_over_limit, 0);
        assert!(occupancy.evicted > 1000, "the others had to go: {occupancy:?}");
    }

    /// A key of a hundred a second had one unit again after ten milliseconds, so it was not over its limit, and it was full
    /// again before any key of a day's limit was. By time alone it went first: made-up keys of the other policy brought
    /// it a hundred more each time.
    #[test]
    fn a_debt_is_not_washed_away_by_made_up_keys_of_a_slower_limit() {
        let store = MemoryStore::with_capacity(64);
        let fast = Arc::new(Quota::per_second(100).gcra().unwrap());
        let mut made_up = 0u64;
        for slow in [Quota::per_day(5).gcra().unwrap(), Quota::per_day(5).fixed_window().unwrap()] {
            let slow = Arc::new(slow);
            let key = format!("{slow:?}");
            let mut taken = 0;
            for round in 0..20 {
                let now = Tick::from_secs(1000).after(Duration::from_millis(11 * round));
                taken += (0..100).filter(|_| take(&store, now, key.as_bytes(), &fast)).count();
                let later = now.after(Duration::from_millis(10));
                for _ in 0..2000 {
                    made_up += 1;
                    let _ = take(&store, later, &made_up.to_le_bytes(), &slow);
                }
            }
            assert_eq!(taken, 100 + 20, "what returns in 209 ms, and no more");
        }
    }

    #[test]
    fn forgettable_slots_are_reused_before_any_live_key_goes() {
        let store = MemoryStore::with_capacity(64);
        let quota = Arc::new(Quota::per_second(1).gcra().unwrap());
        for second in 0..1000 {
            let now = Tick::from_nanos(0).after(Duration::from_secs(2 * second));
            assert!(take(&store, now, &second.to_le_bytes(), &quota));
        }
        assert_eq!(store.occupancy().evicted, 0, "each key was full again before the next came");
    }
}
