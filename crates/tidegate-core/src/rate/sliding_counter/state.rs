//! The state of a sliding counter.

use core::time::Duration;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::rate::parameter_change::Carried;
use crate::rate::windows::{AHEAD, AHEAD_IN_ENGINE, MOST_UNITS, wide};
use crate::time::Tick;

/// The state of [`SlidingCounter`](super::SlidingCounter) for one key, 32 bytes: two counts and a tick. On the heap,
/// 16 bytes for each promise ahead, at most 4,096 of them, and 48 while there is one or a change of parameters matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingCounterState {
    /// The tick of the last change. The window in which it lies is the current one.
    pub(super) last: Tick,
    pub(super) previous: u64,
    pub(super) current: u64,
    pub(super) more: Option<Box<More>>,
}

/// Rarely needed, so it lies on the heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct More {
    /// Units that act after `last`, in order; no new charge acts before the latest of them.
    pub(super) promises: Vec<Promise>,
    pub(super) carried: Option<Carried>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promise {
    pub(super) act: Tick,
    pub(super) units: u64,
}

impl SlidingCounterState {
    /// The size of the largest state in byte form, with the promises that an engine has room for.
    pub(super) const LARGEST: usize = 3 * 8 + Carried::LARGEST + 8 + AHEAD_IN_ENGINE * 16;

    pub(super) fn promises(&self) -> &[Promise] {
        self.more.as_ref().map_or(&[], |more| &more.promises)
    }

    pub(super) fn carried(&self) -> Option<Carried> {
        self.more.as_ref().and_then(|more| more.carried)
    }

    /// Returns the first tick, not before `at`, at which a new charge overtakes no promise.
    pub(super) fn open_from(&self, at: Tick) -> Tick {
        self.promises().last().map_or(at, |latest| latest.act.max(at))
    }

    /// Returns the wait until there is room for one more promise, to act at `place`; zero if there is.
    pub(super) fn room(&self, at: Tick, place: u128) -> Duration {
        let promises = self.promises();
        if promises.len() < AHEAD || promises.last().is_none_or(|latest| wide(latest.act) >= place) {
            return Duration::ZERO;
        }
        let ahead = &promises[promises.partition_point(|promise| promise.act <= at)..];
        ahead.len().checked_sub(AHEAD).map_or(Duration::ZERO, |many| ahead[many].act.since(at))
    }
}

impl Bytes for SlidingCounterState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.last);
        out.u64(self.previous);
        out.u64(self.current);
        self.carried().write(out);
        out.u64(self.promises().len() as u64);
        for promise in self.promises() {
            out.tick(promise.act);
            out.u64(promise.units);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (last, previous, current) = (from.tick()?, from.u64()?, from.u64()?);
        if previous.max(current) > MOST_UNITS {
            return Err(DecodeError::Value { field: "count" });
        }
        let (carried, count) = (Option::<Carried>::read(from)?, from.u64()?);
        if count > AHEAD as u64 {
            return Err(DecodeError::Value { field: "promises" });
        }
        let (mut promises, mut latest): (Vec<Promise>, _) = (Vec::new(), last);
        for _ in 0..count {
            let promise = Promise { act: from.tick()?, units: from.u64()? };
            if promise.act <= latest || promise.units == 0 || promise.units > MOST_UNITS {
                return Err(DecodeError::Value { field: "promises" });
            }
            latest = promise.act;
            promises.push(promise);
        }
        let more = count > 0 || carried.is_some();
        Ok(Self { last, previous, current, more: more.then(|| Box::new(More { promises, carried })) })
    }
}
