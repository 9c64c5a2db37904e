//! A cell from an engine may hold any bytes: a cell that decodes must be able to decide, and encode to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::store::Cell;
use tidegate_core::{Algorithm, Ask, Cost, Finish, Outcome, Replace, Tick, Transition};

fuzz_target!(|input: (u64, u64, &[u8])| {
    let (now, cost, bytes) = input;
    let Ok(cell) = Cell::decode(bytes) else { return };
    let again = Cell::decode(&cell.encode());
    assert_eq!(again.as_ref().map(Cell::encode), Ok(cell.encode()));
    let (quota, now, cost) = (&*cell.quota, Tick::from_nanos(now), Cost::new(cost).unwrap_or(Cost::ONE));
    if let Transition::Allowed { next, receipt, .. } = quota.decide(&cell.state, Ask::allow(now, cost)) {
        for used in [0, cost.units() / 2, cost.units().saturating_mul(2)] {
            let settled = quota.finish(&next, now, &receipt, Finish { used, outcome: Outcome::Failure });
            let _ = quota.standing(&settled, now);
        }
    }
    let _ = quota.standing(&quota.carry(quota, &cell.state, now, Replace::Proportional), now);
    let _ = quota.full_at(&cell.state);
});
