//! A window of time: a ring of totals for equal parts of time.

use core::time::Duration;

use super::super::window::{Sample, Totals, Window};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::{Tick, nanos};
use crate::window::BucketRing;

/// Totals for each bucket of time, twelve bytes for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::breaker) struct Buckets {
    /// In nanoseconds.
    length: u64,
    /// Buckets are numbered from the epoch.
    ring: BucketRing<Totals>,
}

const fn length(span: u64, buckets: u32) -> u64 {
    let length = span / if buckets == 0 { 1 } else { buckets as u64 };
    if length == 0 { 1 } else { length }
}

impl Buckets {
    pub(super) fn new(span: Duration, buckets: u32, at: Tick) -> Self {
        let buckets = buckets.clamp(1, Window::MAX_BUCKETS);
        let length = length(nanos(span), buckets);
        Self { length, ring: BucketRing::new(buckets, at.as_nanos() / length) }
    }

    pub(super) const fn largest(buckets: u32) -> usize {
        1 + 8 + 8 + 4 + 12 * buckets as usize
    }

    pub(super) fn is_of(&self, span: Duration, buckets: u32) -> bool {
        self.ring.len() == buckets as usize && self.length == length(nanos(span), buckets)
    }

    pub(super) const fn totals(&self) -> Totals {
        self.ring.total()
    }

    const fn number(&self, at: Tick) -> u64 {
        at.as_nanos() / self.length
    }

    /// Begins the bucket of `at`, and forgets the buckets that it displaces. An earlier tick counts as in the newest
    /// bucket.
    pub(super) fn advance(&mut self, at: Tick) {
        self.ring.advance(self.number(at));
    }

    /// Returns the number of the newest bucket.
    pub(super) const fn newest(&self) -> u64 {
        self.ring.newest()
    }

    /// Subtracts from `totals` the buckets that are in the window while `newest` is the newest bucket, and no longer
    /// at `at`, as [`advance`](Self::advance) would. Returns the number of the newest bucket at `at`.
    pub(super) fn leave_out(&self, totals: &mut Totals, newest: u64, at: Tick) -> u64 {
        let number = self.number(at);
        *totals = self.ring.leave_out(*totals, newest, number);
        newest.max(number)
    }

    pub(super) fn add(&mut self, at: Tick, sample: Sample) {
        self.advance(at);
        self.ring.record(|totals| totals.add(sample));
    }

    /// Returns the tick at which the newest bucket with calls is forgotten.
    pub(super) fn empty_at(&self) -> Tick {
        let held = self.ring.newest_first().find(|(_, totals)| totals.calls > 0);
        let Some((held, _)) = held else { return Tick::EPOCH };
        let count = self.ring.len() as u64;
        Tick::from_nanos(held.saturating_add(count).saturating_mul(self.length))
    }

    /// Moves the buckets, as they were at `from`, to `to`, an earlier tick. There are no buckets before the epoch: calls
    /// that would lie there are forgotten.
    pub(super) fn set_back(&mut self, from: Tick, to: Tick) {
        self.advance(from);
        self.ring = self.ring.renumbered(self.number(to));
    }
}

impl Bytes for Buckets {
    fn write(&self, out: &mut Writer) {
        out.u64(self.length);
        out.u64(self.newest());
        out.u32(self.ring.len() as u32);
        self.ring.in_memory_order().iter().for_each(|bucket| bucket.write(out));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (length, newest, count) = (from.u64()?, from.u64()?, from.u32()?);
        if length == 0 || length > nanos(Window::MAX_SPAN) || newest > u64::MAX / length {
            return Err(DecodeError::Value { field: "length" });
        }
        if count == 0 || count > Window::MAX_BUCKETS {
            return Err(DecodeError::Value { field: "buckets" });
        }
        if from.left() < 12 * count as usize {
            return Err(DecodeError::Short);
        }
        let buckets = (0..count).map(|_| Totals::read(from)).collect::<Result<Vec<Totals>, _>>()?;
        Ok(Self { length, ring: BucketRing::from_memory_order(&buckets, newest) })
    }
}
