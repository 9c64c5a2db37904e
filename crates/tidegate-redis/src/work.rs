//! The types of requests to a server and of its replies.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;
use tidegate::store::{OwnedStep, StepAnswer, StoreError};
use tidegate_core::{Quota, Tick};
use tokio::sync::oneshot;

use crate::call::Ask;
use crate::cell::Form;

/// Names a cell: the shard whose hash holds it, and the field.
///
/// A field is the first 96 bits of the key's SHA-256: keys may be confidential, and a collision with another key's
/// cell takes a search among 2^96.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CellName {
    pub(crate) shard: u32,
    pub(crate) field: [u8; 12],
}

impl CellName {
    pub(crate) fn of(key: &[u8], tag: Option<u64>, shards: u32) -> Self {
        let digest = Sha256::digest(key);
        let mut field = [0; 12];
        field.copy_from_slice(&digest[..12]);
        let mut own = [0; 8];
        own.copy_from_slice(&digest[12..20]);
        let number = tag.unwrap_or(u64::from_le_bytes(own));
        // Below the number of shards, which is a `u32`.
        Self { shard: (number % u64::from(shards)) as u32, field }
    }
}

/// The content found under a cell's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CellContent {
    Nothing,
    Bytes(Vec<u8>),
    /// The shard's key holds a value that is not a hash.
    NoHash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Take,
    Peek,
    /// Reads the cells, for the library to decide.
    Read,
}

#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) step: Arc<OwnedStep>,
    /// The caller's tick that decides; `None` for the engine's.
    pub(crate) tick: Option<Tick>,
    pub(crate) plan: Plan,
    pub(crate) cells: SmallVec<[CellName; 4]>,
    pub(crate) asks: SmallVec<[Ask; 4]>,
    pub(crate) forms: SmallVec<[(Arc<Form>, Arc<Quota>); 4]>,
}

#[derive(Clone, Debug)]
pub(crate) struct CellWrite {
    pub(crate) name: CellName,
    pub(crate) found: CellContent,
    /// The new value; `None` deletes.
    pub(crate) value: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Decide steps in order, all by the same kind of clock, over cells that one script call may touch.
    Decide(Vec<Prepared>),
    Write(Vec<CellWrite>),
    Note(Note),
    /// Write the report of a node, or remove it if it is empty, and read those of all nodes.
    Report {
        node: String,
        report: String,
    },
}

/// Notes about a namespace: its first use is no loss.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Note {
    /// Reads whether the namespace is in use, and with how many shards.
    IsUsed,
    /// Marks it as used, with the number of shards, unless it is marked already.
    Used,
    /// Reads a shard's epoch.
    Epoch { shard: u32 },
    /// Marks a shard as complete, with no cell lost, unless it has an epoch already.
    Begin { shard: u32 },
}

impl Work {
    pub(crate) fn shard(&self) -> u32 {
        let name = match self {
            Self::Decide(steps) => steps.first().and_then(|step| step.cells.first()),
            Self::Write(writes) => writes.first().map(|write| &write.name),
            Self::Note(Note::Begin { shard } | Note::Epoch { shard }) => return *shard,
            Self::Note(Note::IsUsed | Note::Used) | Self::Report { .. } => None,
        };
        name.map_or(0, |name| name.shard)
    }

    pub(crate) fn cells(&self) -> usize {
        match self {
            Self::Decide(steps) => steps.iter().map(|step| step.cells.len()).sum(),
            Self::Write(writes) => writes.len(),
            Self::Note(_) | Self::Report { .. } => 0,
        }
    }
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "boxed, each decision would cost an allocation more")]
pub(crate) enum StepResult {
    Decided(StepAnswer),
    Read(Cells),
}

#[derive(Clone, Debug)]
pub(crate) struct Cells {
    /// The script's time, or the step's own tick.
    pub(crate) now: Tick,
    /// The content found, and the tick of the last loss in its shard; the epoch if there was none.
    pub(crate) found: SmallVec<[(CellContent, Tick); 4]>,
}

#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Steps(Vec<StepResult>),
    Wrote(bool),
    /// The note's present or previous value, or the reports of all nodes, one a line.
    Noted(Option<Vec<u8>>),
}

#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Not executed, and worth a retry: the server is loading, the slot has moved, a replica was asked.
    NotDone { code: String, reason: String },
    /// Not worth a retry, or it is unknown whether it was executed.
    Failed(StoreError),
}

impl Failure {
    pub(crate) fn unavailable(reason: impl Into<String>) -> Self {
        Self::Failed(StoreError::Unavailable { reason: reason.into() })
    }
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) work: Work,
    /// Whether the slot is being moved to the server, so that the call needs `ASKING`.
    pub(crate) asking: bool,
    pub(crate) reply: oneshot::Sender<Result<Reply, Failure>>,
}
