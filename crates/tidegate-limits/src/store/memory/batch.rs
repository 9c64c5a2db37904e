//! Settles many steps at once, and prefetches the memory of their keys before the first step is settled.

use std::hint::black_box;

use smallvec::SmallVec;

use super::MemoryStore;
use super::table::{Fingerprint, Table};
use crate::store::{Answer, Settled, Step};

/// The number of keys that are prefetched together: as many cache misses as a core has in flight at once, and a few
/// more.
const KEYS: usize = 16;

/// The fingerprints of the keys of several steps, in order.
type Fingerprints = SmallVec<[Fingerprint; KEYS]>;

impl MemoryStore {
    /// Settles steps in order, each as if alone; `out` gets one answer for each.
    pub(super) fn settle_batch<const TRACK: bool>(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) {
        out.clear();
        out.reserve_exact(steps.len());
        let mut rest = steps;
        while !rest.is_empty() {
            let (together, others) = rest.split_at(fitting(rest));
            rest = others;
            let fingerprints = self.shared.table.fetch(together);
            let mut keys = &*fingerprints;
            for step in together {
                let (own, others) = keys.split_at(step.charges.len());
                keys = others;
                // Settled in place, because an answer is large to move.
                out.push(Ok(Settled::default()));
                let Some(answer) = out.last_mut() else { continue };
                let Ok(settled) = answer else { continue };
                let done = match step.receipts {
                    true => self.settle_fingerprints::<true, TRACK>(step, |at, _| own[at], settled),
                    false => self.settle_fingerprints::<false, TRACK>(step, |at, _| own[at], settled),
                };
                if let Err(error) = done {
                    *answer = Err(error);
                }
            }
        }
    }
}

impl MemoryStore {
    /// Reads from the lines of keys that steps will soon name.
    pub(super) fn touch_each(&self, keys: &[&[u8]]) {
        for keys in keys.chunks(KEYS) {
            // All keys are hashed first: a processor looks only a few hundred instructions ahead, and has to find the
            // reads of many keys there.
            let fingerprints: Fingerprints = keys.iter().map(|key| self.fingerprint(key)).collect();
            black_box(fingerprints.iter().fold(0, |touched, fingerprint| touched ^ self.touch(*fingerprint)));
        }
    }
}

/// Returns how many of the first steps fit into one prefetch of [`KEYS`] keys; at least one.
fn fitting(steps: &[Step<'_>]) -> usize {
    let mut keys = 0;
    let fits = |step: &&Step<'_>| {
        keys += step.charges.len();
        keys <= KEYS
    };
    steps.iter().take_while(fits).count().max(1)
}

impl Table {
    /// Hashes the keys of some steps and reads from their lines. Of a step with more than [`KEYS`] keys, only the first
    /// are read.
    fn fetch(&self, steps: &[Step<'_>]) -> Fingerprints {
        let mut fingerprints = Fingerprints::new();
        let mut touched = 0;
        for charge in steps.iter().flat_map(|step| step.charges) {
            let fingerprint = self.fingerprint(charge.key);
            if fingerprints.len() < KEYS {
                touched ^= self.touch(fingerprint);
            }
            fingerprints.push(fingerprint);
        }
        black_box(touched);
        fingerprints
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;
    use tidegate_core::{Cost, Quota, Tick};

    use super::*;
    use crate::store::{Charge, Op, Store};

    proptest! {
        /// The same steps in batches and one by one, including steps that name a key twice.
        #[test]
        fn a_batch_answers_as_its_steps_one_by_one(
            full in any::<bool>(),
            steps in prop::collection::vec(
                (0u64..2_000, 0u8..10, prop::collection::vec((0u8..12, 0usize..4, 1u64..4), 0..20), any::<bool>()),
                1..60,
            ),
            cut in 1usize..40,
        ) {
            let quotas = [
                Quota::per_second(2).burst(3).gcra(),
                Quota::per_minute(4).gcra(),
                Quota::per_second(3).fixed_window(),
                Quota::per_second(5).sliding_log(),
            ].map(|quota| Arc::new(quota.unwrap()));
            let make = || if full { MemoryStore::with_full_keys(64).unwrap() } else { MemoryStore::with_capacity(64).unwrap() };
            let (one, other) = (make(), make());
            let mut now = Tick::from_secs(100);
            let keys: Vec<[u8; 1]> = (0..12).map(|key| [key]).collect();
            let mut lists = Vec::new();
            for (pause, op, named, receipts) in &steps {
                now = now.after(Duration::from_millis(*pause / 4));
                let charge = |(key, quota, cost): &(u8, usize, u64)| Charge {
                    max_wait: Duration::from_millis(u64::from(*op == 9) * 700),
                    ..Charge::new(&keys[usize::from(*key)], &quotas[*quota], Cost::new(*cost).unwrap())
                };
                let mut charges: Vec<Charge<'_>> = named.iter().map(charge).collect();
                if *op > 0 {
                    charges.sort_by_key(|charge| charge.key);
                    charges.dedup_by_key(|charge| charge.key);
                }
                let op = match op { 1 => Op::Peek, 2 => Op::Reset, _ => Op::Take };
                lists.push((now, op, charges, *receipts));
            }
            let steps: Vec<Step<'_>> = lists.iter().map(|(now, op, charges, receipts)| {
                Step { receipts: *receipts, ..Step::new(*now, *op, charges) }
            }).collect();
            let mut out = vec![Err(crate::store::StoreError::MustWait)];
            for steps in steps.chunks(cut) {
                prop_assert!(other.settle_each(steps, &mut out).is_none());
                let mut expected = Vec::new();
                for step in steps {
                    let mut settled = Settled::default();
                    let crate::store::Settling::Done(done) = one.settle_into(step, &mut settled) else { unreachable!() };
                    expected.push(done.map(|()| settled));
                }
                prop_assert_eq!(&out, &expected);
            }
        }
    }
}
