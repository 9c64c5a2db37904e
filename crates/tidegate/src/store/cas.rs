//! A store over any engine that offers compare-and-set on bytes.
//!
//! The engine knows nothing of limits: it keeps a value and a version under a key, and writes several keys at once if none has
//! changed since it was read. The decision is the same pure [`settle`] as in memory, run again when a write loses.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tidegate_core::bytes::{Bytes, DecodeError, Reader, Writer};
use tidegate_core::{Quota, State};

use crate::clock::hold;

use super::plain::refuse_repeated;
use super::settle::Forgotten;
use super::{Cell, Home, Occupancy, Settled, Step, Store, StoreError, settle};

/// Names a cell's byte form, beside the bytes that name the algorithms inside it.
const CELL: u8 = 0;

/// Names the form of a cell that was reset: two ticks come first, of the reset and until when it matters.
const RESET_CELL: u8 = 1;

/// How often a step is tried before it gives up. Each loss means another step won, so the engine as a whole goes on.
const ATTEMPTS: u32 = 64;

/// A value and the version it was read at; an absent key has a version too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The bytes; `None` for an absent key.
    pub value: Option<Vec<u8>>,
    /// Changes with every write of the key.
    pub version: u64,
}

/// What an engine has to offer.
///
/// Nothing tells it yet how long a value matters: a key whose limit is full again stays until the engine drops it for reasons of its own,
/// and so does the mark of every settled ticket. An engine that expires keys must keep each for as long as its limit takes to fill, and
/// marks for as long as tickets live.
pub trait ByteMap: Debug + Send + Sync {
    /// Reads keys, in order. Called once per attempt.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the engine does not answer.
    fn read(&self, keys: &[&[u8]]) -> Result<Vec<Versioned>, StoreError>;

    /// Writes all values if every key is still at the version given, or none; `None` deletes. Returns whether it wrote.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the engine does not answer.
    fn write_if_unchanged(
        &self,
        keys: &[&[u8]],
        versions: &[u64],
        values: &[Option<Vec<u8>>],
    ) -> Result<bool, StoreError>;

    /// Returns how many keys there are.
    fn len(&self) -> usize;

    /// Says whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Settles steps over a [`ByteMap`]: one read and, if something changed, one write per attempt.
///
/// Keys are written and never deleted but by a reset: over an engine without expiry they add up, one for each key that was ever charged
/// and one or two for each ticket that was ever settled.
#[derive(Debug, Default)]
pub struct CasStore<M> {
    map: M,
    /// The latest tick that was seen here; other nodes' ticks are in the states.
    latest: AtomicU64,
}

impl<M: ByteMap> CasStore<M> {
    /// Wraps an engine.
    #[must_use]
    pub const fn new(map: M) -> Self {
        Self { map, latest: AtomicU64::new(0) }
    }
}

impl<M: ByteMap> Store for CasStore<M> {
    fn settle(&self, step: &Step<'_>) -> Result<Settled, StoreError> {
        refuse_repeated(step)?;
        let step = &Step { now: hold(&self.latest, step.now), ..*step };
        let keys: Vec<&[u8]> = step.charges.iter().map(|charge| charge.key).collect();
        for _ in 0..ATTEMPTS {
            let read = self.map.read(&keys)?;
            let mut cells = Vec::with_capacity(read.len());
            for versioned in &read {
                cells.push(versioned.value.as_deref().map(Cell::decode).transpose()?);
            }
            let (settled, changed) = settle(step, &mut cells);
            if !changed {
                return Ok(settled);
            }
            let versions: Vec<u64> = read.iter().map(|versioned| versioned.version).collect();
            let values: Vec<_> = cells.iter().map(|cell| cell.as_ref().map(Cell::encode)).collect();
            if self.map.write_if_unchanged(&keys, &versions, &values)? {
                return Ok(settled);
            }
        }
        Err(StoreError::Contended { attempts: ATTEMPTS })
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy { used: self.map.len(), ..Occupancy::default() }
    }

    fn home(&self) -> Home {
        Home::Nodes
    }
}

impl Cell {
    /// Returns the byte form: the quota, then the state, so that a node with another configuration can carry it over.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(if self.forgotten.is_some() { RESET_CELL } else { CELL });
        if let Some(forgotten) = &self.forgotten {
            out.tick(forgotten.at);
            out.tick(forgotten.until);
        }
        self.quota.write(&mut out);
        self.state.write(&mut out);
        out.finish()
    }

    /// Reads a byte form.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are no cell.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut from) = Reader::open(bytes)?;
        let forgotten = match kind {
            CELL => None,
            RESET_CELL => Some(Box::new(Forgotten { at: from.tick()?, until: from.tick()? })),
            _ => return Err(DecodeError::Kind { kind }),
        };
        let cell =
            Self { quota: Arc::new(Quota::read(&mut from)?), state: State::read(&mut from)?, forgotten };
        from.close().map(|()| cell)
    }
}
