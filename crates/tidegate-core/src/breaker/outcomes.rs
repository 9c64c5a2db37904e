//! The outcomes that a closed breaker remembers: those of the last calls, or those of a span of time. Totals are kept
//! beside them, so the cost of a call does not depend on the window: its outcome is added, and the one that it
//! displaces is subtracted.

use core::time::Duration;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::{Tick, nanos};
use crate::window::{BucketRing, Count};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcomes {
    /// No calls; takes no memory.
    #[default]
    None,
    Ring(Ring),
    Buckets(Buckets),
}

pub(super) struct Ahead<'o> {
    left: Totals,
    /// The buckets of a window of time, and the number of the newest bucket at the last tick asked for.
    buckets: Option<(&'o Buckets, u64)>,
}

impl Ahead<'_> {
    /// Returns the totals of the window at `at`, which must not be before the last tick asked for.
    pub(super) fn totals(&mut self, at: Tick) -> Totals {
        if let Some((buckets, newest)) = &mut self.buckets {
            *newest = buckets.leave_out(&mut self.left, *newest, at);
        }
        self.left
    }
}

impl Outcomes {
    pub(super) const fn largest(window: Window) -> usize {
        match window {
            Window::Calls(calls) => Ring::largest(calls),
            Window::Time { buckets, .. } => Buckets::largest(buckets),
        }
    }

    /// Adds the outcome of a call that ended at `at`. Allocates only for the first one.
    pub(super) fn add(&mut self, window: Window, at: Tick, sample: Sample) {
        if !self.is_of(window) {
            *self = match window {
                Window::Calls(calls) => Self::Ring(Ring::new(calls)),
                Window::Time { span, buckets } => Self::Buckets(Buckets::new(span, buckets, at)),
            };
        }
        match self {
            Self::None => {}
            Self::Ring(ring) => ring.add(sample),
            Self::Buckets(buckets) => buckets.add(at, sample),
        }
    }

    /// Returns the totals of the window that ends at `at`, and forgets older outcomes.
    pub(super) fn totals(&mut self, at: Tick) -> Totals {
        match self {
            Self::None => Totals::default(),
            Self::Ring(ring) => ring.totals(),
            Self::Buckets(buckets) => {
                buckets.advance(at);
                buckets.totals()
            }
        }
    }

    /// Returns a view of what is left in the window at increasing ticks; changes nothing.
    pub(super) fn ahead(&self) -> Ahead<'_> {
        match self {
            Self::None => Ahead { left: Totals::default(), buckets: None },
            Self::Ring(ring) => Ahead { left: ring.totals(), buckets: None },
            Self::Buckets(buckets) => {
                Ahead { left: buckets.totals(), buckets: Some((buckets, buckets.newest())) }
            }
        }
    }

    /// Says whether these outcomes were kept for this window.
    pub(super) fn is_of(&self, window: Window) -> bool {
        match (self, window) {
            (Self::Ring(ring), Window::Calls(calls)) => ring.size() == calls,
            (Self::Buckets(kept), Window::Time { span, buckets }) => kept.is_of(span, buckets),
            _ => false,
        }
    }

    /// Returns the tick from which the window is empty; `None` if time does not empty it.
    pub(super) fn empty_at(&self) -> Option<Tick> {
        match self {
            Self::None => Some(Tick::EPOCH),
            Self::Ring(ring) => (ring.totals().calls == 0).then_some(Tick::EPOCH),
            Self::Buckets(buckets) => Some(buckets.empty_at()),
        }
    }

    pub(super) fn set_back(&mut self, from: Tick, to: Tick) {
        if let Self::Buckets(buckets) = self {
            buckets.set_back(from, to);
        }
    }
}

