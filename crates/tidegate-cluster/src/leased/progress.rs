//! The progress of a step that cannot be answered on the spot.

use smallvec::SmallVec;
use tidegate_core::Tick;

use super::holds::HeldUnits;
use super::shared::TermsOfLines;
use super::table::Drawing;
use tidegate_limits::store::{OwnedStep, Settlement, StoreError};

/// A step for the engine, and what to do with its answer.
pub(super) struct Asking {
    pub(super) asked: OwnedStep,
    pub(super) terms: TermsOfLines,
    pub(super) on_answer: OnAnswer,
}

pub(super) enum OnAnswer {
    /// The engine's answer goes to the caller.
    Tell,
    /// The engine's answer is merged with the lines of the caller's step that were decided here.
    Merge(Box<(OwnedStep, LocalLines)>),
}

/// The result of a step as far as it goes without waiting.
pub(super) enum FirstPass {
    Done(Result<(), StoreError>),
    /// A take that has to wait for draws or for the engine.
    Pending(Box<(OwnedStep, Pending)>),
    AsksEngine(Box<Asking>),
}

/// What a take waits for.
pub(super) enum Pending {
    /// Draws have to be awaited first, each until the given tick at most.
    Waits(SmallVec<[(Drawing, Tick); 2]>),
    /// The engine decides some charges, or all.
    Engine(Box<LocalLines>),
}

/// The lines that are decided here, `None` for those that the engine decides, and the units that were taken for them.
pub(super) struct LocalLines {
    pub(super) lines: SmallVec<[Option<Settlement>; 4]>,
    pub(super) held: HeldUnits,
}
