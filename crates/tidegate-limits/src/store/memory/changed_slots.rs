//! Marks the slots that have changed since they were last stored elsewhere: one bit a slot.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cache_lines::blank;

/// Slots per word of bits.
pub(super) const PER_WORD: usize = u64::BITS as usize;

/// The bits of all slots.
///
/// A slot is marked by the thread that has or had it seized, at the latest just after that thread has written its word.
/// A reader unmarks the slot before it reads it, and both seize the slot in between. So the reader sees the change that
/// the mark was set for, or the mark is set again afterwards.
#[derive(Debug)]
pub(super) struct Marks {
    words: Box<[AtomicU64]>,
}

impl Marks {
    /// Makes room for `slots` slots, all unmarked; `None` if there is not enough memory.
    pub(super) fn new(slots: usize) -> Option<Self> {
        Some(Self { words: blank(slots.div_ceil(PER_WORD))? })
    }

    /// Marks a slot.
    #[inline(always)]
    pub(super) fn mark(&self, slot: usize) {
        let (word, bit) = (&self.words[slot / PER_WORD], 1 << (slot % PER_WORD));
        // Relaxed: a key in frequent use is marked already, and its cache line of bits can stay shared by all cores
        // that read it. The caller has seized the slot, and the thread that unmarks it seizes it afterwards: so a bit
        // that was taken is not seen as set here.
        if word.load(Ordering::Relaxed) & bit == 0 {
            // Release, with the Acquire of `take`: the thread that takes the bit sees the slot seized, or sees what was
            // written.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Marks the slots of one word of bits.
    pub(super) fn put_back(&self, word: usize, bits: u64) {
        self.words[word].fetch_or(bits, Ordering::Release);
    }

    /// Takes and clears the marks of one word.
    pub(super) fn take(&self, word: usize) -> u64 {
        // The load is Relaxed: a mark that is set meanwhile is found the next time.
        if self.words[word].load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.words[word].swap(0, Ordering::Acquire)
    }

    pub(super) fn words(&self) -> Range<usize> {
        0..self.words.len()
    }

    /// Returns whether any slot is marked.
    pub(super) fn any(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}