impl Bytes for Outcomes {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::None => out.u8(0),
            Self::Ring(ring) => {
                out.u8(1);
                ring.write(out);
            }
            Self::Buckets(buckets) => {
                out.u8(2);
                buckets.write(out);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.u8()? {
            0 => Ok(Self::None),
            1 => Bytes::read(from).map(Self::Ring),
            2 => Bytes::read(from).map(Self::Buckets),
            _ => Err(DecodeError::Value { field: "window" }),
        }
    }
}

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
    fn new(span: Duration, buckets: u32, at: Tick) -> Self {
        let buckets = buckets.clamp(1, Window::MAX_BUCKETS);
        let length = length(nanos(span), buckets);
        Self { length, ring: BucketRing::new(buckets, at.as_nanos() / length) }
    }

    const fn largest(buckets: u32) -> usize {
        1 + 8 + 8 + 4 + 12 * buckets as usize
    }

    fn is_of(&self, span: Duration, buckets: u32) -> bool {
        self.ring.len() == buckets as usize && self.length == length(nanos(span), buckets)
    }

    const fn totals(&self) -> Totals {
        self.ring.total()
    }

    const fn number(&self, at: Tick) -> u64 {
        at.as_nanos() / self.length
    }

    /// Begins the bucket of `at`, and forgets the buckets that it displaces. An earlier tick counts as in the newest
    /// bucket.
    fn advance(&mut self, at: Tick) {
        self.ring.advance(self.number(at));
    }

    const fn newest(&self) -> u64 {
        self.ring.newest()
    }

    /// As [`BucketRing::leave_out`], with the number of the newest bucket at `at`.
    fn leave_out(&self, totals: &mut Totals, newest: u64, at: Tick) -> u64 {
        let number = self.number(at);
        *totals = self.ring.leave_out(*totals, newest, number);
        newest.max(number)
    }

    fn add(&mut self, at: Tick, sample: Sample) {
        self.advance(at);
        self.ring.record(|totals| totals.add(sample));
    }

    /// Returns the tick at which the newest bucket with calls is forgotten.
    fn empty_at(&self) -> Tick {
        let held = self.ring.newest_first().find(|(_, totals)| totals.calls > 0);
        let Some((held, _)) = held else { return Tick::EPOCH };
        let count = self.ring.len() as u64;
        Tick::from_nanos(held.saturating_add(count).saturating_mul(self.length))
    }

    /// Moves the buckets, as they were at `from`, to `to`, an earlier tick. Calls before the epoch are forgotten.
    fn set_back(&mut self, from: Tick, to: Tick) {
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

/// Outcomes of the last `size` calls, a quarter of a byte for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::breaker) struct Ring {
    size: u32,
    /// The position of the next call; once the ring is full, that of the oldest.
    next: u32,
    totals: Totals,
    /// One bit for each call, set if it failed, in words of 64; then as many words with bits for slow calls.
    words: Box<[u64]>,
}

const fn words(size: u32) -> usize {
    size.div_ceil(64) as usize
}

impl Ring {
    fn new(size: u32) -> Self {
        let size = size.clamp(1, Window::MAX_CALLS);
        Self { size, next: 0, totals: Totals::default(), words: vec![0; 2 * words(size)].into() }
    }

    const fn largest(size: u32) -> usize {
        1 + 4 + 4 + 4 + 8 * 2 * words(size)
    }

    const fn size(&self) -> u32 {
        self.size
    }

    const fn totals(&self) -> Totals {
        self.totals
    }

    fn add(&mut self, sample: Sample) {
        let at = self.next as usize;
        let slow_words = words(self.size);
        let (word, bit) = (at / 64, 1u64 << (at % 64));
        if self.totals.calls == self.size {
            let oldest = Totals {
                calls: 1,
                failures: u32::from(self.words[word] & bit != 0),
                slow: u32::from(self.words[slow_words + word] & bit != 0),
            };
            self.totals = self.totals.minus(oldest);
        }
        self.totals.add(sample);
        for (word, is_set) in [(word, sample.failed), (slow_words + word, sample.slow)] {
            self.words[word] = if is_set { self.words[word] | bit } else { self.words[word] & !bit };
        }
        self.next = (self.next + 1) % self.size;
    }
}

