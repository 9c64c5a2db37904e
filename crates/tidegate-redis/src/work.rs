//! What a server is asked for one step, and what it says.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;
use tidegate::store::{Answer, OwnedStep, StoreError};
use tidegate_core::{Quota, Tick};
use tokio::sync::oneshot;

use crate::ask::Ask;
use crate::cell::Form;

/// Names a cell: the shard whose hash holds it, and the field.
///
/// A field is the first 96 bits of the key's SHA-256: keys may hold what nobody else is to read, and whoever wants to share a cell with
/// another key has to find one among 2^96.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CellName {
    pub(crate) shard: u32,
    pub(crate) field: [u8; 12],
}

impl CellName {
    /// Names the cell of a key: in the shard that `tag` names, or in one of its own.
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

/// What lies under a cell's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Bytes(Vec<u8>),
    /// The key of the shard holds something else than a hash.
    NoHash,
}

/// What is done with a step in the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Spends or draws, as the ask for each charge says.
    Take,
    /// Decides like `Take`, and changes nothing.
    Peek,
    /// Reads the cells; the library decides.
    Read,
}

/// One step, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) step: Arc<OwnedStep>,
    /// The tick that decides, unless it is the engine's.
    pub(crate) tick: Option<Tick>,
    pub(crate) plan: Plan,
    /// A cell for each charge.
    pub(crate) cells: SmallVec<[CellName; 4]>,
    /// An ask for each charge, where the script decides.
    pub(crate) asks: SmallVec<[Ask; 4]>,
    /// The quota of each charge and its form, where the script decides.
    pub(crate) forms: SmallVec<[(Arc<Form>, Arc<Quota>); 4]>,
}

/// A cell to be written if it still is what was found.
#[derive(Clone, Debug)]
pub(crate) struct CellWrite {
    pub(crate) name: CellName,
    pub(crate) found: Found,
    /// `None` deletes.
    pub(crate) value: Option<Vec<u8>>,
}

/// What a server is asked.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// To decide steps, in order, all by the same kind of clock, and over cells that one script may touch.
    Decide(Vec<Prepared>),
    /// To write cells, all or none.
    Write(Vec<CellWrite>),
    /// To take note of something.
    Note(Note),
}

/// What is noted about a namespace, so that its first use is told from a loss.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Note {
    /// Asks whether the namespace is in use, and with how many shards.
    IsUsed,
    /// Says that it is, and with how many, where that is not known already.
    Used,
    /// Asks for a shard's epoch.
    Epoch { shard: u32 },
    /// Says that a shard's cells are all there are, and none is lost; where that is not known already.
    Begin { shard: u32 },
}

impl Work {
    /// Returns a shard of the cells.
    pub(crate) fn shard(&self) -> u32 {
        let name = match self {
            Self::Decide(steps) => steps.first().and_then(|step| step.cells.first()),
            Self::Write(writes) => writes.first().map(|write| &write.name),
            Self::Note(Note::Begin { shard } | Note::Epoch { shard }) => return *shard,
            Self::Note(Note::IsUsed | Note::Used) => None,
        };
        name.map_or(0, |name| name.shard)
    }

    /// How many cells it names, repeated ones counted twice.
    pub(crate) fn cells(&self) -> usize {
        match self {
            Self::Decide(steps) => steps.iter().map(|step| step.cells.len()).sum(),
            Self::Write(writes) => writes.len(),
            Self::Note(_) => 0,
        }
    }
}

/// What a server says to one step.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "boxed, each decision would cost an allocation more")]
pub(crate) enum Told {
    /// The script has decided it.
    Decided(Answer),
    /// The library has to.
    Read(Cells),
}

/// The cells of one step as they were read.
#[derive(Clone, Debug)]
pub(crate) struct Cells {
    /// The time of the script, or the step's own.
    pub(crate) now: Tick,
    /// What was found, and when cells of its shard were lost; the epoch for never.
    pub(crate) found: SmallVec<[(Found, Tick); 4]>,
}

/// What a server says.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// To steps, in order.
    Steps(Vec<Told>),
    /// Whether cells were written.
    Wrote(bool),
    /// What is noted, or was before.
    Noted(Option<Vec<u8>>),
}

/// Why there is no reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Not executed, and worth another try: the server is loading, the slot has moved, a replica was asked.
    NotDone { code: String, reason: String },
    /// Not executed and not to be, or nobody knows.
    Failed(StoreError),
}

impl Failure {
    pub(crate) fn unavailable(reason: impl Into<String>) -> Self {
        Self::Failed(StoreError::Unavailable { reason: reason.into() })
    }
}

/// Something to be sent to a server, and who waits for the reply.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) work: Work,
    /// Whether the server is asked for a slot that is on its way to it.
    pub(crate) asking: bool,
    pub(crate) reply: oneshot::Sender<Result<Reply, Failure>>,
}
