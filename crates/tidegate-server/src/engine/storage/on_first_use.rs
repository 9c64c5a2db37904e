//! A store in memory that is made when it is first used.
//!
//! Beside an engine, this process keeps tables of its own for `share: local` and `share: split`. Most policy files use
//! neither, each table takes tens of megabytes, and a reload may start using one at any time.

use std::fmt;
use std::sync::OnceLock;

use tidegate::store::{
    Answer, CapacityError, Caps, Home, Later, Occupancy, Settled, Settling, Step, Store, StoreError,
};

pub(super) struct OnFirstUse<S> {
    make: Box<dyn Fn() -> Result<S, CapacityError> + Send + Sync>,
    home: Home,
    made: OnceLock<Result<S, CapacityError>>,
}

impl<S: Store> OnFirstUse<S> {
    /// Wraps a store of this process, to be made on its first use.
    pub(super) fn new(make: impl Fn() -> Result<S, CapacityError> + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), home: Home::of_process(), made: OnceLock::new() }
    }

    /// Returns the store. The first call makes it, which takes some milliseconds.
    fn made(&self) -> Result<&S, StoreError> {
        let made = self.made.get_or_init(&self.make).as_ref();
        made.map_err(|error| StoreError::Unavailable { reason: error.to_string() })
    }
}

impl<S: Store> fmt::Debug for OnFirstUse<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnFirstUse").field("made", &self.made).finish_non_exhaustive()
    }
}

impl<S: Store> Store for OnFirstUse<S> {
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        match self.made() {
            Ok(made) => made.settle_into(step, out),
            Err(error) => Settling::Done(Err(error)),
        }
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        match self.made() {
            Ok(made) => made.settle_each(steps, out),
            Err(error) => {
                out.clear();
                out.extend(steps.iter().map(|_| Err(error.clone())));
                None
            }
        }
    }

    fn fetch(&self, keys: &[&[u8]]) {
        if let Some(Ok(made)) = self.made.get() {
            made.fetch(keys);
        }
    }

    fn occupancy(&self) -> Occupancy {
        self.made.get().and_then(|made| made.as_ref().ok()).map(Store::occupancy).unwrap_or_default()
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::default();
        caps.always_decides = true;
        caps
    }

    fn home(&self) -> Home {
        self.home
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate::store::{Charge, MemoryStore, Op};
    use tidegate::{Cost, Quota, Tick};

    use super::*;

    #[test]
    fn a_table_is_made_by_the_first_step_and_says_of_itself_what_others_do() {
        let lazy = OnFirstUse::new(|| MemoryStore::with_capacity(100));
        assert_eq!(lazy.caps(), MemoryStore::with_capacity(1).unwrap().caps());
        assert_eq!(lazy.occupancy().capacity, 0);
        let quota = Arc::new(Quota::per_minute(1).gcra().unwrap());
        let charges = [Charge::new(b"key", &quota, Cost::ONE)];
        let take =
            || lazy.blocking_settle(&Step::new(Tick::from_secs(1), Op::Take, &charges)).unwrap().allowed;
        assert_eq!([take(), take()], [true, false]);
        assert!(lazy.occupancy().capacity >= 100);
        let none = OnFirstUse::new(|| MemoryStore::with_capacity(usize::MAX));
        let refused = none.blocking_settle(&Step::new(Tick::EPOCH, Op::Take, &charges)).unwrap_err();
        assert!(refused.to_string().contains("a table cannot have room"), "{refused}");
    }
}
