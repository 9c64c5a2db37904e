//! A versioned byte map, like an engine's. Tests wrap it to make writes lose, fail or go unanswered.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod faulty;

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use parking_lot::Mutex;
use tidegate::store::{
    ByteMap, Caps, Executed, Execution, Home, Later, Occupancy, Read, Step, Store, StoreError, Versioned,
    Write, Written,
};

/// A version and the value at it.
type Held = (u64, Option<Vec<u8>>);

/// Cells by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes(Arc<Mutex<HashMap<Arc<[u8]>, Held>>>);

impl Bytes {
    pub(crate) fn read_now(&self, keys: &[Arc<[u8]>]) -> Read {
        let cells = self.0.lock();
        let read = |key: &Arc<[u8]>| {
            let (version, value) = cells.get(key).cloned().unwrap_or_default();
            Versioned { value, version }
        };
        Read { values: keys.iter().map(read).collect(), now: None }
    }

    pub(crate) fn write_now(&self, writes: &[Write]) -> bool {
        let mut cells = self.0.lock();
        let unchanged = |write: &Write| cells.get(&write.key).map_or(0, |(have, _)| *have) == write.version;
        if !writes.iter().all(unchanged) {
            return false;
        }
        for write in writes {
            let cell = cells.entry(Arc::clone(&write.key)).or_default();
            *cell = (cell.0 + 1, write.value.clone());
        }
        true
    }
}

impl ByteMap for Bytes {
    fn read(&self, _: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
        let (bytes, keys) = (self.clone(), keys.to_vec());
        Box::pin(async move { Ok(bytes.read_now(&keys)) })
    }

    fn write_if_unchanged(&self, _: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>> {
        let bytes = self.clone();
        Box::pin(async move { Ok(written(bytes.write_now(&writes))) })
    }

    fn len(&self) -> usize {
        self.0.lock().values().filter(|(_, value)| value.is_some()).count()
    }
}

/// The answer of an engine that does not return what it holds when a write loses.
pub(crate) const fn written(written: bool) -> Written {
    if written { Written::All } else { Written::Nothing(None) }
}

/// A store that is asked synchronously although it answers later, for test engines that have nothing to wait for.
#[derive(Clone, Debug)]
pub(crate) struct OnTheSpot<S>(pub(crate) S);

impl<S: Store> Store for OnTheSpot<S> {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        Execution::Done(self.0.blocking_execute(step).map(|executed| *out = executed))
    }

    fn occupancy(&self) -> Occupancy {
        self.0.occupancy()
    }

    fn caps(&self) -> Caps {
        let mut caps = self.0.caps();
        caps.may_wait = false;
        caps
    }

    fn home(&self) -> Home {
        self.0.home()
    }
}

/// Is pending for this many polls.
pub(crate) async fn pending(mut polls: u64) {
    poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(());
        }
        polls -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
