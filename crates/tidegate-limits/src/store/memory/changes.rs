//! The byte form of slots of a table, which a [`TrackedStore`](super::TrackedStore) hands out to be kept, and restores
//! from.
//!
//! After the header, `version, kind`, follow in this order, little-endian:
//!
//! ```text
//! form: 1 byte, lines of the table: 8, tick: 8, limits: 4
//! each limit:   owner: 4, its byte form
//! each slot:    how many slots after the one before: 1 to 10 (seven bits a byte, the lowest first), limit: likewise, from 1
//!               fingerprint: 8, key: 16 where the form is 1, flags: 1, two ticks where they say so: 16, the state's byte form
//! ```
//!
//! The limit 0 means that the slot holds nothing that matters; none of its further fields follow. The last eight bytes
//! are the XxHash64 of all bytes before. A key under a limit whose state fits a word takes about 36 bytes.

use std::ops::Range;
use std::sync::Arc;

use tidegate_core::bytes::{Bytes, DecodeError, Reader, Writer};
use tidegate_core::{Quota, State, Tick};
use twox_hash::XxHash64;

use super::cache_line::blank;
use super::export::{ExportedKey, RestoreError};
use super::seed::FullKey;
use crate::store::Cell;
use crate::store::cell::Forgotten;
use crate::sync::Ordering;
use crate::sync::unexplored::AtomicU64;

const CHANGES: u8 = 3;

const CHECKSUM: usize = 8;

const BESIDE: u8 = 1;

/// The flag of a key that was reset, or whose limit changed to another kind.
const RESET: u8 = 2;

/// The number of recent limits that are searched for an equal one; if none is found, the limit is written again. So the
/// limits of a policy file are found, and a list of thousands of limits, each of one key, is not searched for each key.
const RECENT: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRecord<'s> {
    pub(super) fingerprint: u64,
    pub(super) full_key: Option<FullKey>,
    pub(super) owner: u32,
    pub(super) beside: bool,
    pub(super) quota: &'s Arc<Quota>,
    pub(super) state: &'s State,
    pub(super) forgotten: Option<&'s Forgotten>,
}

#[derive(Debug)]
pub(super) struct ChangeWriter {
    limits: Vec<(u32, Arc<Quota>)>,
    slots: Writer,
    next: usize,
}

impl ChangeWriter {
    pub(super) fn new() -> Self {
        Self { limits: Vec::new(), slots: Writer::default(), next: 0 }
    }

    /// Returns the approximate number of bytes: a limit counts as forty.
    pub(super) fn len(&self) -> usize {
        self.slots.written() + 40 * self.limits.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next == 0
    }

    /// Adds a slot that holds nothing. Slots come in ascending order.
    pub(super) fn push_empty(&mut self, slot: usize) {
        self.go_to(slot);
        self.number(0);
    }

    pub(super) fn push(&mut self, slot: usize, shown: &SlotRecord<'_>) {
        self.go_to(slot);
        let limit = self.limit(shown.owner, shown.quota);
        self.number(limit);
        let out = &mut self.slots;
        out.u64(shown.fingerprint);
        if let Some(full_key) = shown.full_key {
            full_key.to_bytes().into_iter().for_each(|byte| out.u8(byte));
        }
        out.u8(if shown.beside { BESIDE } else { 0 } | if shown.forgotten.is_some() { RESET } else { 0 });
        if let Some(forgotten) = shown.forgotten {
            out.tick(forgotten.at);
            out.tick(forgotten.until);
        }
        shown.state.write(out);
    }

    fn go_to(&mut self, slot: usize) {
        self.number(slot.saturating_sub(self.next));
        self.next = slot + 1;
    }

