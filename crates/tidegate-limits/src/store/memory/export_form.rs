//! The byte form of an exported table: pieces, each with a number and a checksum.
//!
//! A piece starts with `version, kind, part, number`, followed by these fields, little-endian:
//!
//! ```text
//! first (part 0)      form: 1 byte, probe: 8, tick: 8
//! entries (part 1)    fingerprint: 8, key: 16 where the form is 1, owner: 4, beside: 1, length: 4, cell: length; and again
//! last (part 2)       entries in all: 8, tick: 8
//! ```
//!
//! The last eight bytes are the XxHash64 of all bytes before. The number of the first piece is 0, and each further
//! piece has the next number, so an export that was cut or reordered is detected. The cell is a [`Cell`]'s byte form,
//! which has its own version.

use tidegate_core::bytes::{DecodeError, FORMAT};
use twox_hash::XxHash64;

use super::capacity::CapacityError;
use super::full_keys::FullKey;
use crate::store::Cell;

/// Identifies the byte form of a piece, as opposed to those of cells.
const PIECE: u8 = 2;

/// The bytes before a piece's content: version, kind, part and number.
const HEAD: usize = 11;
/// The bytes of the checksum after a piece's content.
const CHECKSUM: usize = 8;

/// Why an exported table was not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// A piece differs from what was written.
    #[error("piece {piece} of the export is damaged; restore from another one")]
    Damaged {
        /// Its index, from 0.
        piece: u64,
    },
    /// A piece is missing or out of order.
    #[error("piece {piece} of the export is missing or out of its order")]
    Missing {
        /// Its index, from 0.
        piece: u64,
    },
    /// The seed is not that of the export.
    #[error(
        "the export was made under another seed, or by a build that hashes keys differently: its fingerprints mean nothing here"
    )]
    Seed,
    /// The store differs from the one that the keys are from, in its size or in how it tells keys apart.
    #[error("the keys are from a store of another size, or from one that distinguishes keys in another way")]
    Form,
    /// A table for so many keys cannot be made.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The bytes are undamaged but cannot be read, usually because a newer version wrote them.
    #[error("the export cannot be read")]
    Decode(#[from] DecodeError),
}

/// One key of an export.
#[derive(Debug)]
pub(super) struct ExportedKey {
    pub(super) fingerprint: u64,
    pub(super) full_key: Option<FullKey>,
    pub(super) owner: u32,
    /// Whether the state lay in the overflow, and has to be restored there.
    pub(super) beside: bool,
    pub(super) cell: Cell,
}

/// The content of a piece.
#[derive(Debug)]
pub(super) enum PieceContent<'b> {
    First { full_keys: bool, probe: u64, tick: u64 },
    Entries(&'b [u8]),
    Last { entries: u64, tick: u64 },
}

/// A piece that is being written.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Vec<u8>,
}

impl Piece {
    fn new(part: u8, number: u64) -> Self {
        let mut bytes = vec![FORMAT, PIECE, part];
        bytes.extend_from_slice(&number.to_le_bytes());
        Self { bytes }
    }

    pub(super) fn first(full_keys: bool, probe: u64, tick: u64) -> Vec<u8> {
        let mut piece = Self::new(0, 0);
        piece.bytes.push(u8::from(full_keys));
        piece.numbers([probe, tick]).finish()
    }

    pub(super) fn entries(number: u64) -> Self {
        Self::new(1, number)
    }

    pub(super) fn last(number: u64, entries: u64, tick: u64) -> Vec<u8> {
        Self::new(2, number).numbers([entries, tick]).finish()
    }

    fn numbers(mut self, numbers: [u64; 2]) -> Self {
        for number in numbers {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        self
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, entry: &ExportedKey) {
        let cell = entry.cell.encode();
        // A cell never has four billion bytes: states are bounded far below that.
        let Ok(length) = u32::try_from(cell.len()) else { return };
        self.bytes.extend_from_slice(&entry.fingerprint.to_le_bytes());
        if let Some(full_key) = entry.full_key {
            self.bytes.extend_from_slice(&full_key.to_bytes());
        }
        self.bytes.extend_from_slice(&entry.owner.to_le_bytes());
        self.bytes.push(u8::from(entry.beside));
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(&cell);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let checksum = XxHash64::oneshot(0, &self.bytes);
        self.bytes.extend_from_slice(&checksum.to_le_bytes());
        self.bytes
    }
}

/// Reads a piece; its number has to be `expected`.
pub(super) fn read(bytes: &[u8], expected: u64) -> Result<PieceContent<'_>, RestoreError> {
    let damaged = RestoreError::Damaged { piece: expected };
    let Some((written, checksum)) = bytes.split_last_chunk::<CHECKSUM>() else { return Err(damaged) };
    if written.len() < HEAD || XxHash64::oneshot(0, written) != u64::from_le_bytes(*checksum) {
        return Err(damaged);
    }
    let mut from = Fields { rest: written };
    let [version, kind, part] = from.take::<3>()?;
    if version != FORMAT {
        return Err(DecodeError::Version { version }.into());
    }
    if kind != PIECE {
        return Err(DecodeError::Kind { kind }.into());
    }
    if from.u64()? != expected {
        return Err(RestoreError::Missing { piece: expected });
    }
    let read = match part {
        0 => {
            let [form] = from.take()?;
            if form > 1 {
                return Err(DecodeError::Value { field: "form" }.into());
            }
            PieceContent::First { full_keys: form == 1, probe: from.u64()?, tick: from.u64()? }
        }
        1 => return Ok(PieceContent::Entries(from.rest)),
        2 => PieceContent::Last { entries: from.u64()?, tick: from.u64()? },
        _ => return Err(DecodeError::Value { field: "part" }.into()),
    };
    match from.rest.len() {
        0 => Ok(read),
        extra => Err(DecodeError::Long { extra }.into()),
    }
}

/// Reads the entries of a piece, one after the other.
#[derive(Debug)]
pub(super) struct Entries<'b> {
    pub(super) bytes: &'b [u8],
    pub(super) full_keys: bool,
}

impl Iterator for Entries<'_> {
    type Item = Result<ExportedKey, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let mut from = Fields { rest: self.bytes };
        let entry = from.entry(self.full_keys);
        // The bytes after an entry that cannot be read have no meaning.
        self.bytes = if entry.is_ok() { from.rest } else { &[] };
        Some(entry)
    }
}

/// A cursor over bytes.
struct Fields<'b> {
    rest: &'b [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    fn entry(&mut self, full_keys: bool) -> Result<ExportedKey, DecodeError> {
        let fingerprint = self.u64()?;
        let full_key = if full_keys { Some(FullKey::from_bytes(self.take()?)) } else { None };
        let owner = u32::from_le_bytes(self.take()?);
        let beside = match self.take()? {
            [0] => false,
            [1] => true,
            _ => return Err(DecodeError::Value { field: "beside" }),
        };
        let length = u32::from_le_bytes(self.take()?);
        let length = usize::try_from(length).map_err(|_| DecodeError::Value { field: "length" })?;
        let (cell, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(ExportedKey { fingerprint, full_key, owner, beside, cell: Cell::decode(cell)? })
    }
}