impl Bytes for Ring {
    fn write(&self, out: &mut Writer) {
        out.u32(self.size);
        out.u32(self.next);
        out.u32(self.totals.calls);
        self.words.iter().for_each(|word| out.u64(*word));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (size, next, calls) = (from.u32()?, from.u32()?, from.u32()?);
        if size == 0 || size > Window::MAX_CALLS {
            return Err(DecodeError::Value { field: "size" });
        }
        // Until the ring is full for the first time, calls lie from position 0 on.
        if next >= size || calls > size || calls < size && next != calls {
            return Err(DecodeError::Value { field: "calls" });
        }
        if from.left() < 8 * 2 * words(size) {
            return Err(DecodeError::Short);
        }
        let mut ring = Self::new(size);
        ring.next = next;
        for word in &mut ring.words {
            *word = from.u64()?;
        }
        let (failed, slow) = ring.words.split_at(words(size));
        let ones = |words: &[u64]| words.iter().map(|word| word.count_ones()).sum::<u32>();
        let beyond = |words: &[u64]| {
            let used = |place: usize| calls.saturating_sub(place as u32 * 64).min(64);
            words
                .iter()
                .enumerate()
                .any(|(place, word)| word.checked_shr(used(place)).is_some_and(|rest| rest != 0))
        };
        if beyond(failed) || beyond(slow) {
            return Err(DecodeError::Value { field: "outcomes" });
        }
        ring.totals = Totals { calls, failures: ones(failed), slow: ones(slow) };
        Ok(ring)
    }
}

/// Which calls a breaker judges by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The last calls, this many of them: 1 to [`Window::MAX_CALLS`]. Time does not remove them.
    Calls(u32),
    /// The calls that ended in the last `span`, in `buckets` equal parts, 1 to 256. The parts lie on multiples of
    /// their length and are forgotten whole: with a single bucket the window starts empty after each `span`.
    Time {
        /// How far it looks back: from 1 ns for each bucket, up to a day.
        span: Duration,
        /// The number of buckets.
        buckets: u32,
    },
}

impl Window {
    /// The most calls in a window of calls: 16,384, which take 4 KiB.
    pub const MAX_CALLS: u32 = 1 << 14;
    /// The most buckets in a window of time: 256, which take 3 KiB.
    pub(super) const MAX_BUCKETS: u32 = 256;
    pub(super) const MAX_SPAN: Duration = Duration::from_secs(86_400);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) failed: bool,
    pub(super) slow: bool,
}

/// How many calls there were, and how many of them failed or were slow; a call may be both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Totals {
    /// All calls whose outcome shows something about the service.
    pub calls: u32,
    /// Those that failed.
    pub failures: u32,
    /// Those that took longer than the limit for slow calls.
    pub slow: u32,
}

impl Totals {
    pub(super) const fn add(&mut self, sample: Sample) {
        self.calls = self.calls.saturating_add(1);
        self.failures = self.failures.saturating_add(sample.failed as u32);
        self.slow = self.slow.saturating_add(sample.slow as u32);
    }
}

impl Count for Totals {
    const ZERO: Self = Self { calls: 0, failures: 0, slow: 0 };

    fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(other.calls),
            failures: self.failures.saturating_add(other.failures),
            slow: self.slow.saturating_add(other.slow),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(other.calls),
            failures: self.failures.saturating_sub(other.failures),
            slow: self.slow.saturating_sub(other.slow),
        }
    }
}

impl Bytes for Totals {
    fn write(&self, out: &mut Writer) {
        out.u32(self.calls);
        out.u32(self.failures);
        out.u32(self.slow);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let totals = Self { calls: from.u32()?, failures: from.u32()?, slow: from.u32()? };
        if totals.failures > totals.calls || totals.slow > totals.calls {
            return Err(DecodeError::Value { field: "calls" });
        }
        Ok(totals)
    }
}

#[cfg(test)]
mod tests;
