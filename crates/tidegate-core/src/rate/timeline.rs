//! Requests to one limit, one after the other, with the expected answers: for the tests of several algorithms.

use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::decision::{Ask, Cost, Transition};
use crate::time::Tick;

/// The tick in ms; the cost; the longest accepted wait in ms; the wait in ms, or the least further wait if denied;
/// the units that remain afterwards.
pub(crate) type Row = (u64, u64, u64, Result<u128, u128>, u64);

/// Sends a fresh limit one request per row.
///
/// # Panics
/// When an answer differs from the expected one.
pub(crate) fn holds<A: Algorithm>(limit: &A, rows: &[Row]) {
    let ms = |ms: u64| Tick::from_nanos(ms * 1_000_000);
    let mut state = limit.fresh(ms(0));
    for &(at, cost, max_wait, expected, remaining) in rows {
        let ask = Ask::within(ms(at), Cost::new(cost).unwrap(), Duration::from_millis(max_wait));
        let answer = match limit.decide(&state, ask) {
            Transition::Allowed { wait, next, .. } => {
                state = next;
                Ok(wait.as_millis())
            }
            Transition::Denied { retry } => Err(retry.after().unwrap().as_nanos().div_ceil(1_000_000)),
        };
        assert_eq!(answer, expected, "at {at}");
        assert_eq!(limit.standing(&state, ms(at)).remaining, remaining, "at {at}");
    }
}
