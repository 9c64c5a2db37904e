//! Which slots have changed since they were last written somewhere else: one bit a slot.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::lines::blank;

/// Slots per word of bits.
pub(super) const PER_WORD: usize = u64::BITS as usize;

/// The bits of all slots.
///
/// A slot is marked by whoever has it in hand, or had it: at the latest after its word was written. It is unmarked before it is read. Both
/// seize it in between, so what is read is what the mark was set for, or the mark is still there afterwards.
#[derive(Debug)]
pub(super) struct Marks {
    words: Box<[AtomicU64]>,
}

impl Marks {
    /// Makes room for so many slots, none of which is marked; `None` where there is no memory.
    pub(super) fn new(slots: usize) -> Option<Self> {
        Some(Self { words: blank(slots.div_ceil(PER_WORD))? })
    }

    /// Marks a slot.
    #[inline(always)]
    pub(super) fn mark(&self, slot: usize) {
        let (word, bit) = (&self.words[slot / PER_WORD], 1 << (slot % PER_WORD));
        // Relaxed: a key that is asked for again and again is marked already, and its line of bits stays with every core that reads it.
        // The caller has seized the slot, and who unmarks it seizes it afterwards: so a bit that was taken is not seen here any more.
        if word.load(Ordering::Relaxed) & bit == 0 {
            // Release, with the Acquire of `take`: who takes the bit sees the slot seized, or what was written.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Marks slots of one word by their bits.
    pub(super) fn put_back(&self, word: usize, bits: u64) {
        self.words[word].fetch_or(bits, Ordering::Release);
    }

    /// Takes the marks of one word.
    pub(super) fn take(&self, word: usize) -> u64 {
        // Relaxed, the load: a mark that is set meanwhile is found the next time.
        if self.words[word].load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.words[word].swap(0, Ordering::Acquire)
    }

    pub(super) fn words(&self) -> Range<usize> {
        0..self.words.len()
    }

    /// Says whether any slot is marked.
    pub(super) fn any(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}
