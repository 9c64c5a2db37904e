//! How far a step has come that cannot be answered on the spot.

use smallvec::SmallVec;
use tidegate_core::Tick;

use super::held::Held;
use super::shared::TermsOfLines;
use super::table::Drawing;
use crate::store::{OwnedStep, Settlement, StoreError};

/// What the engine is asked, and what is done with its answer.
pub(super) struct Asking {
    pub(super) asked: OwnedStep,
    pub(super) terms: TermsOfLines,
    pub(super) then: Then,
}

pub(super) enum Then {
    /// The answer is that to the caller.
    Tell,
    /// The answer is put together with what was decided here of the caller's step.
    Merge(Box<(OwnedStep, Ours)>),
}

/// How far a step has come without waiting.
pub(super) enum Begun {
    Done(Result<(), StoreError>),
    /// Draws, or the engine, have to be awaited for a step that takes.
    Tried(Box<(OwnedStep, Tried)>),
    Asks(Box<Asking>),
}

/// What a step waits for.
pub(super) enum Tried {
    /// Draws have to be awaited first, each until a tick at most.
    Waits(SmallVec<[(Drawing, Tick); 2]>),
    /// Some charges, or all, are the engine's.
    Engine(Box<Ours>),
}

/// The lines that are decided here, `None` for those that are the engine's, and what was taken for them.
pub(super) struct Ours {
    pub(super) lines: SmallVec<[Option<Settlement>; 4]>,
    pub(super) held: Held,
}
