//! Arbitrary states and receipts: no call panics, and the results can be stored.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Receipt, Replace, State, Tick, Transition};

use crate::settling::subjects::small;

/// Arbitrary numbers, often at the edges of their ranges.
fn edgy() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        0u64..8,
        Just(u64::MAX),
        (0u64..8).prop_map(|less| u64::MAX - less),
        Just(Rate::MAX_COUNT),
        Just(1_700_000_000_000_000_000),
        (0u64..4).prop_map(|seconds| 1_700_000_000_000_000_000 + seconds * 1_000_000_000),
        (0u32..64).prop_map(|bit| 1 << bit),
        any::<u64>(),
    ]
}

fn receipts() -> impl Strategy<Value = Receipt> {
    (edgy(), edgy(), edgy(), [edgy(), edgy(), edgy(), edgy()]).prop_map(|(at, act, cost, mark)| Receipt {
        at: Tick::from_nanos(at),
        act: Tick::from_nanos(act),
        cost: Cost::new(cost).unwrap_or(Cost::ONE),
        mark,
    })
}

/// Overwrites eight bytes of a byte form with a number, if the form is long enough.
fn overwrite(bytes: &mut [u8], at: usize, number: u64) {
    let places = bytes.len().saturating_sub(2 + 7);
    if places > 0 {
        // Fields are eight bytes wide, and some follow a single byte.
        let at = 2 + at % places;
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
}

fn answers(quota: &Quota, other: &Quota, state: &State, now: Tick, receipt: &Receipt, used: u64) -> State {
    let _ = quota.standing(state, now);
    let _ = quota.full_at(state);
    if let Some(back) = quota.set_back(state, now) {
        assert!(State::decode(&back.encode()).is_ok(), "{back:?} cannot be stored");
        assert_eq!(quota.set_back(&back, now), None);
        let _ = quota.standing(&quota.settle(&back, now, receipt, used), now);
    }
    let settled = quota.settle(state, now, receipt, used);
    assert!(State::decode(&settled.encode()).is_ok(), "{settled:?} cannot be stored");
    let _ = quota.standing(&settled, now);
    let _ = quota.full_at(&settled);
    let carried = other.carry(quota, &settled, now, Replace::AsIs);
    let carried = quota.carry(other, &carried, now, Replace::Proportional);
    match quota.decide(&settled, Ask::within(now, receipt.cost, core::time::Duration::MAX)) {
        Transition::Allowed { next, receipt, .. } => quota.settle(&next, now, &receipt, used),
        Transition::Denied { .. } => quota.settle(&carried, now, receipt, used),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: crate::settling::hostile_cases(), ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_and_any_receipt_are_survived(
        which in any::<prop::sample::Index>(),
        written in prop::collection::vec((any::<prop::sample::Index>(), edgy()), 0..5),
        steps in prop::collection::vec((edgy(), receipts(), edgy()), 1..4),
    ) {
        let subjects = small();
        let subject = which.get(&subjects);
        let mut state = subject.quota.fresh(crate::settling::subjects::START);
        // A state with charges, settled once, has more bytes to overwrite.
        for (now, receipt, used) in &steps {
            let mut bytes = state.encode();
            for (at, number) in &written {
                overwrite(&mut bytes, at.index(1 << 16), *number);
            }
            if let Ok(foreign) = State::decode(&bytes) {
                answers(&subject.quota, &subject.other, &foreign, Tick::from_nanos(*now), receipt, *used);
            }
            state = answers(&subject.quota, &subject.other, &state, Tick::from_nanos(*now), receipt, *used);
        }
    }
}