    fn number(&mut self, number: usize) {
        let mut rest = number;
        while rest >= 0x80 {
            self.slots.u8(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.slots.u8(rest as u8);
    }

    fn limit(&mut self, owner: u32, quota: &Arc<Quota>) -> usize {
        let is = |(known, other): &(u32, Arc<Quota>)| {
            *known == owner && (Arc::ptr_eq(other, quota) || other == quota)
        };
        let recent = self.limits.len().saturating_sub(RECENT);
        if let Some(found) = self.limits[recent..].iter().rposition(is) {
            return recent + found + 1;
        }
        self.limits.push((owner, Arc::clone(quota)));
        self.limits.len()
    }

    pub(super) fn finish(self, full_keys: bool, lines: usize, tick: Tick) -> Vec<u8> {
        let mut out = Writer::new(CHANGES);
        out.u8(u8::from(full_keys));
        out.u64(lines as u64);
        out.tick(tick);
        // The cast is exact: only so many fit in a sheet of a few tens of kilobytes.
        out.u32(self.limits.len() as u32);
        for (owner, quota) in &self.limits {
            out.u32(*owner);
            quota.write(&mut out);
        }
        let mut bytes = out.finish();
        bytes.extend_from_slice(&self.slots.finish());
        let checksum = XxHash64::oneshot(0, &bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

#[derive(Debug)]
pub(super) struct ReadSheet<'b> {
    pub(super) full_keys: bool,
    pub(super) lines: u64,
    pub(super) tick: Tick,
    limits: Vec<(u32, Arc<Quota>)>,
    from: Reader<'b>,
    next: u64,
}

impl<'b> ReadSheet<'b> {
    /// Reads the part before the slots. `piece` is the index of the sheet among the pieces, for errors.
    pub(super) fn open(bytes: &'b [u8], piece: u64) -> Result<Self, RestoreError> {
        let damaged = RestoreError::Damaged { piece };
        let Some((written, checksum)) = bytes.split_last_chunk::<CHECKSUM>() else { return Err(damaged) };
        if XxHash64::oneshot(0, written) != u64::from_le_bytes(*checksum) {
            return Err(damaged);
        }
        let (kind, mut from) = Reader::open(written)?;
        if kind != CHANGES {
            return Err(DecodeError::Kind { kind }.into());
        }
        let full_keys = match from.u8()? {
            form @ (0 | 1) => form == 1,
            _ => return Err(DecodeError::Value { field: "form" }.into()),
        };
        let (lines, tick) = (from.u64()?, from.tick()?);
        let mut limits = Vec::new();
        // No memory is reserved for the count, which may be any number: each limit takes bytes that have to be there.
        for _ in 0..from.u32()? {
            limits.push((from.u32()?, Arc::new(Quota::read(&mut from)?)));
        }
        Ok(Self { full_keys, lines, tick, limits, from, next: 0 })
    }

    pub(super) fn next(&mut self) -> Result<Option<(u64, Option<ExportedKey>)>, DecodeError> {
        if self.from.left() == 0 {
            return Ok(None);
        }
        let out_of_range = DecodeError::Value { field: "slot" };
        let slot = self.next.checked_add(self.number()?).ok_or(out_of_range)?;
        self.next = slot.checked_add(1).ok_or(out_of_range)?;
        let limit = self.number()?;
        let Some(limit) = limit.checked_sub(1) else { return Ok(Some((slot, None))) };
        let limit = usize::try_from(limit).ok().and_then(|limit| self.limits.get(limit));
        let (owner, quota) = limit.cloned().ok_or(DecodeError::Value { field: "limit" })?;
        let from = &mut self.from;
        let fingerprint = from.u64()?;
        let full_key = if self.full_keys {
            let mut key = [0; 16];
            for byte in &mut key {
                *byte = from.u8()?;
            }
            Some(FullKey::from_bytes(key))
        } else {
            None
        };
        let flags = from.u8()?;
        if flags & !(BESIDE | RESET) != 0 {
            return Err(DecodeError::Value { field: "flags" });
        }
        let forgotten = if flags & RESET != 0 {
            Some(Box::new(Forgotten { at: from.tick()?, until: from.tick()? }))
        } else {
            None
        };
        let state = Bytes::read(from)?;
        let cell = Cell { quota, state, forgotten };
        Ok(Some((
            slot,
            Some(ExportedKey { fingerprint, full_key, owner, beside: flags & BESIDE != 0, cell }),
        )))
    }

    fn number(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.from.u8()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DecodeError::Value { field: "number" })
    }
}

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
    pub(super) fn new(slots: usize) -> Option<Self> {
        Some(Self { words: blank(slots.div_ceil(PER_WORD))? })
    }

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

    pub(super) fn put_back(&self, word: usize, bits: u64) {
        self.words[word].fetch_or(bits, Ordering::Release);
    }

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

    pub(super) fn any(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}
