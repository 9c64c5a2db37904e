//! Asks of one limit, one after the other, with the answers that are expected: for the tests of several algorithms.

use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::decision::{Ask, Cost, Transition};
use crate::time::Tick;

/// When, in ms; the cost; the most wait, in ms; the wait, or the least further wait, in ms; the units that remain afterwards.
pub(crate) type Row = (u64, u64, u64, Result<u128, u128>, u64);

/// Asks a fresh limit row by row.
///
/// # Panics
/// Where an answer is another one.
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
