//! The last change of parameters, as far as settling has to know it.
//!
//! A receipt refers to the parameters under which it was issued. After a change its units may have been scaled, cut
//! or forgotten, and its window may be another one. So it gives nothing back. The tick of the change tells old
//! receipts from new ones. It is kept only while an old receipt could still refer to a window that counts.

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::Receipt;
use crate::time::Tick;

/// When the parameters last changed: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    at: Tick,
    /// No charge made up to `at` acts later than this, or in a window that opens later than this.
    until: Tick,
}

impl Carried {
    /// The size of the largest change, or none, in byte form.
    pub(crate) const LARGEST: usize = 1 + 8 + 8;

    /// Makes the record of a change at `at`, where no earlier charge acts after `until`. The `earlier` change may
    /// have left later acts.
    pub(crate) fn new(at: Tick, until: Tick, earlier: Option<Self>) -> Self {
        Self { at, until: until.max(at).max(earlier.map_or(Tick::EPOCH, |earlier| earlier.until)) }
    }

    /// Says whether a charge was made before the change, or at the same tick.
    pub(crate) fn outdates(self, receipt: &Receipt) -> bool {
        receipt.at <= self.at
    }

    /// Returns the record with its ticks moved by a number of nanoseconds.
    pub(crate) const fn shifted(self, by: i64) -> Self {
        Self { at: self.at.shifted(by), until: self.until.shifted(by) }
    }

    /// Reads what is behind the first byte of an optional change in byte form.
    pub(crate) fn read_some(first: u8, from: &mut Reader<'_>) -> Result<Option<Self>, DecodeError> {
        match first {
            0 => Ok(None),
            1 => {
                let (at, until) = (from.tick()?, from.tick()?);
                let right = at <= until;
                right.then_some(Some(Self { at, until })).ok_or(DecodeError::Value { field: "carried" })
            }
            _ => Err(DecodeError::Value { field: "carried" }),
        }
    }

    /// Returns the tick after which charges made before the change no longer matter.
    pub(crate) const fn until(self) -> Tick {
        self.until
    }
}

impl Bytes for Option<Carried> {
    fn write(&self, out: &mut Writer) {
        out.u8(u8::from(self.is_some()));
        if let Some(carried) = self {
            out.tick(carried.at);
            out.tick(carried.until);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Carried::read_some(from.u8()?, from)
    }
}
