//! A window of the last calls: a ring with two bits for each.

use super::super::window::{Sample, Totals, Window};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::window::Count;

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

/// Returns how many words hold one bit for each call.
const fn words(size: u32) -> usize {
    size.div_ceil(64) as usize
}

impl Ring {
    pub(super) fn new(size: u32) -> Self {
        let size = size.clamp(1, Window::MAX_CALLS);
        Self { size, next: 0, totals: Totals::default(), words: vec![0; 2 * words(size)].into() }
    }

    pub(super) const fn largest(size: u32) -> usize {
        1 + 4 + 4 + 4 + 8 * 2 * words(size)
    }

    pub(super) const fn size(&self) -> u32 {
        self.size
    }

    pub(super) const fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn add(&mut self, sample: Sample) {
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
