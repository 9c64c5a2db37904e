//! A plain map under a lock, the reference with which tests compare every other store.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidegate_core::Tick;

use crate::clock::HeldTime;

use super::step::{Executed, Step};
use super::{Caps, Cell, Execution, Home, Occupancy, Store, StoreError, execute};

/// Keeps every key that it has ever seen, exactly, in a map under one lock.
///
/// Unbounded: callers who invent keys can fill the memory. For tests, and for programs that choose their own keys.
#[derive(Debug)]
pub struct PlainStore {
    cells: Mutex<HashMap<Vec<u8>, Cell>>,
    time: HeldTime,
    home: Home,
}

impl Default for PlainStore {
    fn default() -> Self {
        Self { cells: Mutex::default(), time: HeldTime::default(), home: Home::of_process() }
    }
}

impl Store for PlainStore {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        Execution::Done(self.execute_at(step, |tick| self.time.hold(tick), out))
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy { used: self.cells.lock().len(), ..Occupancy::default() }
    }

    fn caps(&self) -> Caps {
        Caps { always_decides: true, ..Caps::default() }
    }

    fn home(&self) -> Home {
        self.home
    }
}

impl PlainStore {
    /// Executes a step at the tick that `at` makes of the step's own.
    pub(super) fn execute_at(
        &self,
        step: &Step<'_>,
        at: impl FnOnce(Tick) -> Tick,
        out: &mut Executed,
    ) -> Result<(), StoreError> {
        refuse_repeated(step)?;
        let mut cells = self.cells.lock();
        let step = &step.read_clock();
        let step = &Step { now: at(step.now), ..*step };
        let mut seen: Vec<_> = step.charges.iter().map(|charge| cells.get(charge.key).cloned()).collect();
        let (executed, changed) = execute(step, &mut seen);
        if changed {
            for (charge, cell) in step.charges.iter().zip(seen) {
                match cell {
                    Some(cell) => cells.insert(charge.key.to_vec(), cell),
                    None => cells.remove(charge.key),
                };
            }
        }
        *out = executed;
        Ok(())
    }
}

/// Refuses a step that names a key twice: its second charge would not see the first.
///
/// # Errors
/// [`StoreError::RepeatedKey`].
pub fn refuse_repeated(step: &Step<'_>) -> Result<(), StoreError> {
    // Steps hold a handful of charges, for which comparing all pairs beats hashing them.
    let repeated = |(at, charge): (usize, &super::Charge<'_>)| {
        step.charges[..at].iter().any(|earlier| earlier.key == charge.key)
    };
    if step.charges.iter().enumerate().any(repeated) { Err(StoreError::RepeatedKey) } else { Ok(()) }
}
