//! Policies that share a full table cost each other nothing beyond an even share.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::store::{Charge, ChargeRules, MemoryStore, Op, PlainStore, Step, Store};
use tidegate::{Cost, Quota, Tick};

/// A charge of a key by the policy with number `owner`.
fn charge<'a>(key: &'a [u8], quota: &'a Arc<Quota>, owner: u32) -> Charge<'a> {
    Charge { rules: ChargeRules::new(owner), ..Charge::new(key, quota, Cost::ONE) }
}

/// A table for a thousand keys, ten debtors of one policy, and sixty thousand used-up keys of another. Regression: all
/// ten debtors were free again.
#[test]
fn a_flood_of_used_up_keys_of_one_policy_frees_no_debtor_of_another() {
    let start = Tick::from_secs(1_000_000);
    for debts in [Quota::per_day(5).gcra().unwrap(), Quota::per_day(5).fixed_window().unwrap()] {
        for flood in [Quota::per_day(1).gcra().unwrap(), Quota::per_day(1).sliding_log().unwrap()] {
            let (debts, flood) = (Arc::new(debts.clone()), Arc::new(flood));
            let store = MemoryStore::with_capacity(1000).unwrap();
            let take = |now, key: &[u8], quota, owner| {
                let charges = [charge(key, quota, owner)];
                store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap().allowed
            };
            let debtors: Vec<String> = (0..10).map(|at| format!("debtor {at}")).collect();
            for debtor in &debtors {
                assert!((0..5).all(|_| take(start, debtor.as_bytes(), &debts, 1)));
            }
            for key in 0..60_000u32 {
                // A little of the debts has come back meanwhile, so the debtors are nearer to full than the newest key.
                let now = start.after(Duration::from_millis(u64::from(key)));
                assert!(take(now, &key.to_le_bytes(), &flood, 2), "a new key starts full");
            }
            let end = start.after(Duration::from_secs(60));
            let free = debtors.iter().filter(|debtor| take(end, debtor.as_bytes(), &debts, 1)).count();
            assert_eq!(free, 0, "{debts:?} under a flood of {flood:?}");
        }
    }
}

proptest! {
    /// In a table of eight slots, each of `n` policies keeps `8/n` keys whatever another policy's keys do. The
    /// decisions are those of a map that never evicts.
    #[test]
    fn a_policys_share_is_as_good_as_a_table_of_its_own(
        policies in 1u32..=8,
        steps in vec((0u32..16, 0u32..40, 0u64..2000, 0usize..3), 1..400),
    ) {
        let quotas = [
            Arc::new(Quota::per_second(2).burst(4).gcra().unwrap()),
            Arc::new(Quota::per_minute(3).fixed_window().unwrap()),
            Arc::new(Quota::per_day(1).gcra().unwrap()),
        ];
        let (store, plain) = (MemoryStore::with_capacity(1).unwrap(), PlainStore::default());
        prop_assert_eq!(store.occupancy().capacity, 8);
        let mut now = Tick::from_secs(1_000_000);
        for (owner, key, pause, quota) in steps {
            now = now.after(Duration::from_millis(pause));
            // The last policy floods the table. A key always has the same limit, so that only room decides.
            let (owner, floods) = (owner % policies, owner % policies == policies - 1);
            let key = if floods { 100 + key } else { key % (8 / policies) };
            let quota = &quotas[if floods { quota } else { (key + owner) as usize % 3 }];
            let name = format!("{owner} {key} {}", if floods { format!("{quota:?}") } else { String::new() });
            let charges = [charge(name.as_bytes(), quota, owner + 1)];
            let step = Step::new(now, Op::Take, &charges);
            let (kept, judged) = (store.blocking_execute(&step).unwrap(), plain.blocking_execute(&step).unwrap());
            prop_assert!(floods || kept.allowed == judged.allowed, "{}: {:?} and {:?}", name, kept, judged);
        }
    }
}
