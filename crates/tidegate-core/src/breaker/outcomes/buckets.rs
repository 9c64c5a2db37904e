//! A window of time: a ring of totals for equal parts of time.

use core::time::Duration;

use super::super::window::{Sample, Totals, Window};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::{Tick, nanos};

/// Totals for each bucket of time, twelve bytes for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::breaker) struct Buckets {
    /// In nanoseconds.
    length: u64,
    /// The number of the newest bucket, counted from the epoch.
    newest: u64,
    totals: Totals,
    /// Bucket `n` lies at index `n` modulo the number of buckets.
    ring: Box<[Totals]>,
}

const fn length(span: u64, buckets: u32) -> u64 {
    let length = span / if buckets == 0 { 1 } else { buckets as u64 };
    if length == 0 { 1 } else { length }
}

impl Buckets {
    pub(super) fn new(span: Duration, buckets: u32, at: Tick) -> Self {
        let buckets = buckets.clamp(1, Window::MAX_BUCKETS);
        let length = length(nanos(span), buckets);
        let ring = vec![Totals::default(); buckets as usize].into();
        Self { length, newest: at.as_nanos() / length, totals: Totals::default(), ring }
    }

    pub(super) const fn largest(buckets: u32) -> usize {
        1 + 8 + 8 + 4 + 12 * buckets as usize
    }

    pub(super) fn is_of(&self, span: Duration, buckets: u32) -> bool {
        self.ring.len() == buckets as usize && self.length == length(nanos(span), buckets)
    }

    pub(super) const fn totals(&self) -> Totals {
        self.totals
    }

    fn place(&self, number: u64) -> usize {
        // Less than the length of the ring.
        (number % self.ring.len() as u64) as usize
    }

    /// Begins the bucket of `at`, and forgets the buckets that it displaces. An earlier tick counts as in the newest
    /// bucket.
    pub(super) fn advance(&mut self, at: Tick) {
        let number = at.as_nanos() / self.length;
        let passed = number.saturating_sub(self.newest);
        if passed >= self.ring.len() as u64 {
            self.ring.fill(Totals::default());
            self.totals = Totals::default();
        } else {
            for begun in 1..=passed {
                let place = self.place(self.newest + begun);
                self.totals = self.totals.minus(self.ring[place]);
                self.ring[place] = Totals::default();
            }
        }
        self.newest = self.newest.max(number);
    }

    /// Returns the number of the newest bucket.
    pub(super) const fn newest(&self) -> u64 {
        self.newest
    }

    /// Subtracts from `totals` the buckets that are in the window while `newest` is the newest bucket, and no longer
    /// at `at`, as [`advance`](Self::advance) would. Returns the number of the newest bucket at `at`.
    pub(super) fn leave_out(&self, totals: &mut Totals, newest: u64, at: Tick) -> u64 {
        let number = at.as_nanos() / self.length;
        let oldest_after = number.saturating_sub(self.ring.len() as u64 - 1);
        let oldest = newest.saturating_sub(self.ring.len() as u64 - 1);
        // Buckets newer than `self.newest` are empty.
        for gone in oldest..oldest_after.min(self.newest + 1) {
            *totals = totals.minus(self.ring[self.place(gone)]);
        }
        newest.max(number)
    }

    pub(super) fn add(&mut self, at: Tick, sample: Sample) {
        self.advance(at);
        let place = self.place(self.newest);
        self.ring[place].add(sample);
        self.totals.add(sample);
    }

    /// Returns the tick at which the newest bucket with calls is forgotten.
    pub(super) fn empty_at(&self) -> Tick {
        let count = self.ring.len() as u64;
        let held = (0..count)
            .filter_map(|back| self.newest.checked_sub(back))
            .find(|number| self.ring[self.place(*number)].calls > 0);
        let Some(held) = held else { return Tick::EPOCH };
        Tick::from_nanos(held.saturating_add(count).saturating_mul(self.length))
    }

    /// Moves the buckets, as they were at `from`, to `to`, an earlier tick.
    pub(super) fn set_back(&mut self, from: Tick, to: Tick) {
        self.advance(from);
        let mut moved = Self { newest: to.as_nanos() / self.length, ..self.clone() };
        for back in 0..self.ring.len() as u64 {
            // There are no buckets before the epoch; calls that would lie there are forgotten.
            let (Some(old), Some(new)) = (self.newest.checked_sub(back), moved.newest.checked_sub(back))
            else {
                break;
            };
            let (old, new) = (self.place(old), self.place(new));
            moved.ring[new] = self.ring[old];
        }
        *self = moved;
        self.sum();
    }

    /// Recomputes the totals, and clears ring entries that belong to no bucket.
    fn sum(&mut self) {
        let held = |number: u64| self.ring[self.place(number)];
        let numbers = (0..self.ring.len() as u64).filter_map(|back| self.newest.checked_sub(back));
        self.totals = numbers.map(held).fold(Totals::default(), Totals::plus);
        if self.newest < self.ring.len() as u64 {
            let first_unused = self.newest as usize + 1;
            self.ring.iter_mut().skip(first_unused).for_each(|bucket| *bucket = Totals::default());
        }
    }
}

impl Bytes for Buckets {
    fn write(&self, out: &mut Writer) {
        out.u64(self.length);
        out.u64(self.newest);
        out.u32(self.ring.len() as u32);
        self.ring.iter().for_each(|bucket| bucket.write(out));
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
        let ring = (0..count).map(|_| Totals::read(from)).collect::<Result<Box<[Totals]>, _>>()?;
        let mut read = Self { length, newest, totals: Totals::default(), ring };
        read.sum();
        Ok(read)
    }
}
