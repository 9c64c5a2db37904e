//! The progress of a step that cannot be answered on the spot.

use smallvec::SmallVec;
use tidegate_core::Tick;

use super::held::Held;
use super::shared::TermsOfLines;
use super::table::Drawing;
use crate::store::{OwnedStep, Settlement, StoreError};

/// A step for the engine, and what to do with its answer.
pub(super) struct Asking {
    pub(super) asked: OwnedStep,
    pub(super) terms: TermsOfLines,
    pub(super) then: Then,
}

pub(super) enum Then {
    /// The engine's answer goes to the caller.
    Tell,
    /// The engine's answer is merged with the lines of the caller's step that were decided here.
    Merge(Box<(OwnedStep, Ours)>),
}

/// The result of a step as far as it goes without waiting.
pub(super) enum Begun {
    Done(Result<(), StoreError>),
    /// A take that has to wait for draws or for the engine.
    Tried(Box<(OwnedStep, Tried)>),
    Asks(Box<Asking>),
}

/// What a take waits for.
pub(super) enum Tried {
    /// Draws have to be awaited first, each until the given tick at most.
    Waits(SmallVec<[(Drawing, Tick); 2]>),
    /// The engine decides some charges, or all.
    Engine(Box<Ours>),
}

/// The lines that are decided here, `None` for those that the engine decides, and the units that were taken for them.
pub(super) struct Ours {
    pub(super) lines: SmallVec<[Option<Settlement>; 4]>,
    pub(super) held: Held,
}
