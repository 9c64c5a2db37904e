//! Many steps at once: the memory of all their keys is on its way before the first is settled.

use std::hint::black_box;

use smallvec::SmallVec;

use super::MemoryStore;
use super::table::{Print, Table};
use crate::store::{Answer, Settled, Step};

/// Keys looked up together: as many misses as a core keeps under way at once, and a little more.
const KEYS: usize = 16;

/// The fingerprints of some steps' keys, in order.
type Prints = SmallVec<[Print; KEYS]>;

impl MemoryStore {
    /// Settles steps, each as if alone and in order; `out` gets an answer for each.
    pub(super) fn settle_batch<const TRACK: bool>(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) {
        out.clear();
        out.reserve_exact(steps.len());
        let mut rest = steps;
        while !rest.is_empty() {
            let (together, others) = rest.split_at(fitting(rest));
            rest = others;
            let prints = self.shared.table.fetch(together);
            let mut keys = &*prints;
            for step in together {
                let (own, others) = keys.split_at(step.charges.len());
                keys = others;
                // Settled where it stays: an answer is large.
                out.push(Ok(Settled::default()));
                let Some(answer) = out.last_mut() else { continue };
                let Ok(settled) = answer else { continue };
                let done = match step.receipts {
                    true => self.settle_prints::<true, TRACK>(step, |at, _| own[at], settled),
                    false => self.settle_prints::<false, TRACK>(step, |at, _| own[at], settled),
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
            // First all hashes: a processor looks only some hundred instructions ahead, and is to find the reads of many keys there.
            let prints: Prints = keys.iter().map(|key| self.print(key)).collect();
            black_box(prints.iter().fold(0, |touched, print| touched ^ self.touch(*print)));
        }
    }
}

/// Returns how many of the first steps have as many keys together as are looked up at once; one at least.
fn fitting(steps: &[Step<'_>]) -> usize {
    let mut keys = 0;
    let fits = |step: &&Step<'_>| {
        keys += step.charges.len();
        keys <= KEYS
    };
    steps.iter().take_while(fits).count().max(1)
}

impl Table {
    /// Hashes the keys of some steps and touches their memory. Of a step with more keys than are looked up at once, the first.
    fn fetch(&self, steps: &[Step<'_>]) -> Prints {
        let mut prints = Prints::new();
        let mut touched = 0;
        for charge in steps.iter().flat_map(|step| step.charges) {
            let print = self.print(charge.key);
            if prints.len() < KEYS {
                touched ^= self.touch(print);
            }
            prints.push(print);
        }
        black_box(touched);
        prints
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
        /// The same steps in batches and one by one, keys named twice in one step among them.
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
