//! Faulty engines: slow ones, ones that delete expired keys early or apply writes twice, and ones with a clock of their
//! own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate::Tick;
use tidegate::clock::{Clock as _, ManualClock};
use tidegate::store::{ByteMap, Caps, Later, Read, StoreError, Write, Written};

use super::{Bytes, pending, written};

/// What the engine does to each call. `Usual` answers normally.
#[derive(Clone, Debug, Default)]
pub(crate) enum Fault {
    #[default]
    Usual,
    /// Every third call loses if it is a write, as if another writer had been faster.
    Loses,
    /// A lost write's answer contains what the keys hold.
    Tells,
    /// Answers after a number of polls that differs from call to call.
    Late,
    /// Each write is applied twice; the second time it has to lose.
    Twice,
    /// Every third call, if it is a write, is applied, but was not answered; a second try of it lost.
    Unsure,
    /// Decides by a clock of its own.
    Clock(ManualClock),
    /// Deletes a value at the end of its time by this clock, without a margin.
    Forgets(ManualClock),
    /// This many next calls are never answered.
    Never(Arc<AtomicU64>),
}

/// A key, and when it is deleted.
type Over = (Arc<[u8]>, Tick);

/// [`Bytes`] with a fault in front.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faulty {
    pub(crate) bytes: Bytes,
    fault: Fault,
    calls: Arc<AtomicU64>,
    over: Arc<Mutex<Vec<Over>>>,
}

impl Faulty {
    pub(crate) fn new(fault: Fault) -> Self {
        Self { fault, ..Self::default() }
    }

    /// Waits as long as the fault says.
    async fn wait(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let polls = match &self.fault {
            Fault::Late | Fault::Tells => call % 5,
            Fault::Never(calls) => {
                let silent = calls.load(Ordering::Relaxed) > 0;
                let _ = calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                if silent { u64::MAX } else { 0 }
            }
            _ => 0,
        };
        pending(polls).await;
    }

    /// Deletes expired values. A deleted key gets a new version, like any written key.
    fn forget(&self) {
        let Fault::Forgets(clock) = &self.fault else { return };
        let now = clock.now();
        self.over.lock().retain(|(key, over)| {
            let gone = *over <= now;
            if gone {
                let version = self.bytes.read_now(&[Arc::clone(key)]).values[0].version;
                self.bytes.write_now(&[Write { key: Arc::clone(key), version, value: None, keep: None }]);
            }
            !gone
        });
    }
}

impl ByteMap for Faulty {
    fn read(&self, _: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
        let (map, keys) = (self.clone(), keys.to_vec());
        Box::pin(async move {
            map.wait().await;
            map.forget();
            let now = if let Fault::Clock(clock) = &map.fault { Some(clock.now()) } else { None };
            Ok(Read { now, ..map.bytes.read_now(&keys) })
        })
    }

    fn write_if_unchanged(&self, _: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>> {
        let map = self.clone();
        Box::pin(async move {
            map.wait().await;
            map.forget();
            if matches!(map.fault, Fault::Loses) && map.calls.load(Ordering::Relaxed).is_multiple_of(3) {
                return Ok(Written::Nothing(None));
            }
            let keys: Vec<_> = writes.iter().map(|write| Arc::clone(&write.key)).collect();
            let all = map.bytes.write_now(&writes);
            if !all && matches!(map.fault, Fault::Tells) {
                return Ok(Written::Nothing(Some(map.bytes.read_now(&keys))));
            }
            if matches!(map.fault, Fault::Unsure) && map.calls.load(Ordering::Relaxed).is_multiple_of(3) {
                return Ok(Written::Unknown(Some(map.bytes.read_now(&keys))));
            }
            if matches!(map.fault, Fault::Twice) {
                assert!(!map.bytes.write_now(&writes), "a write applied twice loses by its version");
            }
            if let (true, Fault::Forgets(clock)) = (all, &map.fault) {
                let mut over = map.over.lock();
                for write in writes {
                    over.retain(|(key, _)| *key != write.key);
                    if let Some(keep) = write.keep {
                        over.push((write.key, clock.now().after(keep - Write::MARGIN)));
                    }
                }
            }
            Ok(written(all))
        })
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::ENGINE;
        caps.own_clock = matches!(self.fault, Fault::Clock(_) | Fault::Forgets(_));
        caps
    }
}
